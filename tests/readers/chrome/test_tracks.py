from __future__ import annotations

import pytest
from chrome_traces import call, column, kernel, label, op, read, rows, x

from stepscope.readers.chrome.tracks import device_type

TRACK = ("pid", "tid", "device_id", "stream", "kind", "process", "label")


def memory(index, kind=1):
    return {
        "ph": "i",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "args": {"Device Type": kind, "Device Id": index, "Bytes": 8},
    }


@pytest.mark.parametrize(
    ("meta", "cats", "names", "kind"),
    [
        ({"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}]}, [], [], "cuda"),
        ({"deviceProperties": [{"name": "Tesla V100"}]}, [], [], "cuda"),
        ({"deviceProperties": [{"name": "AMD Instinct MI300X"}]}, ["cuda_runtime"], [], "rocm"),
        ({"hip_runtime_version": 6}, [], [], "rocm"),
        ({"roctracer_version": 4}, [], [], "rocm"),
        ({"cuda_driver_version": 12}, [], [], "cuda"),
        ({"deviceProperties": [{"name": "Ascend910B"}]}, [], [], "npu"),
        ({}, ["async_npu"], [], "npu"),
        ({"deviceProperties": [{"name": "Intel(R) Data Center GPU Max 1550"}]}, [], [], "xpu"),
        ({}, ["xpu_runtime"], [], "xpu"),
        ({}, ["mtia_ccp_events", "cuda_runtime"], [], "mtia"),
        ({}, ["mlu_runtime"], [], "mlu"),
        ({}, ["cuda_runtime"], ["aten::mm", "hipLaunchKernel"], "rocm"),
        ({}, ["Runtime"], ["cudaLaunchKernel"], "cuda"),
        ({}, ["Runtime"], ["cnrtMemcpyAsync"], "mlu"),
        ({}, ["cuda_runtime"], ["customer"], "cuda"),
        ({"deviceProperties": "none"}, ["kernel", None], [None, "x"], "accelerator"),
        ({"deviceProperties": [7, {"name": None}]}, [], [], "accelerator"),
    ],
)
def test_kind_of_accelerator(meta, cats, names, kind):
    assert device_type(meta, cats, names) == kind


def test_host_threads_streams_and_lanes_are_tracks_apart():
    trace = read([
        op("a", 0, 1, pid=5, tid=6), kernel("k", 1, 1, 1, device=0, stream=7), kernel("l", 2, 1, 2, device=1, stream=7),
        x("range", 1, 2, "gpu_user_annotation", pid=0, tid=7),
        label("process_name", "python", pid=5), label("process_name", "python", pid=0),
        label("thread_name", "stream 7", pid=0, tid=7),
    ])  # fmt: skip
    assert rows(trace.tracks, *TRACK) == [
        (5, 6, None, None, "thread", "python", None),
        (0, 7, 1, 7, "stream", "python", "stream 7"),
        (1, 7, 2, 7, "stream", None, None),
        (0, 7, 1, None, "annotation", "python", "stream 7"),
    ]
    assert column(trace.tracks, "track_id") == [0, 1, 2, 3]


def test_numbers_in_text_are_the_same_track_as_numbers():
    trace = read(
        [
            op("a", 0, 1, pid=5, tid=6),
            op("b", 2, 1, pid="5", tid="6"),
            kernel("k", 1, 1, 1),
            kernel("l", 2, 1, 2, device="0", stream="7"),
        ]
    )
    assert trace.tracks.height == 3  # the stream given as text keeps a track of its own
    assert rows(trace.tracks, "pid", "tid")[0] == (5, 6)


def test_processes_of_rocm_profile_data_are_devices_and_its_calls_queue_their_work():
    trace = read([
        label("process_name", "GPU2", pid="2"), label("thread_name", "Hip 9", pid="9", tid="9"),
        x("hipMemcpyAsync", "0", "4", None, pid="9", tid="9"), x("hipLaunchKernel", "5", "2", None, pid="9", tid="9"),
        x("CopyHostToDevice", "10", "4", None, pid="2", tid="0"), x("gemm", "15", "6", None, pid="2", tid="0"),
        x("FillBuffer", "22", "1", None, pid="2", tid="0"),
        {"ph": "s", "cat": "api_op", "name": "api_op", "id": "7", "pid": "9", "tid": "9", "ts": "5"},
        {"ph": "f", "cat": "api_op", "name": "api_op", "id": "7", "pid": "2", "tid": "0", "ts": "15", "bp": "e"},
    ])  # fmt: skip
    assert rows(trace.devices, "device_id", "type", "index") == [(0, "cpu", None), (1, "rocm", 2)]
    work = trace.spans.filter(trace.spans["category"] != "other").sort("ts_ns")
    assert column(work, "category") == ["runtime", "runtime", "memcpy", "kernel", "memset"]
    assert column(work, "launch_id") == [None, None, None, work["span_id"][1], None]


@pytest.mark.parametrize("name", ["GPU2 worker", "GPU"])
def test_other_processes_with_gpu_in_their_name_are_no_devices(name):
    trace = read([label("process_name", name, pid=2), x("work", 0, 1, None, pid=2, tid=0)])
    assert trace.devices.height == 1


def test_events_without_process_or_thread_have_a_track_without_names():
    trace = read([{"ph": "X", "name": "a", "ts": 0, "dur": 1}])
    assert rows(trace.tracks, *TRACK) == [(None, None, None, None, "thread", None, None)]


@pytest.mark.parametrize("ident", ["--5", "9" * 5000, "\u0663", "", "1.5"])
def test_text_that_is_no_number_is_a_name(ident):
    trace = read([op("a", 0, 1, pid=ident, tid=ident)])
    assert rows(trace.tracks, "pid", "tid") == [(None, None)]
    assert rows(trace.tracks, "process", "label") == [(ident or None, ident or None)]


def test_devices_are_described_by_their_properties():
    properties = [
        {
            "id": 0,
            "name": "NVIDIA H100",
            "numSms": 132,
            "totalGlobalMem": 85_000_000_000,
            "computeMajor": 9,
            "computeMinor": 0,
        },
        {"id": 1, "name": "NVIDIA A100 ", "numSms": "108", "totalMem(MiB)": 81_000, "computeMajor": "8"},
    ]
    trace = read([kernel("k", 0, 1, 1, device=1), kernel("l", 0, 1, 2, device=0)], deviceProperties=properties)
    assert rows(
        trace.devices, "device_id", "type", "index", "name", "sm_count", "memory_bytes", "compute_capability"
    ) == [
        (0, "cpu", None, None, None, None, None),
        (1, "cuda", 1, "NVIDIA A100", 108, 81_000 << 20, None),
        (2, "cuda", 0, "NVIDIA H100", 132, 85_000_000_000, "9.0"),
    ]


def test_a_device_that_is_not_listed_is_like_the_others_if_they_are_alike():
    alike = [{"id": i, "name": "MI300X", "numSms": 304} for i in range(2)]
    assert column(read([kernel("k", 0, 1, 1, device=6)], deviceProperties=alike).devices, "sm_count") == [None, 304]
    unlike = [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]
    assert column(read([kernel("k", 0, 1, 1, device=6)], deviceProperties=unlike).devices, "name") == [None, None]


def test_rocm_memory_ordinals_are_those_of_its_only_node():
    trace = read([call("hipLaunchKernel", 0, 1, 1), kernel("k", 2, 1, 1, device=2, stream=0), memory(0)])
    assert rows(trace.devices, "type", "index") == [("cpu", None), ("rocm", 2)]
    assert column(trace.allocations, "device_id") == [1]


def test_memory_of_a_device_without_work_makes_it_known():
    trace = read([kernel("k", 2, 1, 1), memory(3)])
    assert rows(trace.devices, "index") == [(None,), (0,), (3,)]
    assert column(trace.allocations, "device_id") == [2]


def test_device_numbers_that_are_none_leave_work_on_its_stream():
    trace = read(
        [
            kernel("k", 2, 1, 1, device=-1),
            kernel("l", 4, 1, 1, device="gpu", stream=3),
            kernel("m", 6, 1, 1, device=10**6, stream=4),
        ]
    )
    assert set(column(trace.tracks, "kind")) == {"stream"}
    assert column(trace.devices, "index") == [None, 0]


def test_a_lane_of_a_far_off_xla_device_is_one_of_device_0():
    trace = read(
        [
            label("process_name", "/device:GPU:" + "9" * 5000, pid=3),
            label("thread_name", "Stream #4(Compute)", pid=3, tid=1),
            x("f", 0, 1, None, pid=3),
        ]
    )
    assert rows(trace.tracks, "kind", "device_id") == [("stream", 1)]
    assert column(trace.spans, "category") == ["kernel"]


def test_xla_operations_are_work_only_where_there_are_no_streams():
    lanes = [label("process_name", "/device:GPU:0", pid=3), label("thread_name", "XLA Ops", pid=3, tid=1)]
    spans = [x("op", 0, 1, None, pid=3, tid=1), x("kernel", 0, 1, None, pid=3, tid=2)]
    assert column(read(lanes + spans).spans, "category") == ["kernel", "device_range"]
    streams = [label("thread_name", "Stream #2(Compute)", pid=3, tid=2)]
    assert column(read(lanes + streams + spans).spans, "category") == ["device_range", "kernel"]


def test_memory_of_a_private_device_is_an_mlus_where_nothing_else_says_what_it_is():
    args = {"Device Type": 20, "Device Id": 0, "Bytes": 8}
    event = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": args}
    assert column(read([event]).devices, "type") == ["cpu", "mlu"]
    assert column(read([event, call("cudaLaunchKernel", 2, 1, 1)]).devices, "type") == ["cpu", "cuda"]
