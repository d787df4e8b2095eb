from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.nesting import ends_of, outermost

row_lists = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 9)), min_size=1, max_size=15)


def arrays(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = sorted(rows, key=lambda r: (r[0], r[1], -r[2]))
    track, start, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return track, start, start + length


def test_what_starts_within_a_row_ends_with_the_first_that_does_not() -> None:
    track, start, end = arrays([(0, 0, 10), (0, 2, 3), (0, 12, 1), (1, 5, 1)])
    assert ends_of(track, start, end, np.arange(4)).tolist() == [2, 2, 3, 4]


def test_an_empty_row_holds_only_itself() -> None:
    track, start, end = arrays([(0, 0, 10), (0, 0, 0), (0, 0, 0)])
    assert ends_of(track, start, end, np.arange(3)).tolist() == [3, 2, 3]


@given(row_lists, st.data())
def test_it_equals_looking_at_every_later_row(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    track, start, end = arrays(rows)
    asked = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))), np.int64)

    def brute(i: int) -> int:
        later = range(i + 1, len(rows))
        return next((j for j in later if track[j] != track[i] or start[j] >= end[i]), len(rows))

    assert ends_of(track, start, end, asked).tolist() == [brute(int(i)) for i in asked]


def test_a_row_is_outermost_unless_it_lies_in_one_of_its_group_on_its_track() -> None:
    tracks, starts, ends = np.array([0, 0, 0, 0, 1]), np.array([0, 2, 3, 20, 4]), np.array([10, 9, 5, 25, 6])
    groups = np.array([7, 8, 7, 7, 7])
    assert outermost(tracks, starts, ends, groups).tolist() == [True, True, False, True, True]
    assert outermost(tracks, starts, ends, groups + (1 << 20)).tolist() == [True, True, False, True, True]
