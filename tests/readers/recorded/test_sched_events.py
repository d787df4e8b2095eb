from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_files import (
    MAGIC,
    NEW,
    PAGE,
    event,
    facts,
    fork,
    frame,
    padding,
    page,
    pages,
    perf_lost,
    perf_name,
    perf_switch,
    perf_task,
    stamp,
    switch,
    wake,
    write,
)

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.source import IssueLog
from stepscope.readers.recorded.sched_events import (
    BLOCKED,
    ENDED,
    IN,
    OUT,
    RUNNABLE,
    SLEEPS,
    STOPPED,
    WAKE,
    decoded,
    read_events,
    record_starts,
    u32s_at,
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
        facts(3000, source="tracefs", page_bytes=2**62, events={}) + frame(2, 0, bytes(4096), 3000),
        facts(3000, began=[["7", 1]], names=["a"]),
        facts(3000, began=[[2**70, 1]], names=["a"]),
        facts(3000, clocks={"monotonic_ns": 2**64, "unix_ns": 0}),
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
    with pytest.raises(CorruptInput, match=r"file of scheduling events|ends before its first entry"):
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
    assert u32s_at(content, starts).tolist() == list(range(len(expected)))


def test_a_record_without_a_size_ends_the_walk():
    content = struct.pack("<IHH", 1, 0, 8) + struct.pack("<IHH", 2, 0, 0) + struct.pack("<IHH", 3, 0, 8)
    assert record_starts(content).tolist() == [0]
    assert record_starts(b"").tolist() == []
    assert u32s_at(content, np.array([0, 8])).tolist() == [1, 2]


BASE = 23_000_000_000_000


def oracle(content: bytes, page_bytes: int) -> list[tuple[int, int, bytes]]:
    """(place in bytes, time, first eight bytes of the content), an event at a time, as the kernel's own reader goes."""
    found = []
    for begin in range(0, len(content) - page_bytes + 1, page_bytes):
        time, used = struct.unpack_from("<QQ", content, begin)
        upper = time & ~((1 << 59) - 1)
        at, end = begin + 16, begin + 16 + (used & 0xFFFFF)
        while at < end:
            (head,) = struct.unpack_from("<I", content, at)
            (then,) = struct.unpack_from("<I", content, at + 4) if at + 8 <= len(content) else (0,)
            kind, delta = head & 31, head >> 5
            if kind == 29:
                if delta == 0:
                    break
                time += delta
                at += 4 + then
            elif kind == 30:
                time += delta + (then << 27)
                at += 8
            elif kind == 31:
                time = (delta + (then << 27)) | upper
                at += 8
            else:
                time += delta
                where, length = (at + 8, 4 + then) if kind == 0 else (at + 4, 4 + 4 * kind)
                found.append((where, time, content[where : where + 8]))
                at += length
    return found


PIECES = st.one_of(
    st.tuples(st.just("event"), st.integers(0, 1 << 40), st.integers(2, 28)),
    st.tuples(st.just("long"), st.integers(0, (1 << 27) - 1), st.integers(2, 60)),
    st.tuples(st.just("padding"), st.integers(1, 1000), st.integers(2, 9)),
    st.tuples(st.just("stamp"), st.integers(0, 1 << 58), st.just(0)),
)


def made(pieces: list[tuple[str, int, int]]) -> bytes:
    data = b""
    for number, (kind, value, words) in enumerate(pieces):
        content = struct.pack("<HHi", number, 0, -number) + bytes(4 * max(words - 2, 0))
        match kind:
            case "event" | "long":
                data += event(value, content, long=kind == "long")
            case "padding":
                data += padding(4 * words, value)
            case _:
                data += stamp(value)
    return data


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.lists(PIECES, max_size=12)), max_size=5))
def test_pages_are_read_as_one_event_after_the_other_is(told):
    content = b"".join(page(begin, made(pieces)) for begin, pieces in told)
    found = decoded(content, PAGE)
    assert list(zip((found.at * 4).tolist(), found.ts_ns.tolist(), strict=True)) == [
        (place, time) for place, time, _ in oracle(content, PAGE)
    ]
    rows = np.arange(found.at.size)
    numbers = [struct.unpack("<HHi", head) for _, _, head in oracle(content, PAGE)]
    assert found.kind().tolist() == [kind for kind, _, _ in numbers]
    assert found.field(rows, 4).tolist() == [value for _, _, value in numbers]


def test_padding_without_a_time_ends_the_page():
    data = event(5, b"\1\0\0\0") + struct.pack("<I", 29) + event(5, b"\2\0\0\0")
    assert decoded(page(BASE, data), PAGE).ts_ns.tolist() == [BASE + 5]


def test_pages_of_other_sizes_are_read():
    data = b"".join(event(1, struct.pack("<HHi", 9, 0, i)) for i in range(3000))
    found = decoded(page(BASE, data, n_bytes=1 << 16), 1 << 16)
    assert found.field(np.arange(3000), 4).tolist() == list(range(3000))
    assert found.ts_ns[-1] == BASE + 3000


def test_events_that_were_lost_are_told_with_their_place():
    one, two = event(1, b"\1\0\0\0"), event(2, b"\2\0\0\0")
    content = page(BASE, one) + page(BASE, two, missed=7) + page(BASE, b"", missed=0) + page(BASE, one + two, missed=0)
    found = decoded(content, PAGE)
    assert (found.lost_before.tolist(), found.n_lost.tolist()) == ([1, 2, 2], [7, 0, 0])


def test_an_event_that_reaches_beyond_its_page_is_left_out():
    data = event(1, b"\1\0\0\0") + struct.pack("<I", 28)  # says 28 words
    assert decoded(page(BASE, data), PAGE).ts_ns.tolist() == [BASE + 1]
    data = event(1, b"\1\0\0\0") + struct.pack("<II", 0, 1 << 31)
    assert decoded(page(BASE, data) + bytes(99), PAGE).ts_ns.tolist() == [BASE + 1]


def test_texts_end_with_their_zero():
    data = event(0, b"\1\0\0\0python\0junk\0\0\0\0\0") + event(0, b"\1\0\0\0\xff234567890123456")
    assert decoded(page(0, data), PAGE).text(np.arange(2), 4, 16) == ["python", "�234567890123456"]
