"""Random small traces, and the longest path and the schedule of each by brute force: what the critical path must be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from hypothesis import strategies as st
from path_traces import AUTOGRAD, MAIN, OTHER, PATH_TRACKS, STREAM_7, STREAM_8, US, Row, call, op, spans_of, steps_of

from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.events import crossings
from stepscope.analyses.critical_path.longest_path import Joins, beginnings, joins
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads, host_threads
from stepscope.analyses.critical_path.waits import Handoffs, Waits, handoffs, waits
from stepscope.analyses.critical_path.windows import Windows, path_windows
from stepscope.analyses.critical_path.work import ACROSS, BEFORE, LAUNCH, Held, Work, held_up, path_work
from stepscope.core.schema import ARROWS, EVENT_WAITS, OPS

UNIT = 10 * US  # three are a long gap
ARROW = ARROWS.conform(
    pl.DataFrame({"from_track_id": [MAIN], "from_ts_ns": [0], "to_track_id": [AUTOGRAD], "to_ts_ns": [0]})
)
_event = st.tuples(
    st.integers(0, 3),  # pause before it
    st.integers(1, 4),  # its length
    st.sampled_from([MAIN, MAIN, AUTOGRAD, OTHER]),
    st.sampled_from(["op", "kernel", "kernel", "copy", "wait", "sync", "graph", "exchange"]),
    st.sampled_from([STREAM_7, STREAM_8]),
    st.integers(0, 6),  # from the call's start to its work's
    st.integers(0, 5),  # length of the work
)
events = st.lists(_event, min_size=1, max_size=9)


def rows_of_events(drawn) -> list[Row]:
    rows, now = [], dict.fromkeys((MAIN, AUTOGRAD, OTHER), 0)
    for i, (pause, length, thread, what, stream, delay, lasts) in enumerate(drawn):
        at = now[thread] + pause
        now[thread] = at + length
        if what in ("op", "exchange"):
            rows.append(op(at, length, "aten::mm" if what == "op" else "c10d::allreduce_", thread))
            if what == "exchange" and thread != OTHER:
                begin = max(now[OTHER], at)
                rows.append(Row(OTHER, begin, lasts + 1, "gloo:all_reduce", "user_range"))
                now[OTHER] = begin + lasts + 1
            continue
        name = {"wait": "cudaStreamWaitEvent", "sync": "cudaDeviceSynchronize", "copy": "cudaMemcpyAsync"}
        rows.append(call(at, length, name.get(what, "cudaLaunchKernel"), thread, key=f"c{i}"))
        if what in ("kernel", "copy", "graph"):
            sort = "memcpy" if what == "copy" else "kernel"
            rows.append(Row(stream, at + delay, lasts, f"w{i}", sort, launch=f"c{i}"))
        if what == "graph":
            rows.append(Row(STREAM_8, at + delay + 1, 1, f"g{i}", "kernel", launch=f"c{i}"))
    return rows


@dataclass(frozen=True)
class Case:
    """A random trace in parts."""

    spans: pl.DataFrame
    threads: Threads
    work: Work
    held: Held
    waited: Waits
    passed: Handoffs
    first: Handoffs
    joined: Joins
    windows: Windows


def case_of(drawn, border: int) -> Case:
    """The case of some events, in one step or two with a border between them."""
    rows = rows_of_events(drawn)
    last = max(row.ts + row.dur for row in rows if row.track <= OTHER) + 1
    bounds = [(0, border), (border, last)] if 0 < border < last else [(0, last)]
    marks = [Row(MAIN, low, high - low, f"ProfilerStep#{i}", "step", step=i) for i, (low, high) in enumerate(bounds)]
    called = {row.key: row.ts for row in rows if row.key}
    numbered = []
    for row in rows:
        step = next((i for i, (low, high) in enumerate(bounds) if low <= called.get(row.launch, row.ts) < high), None)
        numbered.append(Row(**{**row.__dict__, "step": step}))
    spans = spans_of(*marks, *numbered, unit=UNIT)
    threads = host_threads(spans, PATH_TRACKS)
    devices = recorded_work(spans, PATH_TRACKS)
    steps = steps_of(*bounds, unit=UNIT)
    windows, _ = path_windows(spans, PATH_TRACKS, steps, devices, threads, within=None, step=None)
    work = path_work(devices, spans, threads)
    held = held_up(work, crossings(spans, PATH_TRACKS, work, EVENT_WAITS.empty()))
    waited = waits(spans, PATH_TRACKS, threads, work, EVENT_WAITS.empty())
    passed = handoffs(spans, OPS.empty(), ARROW, threads)
    first = beginnings(threads, windows, passed)
    joined = joins(waited, work, passed, first)
    return Case(spans, threads, work, held, waited, passed, first, joined, windows)


def since_of(case: Case, thread: int, at: int) -> int:
    """From when on a thread waited for what let it go on at that time: not before it last started something else."""
    candidates = []
    for row, t, start, w in zip(case.waited.row, case.waited.thread, case.waited.start, case.waited.work, strict=True):
        if t == thread and w >= 0 and case.work.end[w] == at:
            own = case.held.submitted[case.work.call == row]  # a call that copies is awake until it has queued the copy
            candidates.append(max([int(start), *map(int, own)]))
    handed = [
        hop
        for some in (case.passed, case.first)
        for hop in zip(some.thread.tolist(), some.at.tolist(), some.source.tolist(), some.since.tolist(), strict=True)
    ]
    candidates += [since for t, a, _, since in handed if (t, a) == (thread, at)]
    since = max(candidates)
    return max([since, *(begun for _, begun, source, _ in handed if source == thread and since <= begun < at)])


def longest(case: Case, window: int) -> int:
    """The length of the longest path through a window, over all paths there are.

    A thread takes a unit's time to get through a unit, but none while it waits. Work takes its time. Where a dependency
    held something up, the time until then is its own; where it did not, none.
    """
    low, high = int(case.windows.low[window]), int(case.windows.high[window])
    work, held, joined = case.work, case.held, case.joined
    asleep = {
        (int(t), tick)
        for t, at in zip(joined.thread, joined.at, strict=True)
        if at <= high  # a thread that gets to the end of its step is awake
        for tick in range(max(since_of(case, int(t), int(at)), low - UNIT), int(at), UNIT)
    }

    @cache
    def to(node) -> int:
        what, one, at = node
        if at <= low:
            return 0
        return on_thread(one, at) if what == "thread" else through_work(one, at)

    def on_thread(thread, at) -> int:
        best = to(("thread", thread, at - UNIT)) + (0 if (thread, at - UNIT) in asleep else UNIT)
        for t, when, w, source in zip(joined.thread, joined.at, joined.work, joined.source, strict=True):
            if (t, when) == (thread, at):
                best = max(best, to(("work", int(w), int(when)) if w >= 0 else ("thread", int(source), int(when))))
        return best

    def through_work(k, at) -> int:
        start = int(work.start[k])
        if start <= low or held.at[k] == LONG_AGO:
            return at - low
        options = [("work", int(j), int(min(work.end[j], start)), by)
                   for by, j in ((BEFORE, work.before[k]), (ACROSS, held.across[k])) if j >= 0]  # fmt: skip
        if work.call[k] >= 0:
            options.append(("thread", int(work.thread[k]), int(held.submitted[k]), LAUNCH))
        gaps = (start - max(until, low) if held.by[k] == by else 0 for _, _, until, by in options)
        return max(to(option[:3]) + gap for option, gap in zip(options, gaps, strict=True)) + at - start

    ends = [("work", k, high) for k in range(work.start.size) if work.end[k] == high]
    return max(to(node) for node in [*ends, ("thread", int(case.windows.main[window]), high)])


def schedule(edges: list[tuple[int, int, float]], n: int) -> np.ndarray:
    """How long after node 0 each node comes, by trying all edges until nothing changes."""
    times = np.full(n, -np.inf)
    times[0] = 0.0
    for _ in range(n + 1):
        before = times.copy()
        for from_, to, after in edges:
            times[to] = max(times[to], times[from_] + after)
        if np.array_equal(before, times):
            return times
    msg = "a cycle"
    raise AssertionError(msg)
