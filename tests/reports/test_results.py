from __future__ import annotations

import polars as pl
import pytest

import stepscope
from stepscope.core.result_tables import ATTRIBUTION, CYCLES, NSYS
from stepscope.core.schema import ISSUES
from stepscope.core.table import Column, Table
from stepscope.core.trace import Meta, Result, Results
from stepscope.reports._results import summarise_results

META = Meta("x/result_perf_data.csv", "latencyprism", n_events=3, framework="LatencyPrism")


def results(cycles, functions):
    """Cycles: number, start, duration; functions: cycle, name, metric, duration, category."""
    attribution = pl.DataFrame(functions, schema=["cycle", "name", "metric", "total_ns", "category"], orient="row")
    frames = (
        (CYCLES, pl.DataFrame(cycles, schema=["cycle", "ts_ns", "dur_ns"], orient="row")),
        (ATTRIBUTION, attribution.with_columns(calls=pl.lit(2), pid=pl.lit(7), device=pl.lit("gpu0"))),
    )
    return Results(META, {}, {table.name: Result(table, table.conform(frame)) for table, frame in frames})


FOUND = results(
    [(1, 0, 1000), (2, 1200, 1000)],
    [
        (1, "gemm", "a", 300, "kernel"), (1, "gemm", "b", 300, "kernel"), (2, "gemm", "a", 500, "kernel"),
        (2, "oncpu", None, 3000, "sched_oncpu"), (2, "write", None, 200, "io"),
    ],
)  # fmt: skip


def test_functions_are_summed_over_cycles_once_for_all_their_metrics_and_apart_by_kind():
    on_device, states, calls = summarise_results(FOUND).tables
    assert on_device.frame.rows() == [("gemm", 4, 800, 0.4)]
    assert states.frame.rows() == [("oncpu", 2, 3000, 1.5)]
    assert calls.frame.rows() == [("write", 2, 200, 0.1)]
    assert {block.command for block in (on_device, states, calls)} == {"show attribution"}
    assert "mean_threads" in states.frame.columns


def test_the_recording_lasts_from_the_first_cycle_to_the_last():
    assert summarise_results(FOUND).recorded_ns == 2200
    without_times = results([(1, None, 1000), (2, None, 500)], [(1, "gemm", "a", 300, "kernel")])
    assert summarise_results(without_times).recorded_ns == 1500


def test_a_report_says_what_the_file_is():
    text = str(stepscope.report(FOUND))
    assert text.startswith("LatencyPrism · ")
    assert "oncpu" in text
    assert "what another program computed" in text


def test_other_results_have_nothing_to_report():
    other = Results(META, {}, {})
    assert summarise_results(other).tables == ()
    assert "what another program computed" in str(stepscope.report(other))


SUMS_META = Meta("x/run_cuda_gpu_kern_sum.csv", "nsys-stats", n_events=2)
KERNELS = [("gemm", "gemm", 3, 3000, 0.75, 1000.0), ("add", "elementwise", 1, 1000, 0.25, 1000.0)]
COLUMNS = ("name", "kernel_class", "calls", "total_ns", "share_ratio", "mean_ns")


def sums(issues=(), **tables):
    """Results of tables given as rows of name, calls, total."""
    held = {}
    for name, rows in tables.items():
        unit = "bytes" if name.endswith("size_sum") else "ns"
        frame = pl.DataFrame(rows, schema=["name", "calls", f"total_{unit}"], orient="row")
        held[name] = Result(NSYS[name], NSYS[name].conform(frame))
    frame = pl.DataFrame(list(issues), schema=dict(ISSUES.dtypes), orient="row")
    return Results(SUMS_META, {"issues": frame}, held)


def with_kernels(found):
    frame = pl.DataFrame(KERNELS, schema=COLUMNS, orient="row")
    table = Table("kernels", "", tuple(Column(name, frame[name].dtype, "") for name in COLUMNS))
    of_kernels = Result(NSYS["cuda_gpu_kern_sum"], NSYS["cuda_gpu_kern_sum"].conform(frame))
    return Results(
        SUMS_META, found.tables, {**found.results, "cuda_gpu_kern_sum": of_kernels, "kernels": Result(table, frame)}
    )


def test_kernels_are_told_by_class():
    found = summarise_results(with_kernels(sums()))
    assert (found.recorded_ns, found.n_launches) == (4000, 4)
    assert found.parts == {"gemm": 3000, "elementwise": 1000, "other": 0}


def test_every_summary_has_its_table_and_the_command_that_shows_it():
    tables = {
        "cuda_gpu_mem_time_sum": [("copy", 2, 50)], "cuda_api_sum": [("cudaFree", 1, 9)], "nvtx_sum": [("step", 1, 80)],
        "osrt_sum": [("poll", 4, 70)], "other_sum": [("barrier", 1, 1)],
    }  # fmt: skip
    blocks = summarise_results(with_kernels(sums(**tables))).tables
    assert [block.command for block in blocks] == [
        "show cuda_gpu_kern_sum", "show cuda_gpu_mem_time_sum", "show cuda_api_sum", "show nvtx_sum", "show osrt_sum",
        "show other_sum",
    ]  # fmt: skip
    assert blocks[1].frame.rows() == [("copy", 2, 50, None, None)]


@pytest.mark.parametrize(("size", "share"), [(4096, 1.0), (0, None)])
def test_sizes_have_shares(size, share):
    (block,) = summarise_results(sums(cuda_gpu_mem_size_sum=[("copy", 2, size)])).tables
    assert block.frame.rows() == [("copy", 2, size, share)]


def test_the_report_says_that_these_are_sums_and_what_was_wrong():
    found = with_kernels(sums([("truncated", "error", 1, "the file ends within a row")]))
    text = " ".join(str(stepscope.report(found)).split())
    assert text.startswith(
        "Truncated file: later events may be missing · Nsight Systems · 4 µs in kernels · 4 launches read"
    )
    assert "sums by name" in text
    assert "The file ends within a row." in text


def test_without_kernels_nothing_is_said_of_time():
    text = str(stepscope.report(sums(osrt_sum=[("poll", 4, 70)])))
    assert text.startswith("Nsight Systems · 2 events read")
    assert "poll" in text


def test_several_files_are_told_as_one():
    sizes = sums(cuda_gpu_mem_size_sum=[("copy", 2, 100)])
    run = stepscope.Run(("a.csv", "b.csv"), lambda _: sizes)
    (block,) = stepscope.report(run).tables
    assert block.frame.rows() == [("copy", 4, 200, 1.0)]
