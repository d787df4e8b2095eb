from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from cycle_traces import (
    BACKWARD,
    GPU,
    LANE,
    MAIN,
    PID,
    STREAM,
    TRACKS_4,
    samples_of,
    spans_of,
    steps_of,
    trace_of,
    training,
)  # fmt: skip
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.comparison.model import FUNCTIONS, OBSERVED_CYCLES, PARTS, RESOURCES, WORKLOAD
from stepscope.comparison.observe import observe, parts_of, workload_of
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.schema import ISSUES, KERNELS, OPS, SPANS
from stepscope.core.trace import Meta, Result, Results


def test_recordings_and_results_are_observed_alike():
    (recorded,) = observe(trace_of(spans_of(*training(5))), anchor="load")
    cycles = CYCLES.conform(recorded.cycles.with_columns(pid=41, anchor=pl.lit("load")))
    functions = ATTRIBUTION.conform(recorded.functions.with_columns(pid=41))
    held = {"cycles": Result(CYCLES, cycles), "attribution": Result(ATTRIBUTION, functions)}
    (result,) = observe(Results(Meta("a.csv", "x"), {}, held), anchor="ignored: results have cycles of their own")
    assert (recorded.source, result.source) == ("detected", "recorded")
    assert (recorded.pid, recorded.anchor) == (result.pid, result.anchor) == (41, "load")
    columns = ("cycle", "device", "name", "calls", "total_ns")
    assert result.functions.select(columns).equals(recorded.functions.select(columns))


N = 6
MARKED = [(MAIN, 1000 * i, 990, f"ProfilerStep#{i}", "step") for i in range(N)]
STEPS = steps_of(*((1000 * i, 990) for i in range(N)))
TRACE = trace_of(spans_of(*MARKED, *training(N)), steps=STEPS)
CLOCK = [(100 * i, "gpu3", "gpu_sm_frequency", 1000.0, "MHz") for i in range(60)]


def test_a_recording_becomes_tables_by_cycle():
    (process,) = observe(TRACE)
    assert (process.label, process.pid, process.anchor, process.source) == ("", PID, "ProfilerStep", "annotation")
    assert process.meta is TRACE.meta
    tables = (process.cycles, process.functions, process.parts, process.resources, process.workload)
    for table, frame in zip((OBSERVED_CYCLES, FUNCTIONS, PARTS, RESOURCES, WORKLOAD), tables, strict=True):
        assert frame.schema == table.empty().schema
    assert process.cycles["dur_ns"].to_list() == [1000] * 5 + [990]
    assert process.cycles["is_complete"].all()
    calls = process.functions.filter(pl.col("name") == "aten::linear").select("cycle", "calls", "total_ns").rows()
    assert calls == [(i, 4, 320) for i in range(N)]


def test_own_times_of_the_main_thread_sum_to_the_step():
    (process,) = observe(TRACE)
    host = process.functions.filter(pl.col("device") == "host", pl.col("name") != "autograd::backward")
    assert host.group_by("cycle").agg(pl.col("self_ns").sum())["self_ns"].to_list() == [990] * N


def test_parts_sum_to_each_cycle():
    (process,) = observe(TRACE)
    sums = process.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
    assert sums["total_ns"].to_list() == process.cycles["dur_ns"].to_list()


def test_backward_work_counts_as_the_jobs_own():
    (process,) = observe(trace_of(spans_of(*(row for row in [*MARKED, *training(N)] if row[0] != STREAM)), steps=STEPS))
    operators = process.parts.filter(pl.col("part") == "operators", pl.col("cycle") == 0)["total_ns"][0]
    assert operators == 30 + 4 * 70 + 80 + 100  # copies, layers less their launches, additions, and backward


def test_counters_are_told_per_cycle_and_for_kernels():
    (process,) = observe(TRACE.with_tables(counters=samples_of(*CLOCK)))
    assert process.resources.select("device", "metric", "name").unique().sort("name").rows() == [
        ("gpu3", "gpu_sm_frequency", None), ("gpu3", "gpu_sm_frequency", "gemm"),
    ]  # fmt: skip
    assert set(process.resources["mu"]) == {1000.0}
    assert process.counters.height == 60
    assert process.remarks == ()


def test_without_counters_the_notes_say_so():
    assert [remark.split(":")[0] for remark in observe(TRACE)[0].remarks] == ["no counters were recorded"]


def test_counters_that_could_not_be_placed_are_not_none():
    issue = ISSUES.conform(pl.DataFrame({"code": ["counters_unplaced"], "example": ["it has no clock"]}))
    (process,) = observe(TRACE.with_tables(issues=issue))
    assert process.remarks[0].startswith("counters are not used (it has no clock)")


def test_counters_from_another_hour_are_not_used():
    away = samples_of(*((3_600 * 10**9 + row[0], *row[1:]) for row in CLOCK))
    (process,) = observe(TRACE.with_tables(counters=away))
    assert process.resources.is_empty()
    assert "perhaps a time zone of 1 h" in process.remarks[0]


def test_without_marked_steps_cycles_are_found_and_the_notes_say_how():
    (process,) = observe(trace_of(spans_of(*training(N))))
    assert (process.anchor, process.source, process.cycles.height) == ("optimize", "detected", N)
    assert process.remarks[0].startswith("no steps are marked; cycles are 6 calls of optimize; 100%")
    assert process.remarks[1] == "recorded in part and left out: cycle 6"


def test_cycles_are_cut_by_the_anchor_of_the_other_run():
    (process,) = observe(trace_of(spans_of(*training(N))), anchor="load")
    assert (process.anchor, process.cycles.height) == ("load", N)


def test_an_anchor_that_is_not_there_gives_way_to_what_is():
    (process,) = observe(TRACE, anchor="run_batch")
    assert process.anchor == "ProfilerStep"
    assert process.remarks[0] == "no two calls of 'run_batch' that could mark cycles; cycles are 6 marked steps"


def test_one_cycle_only_is_observed():
    (process,) = observe(trace_of(spans_of(*MARKED[:1], *training(1)), steps=steps_of((0, 990))))
    assert process.cycles.height == 1


def test_each_process_is_observed_without_the_others_counters():
    tracks = TRACKS_4.with_columns(
        pid=pl.Series([PID, 99, 0, None], dtype=pl.Int64), device_id=pl.Series([None] * 4, dtype=pl.UInt32)
    )
    rows = [row for row in training(N) if row[0] == MAIN]
    rows += [(BACKWARD, *row[1:]) for row in rows]
    counters = samples_of(
        *((100 * i, f"pid:{pid}", "load", float(pid), "%") for i in range(60) for pid in (PID, 99, 5))
    )
    trace = trace_of(spans_of(*rows), counters=counters)
    first, second = observe(replace(trace, tables={**trace.tables, "tracks": tracks}))
    assert (first.label, second.label) == (f"pid {PID}", "pid 99")
    assert first.functions.height == second.functions.height
    for process, own in ((first, float(PID)), (second, 99.0)):
        by_device = process.resources.group_by("device").agg(pl.col("mu").first()).sort("mu")
        assert sorted(by_device.rows()) == [("pid:5", 5.0), ("process", own)]


def test_a_recording_of_a_device_alone_is_observed():
    rows = [(STREAM, 1000 * i + 100 * k, 50, name, "kernel") for i in range(6) for k, name in enumerate("abbbc")]
    (process,) = observe(trace_of(spans_of(*rows)))
    assert (process.pid, process.source) == (None, "detected")
    assert set(process.parts["part"]) == {"computation", "idle"}


@pytest.mark.parametrize(
    ("spans", "error"),
    [
        (SPANS.empty(), "compare needs spans"),
        (spans_of((MAIN, 0, 9, "a", "operator")).with_columns(ts_ns=pl.lit(None, pl.Int64)), "start times"),
    ],
)
def test_what_a_comparison_needs_is_named(spans, error):
    with pytest.raises(MissingTable, match=error):
        observe(trace_of(spans))


def test_without_anything_that_comes_again_there_is_nothing_to_compare():
    with pytest.raises(StepscopeError, match="nothing repeats"):
        observe(trace_of(spans_of((MAIN, 0, 9, "a", "operator")), devices=GPU))


SPANS = spans_of(
    (MAIN, 0, 10, "aten::mm", "operator"), (MAIN, 20, 10, "aten::mm", "operator"),
    (MAIN, 100, 30, "aten::mm", "operator"), (MAIN, 110, 10, "aten::copy_", "operator"),
    (MAIN, 200, 90, "aten::mm", "operator"), (STREAM, 40, 8, "gemm", "kernel"), (STREAM, 50, 4, "copy", "memcpy"),
)  # fmt: skip
SHAPES = {"span_id": [0, 1, 2], "input_shapes": ["[[2,3]]", "[[2,3]]", "[[4,3]]"], "input_types": ['["float"]'] * 3}
OPS_4 = OPS.conform(pl.DataFrame(SHAPES))
AXES = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 2, "block_z": 1}
GRIDS = KERNELS.conform(pl.DataFrame({"span_id": [5], **{axis: [n] for axis, n in AXES.items()}}))


def workload(*complete):
    lows = np.array([0, 100, 200])
    own = own_of(SPANS, TRACKS_4, GPU)
    functions = functions_of(SPANS, own, lows, lows + 100)
    return workload_of(trace_of(SPANS, ops=OPS_4, kernels=GRIDS), functions, own, np.array(complete))


def test_sizes_of_operators_and_kernels_per_complete_cycle():
    frame = workload(True, True, False)
    assert frame.schema == WORKLOAD.empty().schema
    assert frame.rows() == [
        ("host", "aten::mm", "[[4,3]]", '["float"]', 0.5, 15.0, 10.0),
        ("host", "aten::mm", "[[2,3]]", '["float"]', 1.0, 10.0, 10.0),
        ("host", "aten::copy_", None, None, 0.5, 5.0, 5.0),
        ("gpu3", "gemm", "grid 8×1×1, block 128×2×1", None, 0.5, 4.0, None),
    ]


def test_a_product_of_matrices_that_calls_another_counts_once():
    spans = spans_of(
        (MAIN, 0, 50, "aten::linear", "operator"), (MAIN, 5, 40, "aten::linear", "operator"),
        (MAIN, 10, 30, "aten::addmm", "operator"), (MAIN, 60, 20, "aten::linear", "operator"),
        (MAIN, 65, 10, "aten::addmm", "operator"), (MAIN, 80, 9, "aten::mm", "operator"),
    )  # fmt: skip
    shapes = ["[[2,3]]"] * 4 + [None, "[[2,3]]"]
    ops = OPS.conform(pl.DataFrame({"span_id": range(6), "input_shapes": shapes}))
    functions = functions_of(spans, own := own_of(spans, TRACKS_4, GPU), np.array([0]), np.array([100]))
    frame = workload_of(trace_of(spans, ops=ops), functions, own, np.array([True]))
    known = frame.filter(pl.col("shapes").is_not_null()).select(pl.col("name").cast(pl.String), "calls_per_cycle")
    assert sorted(known.rows()) == [("aten::addmm", 1.0), ("aten::linear", 1.0), ("aten::mm", 1.0)]


def test_without_a_complete_cycle_nothing_is_known():
    assert workload(False, False, False).is_empty()


THREADS = pl.Series([MAIN, BACKWARD], dtype=pl.UInt32)


def parts(spans, *cycles, threads=THREADS):
    frame = pl.DataFrame(
        [(i, ts, dur) for i, (ts, dur) in enumerate(cycles)], schema=["cycle", "ts_ns", "dur_ns"], orient="row"
    )
    frame = parts_of(trace_of(spans), frame, threads)
    return {(row["cycle"], row["part"]): row["total_ns"] for row in frame.iter_rows(named=True)}  # fmt: skip


def test_the_device_comes_first_and_the_host_where_it_idles():
    spans = spans_of(
        (MAIN, 0, 20, "loader", "dataloader"), (MAIN, 5, 5, "aten::copy_", "operator"),
        (MAIN, 30, 30, "aten::mm", "operator"), (MAIN, 35, 10, "cudaLaunchKernel", "runtime"),
        (MAIN, 70, 30, "cudaStreamSynchronize", "runtime"),
        (STREAM, 40, 30, "gemm", "kernel", "cudaLaunchKernel"), (STREAM, 60, 15, "ncclAllReduce", "kernel"),
        (STREAM, 74, 6, "Memcpy", "memcpy"),
    )  # fmt: skip
    assert parts(spans, (0, 110)) == {
        (0, "computation"): 30, (0, "exposed communication"): 5, (0, "exposed memcpy"): 5,
        (0, "data loading"): 20, (0, "synchronisation"): 20, (0, "launch and runtime calls"): 5, (0, "operators"): 5,
        (0, "python and other"): 20,
    }  # fmt: skip


def test_without_device_work_an_exchange_is_exposed_where_the_host_does_nothing_else():
    spans = spans_of(
        (MAIN, 10, 20, "aten::mm", "operator"), (LANE, 20, 30, "gloo:all_reduce", "user_range"),
        (MAIN, 60, 5, "c10d::allreduce_", "operator"),
    )  # fmt: skip
    assert parts(spans, (0, 100)) == {
        (0, "operators"): 25, (0, "exposed communication"): 20, (0, "python and other"): 55,
    }  # fmt: skip


def test_where_only_the_device_was_recorded_the_rest_is_idle():
    spans = spans_of((STREAM, 10, 20, "gemm", "kernel"))
    assert parts(spans, (0, 100)) == {(0, "computation"): 20, (0, "idle"): 80}


def test_work_of_threads_that_are_not_the_jobs_does_not_count():
    spans = spans_of((BACKWARD, 10, 20, "aten::mm", "operator"), (MAIN, 90, 1, "x", "python"))
    assert parts(spans, (0, 100), threads=pl.Series([MAIN], dtype=pl.UInt32)) == {(0, "python and other"): 100}


ROW = st.tuples(
    st.sampled_from([MAIN, BACKWARD, STREAM]),
    st.integers(0, 90),
    st.integers(1, 40),
    st.sampled_from([("aten::mm", "operator"), ("cudaDeviceSynchronize", "runtime"), ("load", "dataloader")]),
)


@pytest.mark.slow
@given(st.lists(ROW, min_size=1, max_size=12))
def test_parts_of_a_cycle_sum_to_it(rows):
    device = [("gemm", "kernel"), ("ncclSend", "kernel"), ("copy", "memcpy")]
    spans = spans_of(
        *((t, ts, dur, *(device[dur % 3] if t == STREAM else kind)) for t, ts, dur, kind in rows)
    )  # fmt: skip
    frame = parts(spans, (0, 40), (40, 25), (80, 30))
    for cycle, length in enumerate((40, 25, 30)):
        assert sum(ns for (i, _), ns in frame.items() if i == cycle) == length
    assert all(ns >= 0 for ns in frame.values())
