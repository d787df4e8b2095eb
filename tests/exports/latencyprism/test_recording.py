from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.errors import MissingTable
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.exports.latencyprism._recording import results_of

MS = 1_000_000


def test_a_recording_gives_what_a_file_of_results_has(rows, recorded):
    rows.step(1, 0, 1000)
    rows.step(2, 1000, 1000)
    rows.kernel(100, 300, launch=rows.launch(50))
    rows.kernel(1500, 600, launch=rows.launch(1200))
    rows.add(1, 0, 2000, "write", "io")
    samples = [(600, "gpu0", "gpu_usage", 50), (2050, "gpu0", "gpu_usage", 70), (3000, "gpu0", "gpu_usage", 90)]
    results = results_of(recorded(rows, samples))
    assert results.results["cycles"].table is CYCLES
    assert results.results["attribution"].table is ATTRIBUTION
    assert results.result("cycles").select("cycle", "pid", "ts_ns", "dur_ns", "anchor").rows() == [
        (1, 42, 0, 1000, "ProfilerStep"), (2, 42, 1000, 1000, "ProfilerStep"),
    ]  # fmt: skip
    columns = ("cycle", "device", "name", "metric", "category", "recorded_category", "recorded_beta", "recorded_mu")
    # The second cycle's window reaches to the end of its kernel, and takes in the sample during that.
    assert results.result("attribution").sort("cycle", "device").select(columns).rows() == [
        (1, "gpu0", "gemm", "gpu_usage", "kernel", "gpu_compute", 30.0, 50.0),
        (1, "host", "write", None, "io", "disk_read_and_write", 100.0, None),
        (2, "gpu0", "gemm", "gpu_usage", "kernel", "gpu_compute", 60.0, 70.0),
        (2, "host", "write", None, "io", "disk_read_and_write", 100.0, None),
    ]


def test_prefills_are_left_out_beside_others(rows, recorded):
    for i in range(20):
        rows.add(0, 10 * i * MS, 5 * MS, "run_batch", "python")
        rows.kernel((10 * i + 1) * MS, MS, launch=rows.launch((10 * i + 1) * MS, track=1))
    rows.add(0, 300 * MS, 90 * MS, "prefill", "python")
    rows.kernel(310 * MS, MS)
    results = results_of(recorded(rows))
    assert results.result("cycles").height == 20
    assert results.result("attribution")["cycle"].max() == 20


def test_a_recording_without_a_process_number_is_one_process(rows):
    rows.step(1, 0, 1000)
    rows.kernel(100, 300)
    assert results_of(rows.trace()).result("attribution")["pid"].to_list() == [-1]


def test_shares_have_as_many_decimals_as_the_published_files(rows, recorded):
    rows.step(1, 0, 3_000_000)
    rows.kernel(0, 1_000_000)
    found = results_of(recorded(rows)).result("attribution")
    assert found.select("recorded_beta", pl.col("beta_ratio").round(9)).row(0) == (33.3333, 0.333333333)


def test_a_recording_in_which_nothing_has_a_share_is_refused(rows, recorded):
    rows.step(1, 0, 1000)
    rows.op(10, 20)
    with pytest.raises(MissingTable, match="latencyprism needs device work"):
        results_of(recorded(rows))
