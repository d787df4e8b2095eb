from __future__ import annotations

import json
import random

import pytest

import stepscope
from stepscope.record.startup._stepscope_step_times import HEADER, MAGIC, MARK

ORIGIN = 1_700_000_000_000_000_000
MS = 1_000_000


def steps_file(folder, marks, *, pid=7, rank=-1, rest=b""):
    header = HEADER.pack(MAGIC, ORIGIN + 5 * MS, 123, pid, rank)
    (folder / f"pid{pid}.steps").write_bytes(header + b"".join(MARK.pack(*mark) for mark in marks) + rest)


@pytest.fixture
def folder(tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 0, "dur": 10}
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": ORIGIN, "traceEvents": [event]}
    (tmp_path / "pid7.pt.trace.json").write_text(json.dumps(trace))
    (tmp_path / "meta.json").write_text(json.dumps({"recorder": "stepscope", "end_unix_ns": ORIGIN}))
    return tmp_path


def opened(folder):
    return stepscope.load(str(folder / "pid7.pt.trace.json"))


def test_marks_become_steps_on_the_traces_time(folder):
    steps_file(folder, [(20_000, 1, 2, 0), (1_000, 0, 3, 0), (60_000, 3, 3, 1)], rank=4)
    rows = opened(folder).step_times.select("pid", "rank", "ts_ns", "dur_ns", "n_steps", "source", "is_profiled").rows()
    assert rows == [
        (7, 4, 5 * MS, 20 * MS, 1, "optimizer steps", False),
        (7, 4, 26 * MS, 60 * MS, 3, "named ranges", True),
    ]


def test_seven_bits_of_a_mark_are_the_time_inside_calls(folder):
    steps_file(folder, [(20_000, 1, 1, 96 << 1), (20_000, 1, 1, 88 << 1 | 1), (20_000, 1, 1, 0), (20_000, 1, 1, 1)])
    rows = opened(folder).step_times.select("inside_ns", "is_profiled").rows()
    assert rows == [(20 * MS, False), (10 * MS, True), (None, False), (None, True)]


def test_other_processes_steps_are_not_this_ones(folder):
    steps_file(folder, [(20_000, 1, 2, 0)], pid=8)
    assert opened(folder).step_times.is_empty()


def test_counters_alone_have_the_steps_of_all_processes(folder):
    (folder / "pid7.pt.trace.json").unlink()
    (folder / "counters.csv").write_text(f"ts_ns,metric,unit,device,value\n{ORIGIN},host_cpu_usage,%,host,5\n")
    for pid in (7, 8):
        steps_file(folder, [(20_000, 1, 2, 0)], pid=pid)
    assert stepscope.load(str(folder / "counters.csv")).step_times["pid"].to_list() == [7, 8]


def test_a_mark_that_is_cut_off_is_counted_and_the_rest_read(folder):
    steps_file(folder, [(20_000, 1, 2, 0)] * 3, rest=b"\1\2\3")
    trace = opened(folder)
    assert trace.step_times.height == 3
    assert "step_times_cut" in trace.issues["code"].to_list()


@pytest.mark.parametrize("text", [b"", b"no steps", b"\0" * 200])
def test_a_file_that_is_none_is_an_issue(folder, text):
    (folder / "pid7.steps").write_bytes(text)
    trace = opened(folder)
    assert trace.step_times.is_empty()
    assert "step_times_unreadable" in trace.issues["code"].to_list()


def test_whatever_the_marks_are_they_are_read_or_counted(folder):
    chance = random.Random(0)
    for _ in range(30):
        rest = chance.randbytes(chance.randrange(400))
        steps_file(folder, [], rest=rest)
        trace = opened(folder)
        dropped = trace.issues.filter(trace.issues["code"] == "step_times_dropped")["count"].sum()
        assert trace.step_times.height + dropped <= len(rest) // MARK.size
        assert (trace.step_times["dur_ns"] > 0).all()
