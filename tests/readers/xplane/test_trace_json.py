"""XLA's `trace.json` of a GPU: what its XPlane says, from texts."""

from __future__ import annotations

import gzip
import json

import pytest

import stepscope
from stepscope.core.errors import CorruptInput

GPU, HOST = 1, 701


def name(pid, text, tid=None):
    what = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "pid": pid, **({} if tid is None else {"tid": tid}), "name": what, "args": {"name": text}}


def event(pid, tid, ts, dur, text, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": text, "args": args}


DETAILS = "regs:86 static_shared:0 dynamic_shared:16384 grid:256,1,1 block:128,1,1 occ_pct:31.25"
EVENTS = [
    name(GPU, "/device:GPU:0"), name(GPU, "Stream #14(Compute)", 14), name(HOST, "/host:CPU"), name(HOST, "python", 9),
    event(HOST, 9, 10.0, 50.0, "ProfilerStep#5"),
    event(HOST, 9, 11.0, 48.0, "train", step_num="7"),
    event(HOST, 9, 12.0, 1.5, "MemcpyH2D", correlation_id="1", memcpy_details="size:4096"),
    event(HOST, 9, 20.0, 2.0, "cuGraphLaunch (CudaGraph:2)", correlation_id="3"),
    event(GPU, 14, 14.0, 1.25, "MemcpyH2D", correlation_id="1", memcpy_details="kind_src:host size:4096 dest:0"),
    event(GPU, 14, 24.0, 4.0, "gemm_fusion_dot_4", correlation_id="3", kernel_details=DETAILS, hlo_op="command_buffer",
          hlo_module="jit_step"),
    event(GPU, 14, 29.0, 2.0, "loop_add", correlation_id="3", kernel_details="broken", hlo_op="command_buffer"),
]  # fmt: skip


@pytest.fixture
def document():
    return {"baseTimeNanoseconds": 10**18, "jax_version": "0.11.2", "traceEvents": EVENTS}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank3.jax.trace.json"


def test_work_has_its_launch_its_step_and_its_configuration(path, document):
    path.write_text(json.dumps(document))
    trace = stepscope.load(path)
    assert (trace.meta.format, trace.meta.framework, trace.meta.framework_version, trace.meta.rank) == (
        "xplane", "JAX/XLA", "0.11.2", 3,
    )  # fmt: skip
    assert trace.meta.origin_unix_ns == 10**18 + 10_000
    spans = trace.spans.with_columns(launch=trace.spans["name"].gather(trace.spans["launch_id"]))
    work = spans.filter(spans["category"].cast(str).is_in(["kernel", "memcpy"])).sort("ts_ns")
    launched = "cuGraphLaunch (CudaGraph:2)"
    assert work.select("name", "launch", "step", "dur_ns").rows() == [
        ("MemcpyH2D", "MemcpyH2D", 5, 1250), ("gemm_fusion_dot_4", launched, 5, 4000), ("loop_add", launched, 5, 2000),
    ]  # fmt: skip
    assert trace.steps.select("step", "dur_ns").rows() == [(5, 50_000)]
    assert trace.kernels.select("grid_x", "block_x", "registers", "est_occupancy_ratio").rows() == [
        (256, 128, 86, 0.3125), (None, None, None, None),
    ]  # fmt: skip
    assert trace.transfers["bytes"].to_list() == [4096]
    assert trace.hlo_ops.select("operation", "module").rows()[0] == ("command_buffer", "jit_step")


def test_steps_of_the_program_count_where_none_were_marked(path, document):
    document["traceEvents"] = [event for event in EVENTS if event["name"] != "ProfilerStep#5"]
    path.write_text(json.dumps(document))
    assert stepscope.load(path).steps["step"].to_list() == [7]


def test_a_truncated_file_has_what_is_left(path, document):
    path.with_suffix(".json.gz").write_bytes(gzip.compress(json.dumps(document)[:-150].encode()))
    trace = stepscope.load(path.with_suffix(".json.gz"))
    assert trace.kernels.height == 1
    assert trace.issues["code"].to_list() == ["damaged_events", "truncated"]


def test_nothing_that_can_be_read(path):
    path.write_text('{"traceEvents": [{"pid" "/device:GPU:0"}]}')
    with pytest.raises(CorruptInput):
        stepscope.load(path)
