from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.ranks.align import realigned


def aligned(*ranks: list[float], sizes: list[list[int]] | None = None, anchored: bool = True, fixed: bool = False):
    rank = np.concatenate([np.full(len(ends), i) for i, ends in enumerate(ranks)])
    order = np.concatenate([np.arange(len(ends)) for ends in ranks])
    ends = np.concatenate([np.array(e, float) for e in ranks]).astype(np.int64)
    size = np.concatenate(sizes) if sizes else np.zeros(rank.size, np.int64)
    flags = np.full(rank.size, True)
    found = realigned(
        np.zeros(rank.size, np.int64), rank, order, ends, np.array(size, np.int64),
        anchored=flags & anchored, fixed=flags & fixed,
    )  # fmt: skip
    return [found[rank == i].tolist() for i in range(len(ranks))]


TIMES = [0, 100, 230, 310, 480, 520, 700]


def test_equal_numbers_with_a_step_to_hold_on_to_stay_in_order():
    assert aligned(TIMES, [t + 7000 for t in TIMES]) == [list(range(7)), list(range(7))]


def test_a_call_that_a_rank_lacks_is_found_by_time_whatever_its_clock():
    ahead = [t + 50_000 for t in TIMES if t != 310]
    assert aligned(TIMES, ahead) == [list(range(7)), [0, 1, 2, 4, 5, 6]]


@given(st.integers(0, 6), st.integers(-10_000, 10_000))
def test_whichever_call_is_missing(which, offset):
    rest = [t + offset for i, t in enumerate(TIMES) if i != which]
    assert aligned(TIMES, rest)[1] == [i for i in range(7) if i != which]


def test_recordings_that_begin_at_different_calls_are_shifted_where_no_step_tells():
    times = np.cumsum([3, 50, 20, 90, 35, 60, 10, 75, 44, 31, 28, 66]).tolist()
    assert aligned(times[:-2], [t + 999 for t in times[2:]], anchored=False)[1][:8] == list(range(2, 10))


def test_sizes_tell_where_times_are_regular():
    sizes = [1, 2, 3, 4, 5, 6]
    regular = [100 * i for i in range(6)]
    found = aligned(regular, regular[:5], sizes=[sizes, sizes[1:]])
    assert found[1] == [1, 2, 3, 4, 5]


def test_what_has_no_counterpart_stands_alone():
    found = aligned(TIMES, [0, 100, 101, 230, 310])
    assert found[1][:2] + found[1][3:] == [0, 1, 2, 3]
    assert found[1][2] >= len(TIMES)


def test_numbers_of_the_recorder_are_not_touched():
    assert aligned(TIMES, TIMES[1:], fixed=True) == [list(range(7)), list(range(6))]


@pytest.mark.parametrize("n", [1, 2])
def test_a_family_of_one_rank_or_one_call_each_needs_nothing(n):
    assert aligned(*[[5.0]] * n, anchored=False) == [[0]] * n
