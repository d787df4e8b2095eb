"""The process groups of a job: as recorded by each rank, and combined over all ranks."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import nearest_span
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Key = tuple[object, ...]
    from collections.abc import Mapping

    from stepscope.core.trace import Trace

_RECORD = "record_param_comms"
#: Scalar inputs of records of PyTorch before 2.2: number of the collective, group, rank in it, …, ranks in it.
_SCALARS = r'^\["[^"]*","(?<seq>\d+)","(?<comm>\d+)","(?<place>\d+)".*"(?<size>\d+)"\]$'
_NUMBER = regex(r"\d+")
_SHOWN = 8
_MOST_NAMED = 1_000  # a job may claim any size


class Comm(msgspec.Struct, frozen=True):
    """A process group as one rank recorded it; None for what is unknown.

    `members` are its ranks, if all are known; `size` is their number; `place` is this rank's index among them.
    `ordinal` counts groups without a name.
    """

    name: str | None = None
    description: str | None = None
    size: int | None = None
    members: tuple[int, ...] | None = None
    place: int | None = None
    ordinal: int = 0


def comms_of(calls: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, tuple[Comm, ...]]:
    """The collectives with `comm`, the index of the group of each, and the groups.

    `calls` has call_id and the columns of `collectives` that describe its group. If the trace has no such records, old
    PyTorch's operators give number and group.
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
    distinct = rows.group_by(keys, maintain_order=True).agg(pl.col("old_place").first())
    distinct = distinct.with_row_index("comm").with_columns(pl.col("comm").cast(pl.Int32))
    rows = rows.join(distinct.select("comm", *keys), on=keys, how="left", nulls_equal=True, maintain_order="left")
    declared = _declared(trace)
    ordinals: dict[int | None, int] = {}
    comms = []
    for row in distinct.iter_rows(named=True):
        comm = _comm(row, declared)
        if comm.name is None:
            ordinal = ordinals.setdefault(comm.size, -1) + 1
            ordinals[comm.size] = ordinal
            comm = Comm(None, comm.description, comm.size, comm.members, comm.place, ordinal)
        comms.append(comm)
    return rows, tuple(comms)


def _comm(row: Mapping[str, Any], declared: Mapping[str, Comm]) -> Comm:
    header = declared.get(row["group"] or "")
    if row["group"] is None and row["old_comm"] is None and len(declared) == 1:
        header = next(iter(declared.values()))
    members = _members(row["group_ranks"]) or (header.members if header else None)
    size = row["group_size"] or (len(members) if members else header.size if header else None)
    if members is not None and size is not None and len(members) != size:
        members = None
    name = row["group"] or (header.name if header else None)
    description = _meaningful(row["group_description"]) or (header.description if header else None)
    return Comm(name, description, size, members, row["old_place"])


def _meaningful(text: object) -> str | None:
    return text if isinstance(text, str) and text not in ("", "undefined") else None


def _declared(trace: Trace) -> dict[str, Comm]:
    """The groups that the trace's header lists, by name."""
    try:
        info = json.loads(trace.meta.facts.get("distributedInfo", "{}"))
    except (ValueError, RecursionError):
        return {}
    listed = info.get("pg_config") if isinstance(info, dict) else None
    comms = {}
    for group in listed if isinstance(listed, list) else []:
        if isinstance(group, dict) and isinstance(group.get("pg_name"), str):
            ranks, size, text = group.get("ranks"), group.get("pg_size"), group.get("pg_desc")
            members = tuple(sorted(r for r in ranks if isinstance(r, int))) if isinstance(ranks, list) else None
            size = size if isinstance(size, int) else None
            complete = members if members and len(members) == (size or len(members)) else None
            comms[group["pg_name"]] = Comm(group["pg_name"], _meaningful(text), size, complete)
    return comms


def _members(text: str | None) -> tuple[int, ...] | None:
    """Ranks as recorded, [0, 1, 2]; None for an abbreviated list, as PyTorch writes for more than 30."""
    if text is None or "..." in text:
        return None
    return tuple(sorted(int(n) for n in _NUMBER.findall(text))) or None


def _old_records(calls: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Number, group (an address), place and size from the inputs of the operators that record collectives."""
    empty = {"old_seq": pl.Int64(), "old_comm": pl.String(), "old_place": pl.Int64(), "old_size": pl.Int64()}
    spans, ops = trace.spans, trace.ops
    if ops.is_empty() or trace.collectives.height:
        return pl.DataFrame({name: pl.Series([None] * calls.height, dtype=kind) for name, kind in empty.items()})
    is_record = (spans["name"] == _RECORD).fill_null(value=False).to_numpy()
    around = nearest_span(spans, calls["call_id"], is_record)
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


class Group(msgspec.Struct, frozen=True):
    """A process group: `present` are its ranks with traces, `members` all of its ranks, if known.

    `size` counts all members, also those without a trace; if it is unknown, those present.
    """

    name: str
    description: str | None
    size: int
    members: tuple[int, ...] | None
    present: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks, as far as known."""
        return self.members if self.members is not None else self.present


def groups_of(
    comms: Sequence[Sequence[Comm]], ranks: Sequence[int]
) -> tuple[tuple[Group, ...], list[NDArray[np.int64]]]:
    """The groups of all ranks, and per rank the group's index for each of its `comms`. `ranks` are their numbers.

    Two ranks mean the same group if name and members agree, as far as recorded. A nameless group of all ranks is known
    by its size. A smaller one follows from each rank's place in it, if a regular layout (contiguous blocks or a stride)
    explains all places; otherwise its ranks are not matched.
    """
    strides = _strides(comms, ranks)
    keys: dict[Key, list[tuple[int, Comm]]] = {}
    for rank, own in zip(ranks, comms, strict=True):
        for comm in own:
            keys.setdefault(_key(comm, rank, len(comms), strides), []).append((rank, comm))
    number = {key: i for i, key in enumerate(keys)}
    groups = tuple(_group(of_key) for of_key in keys.values())
    at = [
        np.array([number[_key(comm, rank, len(comms), strides)] for comm in own], np.int64)
        for rank, own in zip(ranks, comms, strict=True)
    ]
    return groups, at


def stride_of(ranks: Sequence[int]) -> int | None:
    """The difference between neighbours if it is constant: 1 for contiguous ranks; None if not, or for one rank.

    >>> stride_of((0, 8, 16, 24)), stride_of((4, 5, 6)), stride_of((0, 1, 4))
    (8, 1, None)
    """
    steps = set(np.diff(ranks).tolist())
    return steps.pop() if len(steps) == 1 else None


def listed(ranks: Iterable[int]) -> str:
    """Ranks as a short text.

    >>> listed(range(8)), listed((0, 8, 16, 24)), listed((1, 5, 6)), listed((3,))
    ('0–7', '0–24 by 8', '1, 5, 6', '3')
    """
    ordered = sorted(ranks)
    stride = stride_of(ordered)
    if stride is not None and len(ordered) > 2:
        return f"{ordered[0]}–{ordered[-1]}" + (f" by {stride}" if stride != 1 else "")
    shown = ", ".join(map(str, ordered[:_SHOWN]))
    return shown if len(ordered) <= _SHOWN else f"{shown} … ({len(ordered)} ranks)"


def _key(comm: Comm, rank: int, n_ranks: int, strides: dict[tuple[int, int], int | None]) -> Key:
    if comm.members is not None:
        return comm.name or "", comm.members
    if comm.name is not None:
        return comm.name, comm.size
    if comm.size is None or comm.size >= n_ranks:
        return "", "all", comm.ordinal
    stride = strides.get((comm.size, comm.ordinal))
    if stride is None:
        return "", "alone", rank, comm.ordinal
    return "", comm.size, comm.ordinal, rank // (stride * comm.size), rank % stride


def _strides(comms: Sequence[Sequence[Comm]], ranks: Sequence[int]) -> dict[tuple[int, int], int | None]:
    """For nameless groups of each size the stride that explains every rank's place; None if there is none."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, own in zip(ranks, comms, strict=True):
        for comm in own:
            if comm.name is None and comm.members is None and comm.size and comm.place is not None:
                places.setdefault((comm.size, comm.ordinal), []).append((rank, comm.place))
    top = max(ranks, default=0) + 1
    return {
        (size, ordinal): next(
            (s for s in range(1, top // size + 1) if all((rank // s) % size == place for rank, place in taken)), None
        )
        for (size, ordinal), taken in places.items()
    }


def _group(of_ranks: Sequence[tuple[int, Comm]]) -> Group:
    comms = [comm for _, comm in of_ranks]
    present = tuple(sorted({rank for rank, _ in of_ranks}))
    members = next((comm.members for comm in comms if comm.members is not None), None)
    size = next((comm.size for comm in comms if comm.size is not None), None)
    name = next((comm.name for comm in comms if comm.name is not None), None)
    return Group(
        name=name if name is not None else listed(members or present),
        description=next((comm.description for comm in comms if comm.description is not None), None),
        size=max(size or 0, len(members or present)),
        members=members,
        present=present,
    )


def missing_of(ranks: Iterable[int], world_sizes: Iterable[int | None]) -> tuple[int | None, int, tuple[int, ...]]:
    """How many ranks the job has, if known, how many of them are not among `ranks`, and the first 1,000 of those.

    `world_sizes` are the sizes of the job that traces record; the most frequent counts. Without any, gaps in the
    numbers are missing ranks, if they are fewer than the ranks present.
    """
    there = set(ranks)
    sizes = Counter(size for size in world_sizes if size)
    world = sizes.most_common(1)[0][0] if sizes else None
    if not there or (world is not None and max(there) >= world):
        return None, 0, ()
    every = range(world) if world is not None else range(min(there), max(there) + 1)
    n_missing = len(every) - len(there.intersection(every))
    if world is None and n_missing >= len(there):
        return None, 0, ()
    return world, n_missing, tuple(islice((rank for rank in every if rank not in there), _MOST_NAMED))
