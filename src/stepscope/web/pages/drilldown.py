"""Leads from a number to its events: addresses for the rows of a table and for the parts of a bar."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stepscope.core.step_parts import command_of
from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.web.pages.links import Links


_LONGEST_WHERE, _LONGEST_NAME = 480, 200


class _Rows(msgspec.Struct, frozen=True):
    """The rows of another table that a row sums up: those that agree in `same`; how they are asked for."""

    table: str
    same: tuple[str, ...]
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)


#: By table. A row with a span, a stretch of time or a name of its own leads there instead.
_SUMMED: Mapping[str, _Rows] = {
    "idle": _Rows("idle", ("cause", "device"), {"o__by": "gap", "sort": "-dur_ns"}),
    "kernel-classes": _Rows("kernels", ("kernel_class",)),
    "transfers": _Rows("trace.transfers", ("kind",)),
    "overlap": _Rows("overlap", (), {"o__by": "name"}),
    "message-sizes": _Rows("collectives", ("parallelism", "kind", "group_size")),
    "hang-matrix": _Rows("collective_records", ("rank", "group"), {"sort": "-record_id"}),
    "parallel-groups": _Rows("collectives", ("group",)),
}
#: Parts of a comparison that are a remainder: no event has their name.
_NO_RANGES = ("operators outside ranges", "other threads", "backward", "other", "not accounted for")
_WHOLES = {"Step": "show steps --sort -window_ns", "Device": "show device-utilisation"}


def address_of_row(links: Links, table: str) -> Callable[[Mapping[str, Any], Sequence[str]], str | None]:
    """Makes the address of the events of a row of that table, from the row and its columns; None if it has none."""
    return links.events if table in _recorded() else partial(_address_of_row, links, table)


@cache
def _recorded() -> frozenset[str]:
    """Names of tables as readers made them: their rows are events, or sum up nothing."""
    return frozenset(name for name, kind in tables.names() if kind == "table")


def _address_of_row(links: Links, table: str, row: Mapping[str, Any], columns: Sequence[str]) -> str | None:
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
    """The rows of another table that this one sums up; of a prediction the page that draws it."""
    if table == "predictions":
        return links.what_if(str(row["scenario"]).replace(" + ", "\n"), **own)
    if table == "modules" and row.get("path"):
        if row.get("device_total_ns"):
            return links.table("kernels", **own, o__by="module", where=_inside(str(row["path"])))
        # A module's range has the last part of its path as its name.
        return links.to("/timeline", **own, q="nn.Module: " + str(row["path"]).rsplit("/", 1)[-1], exact=1)
    if table == "communication" and row.get("collective"):
        return links.table("spans", **own, where=_named_like(row), sort="-dur_ns")
    summed = _SUMMED.get(table)
    same = [] if summed is None else [name for name in summed.same if name in row]  # a sum over ranks has no device
    if summed is None or bool(same) != bool(summed.same) or row.get("calls") == 0:
        return None
    return links.table(summed.table, **own, **summed.parameters, where=_condition(row, same))


def _inside(path: str) -> str:
    """The condition for what this module or one inside it launched, as long as it fits into an address."""
    name = path[-_LONGEST_NAME:].replace("'", "''")
    return f"starts_with(module || '/', '{name}/')" if len(path) <= _LONGEST_NAME else f"contains(module, '{name}')"


def _named_like(row: Mapping[str, Any]) -> str:
    """The condition for spans of this collective, as in gloo:all_reduce, ncclKernel_AllReduce or c10d::allreduce_."""
    pattern = re.sub(r"^(all|reduce|broad|send|to)_?", r"\1%", str(row["collective"]).lower().replace("'", "_"))
    operator = "=" if row.get("measured") == "device" else "<>"
    return f"lower(name) LIKE '%{pattern[:_LONGEST_NAME]}%' AND category {operator} 'kernel'"


def _condition(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The SQL condition that the columns are as in this row, or as much of it as fits into an address."""
    text = ""
    for name in columns:
        value = row[name]
        quoted = f"""= '{str(value).replace("'", "''")}'""" if isinstance(value, str) else f"= {value}"
        part = f'"{name}" ' + ("IS NULL" if value is None else quoted)
        longer = f"{text} AND {part}" if text else part
        if len(longer) <= _LONGEST_WHERE:
            text = longer
    return text


def address_of_difference(links: Links, rows: pl.DataFrame) -> Callable[[Mapping[str, Any], Sequence[str]], str | None]:
    """Makes the address of what both inputs recorded of the part or metric in a row of their comparison."""
    parts = set(rows["part"].cast(pl.String).to_list()) if "part" in rows.columns else set()

    def address_of(row: Mapping[str, Any], columns: Sequence[str]) -> str | None:
        address = links.events(row, columns)
        if address is None and row.get("metric") is not None:
            return links.table("counters", where=_condition(row, ("metric",)))
        part = None if row.get("part") is None else str(row["part"])
        if address is None and part is not None and part not in _NO_RANGES:
            # A part without a command is a range that the program has named.
            return links.command(command_of(part, parts)) or links.events({"name": part}, ["name"])
        return address

    return address_of


def address_of_part(links: Links, bar: Any, name: str) -> str | None:
    """The address of the events of a part of a bar (`core.report.Bar`)."""
    return links.command(command_of(name, {part.name for part in bar.parts}))


def address_of_whole(links: Links, bar: Any) -> str | None:
    """The address of the subject of a whole bar: the steps, or the use of the device."""
    return links.command(_WHOLES.get(bar.label, ""))
