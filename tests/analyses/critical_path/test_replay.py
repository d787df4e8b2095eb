from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_paths import UNIT, Case, case_of, events, schedule

from stepscope.analyses.critical_path.changes import rules, scale_of
from stepscope.analyses.critical_path.replay import Changes, make
from stepscope.analyses.critical_path.threads import LONG_AGO
from stepscope.analyses.critical_path.work import ACROSS, BEFORE, KERNEL_WAIT, LAUNCH, LAUNCH_DELAY
from stepscope.core.errors import StepscopeError

ALL = (".", "other_host", "launch_delay", "kernel_wait", "unexplained")
cases = st.builds(case_of, events, st.integers(0, 20))


def lengths(case, text):
    supposed = scale_of(rules(text), case.spans, case.threads, case.work)
    graph = make(case.work, case.held, case.waited, (case.passed, case.first), case.windows)
    return np.rint(graph.lengths(graph.run(supposed))).astype(int)


@pytest.mark.slow
@settings(max_examples=50)
@given(cases)
def test_nothing_scaled_is_nothing_changed(case):
    assert lengths(case, "kernel_wait=1").tolist() == (case.windows.high - case.windows.low).tolist()


@pytest.mark.slow
@settings(max_examples=50)
@given(st.builds(case_of, events, st.just(0)), st.sampled_from([0.0, 0.5, 2.0]))
def test_all_scaled_scales_the_whole(case, factor):
    text = ",".join(f"{what}={factor}" for what in ALL)
    assert lengths(case, text).tolist() == ((case.windows.high - case.windows.low) * factor).tolist()


@dataclass(frozen=True)
class Graph:
    """All dependencies of a case, written out; node 0 is the origin, then come starts of work, then moments."""

    case: Case
    text: str
    factor: Changes
    moments: list[tuple[int, int, int, int, int, int]]  # thread, at, since, work and the lag after it, source

    def factor_at(self, spans, supposed, tick):
        open_ = [(name, category) for low, high, name, category in spans if low <= tick < high]
        name, category = open_[-1] if open_ else ("", "step")
        kind = {"operator": "operator", "runtime": "runtime"}.get(category, "other_host")
        kind = "sync" if name == "cudaDeviceSynchronize" else kind
        if name.startswith("gloo") or (name.startswith("c10d") and not self.case.work.row.size):
            kind = "communication"
        held = (r for r in supposed if (r.kind == kind if r.kind else any(r.matches(n) for n, _ in open_)))
        return next((rule.factor for rule in held), 1.0)

    def reached(self, thread, until):
        """How long after the origin a thread that never waits gets to a time, unit by unit."""
        rows = self.case.spans.filter(pl.col("track_id") == int(self.case.threads.track[thread]))
        ends = rows["ts_ns"] + rows["dur_ns"]
        spans = list(zip(rows["ts_ns"], ends, rows["name"], rows["category"], strict=True))
        ticks = range(origin(self.case), int(until), UNIT)
        return sum(min(UNIT, until - tick) * self.factor_at(spans, rules(self.text), tick) for tick in ticks)

    def position(self, thread, at, before=None):
        """The node that a time on a thread follows, and how long after it comes."""
        mine = [i for i, moment in enumerate(self.moments[:before]) if moment[0] == thread and moment[1] <= at]
        if not mine:
            return 0, self.reached(thread, at)
        last = self.moments[mine[-1]]
        return 1 + self.case.work.start.size + mine[-1], self.reached(thread, at) - self.reached(thread, last[1])

    def edges_of_work(self):
        work, held, factor = self.case.work, self.case.held, self.factor
        gaps = [int(s - a) for s, a in zip(work.start, held.at, strict=True)]
        of_kind = {kind: [g for g, w in zip(gaps, held.wait, strict=True) if w == kind] for kind in range(2)}
        launch = median([g for g in of_kind[LAUNCH_DELAY] if g] or [0])
        after_work = median(of_kind[KERNEL_WAIT] or [0])
        for k in range(work.start.size):
            recorded = gaps[k] * factor.waits[held.wait[k]]
            for by, j in ((BEFORE, work.before[k]), (ACROSS, held.across[k])):
                if j >= 0:
                    until = min(work.end[j], work.start[k])
                    least = min(after_work, work.start[k] - until) * factor.waits[KERNEL_WAIT]
                    lag = recorded if held.by[k] == by else least
                    yield 1 + j, 1 + k, (until - work.start[j]) * factor.work[j] + lag
            if work.call[k] >= 0:
                node, after = self.position(int(work.thread[k]), int(held.submitted[k]))
                least = min(launch, work.start[k] - held.submitted[k]) * factor.waits[LAUNCH_DELAY]
                yield node, 1 + k, after + (recorded if held.by[k] == LAUNCH else least)

    def edges_of_moments(self):
        work = self.case.work
        for i, (thread, at, since, w, lag, source) in enumerate(self.moments):
            node = 1 + work.start.size + i
            yield (node - 1 if i and self.moments[i - 1][0] == thread else 0), node, 0.0
            if since != LONG_AGO:
                from_, after = self.position(thread, since, before=i)
                yield from_, node, after
            if w >= 0:
                tail = self.reached(thread, at) - self.reached(thread, at - lag)
                yield 1 + w, node, (work.end[w] - work.start[w]) * self.factor.work[w] + tail
            if source >= 0:
                from_, after = self.position(source, at)
                yield from_, node, after

    def lengths(self):
        case, work = self.case, self.case.work
        times = schedule([*self.edges_of_work(), *self.edges_of_moments()], 1 + work.start.size + len(self.moments))
        ended = times[1 : 1 + work.start.size] + (work.end - work.start) * self.factor.work
        result, before = [], -np.inf
        for i in range(case.windows.low.size):
            bounds = (case.windows.begin[i], case.windows.end[i])
            places = [self.position(int(case.windows.main[i]), int(at)) for at in bounds]
            begin, end = (times[node] + after for node, after in places)
            end = max(end, before, *ended[case.windows.queued == i])
            result.append(end - max(begin, before))
            before = end
        return np.array(result)


def origin(case):
    ends = case.work.end[case.waited.work[case.waited.work >= 0]]
    times = (case.work.start, case.waited.end, case.passed.at, case.first.at, case.windows.begin, ends)
    return int(min(t.min() for t in times if t.size))


def graph_of(case, text):
    work, waited = case.work, case.waited
    tails = [int(waited.end[i] - work.end[w]) for i, w in enumerate(waited.work) if w >= 0]
    moments = []
    for i, w in enumerate(waited.work.tolist()):
        thread, start, end, queued = (int(c[i]) for c in (waited.thread, waited.start, waited.end, waited.queued))
        lag = int(min(end - work.end[queued], median(tails or [0]))) if queued >= 0 else 0
        waits = (int(work.end[w]), start, w, 0) if w >= 0 else (end, end, queued, lag)
        moments.append((thread, *waits, -1))
    for some in (case.passed, case.first):
        rows = zip(some.thread.tolist(), some.at.tolist(), some.since.tolist(), some.source.tolist(), strict=True)
        moments += [(thread, at, since, -1, 0, source) for thread, at, since, source in rows]
    moments.sort(key=lambda moment: moment[:2])
    return Graph(case, text, scale_of(rules(text), case.spans, case.threads, case.work), moments)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    cases,
    st.lists(
        st.tuples(
            st.sampled_from(["computation", "w1", "operator", "aten", "sync", "cuda", "other_host", "w", *ALL[2:]]),
            st.sampled_from(["0", "0.5", "3"]),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_the_schedule_is_that_of_trying_all_dependencies(case, drawn):
    text = ",".join(f"{what}={factor}" for what, factor in drawn if holds(case, what)) or "launch_delay=0"
    change = graph_of(case, text).lengths() - graph_of(case, "launch_delay=1").lengths()
    expected = np.maximum(case.windows.high - case.windows.low + change, 0)
    assert lengths(case, text).tolist() == np.rint(expected).astype(int).tolist()


def holds(case, what):
    try:
        scale_of(rules(f"{what}=1"), case.spans, case.threads, case.work)
    except StepscopeError:
        return False
    return True


def test_a_host_that_was_ahead_stays_so_no_longer_than_it_can():
    # Four steps of a kernel each, queued ahead of the device: shorter kernels leave the device waiting for the host.
    launches = [(0, 1, 0, "kernel", 3, i * 2 + 1, 3) for i in range(4)]
    case = case_of(launches, 2)
    assert (case.windows.low // UNIT).tolist() == [0, 7]
    assert (case.windows.high // UNIT).tolist() == [7, 13]
    assert (lengths(case, "computation=0") // UNIT).tolist() == [2, 3]
