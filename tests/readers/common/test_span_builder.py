from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.schema import SPANS, TRACKS
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.span_builder import Names, Part, Tracks, assemble, unique

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
