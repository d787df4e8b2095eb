from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile

import pytest
import zstandard
from chrome_traces import arrow, by_name, call, column, issues, kernel, label, linked, op, packed, read, rows, x

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.core.schema import TABLES

EVENTS = [
    label("process_name", "python", pid=1),
    label("process_labels", "CPU", pid=1),
    label("thread_name", "thread 1 (python)", pid=1, tid=1),
    label("thread_name", "stream 7", pid=0, tid=7),
    x("ProfilerStep#3", 100, 900, "user_annotation"),
    op("aten::mm", 110, 50, External_id=4, Input_Dims=[[2, 3], [3, 4]], Input_type=["float", "float"]),
    call("cudaLaunchKernel", 120, 10, 91, External_id=4),
    kernel("sgemm", 140, 300, 91, External_id=4, grid=[8, 1, 1], block=[128, 1, 1], registers_per_thread=64),
    arrow("s", 91, 120),
    arrow("f", 91, 140, pid=0, tid=7),
]
SPANS = [
    ("ProfilerStep#3", 0, 900_000, "step", None, None, 3),
    ("aten::mm", 10_000, 50_000, "operator", None, None, 3),
    ("cudaLaunchKernel", 20_000, 10_000, "runtime", None, 1, 3),
    ("sgemm", 40_000, 300_000, "kernel", 2, 1, 3),
]
META = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": {"rank": 5}}


def spans_of(trace):
    return rows(trace.spans, "name", "ts_ns", "dur_ns", "category", "launch_id", "op_id", "step")


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        lambda events, meta: json.dumps({**meta, "traceEvents": events}).encode(),
        lambda events, meta: json.dumps({"traceEvents": events, **meta}).encode(),
        lambda events, meta: json.dumps({**meta, "traceEvents": events, "traceName": "x"}, indent=2).encode(),
        lambda events, meta: json.dumps({**meta, "traceEvents": events}, indent="\t").replace("\n", "\r\n").encode(),
        lambda events, meta: b"\xef\xbb\xbf \n" + packed(events, **meta),
        lambda events, meta: packed(events, **meta) + b"\n\n",
    ],
    ids=["events last", "events first", "pretty", "tabs and CRLF", "BOM and blanks before", "blanks after"],
)
def test_layout_of_the_document_does_not_matter(write):
    trace = read(write(EVENTS, META))
    assert spans_of(trace) == SPANS
    assert trace.rank == 5
    assert trace.meta.framework == "PyTorch"
    assert column(trace.devices, "name") == [None, "NVIDIA H100"]
    assert trace.issues.is_empty()


@pytest.mark.parametrize("text", [packed(EVENTS)[15:-1], packed(EVENTS)[15:-2], packed(EVENTS)[15:-2] + b",\n"])
def test_bare_arrays_may_lack_the_closing_bracket(text):
    assert text.startswith(b"[")
    trace = read(text)
    assert spans_of(trace) == SPANS
    assert trace.issues.is_empty()


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("trace.json.gz", gzip.compress),
        ("called.json", gzip.compress),
        ("trace.json.gz", lambda data: gzip.compress(data[:300]) + gzip.compress(data[300:]) + b"\0" * 64),
        ("trace.json.zst", zstandard.compress),
        ("trace.json.zst", lambda data: zstandard.compress(data[:300]) + zstandard.compress(data[300:])),
        ("trace.json.xz", lzma.compress),
        ("trace.json.bz2", bz2.compress),
        ("trace.zip", lambda data: zipped(**{"folder/": b"", "README.txt": b"hello", "folder/trace.json": data})),
    ],
    ids=["gz", "gz by content", "gz members", "zst", "zst frames", "xz", "bz2", "zip"],
)
def test_packed_files_are_known_by_their_content(name, pack):
    data = packed(EVENTS, **META)
    trace = read(pack(data), name)
    assert spans_of(trace) == SPANS
    assert trace.meta.size_bytes == len(data)
    assert trace.issues.is_empty()


def test_spans_are_sorted_by_track_then_start_then_longest_first():
    trace = read([op("c", 5, 1, tid=2), op("inner", 1, 3), op("b", 8, 1), op("outer", 1, 8), op("same", 1, 3)])
    assert column(trace.spans, "name") == ["c", "outer", "inner", "same", "b"]
    assert column(trace.spans, "span_id") == [0, 1, 2, 3, 4]
    assert column(trace.spans, "parent_id") == [None, None, 1, 2, 1]


@pytest.mark.parametrize(
    ("ts", "dur", "expected"),
    [
        (7, 2, (7_000, 2_000)),
        (7.125, 0.5, (7_125, 500)),
        ("7.125", "2", (7_125, 2_000)),
        (7.0005, 0.0004, (7_000, 0)),
        (3_000_000_000.001, 1e-3, (3_000_000_000_001, 1)),
        (1.5e3, 2e0, (1_500_000, 2_000)),
        (-4.5, 1, (-4_500, 1_000)),
    ],
)
def test_times_are_microseconds_and_become_nanoseconds(ts, dur, expected):
    trace = read([op("zero", 0, 0), op("one", ts, dur)])
    origin = min(0, expected[0])
    assert by_name(trace, "ts_ns", "dur_ns")["one"] == (expected[0] - origin, expected[1])


@pytest.mark.parametrize("quote", ["", '"'])
def test_unix_times_with_decimals_keep_every_nanosecond(quote):
    times = ("1712345678901234.567", "1712345678901234.568", "1712345678901235.001")
    texts = [f'{{"ph":"X","name":"{t[-3:]}","ts":{quote}{t}{quote},"dur":{quote}0.003{quote}}}' for t in times]
    trace = read(f'{{"traceEvents":[{",".join(texts)}]}}'.encode())
    assert rows(trace.spans, "name", "ts_ns", "dur_ns") == [("567", 0, 3), ("568", 1, 3), ("001", 434, 3)]
    assert trace.meta.origin_unix_ns == 1712345678901234567


def test_unix_times_are_exact_although_the_first_event_has_none():
    late = '{"ph":"X","name":"late","ts":1712345678901234.567,"dur":1}'
    trace = read(f'[{{"ph":"M","name":"process_name","ts":0,"args":{{"name":"x"}}}},{late}]'.encode())
    assert trace.meta.origin_unix_ns == 1712345678901234567


def test_unix_times_keep_their_nanoseconds_beside_a_damaged_event():
    good = '{"ph":"X","name":"n","ts":1712345678901234.567,"dur":0.001}'
    trace = read(f'[{good},{{"ph":"X","name":oops}},{good}]'.encode())
    assert column(trace.spans, "dur_ns") == [1, 1]
    assert trace.meta.origin_unix_ns == 1712345678901234567


def test_base_time_gives_the_unix_time_of_the_origin():
    trace = read([op("a", 1_500.25, 1)], baseTimeNanoseconds=1_700_000_000_000_000_000)
    assert trace.meta.origin_unix_ns == 1_700_000_000_001_500_250
    assert column(trace.spans, "ts_ns") == [0]


def test_without_base_time_a_small_clock_is_not_unix_time():
    assert read([op("a", 1_500, 1)]).meta.origin_unix_ns is None
    assert read([op("a", 1_700_000_000_000_000, 1)]).meta.origin_unix_ns == 1_700_000_000_000_000_000


@pytest.mark.parametrize("base", [True, "soon", -5, 10**40, 1.5, None])
def test_a_base_time_that_is_none_is_ignored(base):
    assert read([op("a", 1_500, 1)], baseTimeNanoseconds=base).meta.origin_unix_ns is None


@pytest.mark.parametrize("key", ["External_id", "external_id"])
def test_external_ids_of_either_spelling_tie_calls_on_other_threads(key):
    trace = read([
        op("aten::mm", 0, 9, **{key: 4}),
        call("cudaLaunchKernel", 2, 1, 91, tid=2, **{key: 4}),
        kernel("sgemm", 5, 2, 91, **{key: 4}),
    ])  # fmt: skip
    assert linked(trace, "op_id") == {"aten::mm": None, "cudaLaunchKernel": "aten::mm", "sgemm": "aten::mm"}
    assert column(trace.spans, "external_id") == [4, 4, 4]


def test_without_correlations_the_arrows_to_the_device_say_what_queued_what():
    events = [{**e, "args": {k: v for k, v in e.get("args", {}).items() if k != "correlation"}} for e in EVENTS]
    assert spans_of(read(packed(events, **META))) == SPANS
    no_arrows = [e for e in events if e.get("cat") != "ac2g"]
    assert spans_of(read(packed(no_arrows, **META)))[-1] == ("sgemm", 40_000, 300_000, "kernel", None, None, 3)


@pytest.mark.parametrize("cat", ["ac2g", "async_cpu_to_gpu"])
def test_arrows_to_the_device_are_noted_on_its_work(cat):
    trace = read([
        call("cudaLaunchKernel", 1, 1, 1), call("cudaLaunchKernel", 3, 1, 2), kernel("with", 4, 1, 1),
        kernel("without", 6, 1, 2),
        arrow("s", 1, 1, cat=cat), arrow("f", 1, 4, pid=0, tid=7, cat=cat),
    ])  # fmt: skip
    assert by_name(trace, "flow") == {"cudaLaunchKernel": None, "with": True, "without": False}


def test_without_arrows_it_is_unknown_whether_work_has_one():
    trace = read([call("cudaLaunchKernel", 1, 1, 1), kernel("k", 4, 1, 1)])
    assert by_name(trace, "flow") == {"cudaLaunchKernel": None, "k": None}
    assert linked(trace, "launch_id")["k"] == "cudaLaunchKernel"


def test_pytorch_1_8_upper_case_categories_and_stacks():
    trace = read([
        x("aten::add", 0, 10, "Operator", External_id="12", Call_stack="in.py(3): f;out.py(9): main", Input_dims=[[2]]),
        x("cudaLaunchKernel", 2, 2, "Runtime", correlation="7", external_id="12"),
        x("add_kernel", 5, 3, "Kernel", pid=0, tid="stream 7", device=0, stream=7, correlation=7),
        x("Memcpy HtoD (Pageable -> Device)", 9, 3, "Memcpy", pid=0, tid="stream 7", device=0, stream=7, bytes=64),
        x("Memset (Device)", 13, 1, "Memset", pid=0, tid="stream 7", device=0, stream=7, bytes=8),
        {"ph": "s", "cat": "async", "name": "launch", "id": 7, "pid": 1, "tid": 1, "ts": 2},
        {"ph": "f", "cat": "async", "name": "launch", "id": 7, "pid": 0, "tid": "stream 7", "ts": 5, "bp": "e"},
    ])  # fmt: skip
    assert column(trace.spans, "category") == ["operator", "runtime", "kernel", "memcpy", "memset"]
    assert linked(trace, "op_id")["add_kernel"] == "aten::add"
    assert column(trace.stacks, "frames") == [["out.py(9): main", "in.py(3): f"]]
    assert column(trace.stacks, "text") == ["in.py(3): f;out.py(9): main"]
    assert rows(trace.ops, "input_shapes", "stack_id") == [("[[2]]", 0)]
    assert column(trace.spans, "external_id") == [12, 12, None, None, None]
    assert column(trace.spans, "flow") == [None, None, True, False, False]


def test_rocm_has_a_stream_0_and_hip_names():
    trace = read([
        x("hipLaunchKernel", 1, 1, "cuda_runtime", correlation=5),
        kernel("Cijk_Alik", 3, 2, 5, device=2, stream=0, grid=[4, 1, 1], block=[256, 1, 1]),
        x("CopyHostToDevice", 6, 1, "gpu_memcpy", pid=2, tid=0, device=2, stream=0, correlation=9, bytes=16),
    ])  # fmt: skip
    assert rows(trace.devices, "type", "index") == [("cpu", None), ("rocm", 2)]
    assert rows(trace.tracks, "kind", "device_id", "stream") == [("thread", None, None), ("stream", 1, 0)]
    assert rows(trace.transfers, "kind", "bytes") == [("HtoD", 16)]


@pytest.mark.parametrize(
    ("kind", "runtime", "name"),
    [
        ("cuda", "cuda_runtime", "cudaLaunchKernel"),
        ("rocm", "cuda_runtime", "hipModuleLaunchKernel"),
        ("mlu", "mlu_runtime", "cnInvokeKernel"),
        ("xpu", "xpu_runtime", "urEnqueueKernelLaunch"),
        ("mtia", "mtia_runtime", "runFunction"),
        ("accelerator", "privateuse1_runtime", "launchIt"),
    ],
)
def test_the_accelerator_is_told_from_its_runtime(kind, runtime, name):
    trace = read([x(name, 1, 1, runtime, correlation=5), kernel("k", 3, 2, 5)])
    assert column(trace.devices, "type") == ["cpu", kind]
    assert by_name(trace, "category", "launch_id") == {name: ("runtime", None), "k": ("kernel", 0)}


def test_mtia_device_events_are_work():
    trace = read([
        x("runJob", 0, 2, "mtia_runtime", correlation=3),
        x("fba_fc", 3, 4, "mtia_ccp_events", pid=0, tid=2, device=0, stream=2, correlation=3),
    ])  # fmt: skip
    assert by_name(trace, "category", "launch_id") == {"runJob": ("runtime", None), "fba_fc": ("kernel", 0)}
    assert column(trace.devices, "type") == ["cpu", "mtia"]


def test_ascend_lanes_and_arrows():
    trace = read([
        label("process_name", "python3", pid=900), label("process_labels", "CPU", pid=900),
        label("process_name", "Ascend Hardware", pid=901), label("process_labels", "NPU", pid=901),
        label("thread_name", "Stream 2", pid=901, tid=2),
        label("process_name", "Overlap Analysis", pid=902), label("process_labels", "NPU", pid=902),
        x("aten::mul", "10.000", "5", "cpu_op", pid=900, tid=1),
        x("Mul", "30.500", "2.25", None, pid=901, tid=2, Model_Id=1, Task_Type="AI_VECTOR_CORE"),
        x("Computing", "30.500", "2.25", None, pid=902, tid=0),
        {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": "12", "pid": 900, "tid": 1, "ts": "10.000"},
        {"ph": "f", "bp": "e", "cat": "async_npu", "name": "torch_to_npu", "id": "12", "pid": 901, "tid": 2,
        "ts": "30.500"},
    ])  # fmt: skip
    assert by_name(trace, "ts_ns", "dur_ns", "category") == {
        "aten::mul": (0, 5_000, "operator"),
        "Mul": (20_500, 2_250, "kernel"),
        "Computing": (20_500, 2_250, "device_range"),
    }
    assert linked(trace, "op_id")["Mul"] == "aten::mul"
    assert linked(trace, "launch_id")["Mul"] == "aten::mul"
    assert rows(trace.devices, "type", "index") == [("cpu", None), ("npu", 0)]


@pytest.mark.parametrize("lane", ["Group 0 Communication", "Communication OP", "Communication Kernel"])
def test_on_ascend_a_collective_is_the_work_and_its_steps_are_none(lane):
    trace = read([
        label("process_name", "Ascend Hardware", pid=901), label("process_name", "HCCL", pid=903),
        label("thread_name", "Stream 2", pid=901, tid=2), label("thread_name", "Stream 4", pid=901, tid=4),
        label("thread_name", lane, pid=903, tid=0), label("thread_name", "Plane 0", pid=903, tid=1),
        x("Mul", 10, 2, None, pid=901, tid=2), x("MEMCPY_ASYNC", 15, 2, None, pid=901, tid=2),
        x("hcom_exchange_0", 20, 9, None, pid=903, tid=0), x("Memcpy", 21, 2, None, pid=903, tid=1),
        x("Notify Wait", 20, 1, None, pid=901, tid=4), x("SDMA", 21, 2, None, pid=901, tid=4),
        x("Write Value", 24, 1, None, pid=901, tid=4), x("REDUCE_ASYNC_V2", 26, 1, None, pid=901, tid=4),
        x("PROFILING_DISABLE", 90, 0, None, pid=901, tid=2),
    ])  # fmt: skip
    assert by_name(trace, "category", "recorded_category") == {
        "Mul": ("kernel", None),
        "MEMCPY_ASYNC": ("memcpy", None),
        "hcom_exchange_0": ("kernel", "communication"),
        "Memcpy": ("device_range", None),
        "Notify Wait": ("sync", None),
        "SDMA": ("device_range", None),
        "Write Value": ("sync", None),
        "REDUCE_ASYNC_V2": ("device_range", None),
        "PROFILING_DISABLE": ("sync", None),
    }
    assert rows(trace.devices, "type", "index") == [("cpu", None), ("npu", 0)]


def test_the_sizes_of_hccl_collectives_are_read_and_its_repeated_operators_count_once():
    reduced, scattered = ({"alg_type": "MESH-RING", "data_type": kind, "count": 64} for kind in ("FP32", "BFP16"))
    trace = read([
        label("process_name", "HCCL", pid=903), label("thread_name", "Communication OP", pid=903, tid=0),
        {**x("hcom_allReduce__5_0_1", 20, 9, None, pid=903, tid=0), "args": reduced},
        {**x("hcom_reduceScatter__5_1_1", 30, 9, None, pid=903, tid=0), "args": scattered},
        op("HcclAllreduce", 0, 10), op("HcclAllreduce", 2, 5), op("aten::linear", 50, 9), op("aten::linear", 51, 5),
    ])  # fmt: skip
    assert rows(trace.collectives, "collective", "dtype", "in_elements", "out_elements") == [
        ("allreduce", "Float", 64, None), ("reduce_scatter", "BFloat16", None, 64),
    ]  # fmt: skip
    operators = trace.spans.filter(trace.spans["category"] == "operator")
    assert operators["name"].to_list() == ["HcclAllreduce", "aten::linear", "aten::linear"]


def test_without_the_collectives_of_ascend_the_copies_on_their_streams_are_copies():
    trace = read([
        label("process_name", "Ascend Hardware", pid=901), label("thread_name", "Stream 4", pid=901, tid=4),
        x("NOTIFY_WAIT", 20, 1, None, pid=901, tid=4), x("MEMCPY_ASYNC", 21, 2, None, pid=901, tid=4),
    ])  # fmt: skip
    assert by_name(trace, "category") == {"NOTIFY_WAIT": "sync", "MEMCPY_ASYNC": "memcpy"}


def test_iterations_on_a_lane_of_ascend_are_steps_where_the_program_marks_none():
    iteration = x("Iteration 3", 10, 90, "Iteration Time", pid=901, tid=7)
    refresh = x("Iteration Refresh 3", 60, 40, "Iteration Refresh", pid=901, tid=7)
    lanes = [
        label("process_name", "Ascend Hardware", pid=901), label("thread_name", "Stream 2", pid=901, tid=2),
        label("thread_name", "Step Trace(Model ID:2)", pid=901, tid=7),
    ]  # fmt: skip
    kernel = x("Mul", 30, 10, None, pid=901, tid=2)
    trace = read([*lanes, iteration, refresh, kernel])
    assert rows(trace.steps, "step", "ts_ns", "dur_ns") == [(3, 0, 90_000)]
    assert by_name(trace, "step")["Mul"] == 3
    marked = read([*lanes, iteration, kernel, x("ProfilerStep#8", 20, 50, "user_annotation", pid=900)])
    assert rows(marked.steps, "step") == [(8,)]


def test_xla_lanes_of_a_tpu():
    trace = read([
        label("process_name", "/device:TPU:1", pid=3),
        label("thread_name", "XLA Ops", pid=3, tid=1), label("thread_name", "XLA Modules", pid=3, tid=2),
        label("process_name", "/host:CPU", pid=701),
        x("fusion.1", 10, 5, None, pid=3, tid=1), x("jit_step", 10, 6, None, pid=3, tid=2),
        x("PjitFunction", 1, 2, None, pid=701),
    ])  # fmt: skip
    assert by_name(trace, "category") == {"fusion.1": "kernel", "jit_step": "device_range", "PjitFunction": "other"}
    assert rows(trace.devices, "type", "index") == [("cpu", None), ("tpu", 1)]
    assert trace.meta.framework == "JAX/XLA"


def test_a_recording_of_the_host_alone():
    trace = read([op("aten::add", 0, 5), op("aten::mul", 6, 5)])
    assert column(trace.devices, "type") == ["cpu"]
    assert set(trace.tables) == {"tracks", "devices", "spans", "ops"}
    assert trace.issues.is_empty()


def test_a_recording_of_the_device_alone():
    trace = read([kernel("a", 0, 5, 1), kernel("b", 5, 5, 2)])
    assert column(trace.spans, "launch_id") == [None, None]
    assert rows(trace.issues, "code", "severity", "count") == [("no_launch", "warning", 2)]
    assert "100.0% of device time" in trace.issues["example"][0]


def test_one_graph_launch_queues_many_kernels():
    trace = read([
        op("replay", 0, 20),
        call("cudaGraphLaunch", 2, 3, 44),
        *(kernel(f"k{i}", 10 + 2 * i, 1, 44, graph_node_id=i) for i in range(3)),
    ])  # fmt: skip
    assert [linked(trace, "launch_id")[f"k{i}"] for i in range(3)] == ["cudaGraphLaunch"] * 3
    assert [linked(trace, "op_id")[f"k{i}"] for i in range(3)] == ["replay"] * 3


def test_coverage_of_links_is_reported_by_number_and_time():
    trace = read([
        op("aten::mm", 0, 5), call("cudaLaunchKernel", 1, 1, 1), call("cudaLaunchKernel", 8, 1, 2),
        kernel("linked", 10, 60, 1), kernel("no operator", 70, 30, 2), kernel("no launch", 100, 10, 3),
    ])  # fmt: skip
    assert rows(trace.issues, "code", "severity", "count") == [("no_launch", "info", 1), ("no_operator", "info", 1)]
    texts = dict(rows(trace.issues, "code", "example"))
    assert texts["no_launch"].startswith("1 of 3 ")
    assert "(10.0% of device time)" in texts["no_launch"]
    assert "(30.0% of device time)" in texts["no_operator"]


def test_steps_come_from_annotations_and_device_work_belongs_to_the_step_that_queued_it():
    trace = read([
        x("ProfilerStep#1", 0, 10, "user_annotation"), x("ProfilerStep#2", 10, 10, "user_annotation"),
        x("ProfilerStep#1", 0, 30, "gpu_user_annotation", pid=0, tid=7),
        call("cudaLaunchKernel", 8, 1, 1), kernel("late", 15, 2, 1), kernel("stray", 16, 2, 0), op("outside", 25, 1),
    ], distributedInfo={"rank": 2})  # fmt: skip
    assert rows(trace.steps, "step", "rank", "ts_ns", "dur_ns", "source") == [
        (1, 2, 0, 10_000, "annotation"), (2, 2, 10_000, 10_000, "annotation"),
    ]  # fmt: skip
    found = by_name(trace, "step")
    assert (found["late"], found["stray"], found["outside"]) == (1, 2, None)


def test_a_step_noted_on_two_threads_counts_once():
    trace = read([
        x("ProfilerStep#1", 0, 10, "user_annotation"), x("ProfilerStep#2", 10, 10, "user_annotation"),
        x("ProfilerStep#1", 2, 9, "user_annotation", tid=2), x("ProfilerStep#x", 30, 9, "user_annotation"),
    ])  # fmt: skip
    assert rows(trace.steps, "step", "ts_ns") == [(1, 0), (2, 10_000)]


def test_rank_world_and_host_come_from_the_metadata():
    info = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1}
    trace = read([op("a", 0, 1)], distributedInfo=info, host_name="node7", pytorch_version="2.9.0")
    meta = trace.meta
    assert (meta.rank, meta.world_size, meta.host, meta.framework_version) == (3, 8, "node7", "2.9.0")
    assert meta.facts["backend"] == "nccl"
    assert rows(trace.tracks, "rank", "host") == [(3, "node7")]


@pytest.mark.parametrize(
    ("info", "name", "rank"),
    [
        ({"rank": "4"}, "trace.json", 4),
        ({"rank": -1}, "trace.json", None),
        ({"rank": True}, "trace.json", None),
        ({"rank": "9" * 5000}, "trace.json", None),
        ("none", "rank-12.pt.trace.json", 12),
        (None, "job_rank7_of_8.json", 7),
        ({"rank": 2}, "rank9.json", 2),
        (None, "frank7.json", None),
    ],
)
def test_rank_from_metadata_else_from_the_name(info, name, rank):
    assert read([op("a", 0, 1)], name, distributedInfo=info).rank == rank


@pytest.mark.parametrize("world", ["many", True, None, 10**30, -8])
def test_a_world_size_that_is_none_is_unknown(world):
    assert read([op("a", 0, 1)], distributedInfo={"rank": 0, "world_size": world}).meta.world_size is None


def test_what_the_machine_and_the_job_are_is_kept_as_text():
    trace = read([op("a", 0.5, 1.0)], deviceProperties=[{"id": 0}], distributedInfo={"rank": 1})
    assert trace.meta.facts["deviceProperties"] == '[{"id": 0}]'
    assert trace.meta.facts["distributedInfo"] == '{"rank": 1}'
    assert trace.meta.decimal_times
    assert trace.meta.origin_recorded_ns == 500


def test_facts_are_the_scalars_among_the_metadata():
    trace = read([op("a", 0, 1)], displayTimeUnit="ms", cupti_version=18, flag=True, nothing=None, list=[1])
    assert trace.meta.facts == {"displayTimeUnit": "ms", "cupti_version": "18"}


def test_other_chrome_traces_load_as_spans_of_no_known_category():
    trace = read(
        [
            x("parse", 0, 10, "toplevel", pid="browser", tid="main"),
            x("layout", 2, 3, "blink", pid="browser", tid="main"),
        ]
    )
    assert rows(trace.spans, "name", "category", "parent_id") == [("parse", "other", None), ("layout", "other", 0)]
    assert rows(trace.tracks, "pid", "tid", "process", "label") == [(None, None, "browser", "main")]
    assert trace.meta.framework is None


def test_no_events_load_as_a_trace_that_says_so():
    for document in (b'{"traceEvents":[]}', b"[]", b'{"traceEvents" : [ ] , "schemaVersion":1}'):
        trace = read(document)
        assert trace.meta.n_events == 0
        assert rows(trace.issues, "code", "severity") == [("no_spans", "warning")]


def test_every_table_has_the_columns_of_the_schema():
    trace = read([*EVENTS, {"ph": "C", "name": "use", "pid": 1, "ts": 3, "args": {"value": 4}}], **META)
    for name, frame in trace.tables.items():
        assert dict(frame.schema) == dict(TABLES[name].dtypes), name
        assert not frame.is_empty(), name


@pytest.mark.parametrize(
    "document",
    [
        b'{"events":[{"ph":"X","ts":1,"dur":2}]}',
        b'{"a":{"traceEvents":[]}}',
        b'{"a":"\\"traceEvents\\":["}',
        b'{"traceEvents":{}}',
        b"{}",
        b'[{"name":"x","value":3}]',
        b'[{"ph":"","ts":3}]',
        b"[1,2,3]",
        b"[[[]]]",
        b'["a"]',
        b'{"ph":"X"}',
    ],
)
def test_json_that_is_no_trace_is_refused(document):
    with pytest.raises(UnknownFormat) as caught:
        read(document)
    assert "trace.json" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("document", [b'{"traceEvents":', b'{"schemaVersion": 1, "devicePro', b"{"])
def test_a_file_that_ends_before_its_events_is_corrupt(document):
    with pytest.raises(CorruptInput, match=r"trace\.json at byte \d+: the file ends before its traceEvents") as caught:
        read(document)
    assert caught.value.hint


def test_a_file_whose_every_event_is_damaged_is_corrupt():
    with pytest.raises(CorruptInput) as caught:
        read(b'{"traceEvents":[{"ph":"X","name":oops}]}')
    assert "trace.json" in caught.value.message
    assert caught.value.offset is not None
    assert caught.value.hint


def test_a_negative_duration_counts_as_none_at_all():
    trace = read([op("a", 5, -3), op("b", 6, 1)])
    assert rows(trace.spans, "name", "dur_ns") == [("a", 0), ("b", 1_000)]
    assert issues(trace) == {"negative_durations": 1}


def test_steps_that_jax_leaves_without_a_category_are_steps():
    events = [
        label("process_name", "/host:CPU", pid=7),
        {"ph": "X", "pid": 7, "tid": 1, "name": "ProfilerStep#4", "ts": 0, "dur": 10},
        {"ph": "X", "pid": 7, "tid": 1, "name": "PjitFunction(f)", "ts": 2, "dur": 5},
    ]
    trace = read(events, jax_version="0.9.1", baseTimeNanoseconds=1_700_000_000_000_000_000)
    assert column(trace.steps, "step") == [4]
    assert column(trace.spans, "step") == [4, 4]
    assert (trace.meta.framework, trace.meta.framework_version) == ("JAX/XLA", "0.9.1")
    assert trace.meta.origin_unix_ns == 1_700_000_000_000_000_000


LANES = [
    label("process_name", "Ascend Hardware", pid=9),
    label("process_labels", "NPU", pid=9),
    label("thread_name", "Stream 3", pid=9, tid=3),
]


def lane(name, ts, dur, tid=3):
    return x(name, ts, dur, None, pid=9, tid=tid)


def flow(ph, ident, ts, cat="async_npu", *, pid=1, tid=1):
    return {"ph": ph, "cat": cat, "name": "to device", "id": ident, "pid": pid, "tid": tid, "ts": ts}


@pytest.mark.parametrize(
    ("name", "cat", "category"),
    [
        ("ProfilerStep#12", "user_annotation", "step"),
        ("ProfilerStep#12", "cpu_op", "step"),
        ("ProfilerStep#12", "python_function", "python"),
        ("nn.Module: Linear_0", "python_function", "module"),
        ("nn.Module: Linear_0", "cpu_op", "operator"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", "dataloader"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cpu_op", "dataloader"),
        ("forward", "user_annotation", "user_range"),
    ],
)
def test_names_refine_the_recorders_categories(name, cat, category):
    assert column(read([x(name, 0, 1, cat)]).spans, "category") == [category]


@pytest.mark.parametrize(
    ("name", "category"),
    [("Memcpy HtoD", "memcpy"), ("memset_x", "memset"), ("Notify_Wait", "sync"), ("gemm", "kernel")],
)
def test_device_records_that_are_no_kernels(name, category):
    trace = read([kernel(name, 0, 1, 1)])
    assert column(trace.spans, "category") == [category]


def test_arrows_tie_work_without_ids_to_the_innermost_span_at_their_tail():
    trace = read([
        *LANES, op("outer", 0, 10), op("inner", 2, 3), lane("Mul", 20, 2), lane("Add", 30, 2), lane("Sub", 40, 2),
        flow("s", 1, 3), flow("f", 1, 20, pid=9, tid=3),
        flow("s", 2, 8), flow("f", 2, 30, pid=9, tid=3),
        flow("s", 3, 50), flow("f", 3, 40, pid=9, tid=3),  # nothing is open at its tail
        flow("s", 4, 3), flow("f", 4, 21, pid=9, tid=3),  # nothing begins at its head
        flow("f", 5, 40, pid=9, tid=3), flow("s", 6, 3),  # halves
    ])  # fmt: skip
    assert linked(trace, "launch_id") == {"outer": None, "inner": None, "Mul": "inner", "Add": "outer", "Sub": None}
    assert linked(trace, "op_id") == {"outer": None, "inner": None, "Mul": "inner", "Add": "outer", "Sub": None}


def test_arrows_from_operators_prevail_over_those_from_elsewhere():
    trace = read([
        *LANES, x("node", 0, 3, "runtime_layer", tid=2), op("mul", 0, 10), lane("Mul", 20, 2),
        flow("s", 1, 1, "HostToDevice", tid=2), flow("f", 1, 20, "HostToDevice", pid=9, tid=3),
        flow("s", 1, 1), flow("f", 1, 20, pid=9, tid=3),
    ])  # fmt: skip
    assert linked(trace, "op_id")["Mul"] == "mul"


def test_ids_prevail_over_arrows():
    trace = read([
        *LANES, call("cudaLaunchKernel", 0, 1, 5), op("other", 2, 5),
        x("by id", 10, 1, "kernel", pid=9, tid=3, correlation=5),
        flow("s", 1, 3), flow("f", 1, 10, pid=9, tid=3),
    ])  # fmt: skip
    assert linked(trace, "launch_id")["by id"] == "cudaLaunchKernel"


def test_shapes_are_compact_json_and_empty_ones_unknown():
    trace = read([
        op("a", 0, 1, Input_Dims=[[2, 3], []], Input_type=["float", ""], Concrete_Inputs=["", "[1, 2]"]),
        op("b", 2, 1, Input_Dims="[[2, 3], []]", Input_type="", Concrete_Inputs=None),
        op("c", 4, 1, Input_dims=[[4]]),
    ])  # fmt: skip
    assert rows(trace.ops, "input_shapes", "input_types", "concrete_inputs") == [
        ("[[2,3],[]]", '["float",""]', '["","[1, 2]"]'), ("[[2, 3], []]", None, None), ("[[4]]", None, None),
    ]  # fmt: skip


def test_shapes_that_no_text_can_hold_are_kept_as_they_are_written():
    trace = read(
        rb'[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"Input Dims":["\ud83d\ude00","\u00e9"]}}]'
    )
    assert column(trace.ops, "input_shapes") == ['["😀","é"]']


def test_shapes_and_types_that_torch_npu_writes_as_lines_become_lists():
    trace = read([
        op("aten::conv2d", 0, 9, Input_Dims="2,3,8;\r\n;\r\n64", Input_type="float;\r\nScalar;\r\nfloat"),
        op("aten::relu", 10, 9, Input_Dims="32,4", Input_type="float"),
    ])  # fmt: skip
    assert rows(trace.ops, "input_shapes", "input_types") == [
        ("[[2,3,8],[],[64]]", '["float","Scalar","float"]'),
        ("[[32,4]]", '["float"]'),
    ]


@pytest.mark.parametrize(("recorded", "kept"), [(-1, None), (0, 0), (7, 7)])
def test_sequence_numbers_below_zero_are_none(recorded, kept):
    assert column(read([op("a", 0, 1, Sequence_number=recorded)]).ops, "sequence") == [kept]


def test_forward_threads_are_those_of_backward_operators():
    trace = read(
        [
            op("forward", 0, 1, Fwd_thread_id=0, Sequence_number=4),
            op("backward", 2, 1, Fwd_thread_id=1, Sequence_number=4),
        ]
    )
    assert column(trace.ops, "forward_thread") == [None, 1]


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#" + "9" * 40, "ProfilerStep#" + "9" * 5000, "ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#²"],
)
def test_steps_without_a_number_that_fits_are_no_rows(name):
    trace = read([x(name, 0, 10, "user_annotation"), x("ProfilerStep#7", 20, 10, "user_annotation")])
    assert column(trace.steps, "step") == [7]
    assert by_name(trace, "step")[name] is None


def test_steps_that_overlap_end_where_the_next_begins():
    trace = read([
        x("ProfilerStep#1", 0, 15, "user_annotation"), x("ProfilerStep#2", 10, 10, "user_annotation"), op("a", 5, 1),
        op("b", 12, 1), op("c", 19, 9),
    ])  # fmt: skip
    found = by_name(trace, "step")
    assert (found["a"], found["b"], found["c"]) == (1, 2, 2)
    assert rows(trace.steps, "ts_ns", "dur_ns") == [(0, 15_000), (10_000, 10_000)]


@pytest.mark.slow
def test_chains_of_overlapping_calls_take_time_in_proportion():
    n = 60_000
    trace = read([call("cudaLaunchKernel", 2 * i, 3, i + 1) for i in range(n)] + [op("first", -1, 2 * n)])
    assert trace.spans["op_id"].null_count() == 1


@pytest.mark.slow
def test_more_categories_than_a_column_tells_apart():
    trace = read([op("a", 0, 1), *(x("b", i, 1, f"cat {i}") for i in range(2**16 + 9)), op("c", 0, 1)])
    assert trace.spans["category"].value_counts().sort("category").rows() == [("operator", 2), ("other", 2**16 + 9)]


def test_arrows_without_any_span_tie_nothing():
    trace = read([*LANES, flow("s", 1, 3), flow("f", 1, 20, pid=9, tid=3), op("lost", "soon", "late")])
    assert trace.spans.is_empty()
