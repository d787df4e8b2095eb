"""Which process groups a rank's exchanges belong to, as far as its trace tells."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analyses.common.device_work import of_spans
from stepscope.analyses.communication.collective_calls import nearest_span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.trace import Trace

_RECORD = "record_param_comms"
#: What records of PyTorch before 2.2 have as scalar inputs: number of the exchange, group, rank in it, …, ranks in it.
_SCALARS = r'^\["[^"]*","(?<seq>\d+)","(?<comm>\d+)","(?<place>\d+)".*"(?<size>\d+)"\]$'
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Comm:
    """A process group as one rank knows it; null where the trace does not tell.

    `members` are the ranks in it, if all are known; `size` how many; `place` this rank's own among them. `ordinal`
    counts groups of which not even a name is known.
    """

    name: str | None = None
    description: str | None = None
    size: int | None = None
    members: tuple[int, ...] | None = None
    place: int | None = None
    ordinal: int = 0


def comms_of(calls: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, tuple[Comm, ...]]:
    """The exchanges with `comm`, the index of the group of each, and the groups.

    `calls` has call_id and the columns of `collectives` that describe its group. Where the trace has no records of
    exchanges, old PyTorch's operators give their number and group.
    """
    old = _old_records(calls, trace)
    rows = pl.concat((calls, old), how="horizontal")
    rows = rows.with_columns(
        seq=pl.coalesce("seq", "old_seq"),
        group_size=pl.coalesce(pl.col("group_size").cast(pl.Int64), "old_size"),
        group=pl.col("group").cast(pl.String),
        group_ranks=pl.col("group_ranks").cast(pl.String),
        group_description=pl.col("group_description").cast(pl.String),
    )
    keys = ["group", "group_ranks", "group_size", "group_description", "old_comm"]
    found = rows.group_by(keys, maintain_order=True).agg(pl.col("old_place").first())
    found = found.with_row_index("comm").with_columns(pl.col("comm").cast(pl.Int32))
    rows = rows.join(found.select("comm", *keys), on=keys, how="left", nulls_equal=True, maintain_order="left")
    declared = _declared(trace)
    ordinals: dict[int | None, int] = {}
    comms = []
    for row in found.iter_rows(named=True):
        comm = _comm(row, declared)
        if comm.name is None:
            ordinal = ordinals.setdefault(comm.size, -1) + 1
            ordinals[comm.size] = ordinal
            comm = Comm(None, comm.description, comm.size, comm.members, comm.place, ordinal)
        comms.append(comm)
    return rows, tuple(comms)


def _comm(row: Mapping[str, Any], declared: Mapping[str, Comm]) -> Comm:
    told = declared.get(row["group"] or "")
    if row["group"] is None and row["old_comm"] is None and len(declared) == 1:
        told = next(iter(declared.values()))
    members = _members(row["group_ranks"]) or (told.members if told else None)
    size = row["group_size"] or (len(members) if members else told.size if told else None)
    if members is not None and size is not None and len(members) != size:
        members = None
    name = row["group"] or (told.name if told else None)
    description = _telling(row["group_description"]) or (told.description if told else None)
    return Comm(name, description, size, members, row["old_place"])


def _telling(text: object) -> str | None:
    return text if isinstance(text, str) and text not in ("", "undefined") else None


def _declared(trace: Trace) -> dict[str, Comm]:
    """The groups that the trace's header lists, by name."""
    try:
        info = json.loads(trace.meta.facts.get("distributedInfo", "{}"))
    except (ValueError, RecursionError):
        return {}
    listed = info.get("pg_config") if isinstance(info, dict) else None
    found = {}
    for group in listed if isinstance(listed, list) else []:
        if isinstance(group, dict) and isinstance(group.get("pg_name"), str):
            ranks, size, text = group.get("ranks"), group.get("pg_size"), group.get("pg_desc")
            members = tuple(sorted(r for r in ranks if isinstance(r, int))) if isinstance(ranks, list) else None
            size = size if isinstance(size, int) else None
            complete = members if members and len(members) == (size or len(members)) else None
            found[group["pg_name"]] = Comm(group["pg_name"], _telling(text), size, complete)
    return found


def _members(text: str | None) -> tuple[int, ...] | None:
    """Ranks as recorded, [0, 1, 2]; not those of a list that is cut short, as PyTorch does after 30."""
    if text is None or "..." in text:
        return None
    return tuple(sorted(int(n) for n in _NUMBER.findall(text))) or None


def _old_records(calls: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Number, group (an address), place and size from the inputs of the operators that record exchanges."""
    empty = {"old_seq": pl.Int64(), "old_comm": pl.String(), "old_place": pl.Int64(), "old_size": pl.Int64()}
    spans, ops = trace.spans, trace.ops
    if ops.is_empty() or trace.collectives.height:
        return pl.DataFrame({name: pl.Series([None] * calls.height, dtype=kind) for name, kind in empty.items()})
    around = nearest_span(spans, calls["call_id"], lambda ids: of_spans(spans, ids, "name") == _RECORD)
    scalars = around.to_frame("span_id").join(
        ops.select("span_id", "concrete_inputs"), on="span_id", how="left", maintain_order="left"
    )
    parts = scalars["concrete_inputs"].cast(pl.String).str.extract_groups(_SCALARS).struct.unnest()
    return parts.select(
        old_seq=pl.col("seq").cast(pl.Int64, strict=False),
        old_comm="comm",
        old_place=pl.col("place").cast(pl.Int64, strict=False),
        old_size=pl.col("size").cast(pl.Int64, strict=False),
    )
