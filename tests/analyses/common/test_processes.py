from __future__ import annotations

import polars as pl

from stepscope.analyses.common.processes import split
from stepscope.core.schema import KERNELS, OPS, SPANS, STEPS, TRACKS

# Two processes (7 and 8) with a thread each, a GPU track of 7's, one without a process, and a helper (9).
TRACKS_5 = TRACKS.conform(
    pl.DataFrame(
        {
            "track_id": [0, 1, 2, 3, 4],
            "pid": [7, 8, 7, 0, 9],
            "device_id": [None, None, 0, 1, None],
            "kind": ["thread", "thread", "stream", "stream", "thread"],
        }
    )
)


def spans_of(*rows):
    """From (track, category, launch_id, parent_id[, step])."""
    columns = ("track_id", "category", "launch_id", "parent_id", "step")
    filled = [(*row, None)[:5] for row in rows]
    frame = pl.DataFrame(filled, schema=columns, orient="row", infer_schema_length=None).with_row_index("span_id")
    return SPANS.conform(frame.with_columns(ts_ns=pl.int_range(pl.len()), dur_ns=1, name=pl.lit("x")))


def two(*more, **tables):
    rows = [(0, "operator", None, None)] * 10 + [(0, "runtime", None, 9), (1, "operator", None, None)]
    rows += [(1, "runtime", None, 11)] * 9
    return {"spans": spans_of(*rows, *more), "tracks": TRACKS_5, **tables}


def test_one_process_is_handed_back_as_it_is():
    tables = {"spans": spans_of((0, "operator", None, None), (2, "kernel", 0, None)), "tracks": TRACKS_5}
    ((pid, found),) = split(tables)
    assert pid == 7
    assert found["spans"] is tables["spans"]


def test_a_recording_of_devices_only_is_of_nobody():
    tables = {"spans": spans_of((3, "kernel", None, None)), "tracks": TRACKS_5}
    assert [pid for pid, _ in split(tables)] == [None]


def test_each_process_has_its_spans_with_numbers_of_their_own():
    work = [(2, "kernel", 10, None), (3, "kernel", 12, None), (2, "memcpy", None, None), (3, "memset", None, None)]
    (one, first), (other, second) = split(two(*work))
    assert (one, other) == (7, 8)
    assert first["spans"]["span_id"].to_list() == list(range(14))
    # The kernel that 7 queued, the copy on 7's track, and the fill on nobody's: 7 is the busiest.
    assert first["spans"].filter(pl.col("track_id") > 1).select("category", "launch_id").rows() == [
        ("kernel", 10), ("memcpy", None), ("memset", None),
    ]  # fmt: skip
    assert second["spans"]["span_id"].to_list() == list(range(11))
    assert second["spans"].select("parent_id", "launch_id").rows()[-1] == (None, 1)
    assert second["spans"]["parent_id"].to_list()[1:10] == [0] * 9


def test_side_tables_go_with_their_spans():
    ops = OPS.conform(pl.DataFrame({"span_id": [0, 11], "input_shapes": ["[1]", "[2]"]}))
    (_, first), (_, second) = split(two(ops=ops, kernels=KERNELS.empty()))
    assert first["ops"].select("span_id", "input_shapes").rows() == [(0, "[1]")]
    assert second["ops"].select("span_id", "input_shapes").rows() == [(0, "[2]")]
    assert first["kernels"].is_empty()


def test_a_helper_with_next_to_nothing_is_left_out():
    assert [pid for pid, _ in split(two((4, "operator", None, None)))] == [7, 8]
    tables = {"spans": spans_of(*[(0, "operator", None, None)] * 40, (4, "python", None, None)), "tracks": TRACKS_5}
    ((pid, found),) = split(tables)
    assert pid == 7
    assert found["spans"].height == 41


def test_where_steps_are_marked_processes_without_any_do_not_matter():
    ((pid, found),) = split(two((0, "step", None, None, 3)))
    assert (pid, found["spans"].height) == (7, 22)


def test_steps_go_to_the_process_that_marked_them():
    steps = STEPS.conform(pl.DataFrame({"step": [3, 4, 5], "ts_ns": [0, 1, 2]}))
    marked = [(0, "step", None, None, 3), (1, "step", None, None, 4), (1, "step", None, None, 5)]
    (_, first), (_, second) = split(two(*marked, steps=steps))
    assert first["steps"]["step"].to_list() == [3]
    assert second["steps"]["step"].to_list() == [4, 5]


def test_steps_that_no_span_marks_are_everybodys():
    steps = STEPS.conform(pl.DataFrame({"step": [3, 4], "ts_ns": [0, 1]}))
    assert [found["steps"].height for _, found in split(two(steps=steps))] == [2, 2]
