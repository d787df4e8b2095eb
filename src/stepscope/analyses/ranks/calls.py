"""The collectives of one rank, with what the rank did before each: all that analyses of ranks need of a trace.

The table is small, one row per collective whatever the size of the trace, so that other processes can make it and send
it over. Messages between two ranks (send, recv) count as collectives.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.device_work import COMMUNICATION, device_work
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.communication.communication import collective_calls
from stepscope.analyses.ranks.groups import Comm, comms_of
from stepscope.core import collectives
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Bools, Ints, covered, difference, locate, own_lengths, union
from stepscope.core.names import map_names
from stepscope.core.patterns import regex
from stepscope.core.table import Column, Name, Table, integers
from stepscope.core.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.intervals import Intervals
    from stepscope.core.trace import Trace

__all__ = ["CALLS", "KINDS", "Comm", "RankCalls", "awaited", "calls_table", "first_calls", "own_base", "rank_calls"]


FORWARD, BACKWARD, OPTIMIZER, DATA = "forward", "backward", "optimizer", "data loading"

#: Shorter pauses between two functions of a phase belong to the phase.
_PAUSE_NS = 1_000_000
_RULES = {
    BACKWARD: regex(r"^autograd::engine::evaluate_function|^Torch-Compiled Autograd"),
    OPTIMIZER: regex(r"^Optimizer\.step#"),
}
#: Number of names, those that took longest; all others are one row without a name.
MOST_NAMES = 64
WORK = Table(
    "rank-work",
    "what one rank computed, by name: kernels, or operators if no device computes",
    (
        Column("name", Name, "kernel or operator; null: all others", key=True),
        Column("calls", pl.Int64(), "how often"),
        Column("total_ns", pl.Int64(), "summed time; for operators their self time", "ns"),
    ),
)
KINDS = (*collectives.KINDS, "other")
Kind = pl.Enum(KINDS)
#: The last part of a collective, of at most this length, shows whether work went on meanwhile.
_TAIL_NS = 1_000_000
CALLS = Table(
    "rank-calls",
    "a collective, as one rank recorded it",
    (
        Column("comm", pl.Int32(), "index of the rank's process group", key=True),
        Column("kind", Kind, "kind of collective", key=True),
        Column("collective", Name, "name as recorded, else that of its operator or kernel", key=True),
        Column("dtype", Name, "element type", key=True),
        Column("in_bytes", pl.Int64(), "sent by this rank", "bytes"),
        Column("out_bytes", pl.Int64(), "received by this rank", "bytes"),
        Column("seq", pl.Int64(), "its number within the group, if recorded"),
        Column("src", pl.Int32(), "for a receive: the rank that sends"),
        Column("dst", pl.Int32(), "for a send: the rank that receives"),
        Column("step", pl.Int32(), "number of the step that queued it"),
        Column("start_ns", pl.Int64(), "when this rank arrived, on its own clock", "ns"),
        Column("end_ns", pl.Int64(), "when it ended here", "ns"),
        Column("measured", pl.Enum(("device", "host")), "whether its times are those of kernels or of an operator"),
        Column("blocks", pl.Boolean(), "nothing computed when it ended, so the rank waited for it"),
        Column(
            "work_ns", pl.Int64(), "since the previous event of the rank's work: the end or start of a collective", "ns"
        ),
        Column("compute_ns", pl.Int64(), "of that, computing", "ns"),
        Column("data_ns", pl.Int64(), "of that, reading the next batch while nothing computed", "ns"),
        Column("backward_ns", pl.Int64(), "of that, in the backward pass", "ns"),
        Column("optimizer_ns", pl.Int64(), "of that, in the optimizer", "ns"),
    ),
)


def phase_intervals(trace: Trace, work: pl.DataFrame | None) -> dict[str, Intervals]:
    """When the rank read data (on the host), and when it was in the backward pass and the optimizer, if known.

    With `work`, of `device_work`, phases are those of the device: a kernel belongs to the phase in which it was queued.
    Units: ns.
    Source: the names that PyTorch gives to functions of its autograd engine and to Optimizer.step.
    """
    spans = trace.spans
    loading = {DATA: _when(spans[["ts_ns", "dur_ns"]].filter(spans["category"] == "dataloader"))}
    columns = spans[["ts_ns", "dur_ns", "name"]]
    host = columns.filter(spans["category"].is_in(("operator", "user_range")))
    parts = {name: host.filter(map_names(host["name"], _starts(rule), pl.Boolean())) for name, rule in _RULES.items()}
    if all(part.is_empty() for part in parts.values()):
        return loading
    host_phases = {name: _joined(part) for name, part in parts.items()}
    if work is None:
        return loading | host_phases
    is_linked = (work["category"] == "kernel") & work["launch_id"].is_not_null()
    linked = work[["ts_ns", "dur_ns", "launch_id"]].filter(is_linked)
    queued = of_spans(spans, linked["launch_id"], "ts_ns").to_numpy()
    return loading | {
        name: _joined(linked.filter(pl.Series(locate(intervals, queued) >= 0)))
        for name, intervals in host_phases.items()
    }


def _starts(rule: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: rule.match(name) is not None


def _when(spans: pl.DataFrame) -> Intervals:
    starts = spans["ts_ns"].to_numpy()
    return union(starts, starts + spans["dur_ns"].to_numpy())


def _joined(spans: pl.DataFrame) -> Intervals:
    """The times when a span was open, short pauses included."""
    starts, ends = _when(spans)
    apart = np.flatnonzero(starts[1:] - ends[:-1] > _PAUSE_NS)
    if not starts.size:
        return starts, ends
    return starts[np.concatenate(([0], apart + 1))], ends[np.concatenate((apart, [-1]))]


def work_of(trace: Trace, work: pl.DataFrame | None) -> pl.DataFrame:
    """A WORK table of the trace, longest first: kernels of `work`, of `device_work`, else operators. Units: ns."""
    if work is not None:
        computes = (work["category"] == "kernel") & (work["sort"] != COMMUNICATION)
        rows = work[["name", "dur_ns"]].rename({"dur_ns": "ns"}).filter(computes)
    else:
        rows = _self_times(trace.spans)
    named = rows.group_by("name").agg(calls=pl.len().cast(pl.Int64), total_ns=pl.col("ns").sum())
    order = ["total_ns", "calls", pl.col("name").cast(pl.String)]
    named = named.sort(order, descending=[True, True, False])
    rest = named.slice(MOST_NAMES)
    if rest.height:
        folded = rest.select(pl.col("calls").sum(), pl.col("total_ns").sum())
        named = pl.concat((named.head(MOST_NAMES), folded), how="diagonal_relaxed")
    return WORK.conform(named)


def _self_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Operators of the host that are no collectives, and the self time of each."""
    is_op = spans["category"] == "operator"
    talks = collectives.talks_to_ranks(spans["name"])
    ops = spans.filter(is_op & ~talks)
    if ops.is_empty():
        return ops.select("name", ns="dur_ns")
    rows = np.full(int(spans["span_id"].to_numpy().max()) + 1, -1, np.int64)
    rows[ops["span_id"].to_numpy()] = np.arange(ops.height)
    above = integers(ops["parent_id"])
    parents = np.where(above >= 0, rows[above], -1)
    starts = ops["ts_ns"].to_numpy()
    own = own_lengths(starts, starts + ops["dur_ns"].to_numpy(), parents)
    return ops.select("name", ns=pl.Series(own))


def resources_of(trace: Trace, window: tuple[int, int]) -> pl.DataFrame:
    """The mean of each counter in the window (ns from the origin): device, metric, unit, value.

    Counters of other processes are left out; the device of the trace's own is `process`.
    """
    own = trace.tracks["pid"].drop_nulls().unique().implode()
    counters = trace.counters.filter(
        pl.col("ts_ns").is_between(*window) & (pl.col("pid").is_null() | pl.col("pid").is_in(own))
    )
    device = pl.when(pl.col("pid").is_null()).then(pl.col("device").cast(pl.String)).otherwise(pl.lit("process"))
    return (
        counters.group_by(device.alias("device"), "metric", "unit")
        .agg(pl.col("value").mean())
        .sort("device", pl.col("metric").cast(pl.String))
    )


class RankCalls(msgspec.Struct, frozen=True):
    """The collectives of one rank. Times are ns from the trace's origin, which is `origin_unix_ns`, if known.

    `calls` is a CALLS table sorted by start; `steps` has step, ts_ns, dur_ns; `work` is a WORK table; `resources` has
    the mean of each counter that was sampled meanwhile.
    """

    rank: int | None
    label: str
    calls: pl.DataFrame
    comms: tuple[Comm, ...]
    host: str | None = None
    world_size: int | None = None
    origin_unix_ns: int | None = None
    steps: pl.DataFrame | None = None
    work: pl.DataFrame | None = None
    resources: pl.DataFrame | None = None


def rank_calls(trace: Trace, work: pl.DataFrame | None = None) -> RankCalls:
    """The collectives of one trace, with what the rank did before each. Units: ns, bytes.

    A collective of several kernels is one row. `work` is what `device_work` returns, if that is known already. Raises
    MissingTable if no collective has known times.
    """
    trace.require("spans", needed_by="an analysis of ranks")
    trace.require_clock(needed_by="an analysis of ranks")
    if work is None:
        work = device_work(trace.spans, trace.tracks, needed_by=None)
    rows, computing = collective_calls(trace.spans, trace.tracks, trace.collectives, trace.ops, work)
    untimed = rows["measured"] == "call"
    timed = rows.filter(~untimed) if untimed.any() else rows
    if timed.is_empty():
        what = "collectives" if rows.is_empty() else "the times of collectives (only when they were queued is recorded)"
        hint = "traces of distributed jobs have them, as kernels of NCCL, RCCL, … or operators of Gloo"
        raise MissingTable(what, needed_by="an analysis of ranks", hint=hint)
    facts = [name for name in timed.columns if name not in ("span_id", "call_id", "ts_ns", "dur_ns")]
    timed = timed.select("call_id", *facts, start_ns="ts_ns", end_ns=pl.col("ts_ns") + pl.col("dur_ns"))
    calls = timed
    if timed["call_id"].n_unique() < timed.height:  # collectives of several kernels
        calls = timed.group_by("call_id").agg(pl.col(facts).first(), pl.col("start_ns").min(), pl.col("end_ns").max())
    calls = calls.sort("start_ns", "call_id")
    calls, comms = comms_of(calls, trace)
    kind = collectives.kinds_of(calls["collective"]).fill_null("other")
    calls = calls.with_columns(kind=kind, src="src_rank", dst="dst_rank")
    # A trace may contain what several ranks computed; only this rank's counts.
    own = calls["rank"].mode().to_list()[0]
    on_device = bool((calls["measured"] == "device").any())
    window = (int(calls["start_ns"].to_numpy().min()), int(calls["end_ns"].to_numpy().max()))
    return RankCalls(
        rank=trace.rank,
        label=trace.meta.path,
        calls=calls_table(calls, computing[own], phase_intervals(trace, work if on_device else None)),
        comms=comms,
        host=trace.meta.host,
        world_size=trace.meta.world_size,
        origin_unix_ns=trace.meta.origin_unix_ns,
        steps=trace.steps[["step", "ts_ns", "dur_ns"]],
        work=work_of(trace, work if on_device else None),
        resources=None if trace.counters.is_empty() else resources_of(trace, window),
    )


def first_calls(part: RankCalls, most: int) -> RankCalls:
    """The same with the rank's first `most` collectives, without an incomplete last step unless it is the only one."""
    if part.calls.height <= most:
        return part
    calls, partial = part.calls.head(most), part.calls["step"][most]
    whole = calls.filter(pl.col("step").ne_missing(partial)) if partial is not None else calls
    return replace(part, calls=whole if whole.height else calls)


def calls_table(calls: pl.DataFrame, computing: Intervals | None, phases: dict[str, Intervals]) -> pl.DataFrame:
    """A CALLS table of collectives sorted by start, with what was done before each; null without `computing`."""
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    blocks = np.ones(starts.size, np.bool_) if computing is None else awaited(starts, ends, computing)
    base = own_base(starts, ends, blocks)
    known = base >= 0
    low = np.where(known, _at(starts, ends, base), starts)
    columns = {"work_ns": starts - low}
    if computing is not None:
        columns["compute_ns"] = covered(computing, low, starts)
        columns["data_ns"] = covered(difference(phases[DATA], computing), low, starts)
    columns |= {f"{name}_ns": covered(phases[name], low, starts) for name in (BACKWARD, OPTIMIZER) if name in phases}
    unknown = pl.Series(~known)
    frame = calls.with_columns(
        pl.Series("blocks", blocks),
        *(pl.when(unknown).then(None).otherwise(pl.Series(values)).alias(name) for name, values in columns.items()),
    )
    return CALLS.conform(frame)


def own_base(starts: Ints, ends: Ints, blocks: Bools, rank: Ints | None = None) -> Ints:
    """The event that each of a rank's collectives follows: 2i for the end of row i, 2i + 1 for its start, −1 for none.

    That is the last event before its start that the rank's work depended on: the end of a collective that it waited
    for, or the start of the previous one. Rows are sorted by rank and start; `blocks` is that of CALLS.
    """
    n = starts.size
    if not n:
        return np.empty(0, np.int64)
    of = np.zeros(n, np.int64) if rank is None else rank
    # One axis, with the ranks end to end.
    shift = of * (int(ends.max()) - int(starts.min()) + 2) - int(starts.min())
    starts, ends = starts + shift, ends + shift
    row = np.arange(n)
    before = np.maximum(row - 1, 0)
    has_before = (row > 0) & (of[before] == of)
    awaited = np.flatnonzero(blocks)
    if not awaited.size:
        return np.where(has_before, 2 * before + 1, -1)
    by_end = awaited[np.argsort(ends[awaited], kind="stable")]
    last = np.searchsorted(ends[by_end], starts, side="right") - 1
    # Not its own end, which for a collective of no length is at its start.
    last -= (last >= 0) & (by_end[np.maximum(last, 0)] == row)
    ended = by_end[np.maximum(last, 0)]
    when_ended = np.where((last >= 0) & (of[ended] == of), ends[ended], np.iinfo(np.int64).min)
    base = np.where(when_ended >= starts[before], 2 * ended, 2 * before + 1)
    return np.where(has_before, base, -1)


def awaited(starts: Ints, ends: Ints, computing: Intervals) -> Bools:
    """For each collective whether little or nothing computed when it ended, so that the rank's work waited for it."""
    tail = np.minimum((ends - starts) // 4, _TAIL_NS)
    waited: Bools = covered(computing, ends - tail, ends) * 2 <= tail
    return waited


def _at(starts: Ints, ends: Ints, base: Ints) -> Ints:
    at = np.maximum(base, 0) >> 1
    when: Ints = np.where(base & 1 == 0, ends[at], starts[at])
    return when
