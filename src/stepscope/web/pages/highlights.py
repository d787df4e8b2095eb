"""Cards on the first page for the most common questions: the answer, its reason, and its place in the timeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import shorten
from stepscope.core.units import duration, percent, size
from stepscope.web.pages.first_tables import LONGEST_GAP, WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.core.report import Report
    from stepscope.web.pages.first_tables import Frames
    from stepscope.web.pages.links import Links


#: Names of the parts of a step, those of the device before those of the host.
_PARTS = {
    "computation_ns": "computation", "exposed_communication_ns": "exposed communication",
    "exposed_memcpy_ns": "exposed copies", "idle_ns": "device idle", "dataloader_ns": "data loading",
    "operator_ns": "operators", "other_host_ns": "Python and other host time",
}  # fmt: skip
_DEVICE_PARTS = ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
_HOST_PARTS = ("exposed_communication_ns", "dataloader_ns", "operator_ns", "other_host_ns")
_CAUSES = {
    "garbage_collection": "Python collected garbage", "data_loading": "the host was loading data",
    "communication": "the host communicated with other ranks", "compilation": "the host compiled",
    "allocator": "memory was allocated or freed", "first_use": "a kernel was loaded, or the device set up: first use",
    "slow_launch": "a launch took long", "blocking_call": "a call held the host up",
    "sync": "the host had been waiting for the device", "operator": "the host was in operators",
    "runtime": "the host was in calls of the runtime", "host_idle": "the host waited too", "python": "Python ran",
    "unrecorded": "the host ran code that was not recorded", "kernel_wait": "usual gap between kernels",
    "other": "queued in time, started late", "unlinked": "the trace does not say what queued the next work",
}  # fmt: skip
_NAME = 70


class Card(msgspec.Struct, frozen=True):
    """A question, its short answer, the lines of the reason (text, address or None), and where to look."""

    title: str
    value: str
    details: tuple[tuple[str, str | None], ...]
    links: tuple[tuple[str, str], ...]


def cards(frames: Frames, links: Links, *, steps: pl.DataFrame | None = None, operator: bool = True) -> list[Card]:
    """The cards for which the recording has the data.

    `steps` is the table of that name if it is there already. Without `operator` the card of the operator with most time
    is left out: `operator_card` makes it from a report.
    """
    makers: list[Callable[[], Card | None]] = [
        lambda: _slowest_step(frames("steps") if steps is None else steps, frames.inputs, links),
        *(partial(make, frames, links) for make in (_top_kernel, _top_operator, _gap_or_wait, _peak_memory)
          if operator or make is not _top_operator),
    ]  # fmt: skip
    made = []
    for make in makers:
        try:
            card = make()
        except StepscopeError:  # not recorded, or not in a form that can answer this
            continue
        if card is not None:
            made.append(card)
    return made


def operator_card(report: Report, links: Links, *, with_stacks: bool) -> Card | None:
    """The card of the operator with most time, from the report's table of operators; None if it has none."""
    block = next((block for block in report.tables if block.table.name == "operators"), None)
    if block is None:
        return None
    column, where = _own_time(block.frame)
    row = block.frame.with_columns(pl.col("name").cast(pl.String)).sort(column, descending=True).row(0, named=True)
    return _card_of_operator(row["name"], row[column], row["share_ratio"], row["calls"], where, links, with_stacks)


def _whose(row: Mapping[str, Any], inputs: tuple[int, ...]) -> str:
    if len(inputs) == 1:
        return ""
    return f", rank {row['rank']}" if row.get("rank") is not None else f", {row['trace']}" if row.get("trace") else ""


def _slowest_step(steps: pl.DataFrame, inputs: tuple[int, ...], links: Links) -> Card | None:
    frame = steps.drop_nulls("window_ns")
    if frame.height < 2:
        return None
    keys = [c for c in ("trace", "rank") if c in frame.columns]
    parts = [c for c in _PARTS if c in frame.columns and frame[c].null_count() < frame.height]
    parts = [c for c in parts if c in (_DEVICE_PARTS if "idle_ns" in parts else _HOST_PARTS)]
    measures = ["window_ns", *parts]
    usual = [pl.col(c).median().over(keys) if keys else pl.col(c).median() for c in measures]
    more = frame.with_columns((pl.col(c) - u).alias(f"more_{c}") for c, u in zip(measures, usual, strict=True))
    row = more.sort("window_ns", descending=True).row(0, named=True)
    extra = row["more_window_ns"] or 0
    longest = links.table("steps", sort="-window_ns")
    far = f"{duration(extra)} more than" if extra > 0 else "as long as"
    details: list[tuple[str, str | None]] = [(f"{far} the median step", longest)]
    grown = sorted(((row[f"more_{c}"] or 0, _PARTS[c]) for c in parts), reverse=True)[:2]
    causes = [f"{word} +{duration(ns)}" for ns, word in grown if ns > 0.15 * extra]
    if causes and extra > 0:
        details.append(("of it: " + ", ".join(causes), longest))
    events = links.events(row, frame.columns)
    shown = (("timeline", events),) if events else ()
    value = f"step {row['step']}{_whose(row, inputs)}: {duration(row['window_ns'])}"
    return Card("Slowest step", value, tuple(details), (*shown, ("all steps", longest)))


def _top_kernel(frames: Frames, links: Links) -> Card | None:
    frame = frames("kernels", by="op")
    sums = pl.col("calls", "total_ns").sum()
    keys = [pl.col("name").cast(pl.String), pl.col("op").cast(pl.String)]
    per = frame.group_by(keys).agg(sums)
    names = per.group_by("name").agg(sums).sort("total_ns", "name", descending=[True, False])
    if names.is_empty() or not names["total_ns"].sum():
        return None
    top = names.row(0, named=True)
    launcher = per.filter(pl.col("name") == top["name"]).sort("total_ns", descending=True).row(0, named=True)
    share = top["total_ns"] / names["total_ns"].sum()
    events = links.events({"name": top["name"]}, ["name"])
    details = [(f"{duration(top['total_ns'])}, {percent(share)} of kernel time, {top['calls']:,} calls", events)]
    if launcher["op"]:
        part = f" ({percent(launcher['total_ns'] / top['total_ns'])})" if launcher["total_ns"] < top["total_ns"] else ""
        target = links.events({"name": launcher["op"]}, ["name"])
        details.append((f"launched by {shorten(launcher['op'], _NAME)}{part}", target))
    shown = (("timeline", events),) if events else ()
    return Card("Kernel with most time", shorten(top["name"], _NAME), tuple(details),
                (*shown, ("by operator", links.table("kernels", o__by="op"))))  # fmt: skip


def _top_operator(frames: Frames, links: Links) -> Card | None:
    frame = frames("operators")
    column, where = _own_time(frame)
    sums = frame.group_by(pl.col("name").cast(pl.String)).agg(pl.col("calls", column).sum())
    top = sums.sort(column, "name", descending=[True, False]).row(0, named=True)
    whole = sums[column].sum()
    stacks = frames.with_stacks()
    if not whole:
        return None
    return _card_of_operator(top["name"], top[column], top[column] / whole, top["calls"], where, links, stacks)


def _own_time(operators: pl.DataFrame) -> tuple[str, str]:
    """The column that ranks operators, and what it is: time on the device if there is any."""
    if "device_self_ns" in operators.columns and (operators["device_self_ns"].sum() or 0) > 0:
        return "device_self_ns", "device time"
    return "host_self_ns", "operators' own host time"


def _card_of_operator(
    name: str,
    ns: int,
    share: float | None,
    calls: int,
    where: str,
    links: Links,
    stacks: bool,  # noqa: FBT001  a fact
) -> Card:
    events = links.events({"name": name}, ["name"])
    details = ((f"{duration(ns)}, {percent(share)} of {where}, {calls:,} calls", events),)
    shown = (("timeline", events),) if events else ()
    more = ("by call stack", "stack") if stacks else ("by shapes of inputs", "shape")
    return Card("Operator with most time", shorten(name, _NAME), details,
                (*shown, (more[0], links.table("operators", o__by=more[1]))))  # fmt: skip


def _gap_or_wait(frames: Frames, links: Links) -> Card | None:
    try:
        return _longest_gap(frames, links)
    except MissingTable:
        return _longest_wait(frames, links)


def _longest_gap(frames: Frames, links: Links) -> Card | None:
    frame = frames("idle", **dict(LONGEST_GAP)).sort("dur_ns", descending=True)
    if frame.is_empty():
        return None
    row = frame.with_columns(pl.col("before", "after", "op", "launch", "cause", "call").cast(pl.String)).row(
        0, named=True
    )
    details: list[tuple[str, str | None]] = [(_CAUSES.get(row["cause"], row["cause"]), links.table("idle"))]
    if row["call"]:
        filled = f"{duration(row['call_ns'])} of it in {shorten(row['call'], _NAME)}"
        details.append((filled, links.events({"name": row["call"]}, ["name"])))
    for relation, name in (("it ends with", row["op"] or row["after"]), ("after", row["before"])):
        if name:
            details.append((f"{relation} {shorten(name, _NAME)}", links.events({"name": name}, ["name"])))
    events = links.events(row, frame.columns)
    shown = (("timeline", events),) if events else ()
    value = f"{duration(row['dur_ns'])} on {row['device'] or 'the device'}{_whose(row, frames.inputs)}"
    return Card("Longest gap between device work", value, tuple(details),
                (*shown, ("all gaps", links.table("idle", o__by="gap", sort="-dur_ns"))))  # fmt: skip


def _longest_wait(frames: Frames, links: Links) -> Card | None:
    """For recordings without a device: the longest wait of the host."""
    frame = frames("spans", where=WAITS).with_columns(pl.col("name", "category").cast(pl.String))
    if frame.is_empty():
        return None
    row = frame.sort("dur_ns", descending=True, nulls_last=True).row(0, named=True)
    why = "waiting for the next batch" if row["category"] == "dataloader" else "in a collective with other ranks"
    alike = links.events({"name": row["name"]}, ["name"])
    same = frame.filter(pl.col("name") == row["name"])
    times = f"{len(same):,} times, {duration(int(same['dur_ns'].sum()))} together"
    events = links.events(row, frame.columns)
    shown = (("timeline", events),) if events else ()
    step = "" if row["step"] is None else f" in step {row['step']}"
    details = ((f"{why}: {shorten(row['name'], _NAME)}", alike), (times, alike))
    return Card("Longest wait of the host", f"{duration(row['dur_ns'])}{step}{_whose(row, frames.inputs)}", details,
                (*shown, ("all waits", links.table("spans", where=WAITS, sort="-dur_ns"))))  # fmt: skip


def _peak_memory(frames: Frames, links: Links) -> Card | None:
    frame = frames("memory").drop_nulls("peak_allocated_bytes")
    accelerators = frame.filter(pl.col("device") != "cpu")
    row = (
        (frame if accelerators.is_empty() else accelerators)
        .sort("peak_allocated_bytes", descending=True)
        .row(0, named=True)
    )
    index = links.input_of(row)
    details: list[tuple[str, str | None]] = []
    if row.get("capacity_bytes"):
        share = percent(row["peak_allocated_bytes"] / row["capacity_bytes"])
        details.append((f"of {size(row['capacity_bytes'])} ({share})", links.table("memory")))
    own = frames.inputs if index is None else (index,)
    holders = frames("memory", inputs=own, by="operator").filter(pl.col("device") == row["device"])
    top = holders.sort("at_peak_bytes", descending=True, nulls_last=True).head(2)
    who = links.table("memory", o__by="operator")
    held = [
        (f"{shorten(str(name or 'outside operators'), _NAME)} holds {size(n)}", who)
        for name, n in top.select(pl.col("name").cast(pl.String), "at_peak_bytes").rows() if n
    ]  # fmt: skip
    details += held
    shown: tuple[tuple[str, str], ...] = ()
    if row.get("peak_ts_ns") is not None:
        events = links.events(row, [])
        shown = (("timeline", events),) if events else ()
    value = f"{size(row['peak_allocated_bytes'])} on {row['device']}{_whose(row, frames.inputs)}"
    return Card("Peak memory", value, tuple(details),
                (*shown, ("who holds it", who)))  # fmt: skip
