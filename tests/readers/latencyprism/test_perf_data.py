from __future__ import annotations

import gzip

import polars as pl
import pytest
from perf_files import COLUMNS, GEMM, START_US, counters_text, perf_row, perf_text, write_case

from stepscope.core.errors import CorruptInput, MissingTable, StepscopeError
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.core.trace import Results
from stepscope.readers import expand, open_trace, reader_for


@pytest.fixture
def read(tmp_path):
    def read_rows(rows, *, name="result_perf_data.csv", columns=COLUMNS):
        path = tmp_path / name
        text = perf_text(rows, columns).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        return open_trace(str(path))

    return read_rows


def codes(results):
    return dict(results.issues.select("code", "count").rows())


def test_the_header_tells_the_format():
    assert reader_for("x", perf_text([]).encode()).name == "latencyprism"
    assert reader_for("x", b"\xef\xbb\xbf" + perf_text([]).encode()).name == "latencyprism"


def test_a_file_gives_cycles_and_attribution(read):
    results = read([perf_row(1), perf_row(1, metric_name="gpu_sm_util", mu_pct="0.26"), perf_row(2)])
    assert isinstance(results, Results)
    assert {name: result.table for name, result in results.results.items()} == {
        "cycles": CYCLES, "attribution": ATTRIBUTION,
    }  # fmt: skip
    assert results.result("cycles").rows() == [
        (1, None, 7, 0, 1_000_250, "Scheduler.run_batch", None, None, None, None),
        (2, None, 7, 1_000_000, 1_000_250, "Scheduler.run_batch", None, None, None, None),
    ]
    assert results.meta.origin_unix_ns == (START_US + 1000) * 1000 + 750
    first = results.result("attribution").row(0, named=True)
    assert first == {
        "cycle": 1, "host": None, "pid": 7, "device": "gpu3", "name": GEMM, "metric": "gpu_usage",
        "category": "kernel", "recorded_category": "gpu_compute", "short_name": "gemm", "calls": 4,
        "total_ns": 100_000, "beta_ratio": 0.1, "unit": "%", "mu": 6.0, "sigma": 0.0, "sampled": "none",
        "recorded_beta": 10.0, "recorded_mu": 6.0, "resource": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "recorded", "value", "unit"),
    [
        ("gpu_usage", 6.0, 6.0, "%"),
        ("gpu_sm_util", 0.26, 0.26, "ratio"),
        ("gpu_frequency", 118687.5, 1186.875, "MHz"),
        ("gpu_link_receive", 2.48e13, 2.48e11, "bytes/s"),
        ("net_rx_rate", 17612.0, 17612.0, "bytes/s"),
        ("cpu_frequency", 87.5, 0.875, "ratio"),
        ("cpu_frequency", 350000.0, 3500.0, "MHz"),
        ("gpu_mem_used", 85.7, 0.857, "ratio"),
        ("gpu_mem_used", 7.36e12, 7.36e10, "bytes"),
    ],
)
def test_metrics_come_in_units_that_people_know(read, metric, recorded, value, unit):
    found = read([perf_row(1, metric_name=metric, mu_pct=recorded, sigma_pct=recorded)]).result("attribution")
    row = found.row(0, named=True)
    assert (row["recorded_mu"], row["unit"]) == (recorded, unit)
    assert row["mu"] == pytest.approx(value)
    assert row["sigma"] == pytest.approx(value)


def test_a_function_without_a_metric_keeps_its_share(read):
    row = perf_row(1, metric_name="N/A", mu_pct="", sigma_pct="", interpolation_status=" ")
    found = read([row]).result("attribution").row(0, named=True)
    assert [found[name] for name in ("metric", "unit", "mu", "sigma", "sampled", "recorded_mu")] == [None] * 6
    assert found["beta_ratio"] == 0.1


@pytest.mark.parametrize(
    ("kind", "name", "category"),
    [
        ("oncpu", "oncpu", "sched_oncpu"), ("runq", "runq", "sched_runq"), ("gpu_comm", "nccl", "kernel"),
        ("gpu_memcpy_h2d", "Memcpy HtoD", "memcpy"), ("gpu_memcpy_h2d", "Memset (Device)", "memset"),
        ("cpu_sync", "cudaStreamSynchronize", "sync"), ("disk_read_and_write", "write", "io"), ("new", "x", "other"),
    ],
)  # fmt: skip
def test_types_of_functions_are_categories(read, kind, name, category):
    found = read([perf_row(1, func_type=kind, function_name=name)]).result("attribution")
    assert found.select("category", "recorded_category").row(0) == (category, kind)


def test_devices_have_the_names_of_counters(read):
    devices = ["Host", "GPU 7", "GPU 7 (virtual)", ""]
    found = read([perf_row(1, device=device) for device in devices]).result("attribution")
    assert found["device"].to_list() == ["host", "gpu7", "gpu7 (virtual)", None]


def test_events_with_samples_of_their_own_are_told(read):
    found = read([perf_row(1, interpolation_status=status) for status in (" ", "*", "**", "?")]).result("attribution")
    assert found["sampled"].to_list() == ["all", "some", "none", None]


def test_rows_without_their_numbers_are_dropped_and_counted(read):
    bad = [{"cycle": "one"}, {"pid": ""}, {"beta_pct": "inf"}, {"anchor_dur_us": "?"}]
    results = read([perf_row(1), *(perf_row(2) | values for values in bad)])
    assert results.result("attribution").height == 1
    assert codes(results) == {"rows_dropped": 4}
    with pytest.raises(CorruptInput, match="not one of its rows"):
        read([perf_row(1, pid="?")])


def test_columns_that_only_some_versions_write_may_lack(read):
    needed = ("cycle", "pid", "beta_pct", "function_name", "metric_name", "device", "mu_pct", "anchor_dur_us")
    results = read([perf_row(1), perf_row(2)], columns=needed)
    assert results.result("cycles").select("ts_ns", "dur_ns", "anchor").rows() == [(None, 1_000_250, None)] * 2
    assert results.result("attribution").select("calls", "total_ns", "category").row(0) == (None, None, "other")
    assert results.meta.origin_unix_ns is None


def test_the_samples_beside_a_file_are_read_with_it(read, tmp_path):
    samples = [("gpu_usage", f"{START_US + 900}", 5), ("host_cpu_usage", f"{START_US + 1500}", 7)]
    (tmp_path / "result_counters_data.csv.gz").write_bytes(gzip.compress(counters_text(samples).encode()))
    (tmp_path / "other_counters_data.csv").write_text(counters_text([("x", "1", 1)]))
    results = read([perf_row(1)], name="result_perf_data.csv.gz")
    assert results.meta.origin_unix_ns == (START_US + 900) * 1000
    assert results.result("cycles")["ts_ns"].to_list() == [100_750]
    assert results.counters.select("ts_ns", "metric").rows() == [(0, "gpu_usage"), (600_000, "host_cpu_usage")]


def test_samples_that_cannot_be_read_are_an_issue(read, tmp_path):
    (tmp_path / "result_counters_data.csv").write_text("when,what\n1,2\n")
    results = read([perf_row(1)])
    assert codes(results) == {"counters_unreadable": 1}
    with pytest.raises(MissingTable, match="counters"):
        results.require("counters")


def test_a_folder_gives_the_files_of_results_and_not_those_of_samples(tmp_path):
    write_case(tmp_path, [perf_row(1)], [perf_row(1)])
    (tmp_path / "normal_perf_data" / "result_counters_data.csv").write_text(counters_text([("x", "1", 1)]))
    assert expand([str(tmp_path)]) == [
        str(tmp_path / f"{side}_perf_data" / "result_perf_data.csv") for side in ("abnormal", "normal")
    ]


def test_processes_stand_beside_each_other(read):
    results = read([perf_row(1, pid=8), perf_row(1, pid=7), perf_row(2, pid=7)])
    assert results.result("cycles").select("cycle", "pid").rows() == [(1, 7), (1, 8), (2, 7)]
    assert results.result("attribution").filter(pl.col("pid") == 8).height == 1


def test_a_file_cut_anywhere_gives_its_whole_rows_or_the_reason(tmp_path):
    rows = [perf_row(1), perf_row(2, simple_name='a "b", c')]
    text = perf_text(rows).encode()
    ends = [i + 1 for i, sign in enumerate(text) if sign == ord("\n")]
    path = tmp_path / "result_perf_data.csv"
    for cut in range(ends[0] + 1, len(text)):
        path.write_bytes(text[:cut])
        whole = sum(end <= cut for end in ends[1:])
        try:
            found = open_trace(str(path)).result("attribution")
        except StepscopeError:
            assert whole == 0
        else:
            assert whole <= found.height <= whole + 1
            assert found["calls"].to_list() == [4] * found.height
