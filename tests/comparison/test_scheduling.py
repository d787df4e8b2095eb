from __future__ import annotations

import polars as pl

from stepscope.comparison._scheduling import in_place_of, scheduled
from stepscope.comparison.model import CYCLES_SEEN, RESOURCES
from stepscope.core.schema import SCHED, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace

CYCLES = CYCLES_SEEN.conform(pl.DataFrame({"cycle": [7, 8, 9], "ts_ns": [100, 200, 900], "dur_ns": [100, 50, 100]}))
#: track, start, end, category, other, whether that is of the job
ROWS = [
    (0, 90, 130, "sched_oncpu", "greedy", False),
    (0, 130, 210, "sched_runq", "greedy", False),
    (0, 210, 240, "sched_oncpu", None, None),
    (0, 240, 260, "sched_runq", "train", True),
    (1, 120, 140, "sched_runq", "greedy", False),
    (2, 100, 250, "sched_runq", "greedy", False),
]


def trace(rows=ROWS) -> Trace:
    schema = ["track_id", "ts_ns", "end_ns", "category", "other", "other_is_own"]
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("span_id")
    frame = frame.with_columns(dur_ns=pl.col("end_ns") - pl.col("ts_ns"))
    tracks = TRACKS.conform(pl.DataFrame({"track_id": [0, 1, 2], "pid": [5, 5, 6], "kind": ["other"] * 3}))
    tables = {"spans": SPANS.conform(frame), "tracks": tracks, "sched": SCHED.conform(frame)}
    return Trace(Meta("t", "kineto"), tables)


def values(frame):
    return {(device, metric, cycle): mu for cycle, device, metric, mu in frame.select(
        "cycle", pl.col("device", "metric").cast(pl.String), "mu").rows()}  # fmt: skip


def test_time_on_cores_and_waits_of_each_cycle_are_exact():
    found = scheduled(trace(), 5, CYCLES)
    assert found.schema == RESOURCES.empty().schema
    assert found["unit"].unique().to_list() == ["ns/s"]
    assert values(found) == {
        ("process", "process_oncpu_time", 7): 0.3e9,
        ("process", "process_oncpu_time", 8): 0.6e9,
        ("process", "process_runq_time", 7): 0.9e9,
        ("process", "process_runq_time", 8): 0.4e9,
        ("behind greedy", "process_runq_time", 7): 0.9e9,
        ("behind greedy", "process_runq_time", 8): 0.2e9,
    }


def test_cycles_in_which_nothing_was_recorded_are_unknown_and_quiet_ones_are_zero():
    rows = [*ROWS[:2], (0, 1000, 1010, "sched_oncpu", None, None)]
    found = values(scheduled(trace(rows), 5, CYCLES))
    assert (found["process", "process_oncpu_time", 8], found["process", "process_oncpu_time", 9]) == (0.0, 0.0)
    assert ("process", "process_runq_time", 9) in found
    assert ("process", "process_oncpu_time", 9) not in values(scheduled(trace(), 5, CYCLES))


def test_without_a_number_all_processes_count_and_without_spans_nothing():
    everywhere = values(scheduled(trace(), None, CYCLES))
    assert everywhere["process", "process_runq_time", 7] == 1.9e9
    assert scheduled(trace(), 77, CYCLES).is_empty()
    assert scheduled(Trace(Meta("t", "kineto"), {}), 5, CYCLES).is_empty()


def test_what_is_exact_stands_in_place_of_samples():
    sampled = RESOURCES.conform(
        pl.DataFrame(
            {"cycle": [7, 7], "device": ["process", "host"], "metric": ["process_runq_time", "x"], "mu": [1.0, 2.0]}
        )
    )
    both = in_place_of(sampled, scheduled(trace(), 5, CYCLES))
    assert values(both)["process", "process_runq_time", 7] == 0.9e9
    assert values(both)["host", "x", 7] == 2.0
    assert both.height == 7
    assert in_place_of(sampled, RESOURCES.empty()).equals(sampled)
