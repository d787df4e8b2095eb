from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_files import facts, fork, frame, pages, perf_switch, switch, wake, write

from stepscope import analyses
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Meta, Trace
from stepscope.readers import open_trace
from stepscope.readers.recorded.sched import AT_END, PREEMPTED, WOKEN, spans_of, with_sched
from stepscope.readers.recorded.sched_events import ENDED, IN, OUT, RUNNABLE, SLEEPS, WAKE, Events

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


@pytest.mark.slow
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


END = 1000


def events(*rows: tuple[int, ...], began: dict[int, int] | None = None, losses=(), names=None) -> Events:
    """Rows are (time, thread, what, core, state, other)."""
    table = np.array(sorted(rows, key=lambda row: row[:3]), np.int64).reshape(-1, 6)
    ts, tid, what, core, state, other = table.T
    none = np.zeros(1, np.int64)
    return Events(
        ts, tid, what.astype(np.int8), core.astype(np.int32), state.astype(np.int8), other,
        names or {}, began or {}, {}, {}, list(losses), END, none, none,
    )  # fmt: skip


def found(given_events: Events) -> list[tuple]:
    spans = spans_of(given_events)
    columns = (spans.tid, spans.start_ns, spans.end_ns, spans.is_wait, spans.core, spans.state, spans.other)
    rows = zip(*(column.tolist() for column in columns), spans.why.tolist(), strict=True)
    return [row[:7] + ((row[7],) if row[3] else ()) for row in rows]


def life_of(tid: int, rows: list[tuple[int, ...]], began: int | None) -> tuple[list[tuple], bool]:
    """The spans of one thread, an event after the other; whether it got a core from idle unseen."""
    spans: list[tuple] = []
    unseen = False
    now, since, core_now, why, by = "unknown", began, -1, WOKEN, -1
    for ts, what, core, state, other in rows:
        if what == WAKE and now in ("unknown", "asleep"):
            now, since, why, by = "waits", ts, WOKEN, -1
        elif what == IN:
            if now == "waits":
                spans.append((tid, since, ts, True, core, AT_END, by if why == PREEMPTED else other, why))
            now, since, core_now = "runs", ts, core
        elif what == OUT:
            had_it = now == "unknown" and since is not None and since <= ts
            from_idle = now == "waits" and why == WOKEN
            unseen = unseen or from_idle
            if had_it or from_idle or (now == "runs" and core == core_now):
                spans.append((tid, since, ts, False, core, state, other))
            now, since, why, by = "waits" if state == RUNNABLE else "asleep", ts, PREEMPTED, other
    if now == "runs":
        spans.append((tid, since, END, False, core_now, AT_END, -1))
    elif now == "waits":
        spans.append((tid, since, END, True, -1, AT_END, by, why))
    return spans, unseen


def oracle(given_events: Events) -> list[tuple]:
    """A thread after the other."""
    names = ("ts_ns", "what", "core", "state", "other")
    rows = list(zip(given_events.tid.tolist(), *(getattr(given_events, n).tolist() for n in names), strict=True))
    lives = [
        life_of(tid, [row[1:] for row in rows if row[0] == tid], given_events.began.get(tid))
        for tid in {row[0] for row in rows}
    ]
    spans = [span for life, _ in lives for span in life]
    if any(unseen for _, unseen in lives):  # so may have been what followed the last wake-up
        spans = [span for span in spans if not (span[3] and span[2] == END and span[4] == -1 and span[7] == WOKEN)]

    def is_known(span: tuple) -> bool:
        return not any(
            span[1] < max(high, low + 1) and span[2] > low and (span[3] or span[4] == core)
            for core, low, high in given_events.losses
        )

    return sorted(filter(is_known, spans), key=lambda span: span[:3])


TIMES = st.integers(0, END)
ROWS = st.tuples(
    TIMES, st.integers(1, 3), st.sampled_from([OUT, WAKE, IN]), st.integers(0, 1),
    st.sampled_from([RUNNABLE, SLEEPS, ENDED]), st.integers(0, 9),
)  # fmt: skip
LOSSES = st.tuples(st.integers(0, 1), TIMES, st.integers(0, 200)).map(
    lambda loss: (loss[0], loss[1], loss[1] + loss[2])
)


@given(
    st.lists(ROWS, max_size=40, unique_by=lambda row: row[:3]),
    st.dictionaries(st.integers(1, 3), TIMES),
    st.lists(LOSSES, max_size=3),
)
def test_spans_are_what_one_event_after_the_other_gives(rows, began, losses):
    told = events(*rows, began=began, losses=losses)
    assert sorted(found(told), key=lambda span: span[:3]) == oracle(told)


def test_a_thread_sleeps_wakes_waits_and_runs():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 8), (50, 5, WAKE, 1, 0, -1), (65, 5, IN, 1, 0, 9))
    assert found(told) == [
        (5, 10, 30, False, 0, SLEEPS, 8),
        (5, 50, 65, True, 1, AT_END, 9, WOKEN),
        (5, 65, END, False, 1, AT_END, -1),
    ]


def test_a_thread_that_loses_the_core_waits_behind_the_one_that_took_it():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, RUNNABLE, 8), (33, 5, WAKE, 1, 0, -1), (65, 5, IN, 1, 0, 9))
    assert found(told)[1] == (5, 30, 65, True, 1, AT_END, 8, PREEMPTED)


def test_a_thread_that_ended_is_nowhere():
    assert found(events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, ENDED, 8))) == [(5, 10, 30, False, 0, ENDED, 8)]


def test_a_thread_that_was_there_had_the_core_that_it_loses_first():
    assert found(events((30, 5, OUT, 0, SLEEPS, 8), began={5: 3})) == [(5, 3, 30, False, 0, SLEEPS, 8)]
    assert found(events((30, 5, OUT, 0, SLEEPS, 8))) == []


def test_nothing_happened():
    assert found(events()) == []


def test_switches_that_nobody_told_of_are_counted():
    def gaps(*rows):
        return spans_of(events(*rows)).n_gaps

    assert gaps((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 8), (50, 5, WAKE, 1, 0, -1)) == 0
    assert gaps((50, 5, WAKE, 1, 0, -1), (60, 5, OUT, 1, SLEEPS, 8)) == 0  # it must have got the core from idle
    assert gaps((10, 5, OUT, 0, RUNNABLE, 7), (60, 5, OUT, 1, SLEEPS, 8)) == 1
    assert gaps((10, 5, IN, 0, 0, 7), (60, 5, IN, 0, 0, 8)) == 1
    assert gaps((10, 5, IN, 0, 0, 7), (60, 5, OUT, 1, SLEEPS, 8)) == 1  # on another core
    assert gaps((10, 5, OUT, 0, SLEEPS, 7), (60, 5, IN, 0, 0, 8)) == 0  # its wake-up may be older than the recording


def test_a_thread_that_got_an_idle_core_unseen_has_it_from_its_wake_up_on():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 0), (50, 5, WAKE, 0, 0, -1), (65, 5, OUT, 1, SLEEPS, 0))
    assert found(told) == [(5, 10, 30, False, 0, SLEEPS, 0), (5, 50, 65, False, 1, SLEEPS, 0)]
    assert spans_of(told).n_from_idle == 1
    # Nor is it known then whether a thread that woke up last waits until the end.
    assert not spans_of(
        events((50, 5, WAKE, 0, 0, -1), (65, 5, OUT, 1, SLEEPS, 0), (80, 5, WAKE, 0, 0, -1))
    ).is_wait.any()


def test_a_thread_of_the_kernel_that_came_first_is_not_to_blame_for_the_one_that_stayed():
    def behind(first, last):
        rows = (10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, RUNNABLE, first), (65, 5, IN, 1, 0, last)
        names = {2: "rcu_preempt", 3: "kworker/0:1H", 4: "migration/1", 8: "greedy", 9: "rcurve"}
        return spans_of(events(*rows, names=names)).other.tolist()[1]

    assert [behind(kernel, 8) for kernel in (2, 3, 4)] == [8, 8, 8]
    assert (behind(8, 2), behind(9, 8), behind(2, 0), behind(2, -1)) == (8, 9, 2, 2)
