from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from cycle_traces import GPU, MAIN, STREAM, TRACKS_4, samples_of, spans_of

from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.comparison._resources import by_cycle, by_function, seen_counters
from stepscope.comparison.model import COUNTERS_SEEN, RESOURCES

S = 1_000_000_000
CYCLES = pl.DataFrame({"cycle": [5, 6], "ts_ns": [0, 100], "dur_ns": [100, 100]})


def test_samples_around_the_cycles_are_seen_with_the_process_own_under_its_name():
    counters = samples_of(
        (5, "pid:7", "process_cpu_usage", 3.0, "%"), (4, "pid:9", "process_cpu_usage", 4.0, "%"),
        (3, "pid:8", "process_cpu_usage", 5.0, "%"), (2, "host", "host_mem_available", 2.0, "kB"),
        (2 * S, "host", "late", 1.0, "%"), (-2 * S, "host", "early", 1.0, "%"), (1, "host", "lost", math.nan, "%"),
    )  # fmt: skip
    seen = seen_counters(counters, 7, [7, 8], 0, 10)
    assert seen.schema == COUNTERS_SEEN.empty().schema
    assert seen.rows() == [
        (2, "host", "host_mem_available", "bytes", 2048.0),
        (4, "pid:9", "process_cpu_usage", "%", 4.0),
        (5, "process", "process_cpu_usage", "%", 3.0),
    ]


def test_samples_of_several_devices_in_one_have_none():
    counters = samples_of((5, None, "gpu_frequency", 3.0, "MHz"))
    assert seen_counters(counters, None, [], 0, 10)["device"].to_list() == [None]


def seen(*rows):
    return seen_counters(samples_of(*rows), None, [], 0, 200)


def test_each_resource_has_a_mean_per_cycle_where_one_is_known():
    found = by_cycle(seen((0, "gpu3", "clock", 10.0, "MHz"), (40, "gpu3", "clock", 30.0, "MHz")), CYCLES)
    assert found.schema == RESOURCES.empty().schema
    # 10 until 20, 30 until 80: a period after the last sample nothing is known.
    assert found.rows() == [(5, "gpu3", "clock", None, "MHz", (20 * 10 + 60 * 30) / 80, 2)]


def test_without_samples_there_are_no_resources():
    assert by_cycle(COUNTERS_SEEN.empty(), CYCLES).is_empty()
    assert by_cycle(seen((5, None, "gpu_frequency", 3.0, "MHz")), CYCLES).is_empty()


SPANS = spans_of(
    (MAIN, 0, 10, "launch", "runtime"), (STREAM, 20, 40, "gemm", "kernel", "launch"),
    (STREAM, 60, 20, "copy", "memcpy", "launch"), (MAIN, 150, 10, "launch", "runtime"),
    (STREAM, 165, 10, "gemm", "kernel", "launch"),
)  # fmt: skip


def during(*rows):
    counters = seen(*rows)
    lows = CYCLES["ts_ns"].to_numpy()
    functions = functions_of(SPANS, own_of(SPANS, TRACKS_4, GPU), lows, lows + CYCLES["dur_ns"].to_numpy())
    found = by_function(counters, functions, CYCLES["cycle"], SPANS, by_cycle(counters, CYCLES))
    return (
        found.sort("cycle", pl.col("name").cast(pl.String)).select("cycle", "device", "name", "mu", "n_samples").rows()
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
    counters = seen(*((10 * i, "gpu3", "clock", 1.0, "MHz") for i in range(10)))
    found = by_function(counters, functions, pl.Series([1]), spans, by_cycle(counters, CYCLES))
    assert sorted(found["name"]) == [f"k{i:02}" for i in range(2, 10)]
    assert found["n_samples"].to_list() == [0] * 8
