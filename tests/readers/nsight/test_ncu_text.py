from __future__ import annotations

import gzip

import polars as pl
import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers import open_trace, reader_for

PAGE = """\
==PROF== Connected to process 9 (/home/me/app)
loss 0.5
[9] app@127.0.0.1
  void cutlass::Kernel<gemm<(int)128>>(T1::Params) (1024, 5, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    DRAM Frequency                  Ghz         6.98
    Duration                    usecond       472.93
    Memory Throughput                 %        33.52
    Compute (SM) Throughput           %        67.54
    ----------------------- ----------- ------------

    OPT   Compute is more heavily utilized than Memory: look at the workload
          analysis section.

    Section: Launch Statistics
    -------------------------------- --------------- ---------------
    Metric Name                          Metric Unit    Metric Value
    -------------------------------- --------------- ---------------
    Function Cache Configuration                     CachePreferNone
    Registers Per Thread             register/thread              16
    Threads                                   thread       1,310,720
    Memory Throughput                   Gbyte/second           12.50
    -------------------------------- --------------- ---------------

  copy(int), 2021-Mar-04 12:01:02, Context 2, Stream 13
    Section: Command line profiler metrics
    ---------------------------------------------------------------- --------------- ------------------------------
    gpu__time_duration.sum                                                   msecond                           1.45
    ---------------------------------------------------------------- --------------- ------------------------------
"""


@pytest.fixture
def read(tmp_path):
    def of(text: str):
        path = tmp_path / "ncu.txt"
        path.write_text(text)
        return open_trace(str(path))

    return of


def test_launches_with_their_metrics_in_base_units(read):
    trace = read(PAGE)
    assert trace.meta.format == "ncu-text"
    assert not trace.has_clock
    assert trace.spans.select("name", "dur_ns").rows() == [
        ("void cutlass::Kernel<gemm<(int)128>>(T1::Params)", 472_930), ("copy(int)", 1_450_000),
    ]  # fmt: skip
    assert trace.kernels.select("grid_x", "grid_y", "block_x", "registers").rows() == [
        (1024, 5, 256, 16), (None, None, None, None),
    ]  # fmt: skip
    values = trace.kernel_metrics.filter(pl.col("span_id") == 0).select("metric", "unit", "value").rows()
    assert values == [
        ("DRAM Frequency", "hz", pytest.approx(6.98e9)), ("Duration", "ns", pytest.approx(472930)),
        ("Memory Throughput", "%", 33.52), ("Compute (SM) Throughput", "%", 67.54),
        ("Registers Per Thread", "register/thread", 16), ("Threads", "thread", 1310720),
        ("Launch Statistics: Memory Throughput", "byte/s", pytest.approx(12.5e9)),
    ]  # fmt: skip
    assert trace.tracks.select("pid", "process", "stream").rows() == [(9, "app", 7), (9, "app", 13)]
    assert trace.devices.select("index", "compute_capability").rows() == [(0, "8.0"), (None, None)]


def test_what_is_lost_is_noted(read):
    assert read(PAGE).issues["code"].to_list() == ["rounded", "metrics_in_words"]


def test_a_cut_file_keeps_what_it_has(read, tmp_path):
    assert read(PAGE[: PAGE.index("    Memory Throughput")]).spans["dur_ns"].to_list() == [472_930]
    packed = tmp_path / "ncu.txt.gz"
    packed.write_bytes(gzip.compress(PAGE.encode(), 0)[:-300])
    assert "damaged_packing" in open_trace(str(packed)).issues["code"].to_list()


def test_a_text_without_launches_is_refused(tmp_path):
    from stepscope.readers import Source
    from stepscope.readers.nsight import ncu_text

    path = tmp_path / "x"
    path.write_text("nothing here\n")
    with pytest.raises(CorruptInput, match="no launches"):
        ncu_text.read(Source(str(path)))


def test_it_is_known_by_a_launch():
    assert reader_for("x", PAGE.encode()).name == "ncu-text"
    assert reader_for("x", PAGE.encode("utf-16")).name == "ncu-text"
