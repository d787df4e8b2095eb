from __future__ import annotations

import polars as pl

import stepscope
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.core.trace import Meta, Result, Results
from stepscope.reports._results import summarise_results

META = Meta("x/result_perf_data.csv", "latencyprism", n_events=3, framework="LatencyPrism")


def results(cycles, functions):
    """Cycles: number, start, duration; functions: cycle, name, metric, duration."""
    attribution = pl.DataFrame(functions, schema=["cycle", "name", "metric", "total_ns"], orient="row")
    frames = (
        (CYCLES, pl.DataFrame(cycles, schema=["cycle", "ts_ns", "dur_ns"], orient="row")),
        (ATTRIBUTION, attribution.with_columns(calls=pl.lit(2), pid=pl.lit(7), device=pl.lit("gpu0"))),
    )
    return Results(META, {}, {table.name: Result(table, table.conform(frame)) for table, frame in frames})


FOUND = results(
    [(1, 0, 1000), (2, 1200, 1000)],
    [(1, "gemm", "a", 300), (1, "gemm", "b", 300), (2, "gemm", "a", 500), (2, "oncpu", None, 1500)],
)


def test_functions_are_summed_over_cycles_once_for_all_their_metrics():
    (block,) = summarise_results(FOUND).tables
    assert block.frame.rows() == [("oncpu", 2, 1500, 0.75), ("gemm", 4, 800, 0.4)]
    assert block.command == "show attribution"


def test_the_recording_lasts_from_the_first_cycle_to_the_last():
    assert summarise_results(FOUND).recorded_ns == 2200
    without_times = results([(1, None, 1000), (2, None, 500)], [(1, "gemm", "a", 300)])
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
