from __future__ import annotations

import polars as pl
import polars.selectors as cs
from nsys_files import GLOBAL_PID, OTHER_PID, PID, THREAD, TID, call, kernel, nvtx, read

GPU = ("id", "name", "cuDevice", "smCount", "totalMemory", "computeMajor", "computeMinor")
A100 = "NVIDIA A100-SXM4-40GB"


def test_threads_have_the_names_that_the_program_gave_them(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        [call(100, 120)],
        [nvtx(1, None, "MPI Rank 3", kind=39)],
        ThreadNames=(("globalTid", "nameId"), [(THREAD, 4)]),
    )
    row = trace.tracks.row(by_predicate=pl.col("kind") == "thread", named=True)
    assert (row["pid"], row["tid"], row["label"], row["process"], row["rank"]) == (PID, TID, "MPI Rank 3", "python", 3)
    assert trace.rank == 3


def test_devices_are_those_in_use_as_the_process_counts_them(tmp_path):
    gpus = [(0, "T4", 1, 40, 1 << 30, 7, 5), (3, A100, 0, 108, 40 << 30, 8, 0), (4, A100, 0, 0, 0, 0, 0)]
    trace = read(tmp_path, [kernel(200, 260, device=0)], TARGET_INFO_GPU=(GPU, gpus))
    assert trace.devices.drop(cs.starts_with("recorded_")).rows() == [
        (0, "cpu", None, None, None, None, None), (1, "cuda", 0, A100, 108, 40 << 30, "8.0"),
    ]  # fmt: skip


def test_processes_that_count_devices_differently_share_none(tmp_path):
    gpus = [(i, A100, i, 108, 40 << 30, 8, 0) for i in range(2)]
    own = [(0, 0, PID), (1, 0, 6020)]
    trace = read(
        tmp_path,
        [kernel(200, 260), kernel(200, 260, pid=OTHER_PID)],
        TARGET_INFO_GPU=(GPU, gpus),
        TARGET_INFO_CUDA_DEVICE=(("gpuId", "cudaId", "pid"), own),
    )
    assert trace.devices["device_id"].to_list() == [0, 1, 2]
    assert trace.tracks["device_id"].to_list() == [1, 2]


def test_a_device_that_is_not_described_is_named_only_if_all_are_alike(tmp_path):
    alike = [(i, A100, 9, 108, 40 << 30, 8, 0) for i in range(2)]
    trace = read(tmp_path, [kernel(200, 260, device=5)], TARGET_INFO_GPU=(GPU, alike))
    assert trace.devices.select("index", "name").rows()[1:] == [(5, A100)]


def test_sampled_metrics_become_counters(tmp_path):
    samples = [(300, 0x1_0000_0001, 5, 12.5), (250, 0x1_0000_0000, 6, 80)]
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        GPU_METRICS=(("timestamp", "typeId", "metricId", "value"), samples),
        TARGET_INFO_GPU_METRICS=(("typeId", "metricId", "metricName"), [(1, 5, "SMs Active [Throughput %]")]),
    )
    assert trace.counters.select("ts_ns", "device", "metric", "unit", "value").rows() == [
        (50, "gpu0", "metric 6", None, 80.0), (100, "gpu1", "SMs Active", "Throughput %", 12.5),
    ]  # fmt: skip
    assert trace.devices["index"].to_list() == [None, 0, 1]
    assert trace.counters["device_id"].to_list() == [1, 2]
    assert GLOBAL_PID
