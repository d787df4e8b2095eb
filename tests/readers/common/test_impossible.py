from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.schema import TABLES
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.impossible import without_impossible


def repaired(meta=None, **tables):
    frames = {name: TABLES[name].conform(pl.DataFrame(columns)) for name, columns in tables.items()}
    return without_impossible(Trace(meta or Meta("a", "kineto"), frames))


def test_a_possible_trace_stays_as_it_is():
    devices = {"device_id": [0, 1], "memory_bytes": [None, 80 << 30], "sm_count": [None, 132]}
    trace = repaired(Meta("a", "kineto", rank=0, world_size=8), devices=devices)
    assert trace.issues.is_empty()
    assert trace.devices["memory_bytes"].to_list() == [None, 80 << 30]
    assert (trace.meta.rank, trace.meta.world_size) == (0, 8)


def test_impossible_values_become_unknown_and_are_counted():
    devices = {"device_id": [0, 1, 2], "memory_bytes": [2**62, -5, 4096], "sm_count": [8, 8, 0]}
    trace = repaired(devices=devices)
    assert trace.devices["memory_bytes"].to_list() == [None, None, 4096]
    assert trace.devices["sm_count"].to_list() == [8, 8, None]
    assert trace.issues.select("code", "severity", "count").rows() == [("impossible_values", "warning", 3)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_sample_without_a_possible_value_is_dropped(value):
    counters = {"ts_ns": [1, 2], "metric": ["use", "use"], "value": [value, 5.0]}
    trace = repaired(counters=counters)
    assert trace.counters.select("ts_ns", "value").rows() == [(2, 5.0)]
    assert trace.issues["count"].to_list() == [1]


def test_what_is_freed_is_negative():
    allocations = {"ts_ns": [1, 2], "track_id": [0, 0], "bytes": [512, -512], "total_allocated_bytes": [2**60, -1]}
    trace = repaired(allocations=allocations)
    assert trace.allocations["bytes"].to_list() == [512, -512]
    assert trace.allocations["total_allocated_bytes"].to_list() == [None, -1]


def test_durations_are_bounded_and_names_are_never_null():
    trace = repaired(spans={"span_id": [0, 1], "dur_ns": [2**62, 5], "name": [None, "mm"]})
    assert trace.spans["dur_ns"].to_list() == [30 * 86_400 * 10**9, 5]
    assert trace.spans["name"].to_list() == ["", "mm"]


@pytest.mark.parametrize(("fact", "value"), [("rank", -1), ("rank", 2**30), ("world_size", 0), ("world_size", 10**9)])
def test_claims_about_the_job_that_cannot_be_are_unknown(fact, value):
    trace = repaired(Meta("a", "kineto", **{fact: value}))
    assert getattr(trace.meta, fact) is None
    assert trace.issues["code"].to_list() == ["impossible_values"]


def test_numbers_that_do_not_fit_their_type_are_unknown():
    trace = repaired(kernels={"span_id": [0, 1, 2], "block_z": [1, 2**63 - 1, 2**40], "graph_id": [-(2**63), 7, -1]})
    assert trace.kernels["block_z"].to_list() == [1, None, None]
    assert trace.kernels["graph_id"].to_list() == [None, 7, -1]
    assert trace.issues["example"].to_list() == ["values that cannot be, as block_z of too many digits"]
    assert trace.issues["count"].to_list() == [3]


def test_rows_that_are_dropped_are_counted_once():
    trace = repaired(counters={"ts_ns": [2**62 + 1, 1], "metric": ["a", "b"], "value": [1e300, 1.0]})
    assert trace.counters["ts_ns"].to_list() == [1]
    assert trace.issues["count"].to_list() == [1]


def test_only_tables_that_are_new_are_looked_at():
    first = Trace(Meta("a", "kineto"), {"steps": TABLES["steps"].conform(pl.DataFrame({"dur_ns": [-5]}))})
    counters = TABLES["counters"].conform(pl.DataFrame({"ts_ns": [1], "metric": ["a"], "value": [float("inf")]}))
    trace = without_impossible(first.with_tables(counters=counters), before=first)
    assert (trace.steps["dur_ns"].to_list(), trace.counters.height) == ([-5], 0)


def test_names_are_cut_if_all_together_are_too_long_and_stay_different():
    names = [f"{'x' * 1400}{number}" for number in range(4_000)]
    trace = repaired(spans={"span_id": range(4_001), "name": [*names, "mm"]})
    cut = trace.spans["name"].cast(pl.String)
    assert cut.n_unique() == 4_001
    assert cut.str.len_chars().max() < 1_100
    assert cut[-1] == "mm"
    assert trace.issues.select("code", "count").rows() == [("long_names", 4_000)]


def test_a_few_long_names_stay_as_they_are_unless_no_compiler_makes_such():
    names = ["x" * 16_000, "y" * 2_000_000, "mm"]
    trace = repaired(spans={"span_id": [0, 1, 2], "name": names})
    assert trace.spans["name"].cast(pl.String).str.len_chars().to_list() == [16_000, 16_398, 2]
    assert trace.issues.select("code", "count").rows() == [("long_names", 1)]


def test_rows_without_a_value_that_must_be_known_are_left_out():
    trace = repaired(kernel_metrics={"span_id": [0, 1], "metric": [None, "sm"], "value": [1.0, None]})
    assert trace.kernel_metrics["metric"].to_list() == ["sm"]
    assert trace.issues["count"].to_list() == [1]
