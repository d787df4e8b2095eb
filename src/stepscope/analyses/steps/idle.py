"""Why the device was idle: each gap between pieces of work, and what ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work, groups_of, label_devices, on_devices
from stepscope.analyses.common.span_lookup import of_ids, of_spans
from stepscope.analyses.common.windows import step_windows
from stepscope.analyses.steps.host_states import HELD_UP, STATES, UNRECORDED, host_states, intervals_of, wait_before
from stepscope.analyses.steps.step_breakdown import divided
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Bools, Intervals, Ints, first_covering, union
from stepscope.core.names import is_own_code, map_names
from stepscope.core.schema import DEVICES, STEPS
from stepscope.core.table import Column, Name, Table, filtered, integers, is_any_of, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Levels = Sequence[tuple[str, Intervals]]

By = Literal["device", "stream", "gap"]
KEYS = {"device": ("rank", "device_id"), "stream": ("rank", "device_id", "stream"), "gap": ("rank", "device_id")}

_LONG_AGO = np.iinfo(np.int64).min
#: In these the host does its usual work between two launches: it is launch-bound if there are many of them.
LAUNCHING = ("operator", "runtime", "python", UNRECORDED)
#: What the launching thread did while the device waited (see host_states), or how the work waited on the device.
CAUSES = (*STATES, "kernel_wait", "other", "unlinked")
_PARTICULAR, _SYNC = len(HELD_UP), STATES.index("sync")
_ON_HOST = STATES.index("host_idle")  # states before this one are activities: of any thread before waits of this one
_HOLD_DEVICE = ("allocator", "first_use", "blocking_call")
_MOST = 0.6  # of the longest overlap: the innermost span that fills so much of the gap is named

IDLE = Table(
    "idle",
    "why the device was idle",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("device_id", pl.UInt32(), "device", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("stream", pl.Int64(), "stream (by stream)", key=True),
        Column("ts_ns", pl.Int64(), "start of the gap, from the trace's origin (by gap)", "ns", key=True),
        Column("dur_ns", pl.Int64(), "length of the gap (by gap)", "ns"),
        Column("cause", pl.Enum(CAUSES), "what the host did in the gap, or how the work waited", key=True),
        Column("n_gaps", pl.Int64(), "how many gaps"),
        Column("total_ns", pl.Int64(), "summed length", "ns"),
        Column("share_ratio", pl.Float64(), "its part of all gaps of this device or stream", "ratio"),
        Column("mean_ns", pl.Float64(), "mean length", "ns"),
        Column("p50_ns", pl.Float64(), "median length", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("before", Name, "work that ended as the gap began (by gap)"),
        Column("after", Name, "work that ended the gap (by gap)"),
        Column("cause_ns", pl.Int64(), "how long the host did that within the gap (by gap)", "ns"),
        Column("call", Name, "call, operator or function that filled most of it (by gap)"),
        Column("call_ns", pl.Int64(), "how much of the gap that call filled (by gap)", "ns"),
        Column("call_op", Name, "operator around that call (by gap)"),
        Column("op", Name, "operator behind the work after the gap (by gap)"),
        Column("launch", Name, "host call that queued it (by gap)"),
        Column("late_ns", pl.Int64(), "how long after the gap had begun it was called; negative: before", "ns"),
        Column("step", pl.Int32(), "step that queued it (by gap)"),
    ),
)


def idle(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: By = "device",
    min_gap_ns: int = 0,
    longest: int = 0,
    kernel_wait_ns: int = 30_000,
) -> pl.DataFrame:
    """One row per device and cause (by stream: and stream; by gap: per gap): how long the device was idle, and why.

    All streams of a device are merged, except by stream. A gap lies between the end of all earlier work and the start
    of the next. Except by stream, the time from the start of the first step to the first work that it queued is a gap
    like those of later steps, of which `before` is null. Its cause:

    - `kernel_wait`: the host called for the next work before the gap began, and the gap is shorter than
      `kernel_wait_ns`. `other`: the work waited on the device for longer than the host took to call for it, the rest
      is no short wait, and no call that may hold the device up (`allocator`, `first_use`, `blocking_call`) filled half
      of the gap. `unlinked`: the trace does not say what queued the work.
    - else what the thread that launched the work did from the gap's start until that call returned. One of
      `garbage_collection`, `data_loading`, `communication` (with other ranks, by the host), `compilation`, `allocator`
      (memory of the device, pinned memory), `first_use` (a slow call that launches a kernel for the first time in the
      recording or sets up the device, and slow allocation in the same operator), `slow_launch` (another launch of
      100 µs or more), `blocking_call` (a blocking copy, or any other call of 100 µs or more), if that took at least
      half of it; `sync` if it waited for the device for that long, the wait up to the start of the gap included; else
      what took most: one of these, `operator`, `runtime` (calls outside of operators), `python`, `host_idle` (in a
      function that waits), or `unrecorded` (at most named ranges were recorded: without stacks it may be Python). While
      the thread does nothing itself, what other launching threads of its process do counts.

    By gap, `call` is the call, operator or function of that kind which filled most of the gap.

    `min_gap_ns` leaves out shorter gaps; of the rest `longest` keeps so many, the longest of the trace (0: all). Other
    time before the first and after the last work is no gap.

    Units: ns, ratio.
    Source: HTA's idle time breakdown (host_wait, kernel_wait, other), which judges per stream only, does not say what
    the host did, and counts overlapping work as negative idle time.
    Raises MissingTable (no device work), UnknownName (by).
    """
    work = device_work(spans, tracks, needed_by="idle")
    begin = None if by == "stream" or steps.is_empty() else int(step_windows(steps, work)["ts_ns"][0])
    limits = {"min_gap_ns": min_gap_ns, "longest": longest}
    least_ns = 0 if by == "gap" else None
    gaps = caused_gaps(work, spans, tracks, KEYS[by], kernel_wait_ns, calls_from_ns=least_ns, begin_ns=begin, **limits)
    result = _details(gaps, spans) if by == "gap" else _summary(gaps, KEYS[by])
    result = label_devices(result, devices)
    return result.select(pl.col(k).cast(t) for k, t in IDLE.dtypes.items() if k in result.columns)


def caused_gaps(
    work: pl.DataFrame,
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    keys: tuple[str, ...],
    kernel_wait_ns: int = 30_000,
    *,
    calls_from_ns: float | None = None,
    begin_ns: int | None = None,
    min_gap_ns: int = 0,
    longest: int = 0,
) -> pl.DataFrame:
    """Every gap of each group of `keys` with its cause, as in `idle`, and the ids of the spans around it.

    `begin_ns` is the start of the first step: the time until the first work of a group, if it is later, is a gap too,
    without a before_id, if the trace says what queued that work.

    `work` is what `device_work` returns. Columns: the keys, ts_ns, dur_ns, cause, cause_ns, late_ns, host_ns (from the
    start of the gap to the launching call's return, or the whole gap where the work had been queued), track_id (thread
    of that call), step, and the spans before_id, after_id, launch_id, op_id. With `calls_from_ns` also call_id, the
    span that filled most of the gap as its cause says, and call_ns, how much of it. Of spans inside one another that is
    the innermost which fills nearly as much as the outermost; functions and ranges count if they are the program's own.
    Both are null where the cause is not of the host, where nothing was recorded, and for causes whose gaps last less
    than `calls_from_ns` in all. Units: ns.
    """
    work = on_devices(work)
    gaps = _gaps(work, keys, begin_ns)
    is_said = gaps["before_id"].is_not_null() | gaps["launch_id"].is_not_null()
    gaps = filtered(gaps, is_said & (gaps["dur_ns"] >= min_gap_ns))
    if longest:
        chosen = gaps.select("dur_ns").with_row_index("row").sort("dur_ns", descending=True, maintain_order=True)["row"]
        gaps = gaps[chosen.head(longest).sort()]
    return _with_cause(gaps, work, spans, tracks, kernel_wait_ns, keys, calls_from_ns)


def _gaps(work: pl.DataFrame, keys: tuple[str, ...], begin_ns: int | None) -> pl.DataFrame:
    """Row per gap: keys, ts_ns, dur_ns, before_id, after_id, launch_id, op_id, step (of the work after it).

    With `begin_ns` the time from then to the first work of a group is a gap too, without a before_id.
    """
    parts = [_gaps_of_group(mine, begin_ns) for _, mine in groups_of(work, keys)]
    after = pl.concat([part.after for part in parts]) if parts else work
    nothing = np.empty(0, np.int64)
    begins = np.concatenate([nothing, *(part.begins_ns for part in parts)])
    before = np.concatenate([nothing, *(part.before for part in parts)])
    before_id = pl.Series("before_id", np.maximum(before, 0).astype(np.uint32))
    before_id = before_id.set(pl.Series(before < 0), None) if (before < 0).any() else before_id
    columns = [pl.Series("ts_ns", begins), pl.Series("dur_ns", after["ts_ns"].to_numpy() - begins), before_id]
    after = after[[*keys, "launch_id", "op_id", "step", "span_id"]].rename({"span_id": "after_id"})
    return after.hstack(columns)


class _Gaps(msgspec.Struct, frozen=True):
    """Gaps of one group of work: the work after each, when it begins, and the id of the work that ended then or -1."""

    after: pl.DataFrame
    begins_ns: Ints
    before: Ints


def _gaps_of_group(work: pl.DataFrame, begin_ns: int | None) -> _Gaps:
    starts, ends = work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    order = np.lexsort((ends, starts))
    reach = np.maximum.accumulate(ends[order])
    # Of work that ends at the same time, the last that began.
    last = np.maximum.accumulate(np.where(ends[order] == reach, np.arange(order.size), 0))
    first = _LONG_AGO if begin_ns is None else begin_ns
    until = np.concatenate(([first], reach[:-1]))
    before = np.concatenate(([-1], work["span_id"].to_numpy()[order[last]][:-1]))
    is_gap = (starts[order] > until) & (until != _LONG_AGO)
    return _Gaps(work[order[is_gap].astype(np.uint32)], until[is_gap], before[is_gap])


def _with_cause(
    gaps: pl.DataFrame,
    work: pl.DataFrame,
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    kernel_wait_ns: int,
    keys: tuple[str, ...],
    calls_from_ns: float | None,
) -> pl.DataFrame:
    called, took, track = (of_spans(spans, gaps["launch_id"], column) for column in ("ts_ns", "dur_ns", "track_id"))
    gaps = gaps.hstack([(called - gaps["ts_ns"]).alias("late_ns"), track.alias("track_id")])
    spent = pl.min_horizontal(called + took - gaps["ts_ns"], "dur_ns").clip(lower_bound=0)
    gaps = gaps.with_columns(host_ns=pl.when(pl.col("late_ns").is_not_null()).then(spent))
    late, short = pl.col("late_ns") > 0, pl.col("dur_ns") < kernel_wait_ns
    after = pl.col("dur_ns") - pl.col("host_ns")  # from the call's return to the start of the work
    on_device = (
        pl.when(pl.col("host_ns").is_null())
        .then(pl.lit("unlinked"))
        .when(~late & short)
        .then(pl.lit("kernel_wait"))
        .when((after > pl.col("host_ns")) & (~late | (after >= kernel_wait_ns)))
        .then(pl.lit("other"))
    )
    gaps = gaps.with_columns(cause=on_device).with_row_index("gap")
    # Calls that hold the device up do so whether or not the next work is in its queue.
    gaps = gaps.with_columns(host_ns=pl.when(pl.col("cause") == "other").then("dur_ns").otherwise("host_ns"))
    asked = filtered(gaps, gaps["cause"].is_null() | (gaps["cause"] == "other"))
    by_host = _host_causes(asked, work, spans, tracks, keys, calls_from_ns)
    gaps = gaps.hstack(of_ids(by_host, gaps["gap"], key="gap"))
    gaps = gaps.with_columns(cause=pl.coalesce("host_cause", "cause").cast(pl.Enum(CAUSES)))
    return without(gaps, "gap", "host_cause")


def _host_causes(
    gaps: pl.DataFrame,
    work: pl.DataFrame,
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    keys: tuple[str, ...],
    calls_from_ns: float | None,
) -> pl.DataFrame:
    """By gap: host_cause, and cause_ns, how long the host did that in the first `host_ns` of the gap.

    With `calls_from_ns` call_id and call_ns too. Gaps of each group of `keys` do not overlap. Of gaps that have the
    cause `other` only those that a call of the host explains all the same.
    """
    none = pl.DataFrame(schema={"gap": pl.UInt32, "host_cause": pl.String, "cause_ns": pl.Int64})
    parts: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    for states, mine in _of_processes(gaps, work, spans, tracks):
        shared = list(intervals_of(states))
        for (track,), waits in mine.partition_by("track_id", as_dict=True).items():
            low = waits["ts_ns"].to_numpy()
            high = low + waits["host_ns"].to_numpy()
            own_states = filtered(states, states["track_id"] == track)
            own = list(intervals_of(own_states))
            times = _times(own, shared, low, high)
            length = high - low
            named = waits.hstack(_named(times, length, wait_before(own_states, low)))
            holds = named["cause"].is_null() | (
                is_any_of(named["host_cause"], _HOLD_DEVICE) & (2 * named["cause_ns"] >= pl.Series(length))
            )
            parts.append((filtered(named, holds), states))
    causes = pl.concat([none, *(named[none.columns] for named, _ in parts)])
    if calls_from_ns is None:
        return causes
    return causes.hstack(of_ids(_calls(parts, spans, keys, calls_from_ns), causes["gap"], key="gap"))


def _calls(
    parts: Sequence[tuple[pl.DataFrame, pl.DataFrame]], spans: pl.DataFrame, keys: tuple[str, ...], least_ns: float
) -> pl.DataFrame:
    """By gap: call_id and call_ns, of causes whose gaps last that long in all. Each of `parts` is gaps, and states."""
    called = [pl.DataFrame(schema={"gap": pl.UInt32, "call_id": pl.UInt32, "call_ns": pl.Int64})]
    every = pl.concat([named[["host_cause", "dur_ns"]] for named, _ in parts]) if parts else pl.DataFrame()
    summed = dict(every.group_by("host_cause").agg(pl.col("dur_ns").sum()).iter_rows()) if parts else {}
    launching_ns = sum(summed.get(cause, 0) for cause in LAUNCHING)  # they count as one where the host is too slow
    asked = [cause for cause, ns in summed.items() if (launching_ns if cause in LAUNCHING else ns) >= least_ns]
    for named, states in parts if asked else ():
        of_cause = filtered(named, named["host_cause"].is_in(asked)).sort("ts_ns")
        called += [_longest(part, states, spans) for part in of_cause.partition_by(*keys, "host_cause")]
    return pl.concat(called)


def _of_processes(
    gaps: pl.DataFrame, work: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """For each process: the states of its threads that launch work, and the gaps that end with work of theirs."""
    process = {track: (rank, pid) for track, rank, pid in tracks[["track_id", "rank", "pid"]].iter_rows()}
    threads: dict[object, list[int]] = {}
    launching = distinct_values(integers(of_spans(spans, work["launch_id"], "track_id")))
    for track in launching[launching >= 0].tolist():
        threads.setdefault(process.get(track), []).append(track)
    for own in threads.values():
        mine = gaps if len(threads) == 1 else filtered(gaps, gaps["track_id"].is_in(own))
        if mine.is_empty():
            continue
        low = mine["ts_ns"].to_numpy()
        times = union(low, low + np.maximum(mine["host_ns"].to_numpy(), 1))
        yield host_states(spans, work, pl.Series(own, dtype=pl.UInt32), times), mine


def _times(own: Levels, shared: Levels, low: Ints, high: Ints) -> Ints:
    """How long the host was in each of STATES in each window: rows are states, columns windows.

    What another thread does counts where this one does nothing, or waits: it may be waiting for the other.
    """
    active, quiet = (
        [(state, times) for state, times in levels if (STATES.index(state) < _ON_HOST) is is_active]
        for levels, is_active in ((own, True), (own, False))
    )
    elsewhere = [level for level in shared if STATES.index(level[0]) < _ON_HOST]
    rest = [level for level in shared if STATES.index(level[0]) >= _ON_HOST]
    order = [*active, *elsewhere, *quiet, *rest]
    numbered = divided([(str(i), times) for i, (_, times) in enumerate(order)], low, high)
    times = np.zeros((len(STATES), low.size), np.int64)
    for i, (state, _) in enumerate(order):
        times[STATES.index(state)] += numbered[str(i)]
    times[STATES.index(UNRECORDED)] += numbered["other"]
    return times


def _named(times: Ints, length: Ints, waited: Ints) -> list[pl.Series]:
    """The cause of each window and the time in it. `times` is of `_times`, `waited` the wait before the window."""
    columns = np.arange(length.size)
    held_up, most = _largest(times[:_PARTICULAR]), _largest(times)
    in_sync = np.minimum(times[_SYNC] + waited, length)
    cause = np.where(2 * in_sync >= length, _SYNC, most)
    cause = np.where(2 * times[held_up, columns] >= length, held_up, cause)
    named = pl.Series("host_cause", STATES, pl.String)[cause.astype(np.uint32)]
    return [named, pl.Series("cause_ns", times[cause, columns])]


def _largest(times: Ints) -> Ints:
    """The first row that is largest in each column: `argmax`, which takes ten times as long on few long rows."""
    most, row = times[0].copy(), np.zeros(times.shape[1], np.int64)
    for i, some in enumerate(times):
        row[some > most] = i
        np.maximum(most, some, out=most)
    return row


def _longest(gaps: pl.DataFrame, states: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The call of each of these gaps, which have one cause and one thread, are in order and do not overlap."""
    cause = str(gaps["host_cause"][0])
    wanted = ("sync", "blocking_call") if cause == "sync" else (cause,)
    calls = filtered(states, is_any_of(states["state"], [STATES.index(state) for state in wanted]))
    if cause in ("python", UNRECORDED):
        names = of_spans(spans, calls["span_id"], "name")
        calls = filtered(calls, map_names(names, is_own_code, pl.Boolean()))
    low = gaps["ts_ns"].to_numpy()
    high = low + np.maximum(gaps["host_ns"].to_numpy(), 1)
    span, dur, start, end = (calls[c].to_numpy() for c in ("span_id", "dur_ns", "ts_ns", "end_ns"))
    order = np.lexsort((~span, dur))  # of calls of one length the later one is the inner one
    span, start, end = span[order], start[order], end[order]
    own = (calls["track_id"] == gaps["track_id"][0]).to_numpy()[order]
    row, at = _candidates(start, end, own, (low, high))
    has_own = np.zeros(low.size, np.bool_)
    has_own[at[own[row]]] = True
    row, at = (column[own[row] == has_own[at]] for column in (row, at))
    overlap = np.maximum(np.minimum(end[row], high[at]) - np.maximum(start[row], low[at]), 0)
    most, best = np.zeros(low.size, np.int64), np.full(low.size, calls.height)
    np.maximum.at(most, at, overlap)
    fills = overlap >= _MOST * most[at]
    np.minimum.at(best, at[fills], row[fills])  # the calls are in order: the shortest is the innermost
    filled = np.flatnonzero(best < calls.height)
    row = best[filled]
    overlap = np.maximum(np.minimum(end[row], high[filled]) - np.maximum(start[row], low[filled]), 0)
    return pl.DataFrame({"gap": gaps["gap"].to_numpy()[filled], "call_id": span[row], "call_ns": overlap})


def _candidates(start: Ints, end: Ints, own: Bools, gaps: Intervals) -> tuple[Ints, Ints]:
    """(call, gap) for calls that fill a part of a gap, and of those that fill it all the first, own or not.

    So there are few for calls in calls in calls, each of which fills all gaps.
    """
    low, high = gaps
    first, stop = np.searchsorted(low, start), np.searchsorted(high, end, side="right")
    pairs = []
    for mine in (own, ~own):
        rows = np.flatnonzero(mine & (first < stop))
        best = first_covering(first[rows], stop[rows], low.size)
        pairs.append((rows[best[best >= 0]], np.flatnonzero(best >= 0)))
    # A wait that ends as the gap begins is the wait before it.
    left, right = np.searchsorted(high, start, side="right"), np.searchsorted(low, end + 1) - 1
    for at, is_new in ((left, left <= right), (right, left < right)):
        rows = np.flatnonzero(is_new & ~((first <= at) & (at < stop)))
        pairs.append((rows, at[rows]))
    row, at = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return row, at


def _summary(gaps: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    length = pl.col("dur_ns")
    return (
        gaps.group_by(*keys, "cause")
        .agg(
            n_gaps=pl.len(),
            total_ns=length.sum(),
            mean_ns=length.mean(),
            p50_ns=length.median(),
            max_ns=length.max(),
        )
        .with_columns(share_ratio=pl.col("total_ns") / pl.col("total_ns").sum().over(keys))
        .sort(*keys, "total_ns", "cause", descending=[*(False for _ in keys), True, False], nulls_last=True)
    )


def _details(gaps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    gaps = gaps.with_columns(call_op_id=of_spans(spans, gaps["call_id"], "op_id"))
    ids = {
        "before": "before_id", "after": "after_id", "op": "op_id", "launch": "launch_id", "call": "call_id",
        "call_op": "call_op_id",
    }  # fmt: skip
    return gaps.with_columns(
        **{column: of_spans(spans, gaps[id_column], "name") for column, id_column in ids.items()}
    ).sort("dur_ns", "ts_ns", descending=[True, False])


ANALYSIS = analysis_of(
    idle,
    IDLE,
    "Why the device was idle: gaps by cause (blocking calls, first use, waits, data loading, Python, launching).",
)
