from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope

MAKER = Path(__file__).parents[2] / "benchmarks" / "repeat_trace.py"
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 0.5, "dur": 200, "pid": "Spans", "tid": "x"},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "ts": 1.125, "dur": 90, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2, "dur": 9, "pid": 1, "tid": 1,
     "args": {"External id": "4", "Ev Idx": 0, "Input Dims": [[2, 2]]}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 2, "pid": 1, "tid": 1,
     "args": {"correlation": 9}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 9, "ts": 3, "pid": 1, "tid": 1},
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 20.001, "dur": 30.5, "pid": 0, "tid": 7,
     "args": {"correlation": 9, "device": 0, "stream": 7}},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 9, "ts": 20.001, "pid": 0, "tid": 7},
]  # fmt: skip


def repeated(folder: Path, copies: int, *options: str) -> Path:
    source, target = folder / "one.json", folder / "many.json"
    source.write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}))
    command = [sys.executable, str(MAKER), str(source), str(target), str(copies), *options]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said)["n_bytes"] == target.stat().st_size
    return target


def named(events: list[dict], name: str) -> list[dict]:
    return [event for event in events if event["name"] == name]


@pytest.fixture
def events(tmp_path):
    return json.loads(repeated(tmp_path, 3).read_text())["traceEvents"]


def test_a_single_copy_is_the_trace_itself(tmp_path):
    assert json.loads(repeated(tmp_path, 1).read_text()) == {"schemaVersion": 1, "traceEvents": EVENTS}


def test_what_describes_the_recording_is_written_once_and_covers_all_copies(events):
    assert len(events) == 2 + 3 * 6
    assert named(events, "PyTorch Profiler (0)")[0]["dur"] == 200 + 2 * 1091


def test_copies_follow_one_another_and_keep_their_nanoseconds(events):
    assert [event["ts"] for event in named(events, "gemm")] == [20.001, 1111.001, 2202.001]
    assert [event["ts"] for event in named(events, "aten::mm")] == [2, 1093, 2184]


def test_ids_are_those_of_the_copy_and_stay_of_their_kind(events):
    correlations = [event["args"]["correlation"] for event in named(events, "gemm")]
    assert correlations == [9, 19, 29]
    assert [event["args"]["correlation"] for event in named(events, "cudaLaunchKernel")] == correlations
    assert [event["id"] for event in named(events, "ac2g")] == [9, 9, 19, 19, 29, 29]
    assert [event["args"]["External id"] for event in named(events, "aten::mm")] == ["4", "14", "24"]


def test_an_id_of_zero_refers_to_nothing_and_stays(events):
    assert {event["args"]["Ev Idx"] for event in named(events, "aten::mm")} == {0}


def test_steps_go_on_counting(events):
    assert [e["name"] for e in events if e.get("cat") == "user_annotation"] == [f"ProfilerStep#{n}" for n in (7, 8, 9)]


@pytest.mark.parametrize("options", [(), ("--indent",)])
def test_the_big_trace_is_as_well_linked_as_the_small_one(tmp_path, options):
    trace = stepscope.load(repeated(tmp_path, 50, *options))
    kernels = trace.spans.filter(trace.spans["category"] == "kernel")
    assert kernels.height == 50
    assert kernels["correlation"].n_unique() == 50
    assert trace.steps.height == 50
