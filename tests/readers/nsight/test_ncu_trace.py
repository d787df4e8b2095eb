from __future__ import annotations

import polars as pl
import pytest

from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.source import Source
from stepscope.readers.nsight.ncu_trace import LAUNCHES, build
from stepscope.readers.nsight.ncu_values import DEVICE_NAME, MEASURED, WORDS

FIRST = {
    "name": "gemm", "pid": "7", "process": "python", "host": "box", "context": "1", "stream": "7", "device": "0",
    "cc": "9.0", "block": "(128, 2, 1)", "grid": "(264, 1, 1)",
}  # fmt: skip


def trace_of(launches, metrics, words=()):
    return build(
        Source("x.csv"), "ncu-csv", pl.DataFrame(launches, schema=dict.fromkeys(LAUNCHES, pl.String())),
        pl.DataFrame(metrics, schema=MEASURED, orient="row"), pl.DataFrame(list(words), schema=WORDS, orient="row"),
        IssueLog(),
    )  # fmt: skip


def test_launches_are_spans_without_a_clock_in_their_order():
    trace = trace_of(
        [FIRST, FIRST | {"name": "copy", "stream": "13"}, FIRST],
        [(2, "gpu__time_duration.sum", "ns", 30.0), (0, "Duration", "ns", 10.4), (1, "Duration", "ns", 20.0)],
    )
    assert not trace.has_clock
    assert trace.spans.select("span_id", "track_id", "ts_ns", "dur_ns", "name", "category").rows() == [
        (0, 0, None, 10, "gemm", "kernel"), (1, 1, None, 20, "copy", "kernel"), (2, 0, None, 30, "gemm", "kernel"),
    ]  # fmt: skip
    assert trace.tracks.select("pid", "process", "host", "device_id", "stream", "kind").rows() == [
        (7, "python", "box", 0, 7, "stream"), (7, "python", "box", 0, 13, "stream"),
    ]  # fmt: skip
    assert trace.kernel_metrics["span_id"].to_list() == [0, 1, 2]
    assert (trace.meta.host, trace.meta.n_events) == ("box", 3)


def test_launch_configuration_and_device_come_from_launch_and_metrics():
    facts = [
        (0, "launch__sm_count", "SM", 132.0), (0, "launch__registers_per_thread", "register/thread", 40.0),
        (0, "launch__shared_mem_per_block_static", "byte/block", 1024.0),
        (0, "launch__shared_mem_per_block_dynamic", "byte/block", 512.0),
        (0, "sm__warps_active.avg.pct_of_peak_sustained_active", "%", 50.0),
        (0, "device__attribute_total_memory", "byte", 8e10),
    ]  # fmt: skip
    trace = trace_of([FIRST], facts, [(0, DEVICE_NAME, "NVIDIA H100")])
    kernel = trace.kernels.row(0, named=True)
    assert [kernel[f"grid_{a}"] for a in "xyz"] + [kernel[f"block_{a}"] for a in "xyz"] == [264, 1, 1, 128, 2, 1]
    assert (kernel["registers"], kernel["shared_bytes"]) == (40, 1536)
    assert (kernel["blocks_per_sm"], kernel["warps_per_sm"], kernel["est_occupancy_ratio"]) == (2.0, 16.0, 0.5)
    assert trace.devices.row(0, named=True) == {
        "device_id": 0, "type": "cuda", "index": 0, "name": "NVIDIA H100", "sm_count": 132,
        "memory_bytes": 80_000_000_000, "compute_capability": "9.0",
    }  # fmt: skip


def test_sizes_may_stand_among_the_metrics_or_nowhere():
    bare = dict.fromkeys(LAUNCHES) | {"name": "k"}
    sizes = [(0, f"launch__{what}_dim_{a}", "", float(n)) for what, ns in (("grid", (3, 2, 1)), ("block", (64, 1, 1)))
             for a, n in zip("xyz", ns, strict=True)]  # fmt: skip
    got = trace_of([bare], sizes).kernels.row(0, named=True)
    assert [got[f"grid_{a}"] for a in "xyz"] + [got["block_x"]] == [3, 2, 1, 64]
    nothing = trace_of([bare], [])
    assert nothing.kernels["grid_x"].to_list() == [None]
    assert nothing.spans["dur_ns"].to_list() == [None]
    assert nothing.issues["code"].to_list() == ["no_duration"]


@pytest.mark.parametrize("text", ["(1,024, 1, 1)", "(1.024, 1, 1)", "(1024, 1, 1)"])
def test_sizes_may_be_grouped(text):
    assert trace_of([FIRST | {"grid": text}], []).kernels["grid_x"].to_list() == [1024]


def test_values_that_no_column_can_hold_are_unknown():
    trace = trace_of([FIRST], [(0, "launch__registers_per_thread", "", 1e12), (0, "launch__sm_count", "SM", 3e9)])
    assert trace.kernels["registers"].to_list() == [None]
    assert trace.devices["sm_count"].to_list() == [None]


def test_devices_of_several_hosts_are_several():
    trace = trace_of([FIRST, FIRST | {"host": "other"}, FIRST | {"device": "1"}], [])
    assert trace.devices.select("device_id", "index").rows() == [(0, 0), (1, 0), (2, 1)]
    assert trace.tracks["device_id"].to_list() == [0, 1, 2]
    assert trace.meta.host is None
