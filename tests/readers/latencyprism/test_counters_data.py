from __future__ import annotations

import polars as pl
import pytest
from perf_files import START_US, counters_text

from stepscope.readers import open_trace, reader_for
from stepscope.readers.latencyprism.counters_data import unit_of


@pytest.fixture
def read(tmp_path):
    def read_samples(samples):
        path = tmp_path / "result_counters_data.csv"
        path.write_text(counters_text(samples), newline="")
        return open_trace(str(path))

    return read_samples


def test_the_header_shows_the_format():
    assert reader_for("x", b"counter_name,timestamp,value,hostname\r\n").name == "latencyprism-counters"


def test_samples_are_of_a_process_of_the_host_or_of_some_gpu(read):
    trace = read([
        ("process_cpu_usage_4013652", f"{START_US + 2}.500000", 160.5), ("host_cpu_usage", f"{START_US}.000000", 6),
        ("gpu_frequency", f"{START_US + 1}.250000", 1155),
    ])  # fmt: skip
    assert trace.counters.select("ts_ns", "device", "pid", "metric", "unit", "value").rows() == [
        (0, "host", None, "host_cpu_usage", "%", 6.0),
        (1_250, None, None, "gpu_frequency", "MHz", 1155.0),
        (2_500, "pid:4013652", 4013652, "process_cpu_usage", "%", 160.5),
    ]
    assert trace.meta.origin_unix_ns == START_US * 1000
    assert trace.issues.rows() == [("counters_pooled", "info", 1, "samples of all GPUs stand under one name")]


def test_a_process_number_written_as_a_float_is_the_same_process(read):
    samples = [("process_mem_rss_4.013652e+06", f"{START_US}", 1), ("process_mem_rss_4013652", f"{START_US + 1}", 2)]
    assert read(samples).counters["pid"].to_list() == [4013652] * 2


@pytest.mark.parametrize("name", ["process_cpu_usage", "process_x_1.5", "process_x_1e", "process_x_9e99"])
def test_a_name_without_a_process_number_is_kept_as_it_is(read, name):
    found = read([(name, f"{START_US}", 1)]).counters
    assert found.select("metric", "pid").rows() == [(name, None)]


def test_rows_without_a_time_or_value_are_dropped_and_counted(read):
    trace = read(
        [("net_rx_rate", "soon", 1), ("net_rx_rate", f"{START_US}", "much"), ("net_rx_rate", f"{START_US}", 1)]
    )
    assert trace.counters.height == 1
    assert trace.issues.filter(pl.col("code") == "counters_dropped")["count"].to_list() == [2]


def test_units_go_by_the_name():
    units = {
        "cpu_frequency": "MHz",
        "gpu_sm_util": "ratio", "gpu_usage": "%", "process_gpu_mem_usage": "bytes",
        "container_gpu_mem_usage": "%", "gpu_link_receive": "bytes/s", "net_tx_rate": "bytes/s",
        "gpu_mem_used": "bytes",
        "host_mem_free": "kB", "disk_free": "bytes", "process_mem_rss": "bytes", "cpu_temp": "°C", "gpu_power": "W",
        "anything": None,
    }  # fmt: skip
    found = pl.DataFrame({"metric": list(units)}).select(unit_of(pl.col("metric"))).to_series()
    assert found.to_list() == list(units.values())
