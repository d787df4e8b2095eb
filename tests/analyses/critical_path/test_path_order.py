from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.critical_path.path_order import FAR_OFF, LONG_AGO, last_ended, latest

pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12)


def columns(rows, n):
    return [np.array([row[i] for row in rows], np.int64) for i in range(n)]


@given(pairs, pairs)
def test_the_latest_is_the_last_row_of_the_group_no_later_than_asked(rows, queries):
    rows = sorted(rows)
    expected = [max((i for i, (g, t) in enumerate(rows) if g == q and t <= at), default=-1) for q, at in queries]
    assert latest(*columns(rows, 2), *columns(queries, 2)).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 9), st.integers(0, 9), st.integers(0, 9)), max_size=8),
)
def test_the_last_to_end_is_looked_for_among_what_was_queued_in_time(rows, queries):
    found = last_ended(tuple(columns(rows, 3)), tuple(columns(queries, 4)))
    for (group, after, at, by), row in zip(queries, found.tolist(), strict=True):
        ends = [end for g, end, queued in rows if g == group and after < end <= at and queued <= by]
        assert (row >= 0) == bool(ends)
        if ends:
            assert rows[row][0] == group
            assert rows[row][1] == max(ends)
            assert rows[row][2] <= by


def test_the_ends_of_time_are_apart_from_all_times():
    assert LONG_AGO < -(10**18)
    assert FAR_OFF > 10**18
