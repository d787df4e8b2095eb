from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.schema import SPANS, TRACKS
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.source import IssueLog
from stepscope.readers.common.span_builder import (
    NO_STEP,
    Names,
    Part,
    Tracks,
    assemble,
    by_external_id,
    launches,
    nearest_op,
    parents,
    step_of,
    unique,
)

HOST, STREAM = 0, 1


def part(category, rows, names, *, track=HOST, links=None):
    """A part from (start, end, name) rows."""
    links = links or [ABSENT] * len(rows)
    return Part(
        category,
        category,
        np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.int64),
        np.full(len(rows), track, np.uint32),
        names.codes(r[2] for r in rows),
        np.array(links, np.int64),
        np.array(links, np.int64),
    )


def assembled(make, log=None):
    names = Names()
    parts = make(names)
    return assemble(parts, names.texts, np.array([False, True]), log or IssueLog(), 3)


def test_spans_are_sorted_nested_and_tied_to_their_launch():
    found = assembled(
        lambda names: [
            part("kernel", [(140, 150, "k2"), (110, 120, "k1")], names, track=STREAM, links=[2, 1]),
            part("runtime", [(104, 106, "launch"), (130, 135, "launch")], names, links=[1, 2]),
            part("operator", [(102, 108, "aten::mm")], names),
            part("user_range", [(100, 190, "layer")], names),
        ]
    )
    rows = found.spans.select("name", "ts_ns", "dur_ns", "category", "parent_id", "launch_id", "op_id").rows()
    assert rows == [
        ("layer", 0, 90, "user_range", None, None, None),
        ("aten::mm", 2, 6, "operator", 0, None, None),
        ("launch", 4, 2, "runtime", 1, None, 1),
        ("launch", 30, 5, "runtime", 0, None, None),
        ("k1", 10, 10, "kernel", None, 2, 1),
        ("k2", 40, 10, "kernel", None, 3, None),
    ]
    assert [ids.tolist() for ids in found.ids] == [[5, 4], [2, 3], [1], [0]]
    assert found.origin_ns == 100
    assert dict(found.spans.schema) == dict(SPANS.dtypes)


def test_the_first_of_several_calls_with_one_correlation_is_the_launch():
    found = assembled(
        lambda names: [
            part("kernel", [(20, 30, "k")], names, track=STREAM, links=[9]),
            part("driver", [(3, 5, "cuLaunchKernel")], names, links=[9]),
            part("runtime", [(1, 7, "cudaLaunchKernel")], names, links=[9]),
        ]
    )
    launch = found.spans.filter(pl.col("category") == "kernel")["launch_id"]
    assert found.spans["name"].gather(launch).to_list() == ["cudaLaunchKernel"]


def test_steps_are_those_of_the_thread_that_has_most_of_them():
    names = Names()
    parts = [
        part("step", [(0, 10, "ProfilerStep#4"), (10, 20, "ProfilerStep#5")], names),
        part("step", [(0, 10, "ProfilerStep#4")], names, track=1),
        part("kernel", [(12, 14, "k")], names, track=2, links=[1]),
        part("runtime", [(5, 6, "launch")], names, links=[1]),
    ]
    found = assemble(parts, names.texts, np.array([False, False, True]), IssueLog(), 3)
    assert found.steps.select("step", "rank", "ts_ns", "dur_ns", "source").rows() == [
        (4, 3, 0, 10, "annotation"), (5, 3, 10, 10, "annotation"),
    ]  # fmt: skip
    assert found.spans.filter(pl.col("category") == "kernel")["step"].to_list() == [4]


def test_what_is_odd_is_counted():
    log = IssueLog()
    found = assembled(lambda names: [part("kernel", [(20, 10, "k"), (30, 40, "k")], names, track=STREAM)], log)
    assert found.spans["dur_ns"].to_list() == [0, 10]
    assert {row[0]: row[2] for row in log.table().rows()} == {"negative_durations": 1, "no_launch": 2}


def test_nothing_gives_empty_tables():
    found = assemble([], [], np.zeros(0, np.bool_), IssueLog(), None)
    assert found.spans.is_empty()
    assert found.steps.is_empty()
    assert found.ids == []


def test_each_text_has_one_code():
    names = Names()
    assert names.codes(["a", "b", "a"]).tolist() == [0, 1, 0]
    asked = []

    def text_of(key):
        asked.append(key)
        return f"t{key % 2}"

    assert names.of_keys(np.array([4, 4, 7, 4, 6]), text_of).tolist() == [2, 2, 3, 2, 2]
    assert asked == [4, 6, 7]
    assert names.texts == ["a", "b", "t0", "t1"]


def test_tracks_are_numbered_in_order_of_first_use():
    tracks = Tracks()
    assert [tracks.id("x", pid=1, kind="thread"), tracks.id("y", stream=7), tracks.id("x", pid=9)] == [0, 1, 0]
    table = tracks.table(2, "node")
    assert table.select("track_id", "rank", "host", "pid", "stream", "kind").rows() == [
        (0, 2, "node", 1, None, "thread"), (1, 2, "node", None, 7, None),
    ]  # fmt: skip
    assert Tracks().table(None, None).equals(TRACKS.empty())


def test_runs_of_equal_numbers():
    distinct, inverse = unique(np.array([5, 5, 3, 5]))
    assert (distinct.tolist(), inverse.tolist()) == ([3, 5], [1, 1, 0, 1])
    assert [a.size for a in unique(np.empty(0, np.int64))] == [0, 0]


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
        NO_STEP,
        4,
        4,
        NO_STEP,
    ]
    assert step_of(ints(1), ints(), ints(), ints()).tolist() == [NO_STEP]
