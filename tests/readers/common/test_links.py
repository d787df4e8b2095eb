from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.links import by_external_id, launches, nearest_op, parents, step_of

ids = st.integers(-1, 4)


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_parents_are_found_on_host_tracks_only():
    ts, dur, track = ints(0, 2, 3, 0, 1), ints(10, 5, 1, 9, 2), np.array([0, 0, 0, 1, 1], np.uint32)
    assert parents(ts, dur, track, flags(1, 1, 1, 0, 0)).tolist() == [-1, 0, 1, -1, -1]


@given(st.lists(st.tuples(ids, st.sampled_from("cdx")), max_size=12))
def test_device_work_is_launched_by_the_first_call_of_its_id(found):
    correlation = ints(*(i for i, _ in found))
    is_call, is_device = (flags(*(kind == wanted for _, kind in found)) for wanted in "cd")
    expected = [
        next((j for j, (other, k) in enumerate(found) if k == "c" and other == i), -1) if kind == "d" and i > 0 else -1
        for i, kind in found
    ]
    assert launches(correlation, is_call, is_device).tolist() == expected


def test_absent_ids_bind_nothing():
    correlation = ints(ABSENT, ABSENT, 0, 0)
    assert launches(correlation, flags(1, 0, 1, 0), flags(0, 1, 0, 1)).tolist() == [-1] * 4


@given(st.lists(st.tuples(st.integers(-1, 200), st.booleans()), min_size=1, max_size=200), st.data())
def test_the_nearest_operator_is_found_however_far_it_is(found, data):
    parent = ints(*(min(p, i - 1) for i, (p, _) in enumerate(found)))
    is_op = flags(*(wanted for _, wanted in found))
    rows = ints(*data.draw(st.lists(st.integers(-1, len(found) - 1), max_size=20)))
    expected = []
    for row in rows.tolist():
        at = row
        while at >= 0 and not is_op[at]:
            at = int(parent[at])
        expected.append(at)
    assert nearest_op(rows, parent, is_op).tolist() == expected


def test_a_chain_longer_than_any_stack():
    parent = np.arange(-1, 99_999)
    is_op = np.zeros(100_000, bool)
    rows = np.arange(100_000)
    assert nearest_op(rows, parent, is_op).max() == -1
    is_op[0] = True
    assert nearest_op(rows, parent, is_op).max() == 0
    assert rows.tolist() == list(range(100_000))  # the argument is left as it was


def test_calls_outside_operators_are_tied_by_the_recorders_id():
    op = ints(-1, 3, -1, -1, -1, -1)
    calls, external = ints(0, 1, 2, 4), ints(7, 7, 8, ABSENT)
    by_external_id(op, calls, external, ints(3, 5), ints(9, 7))
    assert op.tolist() == [5, 3, -1, -1, -1, -1]
    by_external_id(op, calls, external, ints(), ints())
    assert op.tolist() == [5, 3, -1, -1, -1, -1]


def test_steps_hold_the_times_within_them():
    assert step_of(ints(0, 5, 9, 10, 15, 20), ints(0, 10), ints(8, 20), ints(3, 4)).tolist() == [
        3,
        3,
        ABSENT,
        4,
        4,
        ABSENT,
    ]
    assert step_of(ints(1), ints(), ints(), ints()).tolist() == [ABSENT]
