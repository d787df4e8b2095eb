from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from cycle_traces import GPU, MAIN, STREAM, TRACKS_4, samples_of, spans_of

from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.comparison._resources import (
    by_cycle,
    by_function,
    counter_remarks,
    counters_around,
    cycle_remarks,
    held_by_tensors,
    replaced,
    scheduled,
)
from stepscope.comparison.model import OBSERVED_COUNTERS, OBSERVED_CYCLES, RESOURCES
from stepscope.core.schema import ALLOCATIONS, COUNTERS, DEVICES, ISSUES, SCHED, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace

S = 1_000_000_000
CYCLES = pl.DataFrame({"cycle": [5, 6], "ts_ns": [0, 100], "dur_ns": [100, 100]})


def test_samples_around_the_cycles_are_seen_with_the_process_own_under_its_name():
    counters = samples_of(
        (5, "pid:7", "process_cpu_usage", 3.0, "%"), (4, "pid:9", "process_cpu_usage", 4.0, "%"),
        (3, "pid:8", "process_cpu_usage", 5.0, "%"), (2, "host", "host_mem_available", 2.0, "kB"),
        (2 * S, "host", "late", 1.0, "%"), (-2 * S, "host", "early", 1.0, "%"), (1, "host", "lost", math.nan, "%"),
    )  # fmt: skip
    samples_ = counters_around(counters, 7, [7, 8], 0, 10)
    assert samples_.schema == OBSERVED_COUNTERS.empty().schema
    assert samples_.rows() == [
        (2, "host", "host_mem_available", "bytes", 2048.0),
        (4, "pid:9", "process_cpu_usage", "%", 4.0),
        (5, "process", "process_cpu_usage", "%", 3.0),
    ]


def test_samples_of_several_devices_in_one_have_none():
    counters = samples_of((5, None, "gpu_frequency", 3.0, "MHz"))
    assert counters_around(counters, None, [], 0, 10)["device"].to_list() == [None]


def counters_of(*rows):
    return counters_around(samples_of(*rows), None, [], 0, 200)


def test_each_resource_has_a_mean_per_cycle_where_one_is_known():
    frame = by_cycle(counters_of((0, "gpu3", "clock", 10.0, "MHz"), (40, "gpu3", "clock", 30.0, "MHz")), CYCLES)
    assert frame.schema == RESOURCES.empty().schema
    # 10 until 20, 30 until 80: a period after the last sample nothing is known.
    assert frame.rows() == [(5, "gpu3", "clock", None, "MHz", (20 * 10 + 60 * 30) / 80, 2)]


def test_without_samples_there_are_no_resources():
    assert by_cycle(OBSERVED_COUNTERS.empty(), CYCLES).is_empty()
    assert by_cycle(counters_of((5, None, "gpu_frequency", 3.0, "MHz")), CYCLES).is_empty()


TIMELINE = spans_of(
    (MAIN, 0, 10, "launch", "runtime"), (STREAM, 20, 40, "gemm", "kernel", "launch"),
    (STREAM, 60, 20, "copy", "memcpy", "launch"), (MAIN, 150, 10, "launch", "runtime"),
    (STREAM, 165, 10, "gemm", "kernel", "launch"),
)  # fmt: skip


def during(*rows):
    counters = counters_of(*rows)
    lows = CYCLES["ts_ns"].to_numpy()
    functions = functions_of(TIMELINE, own_of(TIMELINE, TRACKS_4, GPU), lows, lows + CYCLES["dur_ns"].to_numpy())
    frame = by_function(counters, functions, CYCLES["cycle"], TIMELINE, by_cycle(counters, CYCLES))
    return (
        frame.sort("cycle", pl.col("name").cast(pl.String)).select("cycle", "device", "name", "mu", "n_samples").rows()
    )


def test_resources_of_a_gpu_are_told_for_its_functions():
    clock = [(20 * i, "gpu3", "clock", float(i), "MHz") for i in range(10)]
    assert during(*clock, *((20 * i, "host", "load", 1.0, "%") for i in range(10))) == [
        (5, "gpu3", "copy", pytest.approx(3.5), 5),
        (5, "gpu3", "gemm", pytest.approx((10 * 1 + 20 * 2 + 10 * 3) / 40), 5),
        (6, "gpu3", "gemm", pytest.approx((5 * 8 + 5 * 9) / 10), 5),
    ]


def test_other_gpus_are_nobodys_business():
    assert during(*((20 * i, "gpu4", "clock", 1.0, "MHz") for i in range(10))) == []


def test_functions_for_which_nothing_is_known_have_no_row():
    assert [row[:3] for row in during((0, "gpu3", "clock", 1.0, "MHz"), (30, "gpu3", "clock", 1.0, "MHz"))] == [
        (5, "gpu3", "gemm"),
    ]  # fmt: skip


def test_only_the_longest_functions_are_looked_at():
    rows = [(STREAM, 10 * i, 1 + i % 10, f"k{i:02}", "kernel") for i in range(10)]
    spans = spans_of(*rows)
    functions = functions_of(spans, own_of(spans, TRACKS_4, GPU), np.array([0]), np.array([100]))
    counters = counters_of(*((10 * i, "gpu3", "clock", 1.0, "MHz") for i in range(10)))
    frame = by_function(counters, functions, pl.Series([1]), spans, by_cycle(counters, CYCLES))
    assert sorted(frame["name"]) == [f"k{i:02}" for i in range(2, 10)]
    assert frame["n_samples"].to_list() == [0] * 8


EVENTS = [(10, 0, 64, 64), (20, 1, 8, 8), (30, 0, -64, 0), (None, 0, 1, 1), (40, 0, 5, None), (50, 7, 5, 5)]


def trace_of(events):
    rows = {"ts_ns": pl.Int64, "device_id": pl.UInt32, "bytes": pl.Int64, "total_allocated_bytes": pl.Int64}
    devices = pl.DataFrame({"device_id": [0, 1], "type": ["cpu", "cuda"], "index": [None, 3]})
    allocations = ALLOCATIONS.conform(pl.DataFrame(events, schema=rows, orient="row"))
    return Trace(Meta(path="x", format="made"), {"allocations": allocations, "devices": DEVICES.conform(devices)})


def test_what_tensors_hold_is_a_resource_of_the_process_and_of_its_devices():
    frame = held_by_tensors(trace_of(EVENTS))
    assert frame.schema == COUNTERS.empty().schema
    assert frame.select("ts_ns", "device", "metric", "unit", "value").rows() == [
        (10, "process", "process_mem_allocated", "bytes", 64.0),
        (20, "gpu3", "gpu_mem_allocated", "bytes", 8.0),
        (30, "process", "process_mem_allocated", "bytes", 0.0),
    ]


def test_a_recording_without_the_allocator_has_none():
    assert held_by_tensors(trace_of([])).is_empty()


HOUR = 3_600_000_000_000


def cycles(*complete):
    n = len(complete)
    return pl.DataFrame(
        {"cycle": range(n), "ts_ns": range(n), "dur_ns": [1] * n, "is_complete": complete},
        schema_overrides={"is_complete": pl.Boolean},
    )


@pytest.mark.parametrize(
    ("complete", "remarks"),
    [
        ([True] * 3, []),
        ([None, None], []),
        ([False, True, True], ["recorded in part and left out: cycle 0"]),
        ([False, True, True, False], ["recorded in part and left out: cycles 0, 3"]),
        ([True], []),
        ([False] * 9 + [True] * 2, ["recorded in part and left out: cycles 0, 1, 2, 3, 4, 5, 6, 7 … 8"]),
        ([], ["no complete cycles: how much cycles vary is not known"]),
    ],
)
def test_what_does_not_count_is_said(complete, remarks):
    assert cycle_remarks(cycles(*complete)) == remarks


def issues(*rows):
    return ISSUES.conform(pl.DataFrame(list(rows), schema=["code", "example"], orient="row"))


def test_without_counters_some_causes_cannot_be_seen():
    assert counter_remarks(COUNTERS.empty(), COUNTERS.empty(), placed(0, 1), ISSUES.empty()) == [
        "no counters were recorded"
    ]
    known = issues(("other", "x"), ("counters_unplaced", "the trace does not say when it began"))
    (remark,) = counter_remarks(COUNTERS.empty(), COUNTERS.empty(), placed(0, 1), known)
    assert remark == "counters are not used (the trace does not say when it began)"


def samples(*times):
    return pl.DataFrame({"ts_ns": times})


def placed(low, high):
    return pl.DataFrame({"ts_ns": [low], "dur_ns": [high - low]})


@pytest.mark.parametrize(
    ("times", "where"),
    [
        ([12 * 10**9, 13 * 10**9], "all are at least 2.0 s after them"),
        ([-9 * 10**9, -3 * 10**9], "all are at least 3.0 s before them"),
        ([2 * HOUR, 2 * HOUR + 10**10], "all are at least 7,190.0 s after them, perhaps a time zone of 2 h"),
        ([-(10**9), 20 * 10**9], "they pause while the cycles run"),
    ],
)
def test_samples_elsewhere_are_located(times, where):
    (remark,) = counter_remarks(samples(*times), COUNTERS.empty(), placed(0, 10**10), ISSUES.empty())
    assert remark == f"no counter sample was taken during the cycles ({where}): counters are not used"


SCHED_CYCLES = OBSERVED_CYCLES.conform(
    pl.DataFrame({"cycle": [7, 8, 9], "ts_ns": [100, 200, 900], "dur_ns": [100, 50, 100]})
)
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
    frame = scheduled(trace(), 5, SCHED_CYCLES)
    assert frame.schema == RESOURCES.empty().schema
    assert frame["unit"].unique().to_list() == ["ns/s"]
    assert values(frame) == {
        ("process", "process_oncpu_time", 7): 0.3e9,
        ("process", "process_oncpu_time", 8): 0.6e9,
        ("process", "process_runq_time", 7): 0.9e9,
        ("process", "process_runq_time", 8): 0.4e9,
        ("behind greedy", "process_runq_time", 7): 0.9e9,
        ("behind greedy", "process_runq_time", 8): 0.2e9,
    }


def test_cycles_in_which_nothing_was_recorded_are_unknown_and_quiet_ones_are_zero():
    rows = [*ROWS[:2], (0, 1000, 1010, "sched_oncpu", None, None)]
    frame = values(scheduled(trace(rows), 5, SCHED_CYCLES))
    assert (frame["process", "process_oncpu_time", 8], frame["process", "process_oncpu_time", 9]) == (0.0, 0.0)
    assert ("process", "process_runq_time", 9) in frame
    assert ("process", "process_oncpu_time", 9) not in values(scheduled(trace(), 5, SCHED_CYCLES))


def test_without_a_number_all_processes_count_and_without_spans_nothing():
    everywhere = values(scheduled(trace(), None, SCHED_CYCLES))
    assert everywhere["process", "process_runq_time", 7] == 1.9e9
    assert scheduled(trace(), 77, SCHED_CYCLES).is_empty()
    assert scheduled(Trace(Meta("t", "kineto"), {}), 5, SCHED_CYCLES).is_empty()


def test_what_is_exact_stands_in_place_of_samples():
    sampled = RESOURCES.conform(
        pl.DataFrame(
            {"cycle": [7, 7], "device": ["process", "host"], "metric": ["process_runq_time", "x"], "mu": [1.0, 2.0]}
        )
    )
    both = replaced(sampled, scheduled(trace(), 5, SCHED_CYCLES))
    assert values(both)["process", "process_runq_time", 7] == 0.9e9
    assert values(both)["host", "x", 7] == 2.0
    assert both.height == 7
    assert replaced(sampled, RESOURCES.empty()).equals(sampled)


def test_processes_that_are_not_observed_by_themselves_are_taken_together():
    counters = samples_of(
        (0, "pid:8", "process_runq_time", 1e8, "ns/s"), (0, "pid:9", "process_runq_time", 2e8, "ns/s"),
        (0, "process", "process_runq_time", 5e8, "ns/s"), (0, "pid:9", "process_mem_rss", 7.0, "bytes"),
    )  # fmt: skip
    together = by_cycle(counters, CYCLES).filter(pl.col("device") == "workers")
    assert together.select("cycle", "metric", "mu").rows() == [(5, "process_runq_time", 3e8)]
