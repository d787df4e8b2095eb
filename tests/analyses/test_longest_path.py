from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_paths import UNIT, case_of, events, longest

from stepscope.analyses._longest_path import paths
from stepscope.analyses._path_order import LONG_AGO
from stepscope.analyses._path_work import LAUNCH


def pieces(case):
    """Per window the pieces (start, end, what) of the path, in order of time, gaps before work included."""
    got = paths(case.work, case.held, case.joined, case.windows)
    found = {window: [] for window in range(case.windows.low.size)}
    for window, k, entered in zip(got.work_window, got.work, got.entered, strict=True):
        low = case.windows.low[window]
        start, end = max(case.work.start[k], low), min(entered, case.work.end[k])
        found[window].append((start, end, "work", k))
        found[window].append((max(case.held.at[k], low), start, "gap", k))
    for window, thread, low, high in zip(got.stay_window, got.thread, got.low, got.high, strict=True):
        found[window].append((low, high, "thread", thread))
    return {window: sorted(piece for piece in some if piece[1] > piece[0]) for window, some in found.items()}


@settings(max_examples=300)
@given(events, st.integers(0, 20))
def test_the_path_covers_each_window_without_gap_or_overlap(drawn, cut):
    case = case_of(drawn, cut)
    for window, some in pieces(case).items():
        edges = [int(case.windows.low[window]), *(int(end) for _, end, _, _ in some)]
        assert [int(start) for start, _, _, _ in some] == edges[:-1]
        assert edges[-1] == case.windows.high[window]


@settings(max_examples=300)
@given(events, st.integers(0, 20))
def test_no_path_is_longer_than_the_window_and_one_is_as_long(drawn, cut):
    case = case_of(drawn, cut)
    for window in range(case.windows.low.size):
        assert longest(case, window) == case.windows.high[window] - case.windows.low[window]


@settings(max_examples=300)
@given(events, st.integers(0, 20))
def test_the_path_follows_dependencies_only(drawn, cut):
    case = case_of(drawn, cut)
    work, held, joined = case.work, case.held, case.joined
    released = set(zip(joined.thread.tolist(), joined.at.tolist(), joined.work.tolist(), joined.source.tolist()))
    for some in pieces(case).values():
        for (_, at, what, one), (_, _, after, other) in zip(some, some[1:]):
            if after == "gap":
                assert held.at[other] == at or held.at[other] == LONG_AGO
            if what == "gap":
                assert (after, other) == ("work", one)
            elif after == "thread":
                source = (one, -1) if what == "work" else (-1, one)
                assert (other, at, *source) in released
            elif after in {"gap", "work"} and what == "thread":
                assert held.by[other] == LAUNCH
                assert work.thread[other] == one
            elif after in {"gap", "work"}:
                assert one in (work.before[other], held.across[other])


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
