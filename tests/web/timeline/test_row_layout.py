"""Rows of spans: nothing overlaps in a row, what is nested lies deeper, what crosses costs few rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.web.timeline.row_layout import depths


def laid(rows):
    """Rows of (track, start, end), sorted as spans are, with the depth of each."""
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    track, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return list(zip(rows, depths(track, start, end).tolist(), strict=True))


spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 120)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=40,
)


def crosses(one, two):
    return one[0] == two[0] and one[1] < two[1] < one[2] < two[2]


@given(spans)
def test_no_two_spans_of_a_row_overlap_and_no_row_is_left_out(rows):
    by_row: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for row, depth in laid(rows):
        by_row.setdefault((row[0], depth), []).append(row)
    for mine in by_row.values():
        assert all(before[2] <= after[1] for before, after in pairwise(mine))
    for track in {row[0] for row in rows}:
        used = {depth for of, depth in by_row if of == track}
        assert used == set(range(len(used)))


@given(spans)
def test_where_nothing_crosses_depth_is_the_number_of_spans_around(rows):
    found = laid(rows)
    bad = {one[0] for one in rows for two in rows if crosses(one, two)}
    for i, (row, depth) in enumerate(found):
        if row[0] not in bad:
            around = [other for other, _ in found[:i] if other[0] == row[0] and other[1] <= row[1] < other[2]]
            assert depth == len(around)


def test_steps_that_end_inside_of_an_optimizer_s_step_stay_in_one_row():
    steps = [(0, 100 * i, 100 * i + 100) for i in range(50)]
    optimizers = [(0, 100 * i + 90, 100 * i + 105) for i in range(50)]
    operators = [(0, 100 * i + 92, 100 * i + 97) for i in range(50)]
    found = dict(laid([*steps, *optimizers, *operators]))
    assert {found[row] for row in steps} == {0}
    assert {found[row] for row in operators} == {1}
    assert {found[row] for row in optimizers} == {2}


def test_a_long_chain_takes_few_rows():
    assert max(depth for _, depth in laid([(0, 10 * i, 10 * i + 15) for i in range(2000)])) <= 3


def test_spans_that_all_overlap_take_a_row_each():
    found = laid([(0, i, 1_000 + 2 * i) for i in range(100)])
    assert sorted(depth for _, depth in found) == list(range(100))


def test_other_tracks_are_laid_out_as_if_they_were_alone():
    calm = [(1, 0, 100), (1, 10, 20)]
    found = dict(laid([(0, 0, 10), (0, 5, 15), *calm]))
    assert [found[row] for row in calm] == [0, 1]


def test_no_spans_have_no_rows():
    assert depths(*(np.empty(0, np.int64) for _ in range(3))).size == 0
