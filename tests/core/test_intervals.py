from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from c_libraries import COMPILER, library_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import arrays as _arrays
from stepscope.core import intervals as iv

SMALL = st.integers(-8, 24)
PAIRS = st.lists(st.tuples(SMALL, SMALL), max_size=24)  # reversed and empty ones too
LENGTHS = st.integers(0, 12)
ROWS = st.lists(st.tuples(st.integers(0, 2), SMALL, LENGTHS), max_size=24)  # group, start, length
FAR = np.int64(2**57)  # times this far apart do not fit side by side into int64


def ints(values):
    return np.array(list(values), dtype=np.int64)


def arrays(pairs):
    return ints(s for s, _ in pairs), ints(e for _, e in pairs)


def points(pairs):
    return {x for s, e in pairs for x in range(s, e)}


def listed(found):
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def runs(wanted):
    """Maximal runs of integers, as half-open pairs."""
    starts = sorted(x for x in wanted if x - 1 not in wanted)
    ends = sorted(x + 1 for x in wanted if x + 1 not in wanted)
    return list(zip(starts, ends, strict=True))


def nested(rows):
    """(groups, starts, ends), sorted as `enclosing` wants them."""
    rows = sorted(rows, key=lambda r: (r[0], r[1], -r[2]))
    return ints(g for g, _, _ in rows), ints(s for _, s, _ in rows), ints(s + n for _, s, n in rows)


def parents_by_stack(groups, starts, ends):
    """The innermost open row by a stack that keeps whatever outlasts the new start."""
    found, stack, current = [], [], None
    for row, (group, start) in enumerate(zip(groups, starts, strict=True)):
        stack = [r for r in stack if ends[r] > start] if group == current else []
        current = group
        found.append(stack[-1] if stack else -1)
        stack.append(row)
    return found


@pytest.fixture(autouse=True, scope="module", params=["compiled", "numpy"])
def _way(request, tmp_path_factory):
    """All of it with the compiled loops and without."""
    if request.param == "compiled" and COMPILER is None:
        pytest.skip("there is no C compiler: then nothing is compiled")
    _arrays._nesting.cache_clear()
    path = tmp_path_factory.mktemp("library")
    if request.param == "compiled":
        path = library_of(_arrays.NESTING.with_name("nesting.c"), path)
    with mock.patch.object(_arrays, "NESTING", path):
        assert (_arrays._nesting() is not None) is (request.param == "compiled")
        yield
    _arrays._nesting.cache_clear()


def _innermost(row, parents, starts, lengths, wanted):
    at, parent = row, parents[row] if row != iv.NO_ROW else row
    while at != iv.NO_ROW:
        if wanted[at] and (at in (row, parent) or starts[at] + lengths[at] > starts[row]):
            return at
        at = parents[at]
    return iv.NO_ROW


@given(
    st.lists(st.tuples(st.integers(-1, 20), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=20),
    st.lists(st.integers(-1, 20), max_size=9),
)
def test_the_innermost_wanted_row_is_the_row_or_one_around_it_that_was_open(rows, asked):
    parents = np.array([up if up < i else -1 for i, (up, *_) in enumerate(rows)], np.int64).astype(np.uint32)
    starts, lengths = (np.array([row[i] for row in rows], np.int64) for i in (1, 2))
    wanted = np.array([row[3] for row in rows], np.bool_)
    asked = np.array([row for row in asked if row < len(rows)], np.int64).astype(np.uint32)
    expected = [_innermost(row, parents, starts, lengths, wanted) for row in asked.tolist()]
    assert iv.innermost(asked, parents, (starts, lengths), wanted).tolist() == expected


class TestUnion:
    def test_joins_what_overlaps_or_touches_and_drops_what_is_empty_or_reversed(self):
        found = iv.union(ints([5, 0, 2, 9, 12, 20]), ints([6, 2, 4, 9, 11, 22]))
        assert listed(found) == [(0, 4), (5, 6), (20, 22)]

    def test_nothing_gives_nothing(self):
        assert listed(iv.union(ints([]), ints([]))) == []
        assert iv.union(ints([3]), ints([3]))[0].dtype == np.int64

    def test_a_long_early_interval_swallows_later_ones(self):
        assert listed(iv.union(ints([0, 1, 5, 12]), ints([10, 2, 6, 13]))) == [(0, 10), (12, 13)]

    def test_extreme_times_stay_exact(self):
        low, high = -(2**62), 2**62
        assert listed(iv.union(ints([low, high - 1]), ints([low + 1, high]))) == [(low, low + 1), (high - 1, high)]

    @given(PAIRS)
    def test_covers_the_same_points_in_the_fewest_intervals(self, pairs):
        assert listed(iv.union(*arrays(pairs))) == runs(points(pairs))

    @given(PAIRS, st.randoms(use_true_random=False), st.integers(-(10**12), 10**12))
    def test_order_of_rows_does_not_matter_and_shifting_shifts(self, pairs, random, shift):
        expected = listed(iv.union(*arrays(pairs)))
        shuffled = [(s + shift, e + shift) for s, e in pairs]
        random.shuffle(shuffled)
        assert [(s - shift, e - shift) for s, e in listed(iv.union(*arrays(shuffled)))] == expected

    @given(st.lists(st.tuples(SMALL, LENGTHS, LENGTHS), max_size=16))
    def test_splitting_an_interval_changes_nothing(self, triples):
        whole = [(s, s + a + b) for s, a, b in triples]
        split = [half for s, a, b in triples for half in ((s, s + a), (s + a, s + a + b))]
        assert listed(iv.union(*arrays(whole))) == listed(iv.union(*arrays(split)))

    @given(PAIRS)
    def test_is_no_longer_than_the_sum_and_not_shorter_than_the_longest(self, pairs):
        lengths = [max(e - s, 0) for s, e in pairs]
        assert max(lengths, default=0) <= iv.total(iv.union(*arrays(pairs))) <= sum(lengths)

    @given(PAIRS)
    def test_leaves_its_arguments_alone(self, pairs):
        starts, ends = arrays(pairs)
        before = starts.copy(), ends.copy()
        iv.union(starts, ends)
        assert (starts == before[0]).all()
        assert (ends == before[1]).all()


class TestUnionBy:
    def test_groups_keep_apart_and_empty_ones_vanish(self):
        found = iv.union_by(ints([7, 3, 7, 5, 3]), ints([0, 0, 1, 4, 2]), ints([1, 2, 2, 4, 3]))
        assert [x.tolist() for x in found] == [[3, 7], [0, 0], [3, 2]]

    def test_groups_that_touch_in_time_do_not_join(self):
        found = iv.union_by(ints([0, 1]), ints([0, 5]), ints([5, 9]))
        assert [x.tolist() for x in found] == [[0, 1], [0, 5], [5, 9]]

    def test_nothing_gives_nothing(self):
        assert [x.tolist() for x in iv.union_by(ints([]), ints([]), ints([]))] == [[], [], []]

    @given(ROWS, st.booleans())
    def test_equals_the_union_of_each_group(self, rows, in_order):
        rows = sorted(rows) if in_order else rows
        groups = ints(g for g, _, _ in rows)
        found = iv.union_by(groups, ints(s for _, s, _ in rows), ints(s + n for _, s, n in rows))
        expected = [(g, *run) for g in range(3) for run in runs(points((s, s + n) for h, s, n in rows if h == g))]
        assert list(zip(*(x.tolist() for x in found), strict=True)) == expected

    @given(ROWS)
    def test_times_too_far_apart_for_one_axis_stay_exact(self, rows):
        groups, starts, ends = nested(rows)
        near = iv.union_by(groups, starts, ends)
        far = iv.union_by(groups, starts * FAR, ends * FAR)
        assert [x.tolist() for x in far] == [near[0].tolist(), (near[1] * FAR).tolist(), (near[2] * FAR).tolist()]


class TestSetAlgebra:
    @given(PAIRS, PAIRS)
    def test_union_intersection_and_difference_are_those_of_the_points(self, a, b):
        left, right = iv.union(*arrays(a)), iv.union(*arrays(b))
        assert listed(iv.either(left, right)) == runs(points(a) | points(b))
        assert listed(iv.intersection(left, right)) == runs(points(a) & points(b))
        assert listed(iv.difference(left, right)) == runs(points(a) - points(b))

    @given(PAIRS, PAIRS)
    def test_a_set_is_its_common_part_and_its_difference(self, a, b):
        left, right = iv.union(*arrays(a)), iv.union(*arrays(b))
        parts = iv.total(iv.intersection(left, right)) + iv.total(iv.difference(left, right))
        assert parts == iv.total(left)

    @given(PAIRS, SMALL, SMALL)
    def test_gaps_are_the_points_of_the_window_that_are_not_covered(self, pairs, low, high):
        found = listed(iv.gaps(iv.union(*arrays(pairs)), low, high))
        assert found == runs(set(range(low, high)) - points(pairs))

    @given(PAIRS, PAIRS)
    def test_covered_counts_the_points_in_each_window(self, pairs, windows):
        inside = points(pairs)
        found = iv.covered(iv.union(*arrays(pairs)), *arrays(windows))
        assert found.tolist() == [len(inside & set(range(low, high))) for low, high in windows]

    @given(PAIRS, st.lists(SMALL, max_size=12))
    def test_locate_finds_the_interval_that_holds_a_point(self, pairs, wanted):
        found = iv.locate(iv.union(*arrays(pairs)), ints(wanted))
        intervals = runs(points(pairs))
        holds = [next((i for i, (s, e) in enumerate(intervals) if s <= x < e), -1) for x in wanted]
        assert found.tolist() == holds

    def test_total_of_nothing_is_zero(self):
        assert iv.total((ints([]), ints([]))) == 0


class TestEnclosing:
    def test_children_of_children_siblings_and_roots(self):
        #        0 ─────────────────── 100   200 ─ 210
        #          10 ──── 50   60 ─ 70
        #             20 30
        found = iv.enclosing(ints([0, 10, 20, 60, 200]), ints([100, 50, 30, 70, 210]), ints([0] * 5))
        assert found.tolist() == [-1, 0, 1, 0, -1]

    def test_of_two_that_start_together_the_longer_holds_the_shorter(self):
        assert iv.enclosing(ints([0, 0, 0]), ints([9, 5, 5]), ints([0, 0, 0])).tolist() == [-1, 0, 1]

    def test_one_that_sticks_out_is_still_a_child_and_may_be_a_parent(self):
        #  0 ────── 10
        #      5 ────── 15
        #             12 ── 14, 12 ── 13
        found = iv.enclosing(ints([0, 5, 12, 12]), ints([10, 15, 14, 13]), ints([0] * 4))
        assert found.tolist() == [-1, 0, 1, 2]

    def test_one_that_starts_as_another_ends_is_not_inside(self):
        assert iv.enclosing(ints([0, 5]), ints([5, 9]), ints([0, 0])).tolist() == [-1, -1]

    def test_an_empty_one_is_a_child_and_never_a_parent(self):
        assert iv.enclosing(ints([0, 3, 3, 4]), ints([9, 3, 3, 5]), ints([0] * 4)).tolist() == [-1, 0, 0, 0]

    def test_groups_do_not_see_each_other(self):
        assert iv.enclosing(ints([0, 1, 2]), ints([9, 9, 3]), ints([4, 8, 8])).tolist() == [-1, -1, 1]

    @pytest.mark.parametrize("n", [0, 1])
    def test_few_rows(self, n):
        assert iv.enclosing(ints(range(n)), ints(range(1, n + 1)), ints([0] * n)).tolist() == [-1] * n

    @given(ROWS)
    def test_equals_a_stack(self, rows):
        groups, starts, ends = nested(rows)
        assert iv.enclosing(starts, ends, groups).tolist() == parents_by_stack(groups, starts, ends)

    @given(ROWS)
    def test_times_too_far_apart_for_one_axis_stay_exact(self, rows):
        groups, starts, ends = nested(rows)
        found = iv.enclosing(starts * FAR, ends * FAR, groups)
        assert found.tolist() == parents_by_stack(groups, starts, ends)

    def test_large_random_input_equals_a_stack(self):
        random = np.random.default_rng(1)
        starts = np.sort(random.integers(0, 40_000, 4_000))
        ends = starts + random.choice([3, 30, 300, 3_000], 4_000)
        groups = np.repeat(np.arange(4), 1_000)
        order = np.lexsort((-ends, starts, groups))
        starts, ends = starts[order], ends[order]
        assert iv.enclosing(starts, ends, groups).tolist() == parents_by_stack(groups, starts, ends)

    @given(ROWS)
    def test_piece_by_piece_it_is_the_same(self, rows):
        groups, starts, ends = nested(rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(iv, "_PIECE", 2)
            found = iv.enclosing_as(np.int32, starts, ends, groups)
        assert found.dtype == np.int32
        assert found.tolist() == parents_by_stack(groups, starts, ends)

    def test_a_million_levels_and_what_follows_them(self):
        depth = 1_000_000
        starts = np.concatenate((np.arange(depth), [3 * depth]))
        ends = np.concatenate((2 * depth - np.arange(depth), [3 * depth + 1]))
        ends[0] = 4 * depth
        found = iv.enclosing(starts, ends, np.zeros(depth + 1, np.int64))
        assert (found[:depth] == np.arange(-1, depth - 1)).all()
        assert found[depth] == 0


class TestAncestors:
    def test_nearest_stops_at_itself_or_the_first_wanted_above(self):
        parents = ints([-1, 0, 1, 2, 0, -1])
        wanted = np.array([False, True, False, False, False, False])
        assert iv.nearest(parents, wanted).tolist() == [-1, 1, 1, 1, -1, -1]

    @given(ROWS, st.data())
    def test_nearest_equals_walking_up(self, rows, data):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)

        def walk(row):
            while row >= 0 and not wanted[row]:
                row = parents[row]
            return row

        assert iv.nearest(parents, wanted).tolist() == [walk(row) for row in range(len(rows))]

    def test_nearest_of_a_chain_of_a_million(self):
        parents = np.arange(-1, 999_999)
        wanted = np.zeros(1_000_000, bool)
        wanted[0] = True
        assert (iv.nearest(parents, wanted) == 0).all()


class TestStretches:
    @given(ROWS, st.integers(1, 4))
    def test_each_holds_the_parents_of_its_rows(self, rows, least):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        found = list(iv.stretches(parents, least))
        assert [row for some in found for row in range(len(rows))[some]] == list(range(len(rows)))
        for some in found:
            above = parents[some]
            assert ((above < 0) | ((above >= some.start) & (above < some.stop))).all()
            # None could be cut: what follows each row in it, but the last, has a parent before that row.
            inside = range(some.start + least, some.stop)
            assert all((above[row - some.start :] >= 0)[above[row - some.start :] < row].any() for row in inside)

    def test_parents_that_come_later_keep_rows_together(self):
        assert list(iv.stretches(ints([1, -1, -1, 2]), 1)) == [slice(0, 2), slice(2, 4)]


class TestOwnLengths:
    def test_less_what_direct_children_cover(self):
        starts, ends = ints([0, 10, 20, 60]), ints([100, 50, 30, 70])
        assert iv.own_lengths(starts, ends, ints([-1, 0, 1, 0])).tolist() == [50, 30, 10, 10]

    def test_a_child_that_sticks_out_counts_as_far_as_its_parent_goes(self):
        assert iv.own_lengths(ints([0, 5]), ints([10, 15]), ints([-1, 0])).tolist() == [5, 10]

    def test_children_that_overlap_count_once_and_reversed_rows_are_empty(self):
        own = iv.own_lengths(ints([0, 2, 1, 9]), ints([10, 6, 4, 8]), ints([-1, 0, 0, 0]))
        assert own.tolist() == [5, 4, 3, 0]

    @pytest.mark.parametrize("parents", [[], [-1, -1]])
    def test_without_children_it_is_the_length(self, parents):
        starts = ints(range(len(parents)))
        assert iv.own_lengths(starts, starts + 3, ints(parents)).tolist() == [3] * len(parents)

    @given(ROWS, st.integers(1, 5))
    def test_equals_counting_points_whatever_the_size_of_the_pieces(self, rows, piece):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        spans = [set(range(s, e)) for s, e in zip(starts, ends, strict=True)]
        expected = [
            len(span - {x for child, parent in enumerate(parents) if parent == row for x in spans[child]})
            for row, span in enumerate(spans)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(iv, "_CHUNK", piece)
            assert iv.own_lengths(starts, ends, parents).tolist() == expected

    @given(ROWS)
    def test_own_lengths_of_a_properly_nested_tree_sum_to_the_union(self, rows):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        for row in range(len(rows)):  # parents come first, so clipping once makes it proper
            if parents[row] >= 0:
                ends[row] = min(ends[row], ends[parents[row]])
        parents = iv.enclosing(starts, ends, groups)
        covered = iv.union_by(groups, starts, ends)
        assert iv.own_lengths(starts, ends, parents).sum() == (covered[2] - covered[1]).sum()


class TestInnermostAt:
    def test_the_innermost_open_row_of_the_same_group(self):
        starts, ends, groups = ints([0, 10, 20, 0]), ints([100, 50, 30, 5]), ints([1, 1, 1, 2])
        parents = iv.enclosing(starts, ends, groups)
        found = iv.innermost_at(
            ints([1, 1, 1, 1, 2, 2, 3, 0]), ints([25, 30, 50, 100, 4, 5, 25, 25]), starts, ends, groups, parents
        )
        assert found.tolist() == [2, 1, 0, -1, 3, -1, -1, -1]

    def test_without_rows_or_points_nothing_is_found(self):
        none = ints([])
        assert iv.innermost_at(ints([1]), ints([2]), none, none, none, none).tolist() == [-1]
        assert iv.innermost_at(none, none, ints([1]), ints([2]), ints([0]), ints([-1])).tolist() == []

    @given(ROWS, st.lists(st.tuples(st.integers(-1, 3), st.integers(-12, 40)), max_size=12), st.integers(0, 3))
    def test_equals_looking_at_every_row(self, rows, wanted, hops):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        expected = [
            max((r for r in range(len(rows)) if groups[r] == g and starts[r] <= x < ends[r]), default=-1)
            for g, x in wanted
        ]
        with pytest.MonkeyPatch.context() as patch:  # few hops, so that the tree is used too
            patch.setattr(iv, "_HOPS", hops)
            found = iv.innermost_at(
                ints(g for g, _ in wanted), ints(x for _, x in wanted), starts, ends, groups, parents
            )
        assert found.tolist() == expected

    @given(ROWS, st.lists(st.tuples(st.integers(0, 2), SMALL), max_size=12))
    def test_times_too_far_apart_for_one_axis_stay_exact(self, rows, wanted):
        groups, starts, ends = nested(rows)
        parents = iv.enclosing(starts, ends, groups)
        at = ints(g for g, _ in wanted), ints(x for _, x in wanted)
        found = iv.innermost_at(at[0], at[1] * FAR, starts * FAR, ends * FAR, groups, parents)
        assert found.tolist() == iv.innermost_at(*at, starts, ends, groups, parents).tolist()


class TestLevel:
    def test_rises_falls_and_keeps_silent_where_nothing_changes(self):
        times, levels = iv.level(ints([0, 2, 5, 9, 7]), ints([5, 7, 9, 9, 7]))
        assert times.tolist() == [0, 2, 7, 9]
        assert levels.tolist() == [1, 2, 1, 0]

    def test_nothing_gives_no_times(self):
        assert [x.tolist() for x in iv.level(ints([]), ints([]))] == [[], []]

    @given(PAIRS)
    def test_equals_counting_at_every_point(self, pairs):
        times, levels = iv.level(*arrays(pairs))
        found = dict(zip(times.tolist(), levels.tolist(), strict=True))
        current = 0
        for x in range(-10, 40):
            now = sum(s <= x < e for s, e in pairs)
            assert (x in found) == (now != current)
            current = now
            assert found.get(x, current) == current

    @given(PAIRS)
    def test_the_area_is_the_sum_of_lengths_and_the_support_is_the_union(self, pairs):
        times, levels = iv.level(*arrays(pairs))
        assert (np.diff(times) * levels[:-1]).sum() == sum(max(e - s, 0) for s, e in pairs)
        assert np.diff(times)[levels[:-1] > 0].sum() == iv.total(iv.union(*arrays(pairs)))


NESTED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 9)), min_size=1, max_size=15)


def sorted_rows(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = sorted(rows, key=lambda r: (r[0], r[1], -r[2]))
    track, start, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return track, start, start + length


def test_what_starts_within_a_row_ends_with_the_first_that_does_not() -> None:
    track, start, end = sorted_rows([(0, 0, 10), (0, 2, 3), (0, 12, 1), (1, 5, 1)])
    assert iv.ends_of(track, start, end, np.arange(4)).tolist() == [2, 2, 3, 4]


def test_an_empty_row_holds_only_itself() -> None:
    track, start, end = sorted_rows([(0, 0, 10), (0, 0, 0), (0, 0, 0)])
    assert iv.ends_of(track, start, end, np.arange(3)).tolist() == [3, 2, 3]


@given(NESTED, st.data())
def test_it_equals_looking_at_every_later_row(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    track, start, end = sorted_rows(rows)
    asked = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))), np.int64)

    def brute(i: int) -> int:
        later = range(i + 1, len(rows))
        return next((j for j in later if track[j] != track[i] or start[j] >= end[i]), len(rows))

    assert iv.ends_of(track, start, end, asked).tolist() == [brute(int(i)) for i in asked]


def test_a_row_is_outermost_unless_it_lies_in_one_of_its_group_on_its_track() -> None:
    tracks, starts, ends = np.array([0, 0, 0, 0, 1]), np.array([0, 2, 3, 20, 4]), np.array([10, 9, 5, 25, 6])
    groups = np.array([7, 8, 7, 7, 7])
    assert iv.outermost(tracks, starts, ends, groups).tolist() == [True, True, False, True, True]
    assert iv.outermost(tracks, starts, ends, groups + (1 << 20)).tolist() == [True, True, False, True, True]


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 16)), max_size=20), st.integers(16, 31))
def test_the_first_range_that_covers_each_place(ranges, n):
    first = ints(at for at, _ in ranges)
    stop = ints(min(at + length, n) for at, length in ranges)
    expected = [next((i for i in range(len(ranges)) if first[i] <= place < stop[i]), -1) for place in range(n)]
    assert iv.first_covering(first, stop, n).tolist() == expected
