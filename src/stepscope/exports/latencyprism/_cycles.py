"""Cycles of a recording as the published tool finds them: from calls of one Python function, its anchor.

Source: the description of its search in mode `token` for one process. Its other modes (each layer a cycle, processes
aligned) and its search for periods in traces without Python calls are not here: mark the steps instead.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.errors import MissingTable
from stepscope.core.intervals import enclosing, nearest
from stepscope.core.patterns import regex
from stepscope.core.remedies import advised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]

GENERIC, PREFILL, DECODE = "generic", "prefill", "decode"
_CALLS = ("python", "module")
#: Names that wrap or wait for the work and are no anchors.
_NO_ANCHORS = ("_call_impl", "Event.wait", "Condition.wait", "Scheduler.recv_requests")
_MIN_CALLS = 3
_ALIKE = 0.90  # ratio of two totals at which the function with the longer calls is the anchor
_RARE, _LONG = 0.1, 3.0  # calls of a prefill relative to those of the anchor: their number and mean duration
_FAR, _LEAST_FAR_NS = 5, 50_000_000  # times the median call; a longer pause between two anchors belongs to no cycle
_APART_NS = 1_000
_DECODE = regex(r"(decode|Decode)(?![a-z])")
_LEAST_PREFILL_NS = 1_000_000


class _Calls(msgspec.Struct, frozen=True):
    """Python calls of one process, sorted by thread and start, longest first. `parent` is a row, -1 at the top."""

    names: list[str]
    code: Ints
    start: Ints
    end: Ints
    parent: Ints


def cycles_of(trace: Trace) -> pl.DataFrame:
    """Cycles of a recording: cycle (from 1), ts_ns, dur_ns, anchor, phase (generic, prefill, decode).

    Marked steps are the cycles. Raises MissingTable if no steps are marked and no function is called often enough.
    """
    if trace.steps.height:
        steps = trace.steps.sort("ts_ns", maintain_order=True)
        marked = steps.select("ts_ns", "dur_ns", anchor=pl.lit("ProfilerStep"), phase=pl.lit(GENERIC))
        return marked.with_row_index("cycle", 1).with_columns(pl.col("cycle").cast(pl.Int64))
    calls = _calls(trace)
    main = main_anchor(calls)
    if main is None:
        what = "steps, or a Python function that is called repeatedly"
        raise advised(MissingTable(what, hint="record Python's calls", topic="steps"), trace)
    prefill = prefill_anchor(calls, main)
    rows = _outermost(calls, main)
    phases = [DECODE] * rows.size if prefill is not None else classified(calls, rows)
    extra = np.empty(0, np.int64) if prefill is None else _outermost(calls, prefill)
    low, high = _windows(calls, rows, calls.end[extra])
    cycles = pl.DataFrame({
        "ts_ns": np.concatenate([low, calls.start[extra]]),
        "dur_ns": np.concatenate([high - low, (calls.end - calls.start)[extra]]),
        "anchor": [calls.names[main]] * rows.size + [calls.names[prefill or 0]] * extra.size,
        "phase": phases + [PREFILL] * extra.size,
    }, schema_overrides={"phase": pl.String, "anchor": pl.String})  # fmt: skip
    cycles = cycles.sort("ts_ns", maintain_order=True).with_row_index("cycle", 1)
    return cycles.with_columns(pl.col("cycle").cast(pl.Int64))


def _calls(trace: Trace) -> _Calls:
    """Calls with a duration, of threads with more than one, of the process with the lowest id."""
    spans = trace.spans.filter(pl.col("category").is_in(_CALLS) & (pl.col("dur_ns") > 0))
    spans = spans.join(trace.tracks.select("track_id", "pid"), on="track_id", how="left")
    pid = pl.col("pid").fill_null(-1)
    spans = spans.filter((pl.len().over("track_id") > 1) & (pid == pid.min()))
    spans = spans.sort("track_id", "ts_ns", "dur_ns", descending=[False, False, True], maintain_order=True)
    start = spans["ts_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    names = spans["name"].cast(pl.String)
    code = names.rank("dense").cast(pl.Int64) - 1
    parent = enclosing(start, end, spans["track_id"].cast(pl.Int64).to_numpy())
    return _Calls(names.unique().sort().to_list(), code.to_numpy(), start, end, parent)


def main_anchor(calls: _Calls) -> int | None:
    """The function whose outermost calls make the cycles: the largest total, or of two similar the longer calls."""
    counts, totals = _at_the_top(calls)
    candidates = [c for c in dict.fromkeys(calls.code[calls.parent < 0].tolist()) if counts[c] >= _MIN_CALLS]
    candidates = [c for c in candidates if _may_be_anchor(calls.names[c])]

    def order(a: int, b: int) -> int:
        if min(totals[a], totals[b]) >= _ALIKE * max(totals[a], totals[b]):
            return _sign(totals[b] / counts[b] - totals[a] / counts[a])
        return _sign(totals[b] - totals[a])

    return min(candidates, key=cmp_to_key(order)) if candidates else None


def prefill_anchor(calls: _Calls, main: int) -> int | None:
    """The function with the largest total among those with few and long calls, apart from the main anchor."""
    counts, totals = _at_the_top(calls)
    mean = totals[main] / counts[main]
    candidates = [
        c
        for c in np.flatnonzero(counts).tolist()
        if c != main
        and _may_be_anchor(calls.names[c])
        and counts[c] <= _RARE * counts[main]
        and totals[c] / counts[c] > _LONG * mean
    ]
    return max(candidates, key=lambda c: totals[c]) if candidates else None


def _at_the_top(calls: _Calls) -> tuple[Ints, NDArray[np.float64]]:
    top = calls.parent < 0
    n = len(calls.names)
    lengths = (calls.end - calls.start)[top]
    counts = np.bincount(calls.code[top], minlength=n).astype(np.int64)
    return counts, np.bincount(calls.code[top], lengths, minlength=n).astype(np.float64)


def _may_be_anchor(name: str) -> bool:
    return name.rpartition(": ")[2] not in _NO_ANCHORS


def _sign(value: float) -> int:
    return int(value > 0) - int(value < 0)


def _outermost(calls: _Calls, code: int) -> Ints:
    """Rows of the function's calls that lie in no other call of it, in order of time."""
    is_it = calls.code == code
    rows = np.flatnonzero(is_it)
    above = np.where(calls.parent[rows] >= 0, nearest(calls.parent, is_it)[calls.parent[rows]], -1)
    rows = rows[above < 0]
    return rows[np.argsort(calls.start[rows], kind="stable")]


def _windows(calls: _Calls, anchors: Ints, other_ends: Ints) -> tuple[Ints, Ints]:
    """Start and end of the cycles: from the end of the cycle before to the anchor's own, as far as calls go.

    `others` are ends of cycles of another kind, which may lie between.
    """
    start, end = calls.start[anchors], calls.end[anchors]
    before = np.maximum.accumulate(np.concatenate([[start[0]], end[:-1] + _APART_NS]))
    far = max(_FAR * float(np.median(end - start)), _LEAST_FAR_NS)
    low = np.where(start - before + _APART_NS < far, np.minimum(before, start), start)
    if other_ends.size:
        last = np.concatenate([[low.min()], np.sort(other_ends)])
        low = np.maximum(low, last[np.maximum(np.searchsorted(last, start, side="right") - 1, 0)])
    in_time = np.argsort(calls.start, kind="stable")
    starts, open_until = calls.start[in_time], np.maximum.accumulate(calls.end[in_time])
    at = np.searchsorted(starts, low)
    is_open = (at > 0) & (open_until[np.maximum(at - 1, 0)] > low)
    return np.where(is_open, low, starts[at]), end


def classified(calls: _Calls, anchors: Ints) -> list[str]:
    """The phase of each anchor: by the names of the calls in it, else by its duration, else by its neighbours."""
    is_anchor = np.zeros(calls.code.size, bool)
    is_anchor[anchors] = True
    owner = nearest(calls.parent, is_anchor)
    number = np.full(calls.code.size + 1, -1)
    number[anchors] = np.arange(anchors.size)

    def having(wanted: Sequence[bool]) -> NDArray[np.bool_]:
        rows = np.array(wanted, bool)[calls.code] & (owner >= 0)
        return np.bincount(number[owner[rows]], minlength=anchors.size) > 0

    extends = having(["forward_extend" in name for name in calls.names])
    plain = having([name == "decode" for name in calls.names])
    named = having([name != "decode" and _DECODE.search(name) is not None for name in calls.names])
    encodes = having([name == "encode" for name in calls.names])
    phases = np.where(extends, PREFILL, np.where(named | (plain & ~encodes), DECODE, GENERIC)).tolist()
    if set(phases) <= {GENERIC}:
        phases = _by_duration((calls.end - calls.start)[anchors])
    return _by_neighbours(phases, (calls.end - calls.start)[anchors])


def _by_duration(lengths: Ints) -> list[str]:
    long = lengths[lengths > _LEAST_PREFILL_NS]
    if long.size < _MIN_CALLS or long.max() <= _LONG * np.median(long):
        return [GENERIC] * lengths.size
    limit = max(float(np.percentile(long, 80)), _LONG * float(np.median(long)))
    return [PREFILL if length > limit else DECODE for length in lengths.tolist()]


def _by_neighbours(phases: list[str], lengths: Ints) -> list[str]:
    """A cycle of no phase takes that of its neighbours; if they differ, that of the one closer in duration."""
    resolved = list(phases)
    for i in (i for i, phase in enumerate(phases) if phase == GENERIC):
        neighbours = [j for j in (i - 1, i + 1) if 0 <= j < len(phases) and phases[j] != GENERIC]
        if neighbours:
            resolved[i] = phases[min(neighbours, key=lambda j: abs(int(lengths[j] - lengths[i])))]
    return resolved
