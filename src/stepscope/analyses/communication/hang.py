"""Why a job hangs, as tables: the ranks to blame, and who waits for whom."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.communication.hang_verdict import Outcome, verdict_on
from stepscope.analyses.communication.wait_graph import Instance, Key
from stepscope.core.schema import GROUP_STATUS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERDICTS = ("hung", "crashed", "healthy")
REASONS = (
    "never arrived", "arrived late", "other operation", "other size", "other dtype", "other order", "process gone",
    "dump missing", "link",
)  # fmt: skip
HANG = Table(
    "hang",
    "a rank that is to blame for a job that stands still, and why; one row without a rank if none is",
    (
        Column("verdict", pl.Enum(VERDICTS), "hung, crashed (the process is gone), healthy"),
        Column("rank", pl.Int32(), "rank to blame; null: none can be named", key=True),
        Column("reason", pl.Enum(REASONS), "what it did or failed to do"),
        Column("confidence_ratio", pl.Float64(), "how sure that is", "ratio"),
        Column("group", Name, "process group in which others wait for it"),
        Column("group_desc", Name, "what the program calls the group"),
        Column("operation", Name, "what they call"),
        Column("seq", pl.Int64(), "number of that call in the group"),
        Column("since_ns", pl.Int64(), "when the first rank began to wait, from the first recorded call", "ns"),
        Column("n_waiting", pl.Int64(), "ranks that wait for it, directly or through others"),
        Column("line", Name, "line of its last recorded call"),
        Column("awaited_line", Name, "line at which others wait"),
        Column("stack_id", pl.UInt32(), "stack of its last recorded call"),
        Column("text", pl.String(), "the evidence in words"),
    ),
    never_null=("verdict",),
)
HANG_GRAPH = Table(
    "hang-graph",
    "a rank that waits, the rank that it waits for, and the culprit at the end of the shortest chain",
    (
        Column("rank", pl.Int32(), "rank that waits", key=True),
        Column("waits_for", pl.Int32(), "the next rank of the chain; null: it is not known which"),
        Column("culprit", pl.Int32(), "rank at the end of the chain"),
        Column("hops", pl.Int64(), "ranks from this one to the culprit"),
        Column("group", Name, "process group of the call in which it waits"),
        Column("group_desc", Name, "what the program calls the group"),
        Column("operation", Name, "the call"),
        Column("seq", pl.Int64(), "number of the call in the group"),
        Column("since_ns", pl.Int64(), "when it made the call, from the first recorded call", "ns"),
        Column("line", Name, "line of the call"),
        Column("stack_id", pl.UInt32(), "stack of the call"),
    ),
    never_null=("rank",),
)

HANG_MATRIX = Table(
    "hang-matrix",
    "how far a rank came in one of its process groups, and how far that is behind the first of the group",
    (
        Column("rank", pl.Int32(), "rank", key=True),
        Column("group", Name, "process group", key=True),
        Column("group_desc", Name, "what the program calls the group"),
        Column("is_culprit", pl.Boolean(), "whether the rank is to blame"),
        Column("enqueued", pl.Int64(), "number of the last operation that it enqueued"),
        Column("started", pl.Int64(), "number of the last operation that had started"),
        Column("completed", pl.Int64(), "number of the last operation that had completed"),
        Column("pending", pl.Int64(), "operations that it enqueued and that have not completed"),
        Column("behind", pl.Int64(), "operations that another rank of the group has enqueued and it has not"),
        Column("operation", Name, "its last recorded call in the group"),
        Column("line", Name, "line of that call"),
        Column("stack_id", pl.UInt32(), "stack of that call"),
    ),
    never_null=("rank", "group", "is_culprit"),
)


def chains_to(outcome: Outcome) -> dict[int, tuple[int, int, int, Key]]:
    """For each rank that waits: the next rank of its shortest chain to a culprit, that culprit, the hops, the call."""
    waiting_for = _waiting_for(outcome)
    chains: dict[int, tuple[int, int, int, Key]] = {}
    blamed = {one.rank for one in outcome.culprits}
    queue = deque((rank, rank, 0) for rank in sorted(blamed))
    while queue:
        rank, end, hops = queue.popleft()
        for waiting, key in sorted(waiting_for[rank]):
            if waiting not in chains and waiting not in blamed:
                chains[waiting] = (rank, end, hops + 1, key)
                queue.append((waiting, end, hops + 1))
    return chains


def _waiting_for(outcome: Outcome) -> Mapping[int, list[tuple[int, Key]]]:
    """The ranks that wait for each rank, with the call: for those without a dump and for culprits too."""
    waiting_for: dict[int, list[tuple[int, Key]]] = defaultdict(list)
    for rank, targets in outcome.edges.items():
        for target, key in targets.items():
            waiting_for[target].append((rank, key))
    for key, instance in outcome.waits.instances.items():
        for unknown in instance.unknown:
            waiting_for[unknown] += [(rank, key) for rank in instance.calls]
    for one in outcome.culprits:
        if one.instance is not None:
            waiting_for[one.rank] += [(rank, one.instance.key) for rank in one.instance.calls]
    return waiting_for


def hang(collective_records: pl.DataFrame, group_status: pl.DataFrame | None = None) -> pl.DataFrame:
    """The verdict on a job and the ranks to blame, each with the reason and the evidence.

    Units: ns from the first recorded call; confidence is a share of 1.
    Source: PyTorch's flight recorder, as docs/hangs.md explains.
    """
    return hang_of(verdict_on(collective_records, _status_of(collective_records, group_status)), collective_records)


def hang_of(outcome: Outcome, records: pl.DataFrame) -> pl.DataFrame:
    """The table `hang` of a verdict."""
    n_waiting = Counter(culprit for _, culprit, _, _ in chains_to(outcome).values())
    last = _last_calls(records, [one.rank for one in outcome.culprits])
    rows = []
    for one in outcome.culprits:
        instance = one.instance
        line, stack = last.get(one.rank, (None, None))
        awaited = None if instance is None else next((c.line for r, c in instance.calls.items() if r != one.rank), None)
        rows.append(
            {
                "verdict": outcome.verdict,
                "rank": one.rank,
                "reason": one.reason,
                "confidence_ratio": one.confidence,
                **(_call_columns(instance) if instance else {}),
                "since_ns": instance.since_ns if instance else None,
                "n_waiting": n_waiting[one.rank],
                "line": line,
                "awaited_line": awaited,
                "stack_id": stack,
                "text": one.text,
            }
        )
    rows = rows or [{"verdict": outcome.verdict, "text": outcome.text}]
    return HANG.conform(pl.DataFrame(rows, infer_schema_length=None))


def _call_columns(instance: Instance) -> dict[str, object]:
    group = instance.key.group.partition(" ")[0]
    return {"group": group, "group_desc": instance.desc, "operation": instance.operation, "seq": instance.key.seq}


def _last_calls(records: pl.DataFrame, ranks: Sequence[int]) -> dict[int, tuple[str | None, int | None]]:
    rows = records.filter(pl.col("rank").is_in(ranks)).sort("record_id").group_by("rank", maintain_order=True).last()
    columns = rows.select("rank", pl.col("line").cast(pl.String), "stack_id")
    return {rank: (line, stack) for rank, line, stack in columns.iter_rows()}


def _status_of(records: pl.DataFrame, status: pl.DataFrame | None) -> pl.DataFrame:
    if status is not None and not status.is_empty():
        return status
    return GROUP_STATUS.conform(records.select("rank").unique().sort("rank"))


def hang_graph(collective_records: pl.DataFrame, group_status: pl.DataFrame | None = None) -> pl.DataFrame:
    """Who waits for whom: a row for each rank that waits, with the next rank on its shortest chain to a culprit.

    Units: ns from the first recorded call.
    Source: PyTorch's flight recorder, as docs/hangs.md explains.
    """
    return graph_of(verdict_on(collective_records, _status_of(collective_records, group_status)))


def hang_matrix(collective_records: pl.DataFrame, group_status: pl.DataFrame) -> pl.DataFrame:
    """How far each rank came in each of its process groups, and its last recorded call there.

    Units: operations, counted from the group's first.
    Source: the status of groups in PyTorch's flight recorder, as docs/hangs.md explains.
    """
    culprits = [one.rank for one in verdict_on(collective_records, group_status).culprits]
    last = pl.col("operation", "line", "stack_id").last()
    calls = collective_records.sort("record_id").group_by("rank", "group").agg(last)
    rows = group_status.drop_nulls("group").join(calls, on=["rank", "group"], how="left")
    first = pl.col("enqueued").max().over("group")
    order = (~pl.col("is_culprit"), -pl.col("behind"), "rank", "pg_id", pl.col("group").cast(pl.String))
    return HANG_MATRIX.conform(
        rows.with_columns(
            is_culprit=pl.col("rank").is_in(culprits),
            pending=(pl.col("enqueued") - pl.col("completed")).clip(0),
            behind=first - pl.col("enqueued"),
        ).sort(*order, nulls_last=True)
    )


def graph_of(outcome: Outcome) -> pl.DataFrame:
    """The table `hang-graph` of a verdict."""
    chains, waits = chains_to(outcome), outcome.waits
    rows = []
    for rank, keys in waits.of_rank.items():
        after, culprit, hops, key = chains.get(rank, (None, None, None, keys[0]))
        instance = waits.instances[key]
        call = instance.calls.get(rank) or replace(next(iter(instance.calls.values())))
        rows.append(
            {
                "rank": rank,
                "waits_for": after,
                "culprit": culprit,
                "hops": hops,
                **_call_columns(instance),
                "since_ns": call.created_ns,
                "line": call.line,
                "stack_id": call.stack_id,
            }
        )
    frame = pl.DataFrame(rows, schema={name: HANG_GRAPH.dtypes[name] for name in HANG_GRAPH.dtypes})
    return frame.sort("hops", "rank", nulls_last=True)


ANALYSIS = analysis_of(hang, HANG, "Why a job hangs or crashed: the ranks to blame, the reason, how sure, since when.")
HANG_GRAPH_ANALYSIS = analysis_of(
    hang_graph, HANG_GRAPH, "Who waits for whom in a job that hangs, by the shortest chain to a culprit."
)
HANG_MATRIX_ANALYSIS = analysis_of(
    hang_matrix, HANG_MATRIX, "How far each rank came in each of its process groups, and where it called last."
)
