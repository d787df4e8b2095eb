from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from sched_files import facts, fork, frame, pages, perf_switch, switch, wake, write

from stepscope import analyses
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Meta, Trace
from stepscope.readers import open_trace
from stepscope.readers.recorded.sched import with_sched

if TYPE_CHECKING:
    from pathlib import Path

UNIX = 1_700_000_000_000_000_000
NAMES = {1: "train", 2: "loader", 90: "greedy"}


def one_core(*events: tuple[int, bytes]) -> bytes:
    return frame(2, 0, pages(*events), 9000)


BUSY = one_core(
    (2000, switch(0, "R", 1, NAMES)),
    (3000, switch(1, "R", 90, NAMES)),
    (4000, switch(90, "R", 1, NAMES)),
    (5000, fork(1, 2)),
    (5100, wake(2)),
    (5200, switch(1, "S", 2, NAMES)),
    (6000, switch(2, "X", 0, NAMES)),
)


def counters_beside(folder: Path, at: int = UNIX + 2000) -> str:
    path = folder / "counters.csv"
    path.write_text(f"ts_ns,metric,unit,device,value\n{at},host_cpu_usage,%,host,1\n")
    return str(path)


def kineto(folder: Path, name: str, pid: int, first: float, last: float) -> str:
    """A trace of one operator, from and to µs after `UNIX`."""
    path = folder / name
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": first, "dur": last - first}
    step = {**event, "cat": "user_annotation", "name": "ProfilerStep#1"}
    document = {"schemaVersion": 1, "baseTimeNanoseconds": UNIX, "traceEvents": [step, event]}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return str(path)


def told(trace: Trace) -> list[tuple]:
    rows = trace.spans.join(trace.sched, on="span_id").join(trace.tracks, on="track_id")
    return rows.select("tid", "ts_ns", "dur_ns", "name", "category", "core", "reason", "other", "other_is_own").rows()


def test_beside_counters_alone_threads_are_lanes(tmp_path):
    path = counters_beside(tmp_path)
    write(tmp_path / "sched.ring", BUSY, facts(9000, threads=[[1, 1], [2, 1]]), unix=UNIX)
    trace = open_trace(path)
    assert told(trace) == [
        (1, 0, 1000, "core 0", "sched_oncpu", 0, "preempted", "greedy", False),
        (1, 1000, 1000, "waits behind greedy", "sched_runq", 0, "preempted", "greedy", False),
        (1, 2000, 1200, "core 0", "sched_oncpu", 0, "sleeps", "loader", True),
        (2, 3100, 100, "waits behind own train", "sched_runq", 0, "woken", "train", True),
        (2, 3200, 800, "core 0", "sched_oncpu", 0, "ended", None, None),
    ]
    assert trace.tracks.select("pid", "tid", "kind", "process", "label").rows() == [
        (1, 1, "other", "train", "train 1 · cores"),
        (1, 2, "other", "train", "loader 2 · cores"),
    ]
    assert trace.sched["other_tid"].to_list() == [90, 90, 2, 1, None]
    assert trace.spans["span_id"].to_list() == list(range(5))
    assert trace.issues.is_empty()


def test_a_trace_is_not_made_longer(tmp_path):
    path = kineto(tmp_path, "trace.json.gz", 1, 2.5, 5.5)
    write(tmp_path / "sched.ring", BUSY, unix=UNIX)
    trace = open_trace(path)
    assert trace.spans["track_id"].is_sorted()
    assert [(row[0], row[1], row[2]) for row in told(trace)] == [
        (1, 0, 500), (1, 500, 1000), (1, 1500, 1200), (2, 2600, 100), (2, 2700, 300),
    ]  # fmt: skip
    assert trace.tracks["kind"].to_list() == ["thread", "other", "other"]


def test_no_other_analysis_says_anything_else(tmp_path):
    path = kineto(tmp_path, "trace.json.gz", 1, 2.5, 5.5)
    before = open_trace(path)
    write(tmp_path / "sched.ring", BUSY, unix=UNIX)
    after = open_trace(path)
    n_answers = 0
    for name in analyses.names("trace"):
        analysis = analyses.find(name)
        try:
            expected = analysis(before)
        except StepscopeError:
            continue
        assert analysis(after).equals(expected), name
        n_answers += 1
    assert n_answers >= 4


def test_times_follow_the_clock_as_it_is_set(tmp_path):
    path = counters_beside(tmp_path)
    drift = facts(5000, clocks={"monotonic_ns": 5000, "unix_ns": UNIX + 5400})
    write(tmp_path / "sched.ring", BUSY, drift, unix=UNIX)
    found = told(open_trace(path))
    assert found[0][1:3] == (100, 1100)  # 0.1 ns more for each
    assert found[2][1] == 2300


def test_each_profile_gets_its_own_processes_and_those_below_them(tmp_path):
    events = one_core(
        (2000, switch(0, "R", 1)), (2100, fork(1, 10)), (2100, fork(1, 20)), (2200, switch(1, "S", 10)),
        (2300, fork(10, 11)), (2400, switch(10, "S", 20)), (2500, switch(20, "S", 11)), (2600, switch(11, "S", 0)),
    )  # fmt: skip
    threads = facts(9000, threads=[[1, 1], [10, 10], [11, 11], [20, 20]])
    write(tmp_path / "sched.ring", events, threads, unix=UNIX)
    processes = [{"pid": pid, "torch": "2", "steps": 4} for pid in (10, 20)] + [{"pid": 1, "torch": "2"}]
    paths = [kineto(tmp_path, f"rank{i}.pt.trace.json.gz", pid, 1.0, 9.0) for i, pid in enumerate((10, 20))]
    (tmp_path / "meta.json").write_text(json.dumps({"recorder": "stepscope", "processes": processes}))
    assert [sorted({row[0] for row in told(open_trace(path))}) for path in paths] == [[10, 11], [20]]
    (tmp_path / "meta.json").write_text(json.dumps({"recorder": "stepscope", "processes": processes[:1]}))
    assert sorted({row[0] for row in told(open_trace(paths[0]))}) == [1, 10, 11, 20]


def test_a_thread_that_nobody_listed_is_of_the_process_of_its_parent(tmp_path):
    path = counters_beside(tmp_path)
    events = one_core(
        (2000, switch(0, "R", 1)), (2100, fork(1, 5)), (2150, fork(5, 6)), (2160, fork(8, 9)), (2170, fork(9, 8)),
        (2200, switch(1, "S", 6)), (2300, switch(6, "S", 8)), (2400, switch(8, "S", 0)),
    )  # fmt: skip
    write(tmp_path / "sched.ring", events, unix=UNIX)
    assert dict(open_trace(path).tracks.select("tid", "pid").iter_rows()) == {1: 1, 6: 1, 8: 8}


def test_what_cannot_be_placed_is_told(tmp_path):
    path = counters_beside(tmp_path)
    side = write(tmp_path / "sched.ring", BUSY, unix=UNIX)
    unknown = Trace(Meta("trace.json", "kineto"), {})
    assert with_sched(unknown, path).issues.select("code", "count").rows() == [("sched_unplaced", 7)]
    far = open_trace(kineto(tmp_path, "trace.json.gz", 1, 50.0, 90.0))
    assert far.issues.filter(pl.col("code").str.starts_with("sched"))["code"].to_list() == ["sched_elsewhere"]
    side.write_bytes(b"nothing")
    assert open_trace(path).issues["code"].to_list() == ["sched_unreadable"]
    side.unlink()
    assert open_trace(path).issues.is_empty()


@pytest.mark.parametrize("name", ["", "train"])
def test_lanes_have_the_name_that_the_collector_read(tmp_path, name):
    path = counters_beside(tmp_path)
    content = perf_switch(1, 2000, out=False) + perf_switch(1, 2500, out=True)
    write(tmp_path / "sched.ring", frame(2, 0, content, 3000), source="perf", names=(name,), unix=UNIX)
    trace = open_trace(path)
    assert trace.tracks["label"].to_list() == [f"{name or 'thread'} 1 · cores"]
    assert told(trace)[0][5:] == (0, "sleeps", None, None)
