from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_traces import AUTOGRAD, MAIN, PATH_TRACKS, US, Row, call, kernel, op, spans_of

from stepscope.analyses.critical_path.threads import (
    FAR_OFF,
    LONG_AGO,
    host_collectives,
    host_threads,
    last_ended,
    latest,
)


def active(spans, thread):
    starts, ends = host_threads(spans, PATH_TRACKS).active[thread]
    return list(zip((starts // US).tolist(), (ends // US).tolist(), strict=True))


def test_a_thread_is_active_in_operators_and_calls_not_in_ranges_and_python():
    spans = spans_of(
        Row(MAIN, 0, 100, "ProfilerStep#1", "step"),
        Row(MAIN, 5, 90, "train.py(3): step", "python"),
        Row(MAIN, 6, 80, "forward", "user_range"),
        op(10, 5),
        call(20, 5),
        Row(MAIN, 30, 5, "enumerate(DataLoader)#next", "dataloader"),
        op(12, 8),
    )
    assert active(spans, 0) == [(10, 25), (30, 35)]


def test_an_exchange_of_data_on_the_host_is_activity_though_it_is_a_range():
    spans = spans_of(Row(MAIN, 10, 5, "gloo:all_reduce", "user_range"), Row(MAIN, 0, 5, "my:all_reduce", "user_range"))
    assert active(spans, 0) == [(10, 15)]
    assert host_collectives(spans, np.array([1, 0])).tolist() == [0]


def test_threads_are_those_that_hold_spans_of_the_host_in_order_of_tracks():
    spans = spans_of(op(0, 5), kernel(0, 5), op(1, 3, track=AUTOGRAD), op(1, 3))
    threads = host_threads(spans, PATH_TRACKS)
    assert threads.track.tolist() == [MAIN, AUTOGRAD]
    assert threads.cuts.tolist() == [0, 2, 3]
    assert threads.parent.tolist() == [-1, 0, -1]
    assert threads.n_active.tolist() == [2, 1]
    assert threads.of(1) == slice(2, 3)
    assert threads.codes(np.array([0, 3, 1, 9, -1])).tolist() == [0, -1, 1, -1, -1]


def test_a_trace_without_a_host_has_no_threads():
    threads = host_threads(spans_of(kernel(0, 5)), PATH_TRACKS)
    assert threads.track.size == 0
    assert threads.codes(np.array([0])).tolist() == [-1]


pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12)


def columns(rows, n):
    return [np.array([row[i] for row in rows], np.int64) for i in range(n)]


@given(pairs, pairs)
def test_the_latest_is_the_last_row_of_the_group_no_later_than_asked(rows, queries):
    rows = sorted(rows)
    expected = [max((i for i, (g, t) in enumerate(rows) if g == q and t <= at), default=-1) for q, at in queries]
    assert latest(*columns(rows, 2), *columns(queries, 2)).tolist() == expected


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 9), st.integers(0, 9), st.integers(0, 9)), max_size=8),
)
def test_the_last_to_end_is_looked_for_among_what_was_queued_in_time(rows, queries):
    result = last_ended(tuple(columns(rows, 3)), tuple(columns(queries, 4)))
    for (group, after, at, by), row in zip(queries, result.tolist(), strict=True):
        ends = [end for g, end, queued in rows if g == group and after < end <= at and queued <= by]
        assert (row >= 0) == bool(ends)
        if ends:
            assert rows[row][0] == group
            assert rows[row][1] == max(ends)
            assert rows[row][2] <= by


def test_the_ends_of_time_are_apart_from_all_times():
    assert LONG_AGO < -(10**18)
    assert FAR_OFF > 10**18
