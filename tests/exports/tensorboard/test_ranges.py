from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.tensorboard._ranges import amounts, intersected, merged, subtracted, summed


def ranges(*pairs: tuple[float, float]):
    starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(starts), np.array(ends)


def pairs(found) -> list[tuple[float, float]]:
    return list(zip(*(values.tolist() for values in found), strict=True))


def test_ranges_that_touch_or_overlap_join_in_any_order_of_rows() -> None:
    assert pairs(merged(*ranges((30, 40), (0, 10), (10, 12), (5, 8)))) == [(0, 12), (30, 40)]


def test_nothing_merges_to_nothing() -> None:
    assert pairs(merged(*ranges())) == []


def test_a_range_without_length_stays_unless_another_touches_it() -> None:
    assert pairs(merged(*ranges((5, 5), (10, 20), (15, 15), (20, 20), (30, 30)))) == [(5, 5), (10, 20), (30, 30)]
    assert pairs(merged(*ranges((5, 5), (5, 9)))) == [(5, 9)]


def test_doubles_merge_as_they_are() -> None:
    assert pairs(merged(*ranges((1.1, 2.2), (1.5, 2.3), (3.3, 3.9), (3.5, 3.6)))) == [(1.1, 2.3), (3.3, 3.9)]


def test_the_intersection_is_cut_at_both_sets_borders() -> None:
    assert pairs(intersected(ranges((0, 10), (20, 30)), ranges((5, 22), (25, 26), (40, 50)))) == [
        (5, 10), (20, 22), (25, 26),
    ]  # fmt: skip


def test_a_point_inside_a_range_is_in_the_intersection_one_on_its_border_is_not() -> None:
    assert pairs(intersected(ranges((0, 10)), ranges((0, 0), (5, 5), (10, 10)))) == [(5, 5)]
    assert pairs(intersected(ranges((0, 0), (5, 5), (10, 10)), ranges((0, 10)))) == [(0, 0), (5, 5)]


def test_taking_off_leaves_what_is_before_between_and_after() -> None:
    assert pairs(subtracted(ranges((0, 10), (20, 30), (40, 50)), ranges((2, 3), (5, 22), (28, 30)))) == [
        (0, 2), (3, 5), (22, 28), (40, 50),
    ]  # fmt: skip


def test_taking_off_a_point_splits_a_range() -> None:
    assert pairs(subtracted(ranges((0, 10)), ranges((0, 0), (4, 4), (10, 10)))) == [(0, 4), (4, 10)]


def test_a_point_is_taken_off_only_by_what_covers_it() -> None:
    assert pairs(subtracted(ranges((5, 5), (7, 7)), ranges((6, 8)))) == [(5, 5)]


def test_taking_off_nothing_and_from_nothing() -> None:
    assert pairs(subtracted(ranges((0, 10)), ranges())) == [(0, 10)]
    assert pairs(subtracted(ranges(), ranges((0, 10)))) == []


def test_amounts_are_per_window_and_an_integer_0_where_nothing_is() -> None:
    found = amounts(ranges((0.0, 10.0), (20.0, 30.0)), ranges((5.0, 25.0), (12.0, 13.0), (0.0, 100.0), (5.0, 9.0)))
    assert found == [10.0, 0, 20.0, 4.0]
    assert [type(value) for value in found] == [float, int, float, float]


def test_sums_are_made_in_order() -> None:
    values = np.array([1e16, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1e16])
    assert summed(values) == 0.0
    assert summed(np.array([3, 4])) == 7
    assert isinstance(summed(np.array([], np.float64)), int)


points = st.lists(st.integers(0, 30), max_size=12, unique=True).map(sorted)


@given(points, points)
def test_the_parts_of_a_set_add_up(first: list[int], second: list[int]) -> None:
    a, b = (np.array(p[: len(p) // 2 * 2], np.int64).reshape(-1, 2) for p in (first, second))
    both, rest = intersected((a[:, 0], a[:, 1]), (b[:, 0], b[:, 1])), subtracted((a[:, 0], a[:, 1]), (b[:, 0], b[:, 1]))

    def inside(found) -> set[int]:
        return {t for low, high in pairs(found) for t in range(int(low), int(high))}

    of_a, of_b = inside(a.T), inside(b.T)
    assert inside(both) == of_a & of_b
    assert inside(rest) == of_a - of_b


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_the_type_of_the_times_is_kept(kind) -> None:
    a, b = ((np.array([0], kind), np.array([9], kind)), (np.array([3], kind), np.array([4], kind)))
    assert all(values.dtype == kind for found in (intersected(a, b), subtracted(a, b), merged(*a)) for values in found)
