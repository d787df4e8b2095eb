from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_files import (
    MAGIC,
    NEW,
    facts,
    fork,
    frame,
    page,
    pages,
    perf_lost,
    perf_name,
    perf_switch,
    perf_task,
    switch,
    wake,
    write,
)

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.recorded.sched_events import (
    BLOCKED,
    ENDED,
    IN,
    OUT,
    RUNNABLE,
    SLEEPS,
    STOPPED,
    WAKE,
    read_events,
    record_starts,
    words_at,
)


@pytest.fixture
def read(tmp_path):
    def run(*frames: bytes, **told):
        log = IssueLog()
        events = read_events(str(write(tmp_path / "sched.ring", *frames, **told)), log)
        rows = list(zip(*(getattr(events, name).tolist() for name in ("ts_ns", "tid", "what", "core")), strict=True))
        return events, rows, dict(log.table().select("code", "count").iter_rows())

    return run


def test_switches_and_wake_ups_of_the_jobs_threads_in_order_of_time(read):
    core_0 = pages((2000, switch(90, "S", 1)), (2500, switch(1, "S", 0)), (2900, fork(1, 2)), (2900, wake(2, 1, NEW)))
    core_1 = pages((2400, wake(1, 1)), (3000, switch(0, "R", 2)), (3100, switch(2, "Z", 1)))
    events, rows, issues = read(frame(2, 0, core_0, 4000), frame(2, 1, core_1, 4000))
    assert rows == [
        (2000, 1, IN, 0), (2400, 1, WAKE, 1), (2500, 1, OUT, 0), (2900, 2, WAKE, 1), (3000, 2, IN, 1), (3100, 1, IN, 1),
        (3100, 2, OUT, 1),
    ]  # fmt: skip
    assert events.other.tolist() == [90, -1, 0, -1, 0, 2, 1]
    assert (events.began, events.parent, events.end_ns) == ({1: 1000}, {2: 1}, 10_000)
    assert issues == {}


@pytest.mark.parametrize(
    ("state", "known"),
    [("R", RUNNABLE), ("R+", RUNNABLE), ("S", SLEEPS), ("I", SLEEPS), ("D", BLOCKED), ("T", STOPPED), ("X", ENDED),
     ("Z", ENDED)],
)  # fmt: skip
def test_how_a_thread_is_when_it_loses_the_core(read, state, known):
    events, _, _ = read(frame(2, 0, pages((2000, switch(1, state, 0))), 3000))
    assert events.state.tolist() == [known]


def test_a_thread_has_the_last_name_that_it_took(read):
    first = pages((2000, switch(90, "S", 1, {1: "sh"})), (2100, switch(1, "S", 90, {1: "train", 90: "other"})))
    events, _, _ = read(frame(2, 0, first, 3000))
    assert events.names == {1: "train", 90: "other"}
    again = pages((3100, switch(90, "S", 1, {1: "late"})))
    assert read(frame(2, 0, first, 3000), frame(2, 0, again, 4000))[0].names[1] == "late"


def test_processes_of_threads_are_those_listed_last(read):
    told = facts(3000, threads=[[1, 1], [7, 1]])
    assert read(told)[0].process == {1: 1, 7: 1}
    assert read()[1] == []


def test_lost_events_are_counted_with_where_they_were(read):
    one = pages((2000, switch(0, "R", 1)))
    two = pages((3000, switch(1, "S", 0)), missed=5)
    events, _, issues = read(frame(2, 0, one, 2500), frame(2, 0, two, 3500))
    assert events.losses == [(0, 2000, 3000)]
    assert issues == {"sched_lost": 5}
    assert read(frame(2, 0, two, 3500), lost={"0": 9})[2] == {"sched_lost": 9}
    # Nobody counted them, and nothing followed.
    events, _, issues = read(frame(2, 0, one + page(3000, b"", missed=0), 3500))
    assert (events.losses, issues) == ([(0, 2000, 2000)], {"sched_lost": 1})


def test_a_file_that_was_cut_is_read_up_to_its_last_whole_frame(tmp_path):
    path = write(tmp_path / "sched.ring", frame(2, 0, pages((2000, switch(0, "R", 1))), 2500), end=None)
    whole = path.read_bytes()
    for cut in (0, 3, 30):
        path.write_bytes(whole + facts(3000, threads=[])[:cut])
        log = IssueLog()
        assert read_events(str(path), log).ts_ns.tolist() == [2000]
        assert log.table()["code"].to_list() == ["sched_cut"]


@pytest.mark.parametrize(
    "damaged",
    [
        frame(2, 0, bytes(4096), 3000)[:20] + bytes(99),
        frame(1, 0, b"not JSON", 3000),
        frame(1, 0, b"[]", 3000),
        facts(3000, source="tracefs", page_bytes=0, events={}) + frame(2, 0, bytes(4096), 3000),
        facts(3000, source="elsewhere") + frame(2, 0, bytes(4096), 3000),
        frame(1, 0, b"{}", 3000)[:-1] + b"\0",
        frame(1, 0, b"{}", 3000).replace(b"\2\0\0\0", b"\1\0\0\0"),
    ],
)
def test_damage_ends_the_reading_and_is_told(tmp_path, damaged):
    path = write(tmp_path / "sched.ring", frame(2, 0, pages((2000, switch(0, "R", 1))), 2500), damaged, end=None)
    log = IssueLog()
    assert read_events(str(path), log).ts_ns.tolist() == [2000]
    assert log.table()["code"].to_list() == ["sched_damaged", "sched_cut"]


@pytest.mark.parametrize("content", [b"", b"something else entirely", MAGIC, MAGIC + facts(1, threads=[])])
def test_what_has_no_beginning_is_refused(tmp_path, content):
    path = tmp_path / "sched.ring"
    path.write_bytes(content)
    with pytest.raises(CorruptInput, match=r"file of scheduling events|breaks off"):
        read_events(str(path), IssueLog())


def test_what_the_file_had_no_room_for_is_counted(read):
    events, _, issues = read(facts(3000, full_bytes=256 << 20), facts(3500, unwritten=77))
    assert events.end_ns == 3000
    assert issues == {"sched_full": 1, "sched_unwritten": 77}


def test_switches_of_perf(read):
    content = b"".join(
        (
            perf_switch(1, 2000, out=False), perf_switch(1, 2100, out=True, preempted=True),
            perf_task(7, 2, 1, 2, 1, 2150), perf_name(2, 2, "worker", 2160), perf_switch(2, 2200, out=False, pid=2),
            perf_switch(1, 2300, out=True), perf_task(4, 2, 1, 2, 1, 2400), perf_lost(3, 2500),
        )
    )  # fmt: skip
    again = perf_switch(1, 2000, out=False)  # a thread that is followed twice
    events, rows, issues = read(
        frame(2, 1, content, 3000), frame(2, 1, again + perf_lost(1, 2600), 4000), source="perf"
    )
    assert rows == [(2000, 1, IN, 1), (2100, 1, OUT, 1), (2200, 2, IN, 1), (2300, 1, OUT, 1), (2400, 2, OUT, 1)]
    assert events.state.tolist() == [RUNNABLE, RUNNABLE, RUNNABLE, SLEEPS, ENDED]
    assert (events.names, events.process, events.parent) == ({1: "main", 2: "worker"}, {1: 1, 2: 2}, {2: 1})
    assert events.losses == [(1, 2300, 2500), (1, 2000, 2600)]
    assert issues == {"sched_lost": 4}


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(0, 40))
def test_records_are_found_one_after_the_other(sizes, cut):
    content = b"".join(struct.pack("<IHH", i, 0, 8 * n) + b"\xff" * (8 * n - 8) for i, n in enumerate(sizes))
    cut = min(cut, len(content))
    content = content[: len(content) - cut]
    expected, at = [], 0
    for n in sizes:
        if at + 8 * n <= len(content):
            expected.append(at)
        at += 8 * n
    starts = record_starts(content)
    assert starts.tolist() == expected
    assert words_at(content, starts).tolist() == list(range(len(expected)))


def test_a_record_without_a_size_ends_the_walk():
    content = struct.pack("<IHH", 1, 0, 8) + struct.pack("<IHH", 2, 0, 0) + struct.pack("<IHH", 3, 0, 8)
    assert record_starts(content).tolist() == [0]
    assert record_starts(b"").tolist() == []
    assert words_at(content, np.array([0, 8])).tolist() == [1, 2]
