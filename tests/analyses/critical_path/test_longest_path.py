from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_paths import UNIT, case_of, events, longest

from stepscope.analyses.critical_path.longest_path import paths
from stepscope.analyses.critical_path.path_order import LONG_AGO


def pieces(case):
    """Per window the pieces (start, end, what) of the path, in order of time, gaps before work included."""
    got = paths(case.work, case.held, case.joined, case.windows)
    found = {window: [] for window in range(case.windows.low.size)}
    for window, k, entered in zip(got.work_window, got.work, got.entered, strict=True):
        low = case.windows.low[window]
        start, end = max(case.work.start[k], low), min(entered, case.work.end[k])
        found[window].append((start, end, "work", int(k)))
        found[window].append((max(case.held.at[k], low), start, "gap", int(k)))
    for window, thread, low, high in zip(got.stay_window, got.thread, got.low, got.high, strict=True):
        found[window].append((low, high, "thread", int(thread)))
    return {window: sorted(piece for piece in some if piece[1] > piece[0]) for window, some in found.items()}


@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_the_path_covers_each_window_without_gap_or_overlap(drawn, cut):
    case = case_of(drawn, cut)
    for window, some in pieces(case).items():
        edges = [int(case.windows.low[window]), *(int(end) for _, end, _, _ in some)]
        assert [int(start) for start, _, _, _ in some] == edges[:-1]
        assert edges[-1] == case.windows.high[window]


@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_no_path_is_longer_than_the_window_and_one_is_as_long(drawn, cut):
    case = case_of(drawn, cut)
    for window in range(case.windows.low.size):
        assert longest(case, window) == case.windows.high[window] - case.windows.low[window]


def follows(case, before, after, at):
    """Whether something that happened at a time let another go on at once, perhaps by way of others at that time."""
    work, held = case.work, case.held
    hops = {("gap", k): {("work", k)} for k in np.flatnonzero(work.start == at).tolist()}
    for thread, when, k, source in zip(*(column.tolist() for column in vars_of(case.joined)), strict=True):
        if when == at:
            hops.setdefault(("thread", source) if k < 0 else ("work", k), set()).add(("thread", thread))
    for k in np.flatnonzero(held.at == at).tolist():
        to = ("gap", k) if work.start[k] > at else ("work", k)
        for other in (work.before[k], held.across[k]):
            hops.setdefault(("work", int(other)), set()).add(to)
        hops.setdefault(("thread", int(work.thread[k])), set()).add(to)
    seen, todo = set(), [before]
    while todo:
        new = hops.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return after in seen


def vars_of(joined):
    return joined.thread, joined.at, joined.work, joined.source


@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_the_path_follows_dependencies_only(drawn, cut):
    case = case_of(drawn, cut)
    for some in pieces(case).values():
        for (_, at, *before), (_, _, *after) in pairwise(some):
            assert follows(case, tuple(before), tuple(after), at)


def test_a_thread_first_active_in_a_step_is_started_by_its_main_thread():
    # An operator on a thread that nothing links to the main one, and a kernel that it queues.
    case = case_of([(0, 2, 0, "op", 3, 0, 0), (2, 2, 2, "kernel", 3, 1, 9)], 0)
    assert case.first.thread.tolist() == [1]
    assert case.first.at.tolist() == [2 * UNIT]
    assert case.first.since.tolist() == [LONG_AGO]
    (some,) = pieces(case).values()
    assert [(int(s) // UNIT, int(e) // UNIT, what) for s, e, what, _ in some] == [
        (0, 2, "thread"), (2, 3, "thread"), (3, 12, "work")
    ]  # fmt: skip


def test_windows_without_length_have_no_path():
    case = case_of([(0, 2, 0, "op", 3, 0, 0)], 0)
    windows = case.windows.only(np.array([0]))
    empty = type(windows)(windows.step, windows.rank, windows.low, windows.low, *(
        getattr(windows, name) for name in ("main", "begin", "end", "queued")
    ))  # fmt: skip
    got = paths(case.work, case.held, case.joined, empty)
    assert got.work.size == got.thread.size == 0
