from __future__ import annotations

import polars as pl
import pytest
from nsys_stats_files import API_TRACE, GPU_TRACE, PUSHPOP_TRACE, announced

from stepscope.readers import open_trace

EVERYTHING = (
    announced("cuda_gpu_trace", GPU_TRACE)
    + announced("cuda_api_trace", API_TRACE)
    + announced("nvtx_pushpop_trace", PUSHPOP_TRACE)
)


@pytest.fixture
def read(tmp_path):
    def of(text: str):
        (tmp_path / "stats.csv").write_text(text)
        return open_trace(str(tmp_path / "stats.csv"))

    return of


def codes(trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").rows())


def test_work_of_the_device_with_its_times(read):
    trace = read(GPU_TRACE)
    rows = trace.spans.select("name", "category", "ts_ns", "dur_ns", "correlation").rows()
    assert rows == [
        ("[CUDA memcpy Host-to-Device]", "memcpy", 0, 500, 11), ("add(float *, int)", "kernel", 1000, 300, 12),
        ("[CUDA memset]", "memset", 1400, 100, 13), ("ampere_sgemm_128x64_tn", "kernel", 1600, 700, 14),
    ]  # fmt: skip
    assert trace.meta.origin_recorded_ns == 1000


def test_devices_and_streams(read):
    trace = read(GPU_TRACE)
    assert trace.devices.select("type", "index", "name").rows() == [
        ("cpu", None, None), ("cuda", 0, "NVIDIA A100"), ("cuda", 1, "NVIDIA A100"),
    ]  # fmt: skip
    assert trace.tracks.select("device_id", "stream", "kind").rows() == [(1, 7, "stream"), (2, 13, "stream")]


def test_how_kernels_were_launched(read):
    trace = read(GPU_TRACE)
    columns = ("span_id", "grid_x", "grid_y", "block_x", "registers", "shared_bytes", "tensor_core")
    assert trace.kernels.select(columns).rows() == [(1, 64, 2, 256, 32, 3000, False), (3, 8, 1, 32, 16, 0, False)]


def test_what_copies_and_fills_moved(read):
    columns = ("span_id", "bytes", "kind", "src", "dst", "recorded_bytes_per_s")
    trace = read(GPU_TRACE)
    assert trace.transfers.select(columns).rows() == [
        (0, 4000, "HtoD", "Pageable", "Device", 8e6), (2, 256_000, "memset", "Device", None, None),
    ]  # fmt: skip
    assert codes(trace)["rounded"] == 3


def test_calls_are_tied_to_the_work_that_they_queued(read):
    trace = read(EVERYTHING)
    calls = trace.spans.select("span_id", call="name")
    tied = trace.spans.join(calls, left_on="launch_id", right_on="span_id").select("name", "call").rows()
    assert sorted(tied) == [
        ("[CUDA memcpy Host-to-Device]", "cudaMemcpy"), ("[CUDA memset]", "cuMemsetD8Async"),
        ("add(float *, int)", "cudaLaunchKernel"),
    ]  # fmt: skip
    host = trace.spans.filter(pl.col("category").is_in(["runtime", "driver", "user_range"]))
    host = host.join(trace.tracks, on="track_id").select("name", "category", "pid", "tid", "label").sort("name")
    assert host.rows() == [
        ("cuMemsetD8Async", "driver", 42, 78, "helper"), ("cudaLaunchKernel", "runtime", 42, 77, "main"),
        ("cudaMemcpy", "runtime", 42, 77, "main"), ("layer 1", "user_range", 42, 77, "main"),
    ]  # fmt: skip
    launch = trace.spans.filter(pl.col("name") == "cudaLaunchKernel")
    assert trace.spans["name"][launch["parent_id"].item()] == "layer 1"


def test_several_processes_count_launches_alike_so_that_none_is_tied(read):
    trace = read(EVERYTHING.replace(",42,78,", ",43,78,"))
    assert trace.spans["launch_id"].null_count() == trace.spans.height
    assert codes(trace)["ambiguous_launches"] == 4


def test_ranges_of_pytorch_are_operators_and_steps(read):
    names = ("ProfilerStep#3", '":aten::mm, seq = 3, op_id = 7, sizes = [[2, 3], [3, 4]]"', "domain:mine")
    rows = "".join(f"{i}00,{i}90,90,0,90,{name},42,77,0,0,{i},,:1,x\n" for i, name in enumerate(names, 1))
    trace = read(PUSHPOP_TRACE.partition("\n")[0] + "\n" + rows)
    assert trace.spans.select("name", "category").rows() == [
        ("ProfilerStep#3", "step"), ("aten::mm", "operator"), ("domain:mine", "user_range"),
    ]  # fmt: skip
    assert trace.steps["step"].to_list() == [3]


def test_other_reports_of_events_are_calls(read):
    header = "Start (ns),End (ns),Duration (ns),Event,Pid,Tid,Tag,Rank\n"
    trace = read(announced("mpi_event_trace", header + "10,30,20,MPI_Send,1,1,0,0\n"))
    assert trace.spans.select("name", "category", "recorded_category", "dur_ns").rows() == [
        ("MPI_Send", "other", "mpi_event", 20)
    ]
    trace = read("Start (ns),End (ns),Event,Pid,Tid\n10,30,MPI_Send,1,1\n")
    assert trace.spans.select("dur_ns", "recorded_category").rows() == [(20, "call")]


def test_layouts_until_2021_have_seconds_and_bytes(read):
    text = (
        "Start(sec),Duration(nsec),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem,DymSMem,Bytes,Thru(MB/s),"
        "SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
        "0.321500,300,12,64,2,1,256,1,1,32,1024,16,,,,,Tesla V100 (0),1,7,add\n"
        "0.321600,200,13,,,,,,,,,,4096,20.480,Pageable,Device,Tesla V100 (0),1,7,[CUDA memcpy HtoD]\n"
    )
    trace = read(text)
    assert trace.spans.select("ts_ns", "dur_ns").rows() == [(0, 300), (100_000, 200)]
    assert trace.meta.origin_recorded_ns == 321_500_000
    assert trace.kernels["shared_bytes"].to_list() == [1040]
    assert trace.transfers.select("bytes", "kind", "recorded_bytes_per_s").rows() == [(4096, "HtoD", 20_480_000.0)]
    assert codes(trace)["rounded"] == 1


def test_times_in_the_unit_that_was_asked_for(read):
    trace = read(GPU_TRACE.replace("(ns)", "(us)"))
    assert trace.spans.select("ts_ns", "dur_ns").row(1) == (1_000_000, 300_000)


def test_times_keep_their_last_digit(read):
    start = 1_763_683_200_123_456_789
    trace = read(GPU_TRACE.partition("\n")[0] + f"\n{start},5,1,8,1,1,32,1,1,16,0,0,,,,,A100 (0),1,,7,add\n")
    assert trace.meta.origin_recorded_ns == start


def test_rows_without_a_time_or_a_name(read):
    trace = read(GPU_TRACE + ",5,1,8,1,1,32,1,1,16,0,0,,,,,A100 (0),1,,7,add\n9000,5,1,8,1,1,32,1,1,16,0,0,,,,,,1,,,\n")
    assert codes(trace)["incomplete_rows"] == 1
    assert trace.spans["name"].to_list()[-1] == "?"
    assert trace.devices["name"].to_list() == [None, None, "NVIDIA A100", "NVIDIA A100"]


def test_kernels_without_a_grid_and_devices_without_a_number(read):
    trace = read("Start (ns),Duration (ns),CorrId,Device,Strm,Name\n10,5,1,GPU,7,add\n20,5,2,GPU,7,[CUDA memset]\n")
    assert trace.spans["category"].to_list() == ["kernel", "memset"]
    assert trace.kernels["grid_x"].to_list() == [None]
    assert trace.devices.select("index", "name").rows()[1] == (None, "GPU")
