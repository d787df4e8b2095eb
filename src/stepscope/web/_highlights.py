"""The few things that people look for first, each in a card: where it is in the timeline, and why it is so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import StepscopeError
from stepscope.names import shorten
from stepscope.units import duration, percent, size
from stepscope.web._questions import Question, answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.web._links import Links
    from stepscope.web._session import Session

__all__ = ["Card", "cards"]

#: Parts of a step in words, those of the device before those of the host.
_PARTS = {
    "computation_ns": "computation", "exposed_communication_ns": "exposed communication",
    "exposed_memcpy_ns": "exposed copies", "idle_ns": "device idle", "dataloader_ns": "data loading",
    "operator_ns": "operators", "other_host_ns": "Python and other host time",
}  # fmt: skip
_HOST_PARTS = ("dataloader_ns", "operator_ns", "other_host_ns")
_CAUSES = {
    "host_late": "the host was late to launch the next work", "sync": "the host had been waiting for the device",
    "data_loading": "the host was loading data", "kernel_wait": "usual gap between kernels",
    "other": "queued in time, started late", "unlinked": "the trace does not tell what queued the next work",
}  # fmt: skip
_NAME = 70


@dataclass(frozen=True, slots=True)
class Card:
    """A question, its answer in a few words, the reason below, and where to look: (words, address)."""

    title: str
    value: str
    details: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


def cards(session: Session, inputs: tuple[int, ...], links: Links) -> list[Card]:
    """The cards for which the recording has the data."""
    made = []
    for make in (_slowest_step, _top_kernel, _top_operator, _longest_gap, _peak_memory):
        try:
            card = make(session, inputs, links)
        except StepscopeError:  # not recorded, or recorded in a form that this cannot be asked of
            continue
        if card is not None:
            made.append(card)
    return made


def _frame(session: Session, inputs: tuple[int, ...], name: str, **options: Any) -> pl.DataFrame:
    return answered(session, Question(name, inputs, tuple(options.items()))).frame


def _whose(row: Mapping[str, Any], inputs: tuple[int, ...]) -> str:
    if len(inputs) == 1:
        return ""
    return f", rank {row['rank']}" if row.get("rank") is not None else f", {row['trace']}" if row.get("trace") else ""


def _slowest_step(session: Session, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = _frame(session, inputs, "steps").drop_nulls("window_ns")
    if frame.height < 2:
        return None
    keys = [c for c in ("trace", "rank") if c in frame.columns]
    parts = [c for c in _PARTS if c in frame.columns and frame[c].null_count() < frame.height]
    parts = [c for c in parts if (c in _HOST_PARTS) == ("idle_ns" not in parts)]
    measures = ["window_ns", *parts]
    usual = [pl.col(c).median().over(keys) if keys else pl.col(c).median() for c in measures]
    more = frame.with_columns((pl.col(c) - u).alias(f"more_{c}") for c, u in zip(measures, usual, strict=True))
    row = more.sort("window_ns", descending=True).row(0, named=True)
    extra = row["more_window_ns"] or 0
    details = [f"{duration(extra)} more than the median step"]
    grown = sorted(((row[f"more_{c}"] or 0, _PARTS[c]) for c in parts), reverse=True)[:2]
    told = [f"{word} +{duration(ns)}" for ns, word in grown if ns > 0.15 * extra]
    if told and extra > 0:
        details.append("of it: " + ", ".join(told))
    events = links.events(row, frame.columns)
    shown = (("timeline", events),) if events else ()
    value = f"step {row['step']}{_whose(row, inputs)}: {duration(row['window_ns'])}"
    return Card("Slowest step", value, tuple(details), (*shown, ("all steps", links.table("steps"))))


def _top_kernel(session: Session, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = _frame(session, inputs, "kernels", by="op")
    sums = pl.col("calls", "total_ns").sum()
    keys = [pl.col("name").cast(pl.String), pl.col("op").cast(pl.String)]
    per = frame.group_by(keys).agg(sums)
    names = per.group_by("name").agg(sums).sort("total_ns", "name", descending=[True, False])
    if names.is_empty() or not names["total_ns"].sum():
        return None
    top = names.row(0, named=True)
    behind = per.filter(pl.col("name") == top["name"]).sort("total_ns", descending=True).row(0, named=True)
    share = top["total_ns"] / names["total_ns"].sum()
    details = [f"{duration(top['total_ns'])}, {percent(share)} of kernel time, {top['calls']:,} calls"]
    if behind["op"]:
        part = f" ({percent(behind['total_ns'] / top['total_ns'])})" if behind["total_ns"] < top["total_ns"] else ""
        details.append(f"launched by {shorten(behind['op'], _NAME)}{part}")
    found = links.events({"name": top["name"]}, ["name"])
    shown = (("timeline", found),) if found else ()
    return Card("Kernel with most time", shorten(top["name"], _NAME), tuple(details),
                (*shown, ("by operator", links.table("kernels", o__by="op"))))  # fmt: skip


def _top_operator(session: Session, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = _frame(session, inputs, "operators")
    if "device_self_ns" in frame.columns and (frame["device_self_ns"].sum() or 0) > 0:
        column, where = "device_self_ns", "device time"
    else:
        column, where = "host_self_ns", "operators' own host time"
    sums = frame.group_by(pl.col("name").cast(pl.String)).agg(pl.col("calls", column).sum())
    top = sums.sort(column, "name", descending=[True, False]).row(0, named=True)
    whole = sums[column].sum()
    if not whole:
        return None
    details = (f"{duration(top[column])}, {percent(top[column] / whole)} of {where}, {top['calls']:,} calls",)
    found = links.events({"name": top["name"]}, ["name"])
    shown = (("timeline", found),) if found else ()
    return Card("Operator with most time", shorten(top["name"], _NAME), details,
                (*shown, ("by call stack", links.table("operators", o__by="stack"))))  # fmt: skip


def _longest_gap(session: Session, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = _frame(session, inputs, "idle", by="gap").sort("dur_ns", descending=True)
    if frame.is_empty():
        return None
    row = frame.with_columns(pl.col("before", "after", "op", "launch", "cause").cast(pl.String)).row(0, named=True)
    details = [_CAUSES.get(row["cause"], row["cause"])]
    if row["after"]:
        details.append("it ends with " + shorten(row["op"] or row["after"], _NAME))
    if row["before"]:
        details.append("after " + shorten(row["before"], _NAME))
    events = links.events(row, frame.columns)
    shown = (("timeline", events),) if events else ()
    value = f"{duration(row['dur_ns'])} on {row['device'] or 'the device'}{_whose(row, inputs)}"
    return Card("Longest idle gap", value, tuple(details),
                (*shown, ("all gaps", links.table("idle", o__by="gap", sort="-dur_ns"))))  # fmt: skip


def _peak_memory(session: Session, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = _frame(session, inputs, "memory").drop_nulls("peak_allocated_bytes")
    accelerators = frame.filter(pl.col("device") != "cpu")
    row = (
        (frame if accelerators.is_empty() else accelerators)
        .sort("peak_allocated_bytes", descending=True)
        .row(0, named=True)
    )
    index = links.input_of(row)
    details = []
    if row.get("capacity_bytes"):
        details.append(
            f"of {size(row['capacity_bytes'])} ({percent(row['peak_allocated_bytes'] / row['capacity_bytes'])})"
        )
    own = inputs if index is None else (index,)
    holders = _frame(session, own, "memory", by="operator").filter(pl.col("device") == row["device"])
    top = holders.sort("at_peak_bytes", descending=True, nulls_last=True).head(2)
    held = [
        f"{shorten(str(name or 'outside operators'), _NAME)} holds {size(n)}"
        for name, n in top.select(pl.col("name").cast(pl.String), "at_peak_bytes").rows() if n
    ]  # fmt: skip
    details += held
    shown: tuple[tuple[str, str], ...] = ()
    if row.get("peak_ts_ns") is not None:
        events = links.events(row, [])
        shown = (("timeline", events),) if events else ()
    value = f"{size(row['peak_allocated_bytes'])} on {row['device']}{_whose(row, inputs)}"
    return Card("Peak memory", value, tuple(details),
                (*shown, ("who holds it", links.table("memory", o__by="operator"))))  # fmt: skip
