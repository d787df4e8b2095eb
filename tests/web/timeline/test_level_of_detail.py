"""Levels of detail against brute force: nothing visible is missing, busy time is kept in every pixel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.web.timeline import level_of_detail
from stepscope.web.timeline.level_of_detail import counts_between, lanes_of, nested_depths, pixel_edges, window


def laid(rows):
    """Lanes of (track, start, duration) rows, sorted as spans are."""
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    track, start, dur = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return rows, lanes_of(track.astype(np.uint32), start, dur)


spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 120)), max_size=40)
windows = st.tuples(st.integers(-50, 450), st.integers(1, 500), st.integers(1, 60))
#: Lanes with few spans are worked on all at once: none are, those with one or two are, all are.
smalls = st.sampled_from([0, 2, 4_096])


def view_of(lanes, at, small):
    low, length, n_pixels = at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level_of_detail, "_SMALL", small)
        return window(lanes, range(len(lanes)), low, low + length, n_pixels)


@given(spans)
def test_every_span_is_in_one_lane_and_no_two_of_a_lane_overlap(rows):
    rows, lanes = laid(rows)
    assert sorted(lanes.row.tolist()) == list(range(len(rows)))
    for k in range(len(lanes)):
        part = slice(lanes.first[k], lanes.first[k + 1])
        assert {rows[i][0] for i in lanes.row[part]} == {lanes.tracks[k]}
        assert (lanes.start[part][1:] >= lanes.end[part][:-1]).all()


@pytest.mark.slow
@given(spans, windows, smalls)
def test_each_span_of_the_window_is_in_full_or_in_a_bar_of_every_pixel_it_is_busy_in(rows, at, small):
    low, length, n_pixels = at
    rows, lanes = laid(rows)
    view = view_of(lanes, at, small)
    edges = pixel_edges(low, low + length, n_pixels)
    full = set(view.full_at.tolist())
    bars = set(zip(view.bar_lane.tolist(), view.bar_pixel.tolist(), strict=True))
    for k in range(len(lanes)):
        for i in range(lanes.first[k], lanes.first[k + 1]):
            start, end = int(lanes.start[i]), int(lanes.end[i])
            visible = start < low + length and (end > low or (start == end and start >= low))
            long = (end - start) * n_pixels >= length
            assert (i in full) == (visible and long)
            if visible and not long:
                touched = [p for p in range(n_pixels) if start < edges[p + 1] and end > edges[p]]
                touched = touched or [p for p in range(n_pixels) if edges[p] <= start < edges[p + 1]]
                assert touched
                assert all((k, p) in bars for p in touched)


@given(spans, windows, smalls)
def test_busy_time_of_each_lane_and_pixel_is_that_of_the_trace(rows, at, small):
    low, length, n_pixels = at
    rows, lanes = laid(rows)
    view = view_of(lanes, at, small)
    edges = pixel_edges(low, low + length, n_pixels)
    shown = np.zeros((len(lanes), n_pixels), np.int64)
    np.add.at(shown, (view.bar_lane, view.bar_pixel), view.bar_busy_ns)
    for k, i in zip(view.full_lane, view.full_at, strict=True):
        shown[k] += np.maximum(np.minimum(lanes.end[i], edges[1:]) - np.maximum(lanes.start[i], edges[:-1]), 0)
    expected = np.zeros_like(shown)
    for k in range(len(lanes)):
        for i in range(lanes.first[k], lanes.first[k + 1]):
            expected[k] += np.maximum(np.minimum(lanes.end[i], edges[1:]) - np.maximum(lanes.start[i], edges[:-1]), 0)
    assert (shown == expected).all()


@given(spans, windows, smalls)
def test_a_bar_counts_short_spans_that_start_in_it_and_names_a_short_one(rows, at, small):
    low, length, n_pixels = at
    rows, lanes = laid(rows)
    view = view_of(lanes, at, small)
    edges = pixel_edges(low, low + length, n_pixels)
    for k, pixel, count, one in zip(view.bar_lane, view.bar_pixel, view.bar_count, view.bar_at, strict=True):
        part = range(lanes.first[k], lanes.first[k + 1])
        short = [i for i in part if (lanes.end[i] - lanes.start[i]) * n_pixels < length]
        assert count == sum(edges[pixel] <= lanes.start[i] < edges[pixel + 1] for i in short)
        assert one in short
        assert lanes.start[one] < edges[pixel + 1]
        assert lanes.end[one] >= edges[pixel]


def test_times_near_the_ends_of_64_bits_do_not_overflow():
    big = 2**61
    _, lanes = laid([(0, -big, 10), (0, big, 10)])
    view = window(lanes, [0], -big, big + 20, 4_000)
    assert view.bar_pixel.tolist() == [0, 3999]
    assert view.bar_busy_ns.tolist() == [10, 10]


def test_lanes_of_spans_are_in_order_whether_they_hold_few_or_many():
    _, lanes = laid([(0, 0, 9), *((1, at, 1) for at in range(9)), (2, 0, 9)])
    for length in (9, 900):
        view = view_of(lanes, (0, length, 9), 2)
        assert (np.diff(view.full_lane) >= 0).all()
        assert (np.diff(view.bar_lane) >= 0).all()


def test_only_the_lanes_asked_for_are_answered():
    _, lanes = laid([(0, 0, 100), (0, 10, 50), (3, 0, 20)])
    assert lanes.of_tracks([0]).tolist() == [0, 1]
    assert lanes.of_tracks([3, 7]).tolist() == [2]
    view = window(lanes, lanes.of_tracks([3]), 0, 100, 10)
    assert view.full_lane.tolist() == [2]
    assert window(lanes, [], 0, 100, 10).full_at.size == 0


def test_no_spans_are_no_lanes():
    _, lanes = laid([])
    assert len(lanes) == 0


@pytest.mark.parametrize(("low", "high", "n"), [(0, 10, 4), (-7, 3, 3), (5, 6, 8)])
def test_pixels_divide_the_window_without_gaps(low, high, n):
    edges = pixel_edges(low, high, n)
    assert len(edges) == n + 1
    assert (edges[0], edges[-1]) == (low, high)
    assert (np.diff(edges) >= 0).all()


samples = st.lists(st.tuples(st.integers(0, 100), st.integers(-5, 5).map(float)), max_size=12)


@given(samples, st.integers(1, 12))
def test_a_line_keeps_least_greatest_and_last_of_each_pixel(rows, n_pixels):
    rows = sorted(rows, key=lambda row: row[0])
    times, values = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows])
    edges = pixel_edges(10, 90, n_pixels)
    found = list(zip(*(part.tolist() for part in counts_between(times, values, edges)), strict=True))
    expected = []
    for p in range(n_pixels):
        inside = [v for t, v in rows if edges[p] <= t < edges[p + 1]]
        if inside:
            expected.append((p, min(inside), max(inside), inside[-1]))
    assert found == expected


def with_depths(rows):
    """Rows of (track, start, end), sorted as spans are, with the depth of each."""
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    track, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return list(zip(rows, nested_depths(track, start, end).tolist(), strict=True))


ranges = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 120)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=40,
)


def crosses(one, two):
    return one[0] == two[0] and one[1] < two[1] < one[2] < two[2]


@given(ranges)
def test_no_two_spans_of_a_row_overlap_and_no_row_is_left_out(rows):
    by_row: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for row, depth in with_depths(rows):
        by_row.setdefault((row[0], depth), []).append(row)
    for mine in by_row.values():
        assert all(before[2] <= after[1] for before, after in pairwise(mine))
    for track in {row[0] for row in rows}:
        used = {depth for of, depth in by_row if of == track}
        assert used == set(range(len(used)))


@pytest.mark.slow
@given(ranges)
def test_where_nothing_crosses_depth_is_the_number_of_spans_around(rows):
    found = with_depths(rows)
    bad = {one[0] for one in rows for two in rows if crosses(one, two)}
    for i, (row, depth) in enumerate(found):
        if row[0] not in bad:
            around = [other for other, _ in found[:i] if other[0] == row[0] and other[1] <= row[1] < other[2]]
            assert depth == len(around)


def test_steps_that_end_inside_of_an_optimizer_s_step_stay_in_one_row():
    steps = [(0, 100 * i, 100 * i + 100) for i in range(50)]
    optimizers = [(0, 100 * i + 90, 100 * i + 105) for i in range(50)]
    operators = [(0, 100 * i + 92, 100 * i + 97) for i in range(50)]
    found = dict(with_depths([*steps, *optimizers, *operators]))
    assert {found[row] for row in steps} == {0}
    assert {found[row] for row in operators} == {1}
    assert {found[row] for row in optimizers} == {2}


def test_a_long_chain_takes_few_rows():
    assert max(depth for _, depth in with_depths([(0, 10 * i, 10 * i + 15) for i in range(2000)])) <= 3


def test_spans_that_all_overlap_take_a_row_each():
    found = with_depths([(0, i, 1_000 + 2 * i) for i in range(100)])
    assert sorted(depth for _, depth in found) == list(range(100))


def test_other_tracks_are_laid_out_as_if_they_were_alone():
    calm = [(1, 0, 100), (1, 10, 20)]
    found = dict(with_depths([(0, 0, 10), (0, 5, 15), *calm]))
    assert [found[row] for row in calm] == [0, 1]


def test_no_spans_have_no_rows():
    assert nested_depths(*(np.empty(0, np.int64) for _ in range(3))).size == 0
