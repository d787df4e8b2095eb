from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from stepscope.readers import expand, open_trace
from stepscope.record.stacks.stack_file import HEADER

if TYPE_CHECKING:
    from pathlib import Path

BASE_NS = 1_700_000_000_000_000_000
COUNTERS = f"ts_ns,metric,unit,device,value\n{BASE_NS},host_cpu_usage,%,host,5\n"
META = {"recorder": "stepscope", "cwd": "/home/me", "stacks_hz": 100, "n_stack_samples": 9, "end_unix_ns": BASE_NS}


def row(kind: str, **fields: object) -> str:
    names = HEADER.split()
    return "\t".join(str({"kind": kind, **fields}.get(name, "")) for name in names) + "\n"


ROWS = [
    HEADER,
    row("L", ts_ns=BASE_NS, dur_ns=10**9, n=100),
    row("P", pid=7, n=1, text="python train.py"),
    row("P", pid=8, n=7, text="python worker"),
    row("P", pid=9, n=1, text="python other"),
    row("T", pid=7, tid=7, n=0, text=""),
    row("T", pid=7, tid=70, n=0, text="old"),
    row("T", pid=7, tid=70, n=0, text="loader"),
    row("F", id=0, n=3, text="<module>", file="/home/me/train.py"),
    row("F", id=1, n=9, text="get; it", file="/usr/lib/python3.11/queue.py"),
    row("F", id=2, n=0, text="run", file=""),
    row("S", id=4, text="0 1"),
    row("S", id=5, text="0"),
    row("S", id=6, text="0 99"),
    row("W", id=5, ts_ns=BASE_NS + 200, dur_ns=50, pid=7, tid=7, n=2),
    row("W", id=4, ts_ns=BASE_NS + 100, dur_ns=100, pid=7, tid=7, n=3),
    row("W", id=4, ts_ns=BASE_NS + 100, dur_ns=100, pid=8, tid=8, n=3),
    row("W", id=5, ts_ns=BASE_NS + 100, dur_ns=100, pid=9, tid=9, n=3),
    row("W", id=4, ts_ns=BASE_NS + 900, dur_ns=10, pid=7, tid=70, n=1),
    row("W", id=6, ts_ns=BASE_NS, dur_ns=10, pid=7, tid=7, n=1),  # a frame that is not there
    row("W", id=5, ts_ns=BASE_NS, dur_ns="?", pid=7, tid=7, n=1),
    row("G", id=5, ts_ns=BASE_NS, dur_ns=300, pid=7, tid=7, n=6),
    row("C", ts_ns=BASE_NS, dur_ns=800, pid=7, tid=7, n=200),
    row("C", ts_ns=BASE_NS, dur_ns=800, pid=7, tid=70, n=200),
]


def put(folder: Path, rows: list[str] = ROWS, **meta: object) -> Path:
    (folder / "counters.csv").write_text(COUNTERS)
    (folder / "stacks.tsv.gz").write_bytes(b"".join(gzip.compress(line.encode()) for line in rows))
    (folder / "meta.json").write_text(json.dumps(META | meta))
    return folder


def profile(folder: Path, name: str, pid: int) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": 0.1, "dur": 0.5}
    path = folder / f"{name}.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": [event], "schemaVersion": 1, "baseTimeNanoseconds": BASE_NS}))
    return path


def issues(trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


def test_samples_lie_on_the_traces_time(tmp_path):
    (path,) = expand([str(put(tmp_path))])
    trace = open_trace(path)
    shown = trace.stack_samples.select("ts_ns", "dur_ns", "pid", "tid", "thread", "n_samples", "on_gil", "oncpu_ratio")
    assert shown.rows() == [
        (0, 300, 7, 7, "MainThread", 6, True, 0.25),
        (100, 100, 7, 7, "MainThread", 3, False, 0.25),
        (100, 100, 8, 8, "MainThread", 3, False, None),
        (100, 100, 9, 9, "MainThread", 3, False, None),
        (200, 50, 7, 7, "MainThread", 2, False, 0.25),
        (900, 10, 7, 70, "loader", 1, False, None),  # nobody knows how long it ran then
    ]
    frames = dict(trace.stacks.select("stack_id", "frames").iter_rows())
    assert [frames[i] for i in trace.stack_samples["stack_id"]][:2] == [
        ["<module> (train.py:3)"],
        ["<module> (train.py:3)", "get, it (queue.py:9)"],
    ]
    assert issues(trace) == {"stacks_dropped": 2}


def test_beside_a_profile_they_come_after_its_own_stacks(tmp_path):
    trace = open_trace(str(profile(put(tmp_path), "pid7", 7)))
    assert trace.stack_samples.height == 6
    assert trace.stack_samples["stack_id"].max() < trace.stacks.height
    assert trace.stack_samples["ts_ns"].min() == BASE_NS - trace.meta.origin_unix_ns


def test_of_several_profiles_each_gets_its_own_process_and_those_below(tmp_path):
    put(tmp_path)
    first, second = profile(tmp_path, "rank0", 7), profile(tmp_path, "rank1", 9)
    assert set(open_trace(str(first)).stack_samples["pid"]) == {7, 8}
    assert set(open_trace(str(second)).stack_samples["pid"]) == {9}


def test_stacks_of_another_time_are_told(tmp_path):
    put(tmp_path)
    path = profile(tmp_path, "pid7", 7)
    path.write_text(path.read_text().replace('"ts": 0.1', '"ts": 5000000'))
    assert issues(open_trace(str(path)))["stacks_elsewhere"] == 6


@pytest.mark.slow
def test_what_a_kill_left_is_read_as_far_as_it_goes(tmp_path):
    put(tmp_path)
    whole = (tmp_path / "stacks.tsv.gz").read_bytes()
    least = len(gzip.compress(HEADER.encode()))
    for end in range(least, len(whole), 7):
        (tmp_path / "stacks.tsv.gz").write_bytes(whole[:end])
        trace = open_trace(str(tmp_path / "counters.csv"))
        assert trace.stack_samples.height <= 6
        assert not {"stacks_unreadable"} & set(issues(trace))


def test_a_recorder_that_was_killed_is_told(tmp_path):
    put(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({k: v for k, v in META.items() if k != "n_stack_samples"}))
    assert issues(open_trace(str(tmp_path / "counters.csv")))["stacks_cut"] == 1
    (tmp_path / "stacks.tsv.gz").unlink()
    assert issues(open_trace(str(tmp_path / "counters.csv"))) == {"stacks_cut": 1}


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\t\n", b"kind\tother\nW\t1\n"])
def test_a_file_that_is_none_is_an_issue(tmp_path, text):
    put(tmp_path)
    (tmp_path / "stacks.tsv.gz").write_bytes(text)
    assert expand([str(tmp_path)]) == [str(tmp_path / "counters.csv")]
    trace = open_trace(str(tmp_path / "counters.csv"))
    assert issues(trace) == {"stacks_unreadable": 1}
    assert trace.stack_samples.is_empty()


def test_a_trace_that_does_not_say_when_it_began_cannot_be_placed(tmp_path):
    put(tmp_path)
    path = tmp_path / "x.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 7, "tid": 7, "ts": 1, "dur": 5}]}'
    )
    assert issues(open_trace(str(path)))["stacks_unplaced"] == 1


def test_files_of_libraries_and_of_nowhere_are_shortened(tmp_path):
    files = ["/x/site-packages/torch/nn/m.py", "/home/me/a/b/c.py", "<string>", "/opt/a/b/c.py"]
    rows = [HEADER, *(row("F", id=i, n=1, text="f", file=file) for i, file in enumerate(files))]
    rows += [row("S", id=0, text="0 1 2 3"), row("W", id=0, ts_ns=BASE_NS, dur_ns=5, pid=7, tid=7, n=1)]
    trace = open_trace(str(put(tmp_path, rows) / "counters.csv"))
    assert trace.stacks["frames"][0].to_list() == [
        "f (torch/nn/m.py:1)", "f (a/b/c.py:1)", "f (<string>:1)", "f (b/c.py:1)",
    ]  # fmt: skip
