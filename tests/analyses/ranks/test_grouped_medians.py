from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.ranks.grouped_medians import dense, numbered, occurrence, segments

rows = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 6)), min_size=1, max_size=40)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ids, values = zip(*pairs, strict=True)
    return np.array(ids, np.int64), np.array(values, float)


def groups(ids: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    return [values[ids == name] for name in sorted({*ids.tolist()} - {-1})]


@given(rows)
def test_order_statistics_are_those_of_each_group(pairs):
    ids, values = columns(pairs)
    parts = segments(ids)
    expected = groups(ids, values)
    assert parts.median(values).tolist() == [np.median(g) for g in expected]
    assert parts.largest(values).tolist() == [g.max() for g in expected]
    assert parts.sums(values).tolist() == [g.sum() for g in expected]
    spread = [1.4826 * np.median(np.abs(g - np.median(g))) for g in expected]
    assert parts.spread(values) == pytest.approx(spread)


@given(rows)
def test_the_others_of_a_row_are_all_but_itself(pairs):
    ids, values = columns(pairs)
    parts = segments(ids)
    middle, largest = parts.leave_one_out_median(values), parts.leave_one_out_max(values)
    for i, name in enumerate(ids):
        rest = [v for j, v in enumerate(values) if j != i and ids[j] == name]
        if name < 0 or not rest:
            assert np.isnan(middle[i])
            assert largest[i] == -np.inf
        else:
            assert middle[i] == np.median(rest)
            assert largest[i] == max(rest)


@given(rows)
def test_a_value_per_group_is_spread_to_its_rows(pairs):
    ids, values = columns(pairs)
    parts = segments(ids)
    result = parts.spread_out(parts.sums(values))
    expected = [np.nan if name < 0 else values[ids == name].sum() for name in ids]
    np.testing.assert_array_equal(result, expected)


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0, 1, 10**12, 2**61])), min_size=1, max_size=30))
def test_combinations_are_numbered_in_order_without_gaps(pairs):
    first, second = (np.array(c, np.int64) for c in zip(*pairs, strict=True))
    ranked = sorted(set(pairs))
    assert numbered(first, second, first).tolist() == [ranked.index(p) for p in pairs]


def test_nothing_has_no_numbers():
    none = np.empty(0, np.int64)
    assert dense(none).size == numbered(none).size == occurrence(none).size == segments(none).sizes.size == 0
    assert segments(none).largest(np.empty(0)).size == segments(none).sums(np.empty(0)).size == 0


def test_occurrences_count_equal_rows_before():
    assert occurrence(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]
