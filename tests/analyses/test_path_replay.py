from __future__ import annotations

from statistics import median

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_paths import UNIT, case_of, events, schedule

from stepscope.analyses._path_order import LONG_AGO
from stepscope.analyses._path_replay import replayed
from stepscope.analyses._path_scale import rules, scale_of
from stepscope.analyses._path_work import ACROSS, BEFORE, KERNEL_WAIT, LAUNCH, LAUNCH_DELAY
from stepscope.errors import StepscopeError

ALL = (".", "other_host", "launch_delay", "kernel_wait", "unexplained")
cases = st.builds(case_of, events, st.integers(0, 20))


def lengths(case, text):
    supposed = scale_of(rules(text), case.spans, case.threads, case.work)
    return replayed(case.work, case.held, case.waited, (case.passed, case.first), case.windows, supposed)


@settings(max_examples=50)
@given(cases)
def test_nothing_scaled_is_nothing_changed(case):
    assert lengths(case, "kernel_wait=1").tolist() == (case.windows.high - case.windows.low).tolist()


@settings(max_examples=50)
@given(st.builds(case_of, events, st.just(0)), st.sampled_from([0.0, 0.5, 2.0]))
def test_all_scaled_scales_the_whole(case, factor):
    text = ",".join(f"{what}={factor}" for what in ALL)
    assert lengths(case, text).tolist() == ((case.windows.high - case.windows.low) * factor).tolist()


def on_threads(case, thread, until, text):
    """How long after the origin a thread that never waits gets to a time, unit by unit, by the rules of the text."""
    supposed = rules(text)
    spans, lane = case.spans, int(case.threads.track[thread])
    mine = spans.filter(spans["track_id"] == lane).with_row_index("row")
    rows = list(zip(mine["ts_ns"], mine["ts_ns"] + mine["dur_ns"], mine["name"], mine["category"], strict=True))
    time = 0.0
    for tick in range(origin(case), int(until), UNIT):
        open_ = [(name, category) for low, high, name, category in rows if low <= tick < high]
        category = open_[-1][1] if open_ else None
        kind = {"operator": "operator", "runtime": "runtime"}.get(category, "other_host")
        kind = "sync" if open_ and open_[-1][0] == "cudaDeviceSynchronize" else kind
        kind = "communication" if open_ and open_[-1][0].startswith("gloo") else kind
        if not case.work.row.size and open_ and open_[-1][0].startswith("c10d"):
            kind = "communication"
        held = (r for r in supposed if (r.kind == kind if r.kind else any(r.matches(name) for name, _ in open_)))
        time += min(UNIT, until - tick) * next((rule.factor for rule in held), 1.0)
    return time


def origin(case):
    times = (case.work.start, case.waited.end, case.passed.at, case.first.at, case.windows.begin)
    ends = [case.work.end[case.waited.work[case.waited.work >= 0]]]
    return int(min(t.min() for t in (*times, *ends) if t.size))


def brute_force(case, text):
    """The lengths by an explicit graph of all dependencies, relaxed until nothing changes."""
    work, held, waited = case.work, case.held, case.waited
    factor = scale_of(rules(text), case.spans, case.threads, case.work)
    moments = []  # thread, at, since, work and lag after it, source
    tails = [int(waited.end[i] - work.end[w]) for i, w in enumerate(waited.work) if w >= 0]
    for i, w in enumerate(waited.work.tolist()):
        thread, start, end, queued = (int(c[i]) for c in (waited.thread, waited.start, waited.end, waited.queued))
        if w >= 0:
            moments.append((thread, int(work.end[w]), start, w, 0, -1))
        else:
            lag = int(min(end - work.end[queued], median(tails or [0]))) if queued >= 0 else 0
            moments.append((thread, end, end, queued, lag, -1))
    for some in (case.passed, case.first):
        moments += [(int(t), int(a), int(s), -1, 0, int(f)) for t, a, f, s in
                    zip(some.thread, some.at, some.source, some.since, strict=True)]  # fmt: skip
    moments.sort(key=lambda moment: moment[:2])
    n = work.start.size

    def reached(thread, at):
        return on_threads(case, thread, at, text)

    def position(thread, at, before=len(moments)):
        """Node that a time on a thread follows, and how long after it comes."""
        mine = [i for i, m in enumerate(moments[:before]) if m[0] == thread and m[1] <= at]
        return (1 + n + mine[-1], reached(thread, at) - reached(*moments[mine[-1]][:2])) if mine else (0, reached(thread, at))

    edges = []
    gaps = [int(s - a) for s, a in zip(work.start, held.at, strict=True)]
    waits = [median([g for g, w in zip(gaps, held.wait, strict=True) if w == kind and (kind or g)] or [0])
             for kind in (LAUNCH_DELAY, KERNEL_WAIT)]  # fmt: skip
    for k in range(n):
        kept = gaps[k] * factor.waits[held.wait[k]]
        for by, j in ((BEFORE, work.before[k]), (ACROSS, held.across[k])):
            if j >= 0:
                until = min(work.end[j], work.start[k])
                least = min(waits[KERNEL_WAIT], work.start[k] - until) * factor.waits[KERNEL_WAIT]
                lag = kept if held.by[k] == by else least
                edges.append((1 + j, 1 + k, (until - work.start[j]) * factor.work[j] + lag))
        if work.call[k] >= 0:
            node, after = position(int(work.thread[k]), int(held.submitted[k]))
            least = min(waits[LAUNCH_DELAY], work.start[k] - held.submitted[k]) * factor.waits[LAUNCH_DELAY]
            edges.append((node, 1 + k, after + (kept if held.by[k] == LAUNCH else least)))
    for i, (thread, at, since, w, lag, source) in enumerate(moments):
        node = 1 + n + i
        edges.append((1 + n + i - 1 if i and moments[i - 1][0] == thread else 0, node, 0.0))
        if since != LONG_AGO:
            from_, after = position(thread, since, before=i)
            edges.append((from_, node, after))
        if w >= 0:
            tail = reached(thread, at) - reached(thread, at - lag)
            edges.append((1 + w, node, (work.end[w] - work.start[w]) * factor.work[w] + tail))
        if source >= 0:
            from_, after = position(source, at)
            edges.append((from_, node, after))
    times = schedule(edges, 1 + n + len(moments))
    new = []
    before = None
    for i in range(case.windows.low.size):
        thread = int(case.windows.main[i])
        begin, end = (times[node] + after for node, after in
                      (position(thread, int(t)) for t in (case.windows.begin[i], case.windows.end[i])))  # fmt: skip
        ended = [times[1 + k] + (work.end[k] - work.start[k]) * factor.work[k] for k in range(n) if case.windows.queued[k] == i]
        end = max([end, *ended] + ([before] if before is not None else []))
        new.append(end - (begin if before is None else max(begin, before)))
        before = end
    return new


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
    change = np.array(brute_force(case, text)) - np.array(brute_force(case, "launch_delay=1"))
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
