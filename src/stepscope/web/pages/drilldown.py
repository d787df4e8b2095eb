"""From a number to the events that it sums up: the link of each row of a table and of each part of a bar."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from stepscope.web.pages.links import Links


_LONGEST_WHERE, _LONGEST_NAME = 480, 200


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of another table that a row sums up: those that agree in `same`; how they are asked for."""

    table: str
    same: tuple[str, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)


#: By table. Where a row itself tells a span, a stretch of time or a name, that is where it leads.
_SUMMED: Mapping[str, _Rows] = {
    "idle": _Rows("idle", ("cause", "device"), {"o__by": "gap", "sort": "-dur_ns"}),
    "kernel-classes": _Rows("kernels", ("kernel_class",)),
    "transfers": _Rows("trace.transfers", ("kind",)),
    "overlap": _Rows("overlap", (), {"o__by": "name"}),
    "message-sizes": _Rows("collectives", ("parallelism", "kind", "group_size")),
    "parallel-groups": _Rows("collectives", ("group",)),
}
#: Of a bar: what shows the events of a part, as words after `stepscope`.
_DEVICE_PARTS = {
    "computation": "show kernels",
    "exposed communication": "show overlap --by name",
    "exposed memcpy": "show spans --where \"category IN ('memcpy', 'memset')\" --sort -dur_ns",
    "idle": "show idle --by gap --sort -dur_ns",
}
_HOST_PARTS = {
    "operators": "show operators",
    "exposed communication": "show communication",
    "data loading": "show spans --where \"category = 'dataloader'\" --sort -dur_ns",
    "Python and other": "show steps --sort -other_host_ns",
}
#: What a comparison tells of the host besides, where there is a device too.
_COMPARED_PARTS = {
    "operators": _HOST_PARTS["operators"],
    "data loading": _HOST_PARTS["data loading"],
    "python and other": _HOST_PARTS["Python and other"],
    "launch and runtime calls": "show spans --where \"category IN ('runtime', 'driver')\" --sort -dur_ns",
    "synchronisation": "show spans --where \"lower(name) LIKE '%synchronize%'\" --sort -dur_ns",
}
#: Parts of a comparison that are what is left: no event is called so.
_NO_RANGES = ("operators outside ranges", "other threads", "backward", "other", "not accounted for")
_WHOLES = {"Step": "show steps --sort -window_ns", "Device": "show device-utilisation"}


def row_link(links: Links, table: str) -> Callable[[Mapping[str, Any], Sequence[str]], str | None]:
    """Makes the address of the events of a row of that table, from the row and its columns; None if it has none."""
    return links.events if table in _recorded() else partial(_row_link, links, table)


@cache
def _recorded() -> frozenset[str]:
    """Names of tables as readers made them: their rows are events, or sum up nothing."""
    return frozenset(name for name, kind in tables.names() if kind == "table")


def _row_link(links: Links, table: str, row: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    address = links.events(row, columns)
    if address is not None:
        return address
    if row.get("command"):
        return links.command(str(row["command"]).removeprefix("stepscope "))
    index = links.input_of(row)
    own: dict[str, object] = {} if index is None else {"t": index}
    address = _summed_up(links, table, row, own)
    if address is None and row.get("step") is not None:
        address = links.to("/timeline", **own, step=row["step"])
    return links.to("/timeline", **own) if address is None and index is not None else address


def _summed_up(links: Links, table: str, row: Mapping[str, Any], own: Mapping[str, object]) -> str | None:
    """The rows of another table that this one sums up."""
    if table == "modules" and row.get("path"):
        # Ranges of modules are called after the last part of their path.
        return links.to("/timeline", **own, q="nn.Module: " + str(row["path"]).rsplit("/", 1)[-1], exact=1)
    if table == "communication" and row.get("collective"):
        return links.table("spans", **own, where=_named_like(row), sort="-dur_ns")
    summed = _SUMMED.get(table)
    if summed is None or not set(summed.same) <= row.keys() or row.get("calls") == 0:
        return None
    return links.table(summed.table, **own, **summed.parameters, where=_condition(row, summed.same))


def _named_like(row: Mapping[str, Any]) -> str:
    """That a span is one of this exchange: allreduce is gloo:all_reduce, ncclKernel_AllReduce, c10d::allreduce_."""
    word = re.sub(r"^(all|reduce|broad|send|to)_?", r"\1%", str(row["collective"]).lower().replace("'", "_"))
    side = "=" if row.get("measured") == "device" else "<>"
    return f"lower(name) LIKE '%{word[:_LONGEST_NAME]}%' AND category {side} 'kernel'"


def _condition(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """That the columns are as in this row, in SQL; as much of it as fits into an address."""
    text = ""
    for name in columns:
        value = row[name]
        quoted = f"""= '{str(value).replace("'", "''")}'""" if isinstance(value, str) else f"= {value}"
        part = f'"{name}" ' + ("IS NULL" if value is None else quoted)
        longer = f"{text} AND {part}" if text else part
        if len(longer) <= _LONGEST_WHERE:
            text = longer
    return text


def difference_link(links: Links, rows: pl.DataFrame) -> Callable[[Mapping[str, Any], Sequence[str]], str | None]:
    """The same for rows of a comparison of two inputs, which stand for what both recorded of a part or a metric."""
    parts = set(rows["part"].cast(pl.String).to_list()) if "part" in rows.columns else set()

    def address_of(row: Mapping[str, Any], columns: Sequence[str]) -> str | None:
        address = links.events(row, columns)
        if address is None and row.get("metric") is not None:
            return links.table("counters", where=_condition(row, ("metric",)))
        part = None if row.get("part") is None else str(row["part"])
        if address is None and part is not None and part not in _NO_RANGES:
            # What is no part of every step is a range of the program's.
            return links.command(_of_part(parts, part)) or links.events({"name": part}, ["name"])
        return address

    return address_of


def _of_part(parts: Collection[str], name: str) -> str:
    """The command that shows the events of a part, of all that a step is divided into; empty if none does."""
    on_device = "computation" in parts or "idle" in parts
    return {**_COMPARED_PARTS, **(_DEVICE_PARTS if on_device else _HOST_PARTS)}.get(name, "")


def part_link(links: Links, bar: Any, name: str) -> str | None:
    """The address of the events of a part of a bar (`core.report.Bar`)."""
    return links.command(_of_part({part.name for part in bar.parts}, name))


def whole_link(links: Links, bar: Any) -> str | None:
    """The address of what a whole bar is about: the steps, or the use of the device."""
    return links.command(_WHOLES.get(bar.label, ""))
