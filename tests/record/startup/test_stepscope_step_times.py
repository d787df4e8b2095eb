from __future__ import annotations

import errno
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepscope.record.startup import _stepscope_step_times as step_times

MS = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    now = [5_000_000_000]
    monkeypatch.setattr(step_times.time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(step_times.time, "time_ns", lambda: now[0] + 10**18)
    return now


def marks(folder):
    (path,) = folder.glob("pid*.steps")
    data = path.read_bytes()
    header = step_times.HEADER.unpack_from(data)
    return header, list(step_times.MARK.iter_unpack(data[step_times.HEADER.size :]))


def test_each_step_has_its_time_and_the_header_both_clocks(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), 3)
    for took in (0, 50, 40, 60):
        clock[0] += took * MS
        times.ended(2, is_unlike=False)
    times.flush()
    header, rows = marks(tmp_path)
    assert header[:3] == (step_times.MAGIC, 10**18 + 5_000_000_000, 5_000_000_000)
    assert header[4] == 3
    assert rows == [(50_000, 1, 2, 0), (40_000, 1, 2, 0), (60_000, 1, 2, 0)]


def test_short_steps_share_a_mark_so_that_an_hour_takes_less_than_a_megabyte(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), None)
    for _ in range(68_001):
        times.ended(1, is_unlike=False)
        clock[0] += MS
    times.flush()
    header, rows = marks(tmp_path)
    assert header[4] == -1
    n_single = 8_000 * 33 // 32  # a mark for each 33 ms comes on top
    assert {row[:2] for row in rows[:n_single]} == {(1_000, 1)}
    assert {row[:2] for row in rows[n_single:]} == {(33_000, 33)}
    assert (len(rows) - 8_000) * (3_600 / 68) * 8 + 8_000 * 8 < 1_000_000


def test_a_step_far_longer_than_those_that_share_a_mark_has_its_own(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(step_times, "_FREE_MARKS", 0)
    times = step_times.StepTimes(str(tmp_path), None)
    times.ended(1, is_unlike=False)
    for took in (1, 1, 1, 60, 1, 1, 1, 60, 1, 1, 60):
        clock[0] += took * MS
        times.ended(1, is_unlike=False)
    times.flush()
    rows = [row[:2] for row in marks(tmp_path)[1]]
    assert rows == [(3_000, 3), (60_000, 1), (3_000, 3), (60_000, 1), (2_000, 2), (60_000, 1)]


def test_the_part_of_the_time_inside_calls_is_noted_in_the_same_eight_bytes(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), None)
    times.ended(1, is_unlike=False)
    for inside_ms in (40, 10, 0.0001, 160):
        clock[0] += 40 * MS
        times.worked(int(inside_ms * MS))
        times.ended(1, is_unlike=False)
    times.flush()
    assert [row[3] for row in marks(tmp_path)[1]] == [96 << 1, 80 << 1, 1 << 1, 112 << 1]


def test_what_a_profiler_made_slow_is_marked(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), None)
    for is_unlike, starts in ((False, False), (False, True), (True, False), (False, False)):
        times.ended(2, is_unlike=is_unlike)
        if starts:
            times.unlike()
        clock[0] += 50 * MS
    times.ended(2, is_unlike=False)
    times.flush()
    assert [row[3] for row in marks(tmp_path)[1]] == [0, 1, 0, 0]


def test_another_source_of_steps_begins_after_a_pause(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), None)
    for source in (1, 1, 2, 2):
        times.ended(source, is_unlike=False)
        clock[0] += 50 * MS
    times.flush()
    assert [row[1:3] for row in marks(tmp_path)[1]] == [(1, 1), (0, 1), (1, 2)]


def test_rounding_never_adds_up(tmp_path, clock):
    times = step_times.StepTimes(str(tmp_path), None)
    times.ended(2, is_unlike=False)
    for _ in range(1_000):
        clock[0] += 40 * MS + 999
        times.ended(2, is_unlike=False)
    times.flush()
    assert abs(sum(row[0] for row in marks(tmp_path)[1]) * 1_000 - 1_000 * (40 * MS + 999)) < 1_000


def test_marks_are_appended_every_second_and_a_folder_that_is_gone_stops_nothing(tmp_path, clock):
    folder = tmp_path / "run"
    folder.mkdir()
    times = step_times.StepTimes(str(folder), None)
    for _ in range(30):
        times.ended(2, is_unlike=False)
        clock[0] += 50 * MS
    assert len(marks(folder)[1]) >= 20
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    for _ in range(100):
        times.ended(2, is_unlike=False)
        clock[0] += 50 * MS
    times.flush()
    assert not folder.exists()


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(tmp_path, clock, monkeypatch):
    times = step_times.StepTimes(str(tmp_path), None)
    write, room = step_times.os.write, [5]

    def full(handle, text):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0], most = 0, room[0]
        return write(handle, text[:most])

    monkeypatch.setattr(step_times.os, "write", full)
    for _ in range(100):
        times.ended(2, is_unlike=False)
        clock[0] += 50 * MS
    monkeypatch.setattr(step_times.os, "write", write)
    times.flush()
    assert marks(tmp_path)[1] == [(50_000, 1, 2, 0)] * 99


def test_on_a_disk_that_stays_full_memory_is_bounded(tmp_path, clock, monkeypatch):
    def full(_handle, _text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(step_times.os, "write", full)
    monkeypatch.setattr(step_times, "_MOST_HELD_BYTES", 100)
    times = step_times.StepTimes(str(tmp_path), None)
    for _ in range(1000):
        times.ended(2, is_unlike=False)
        clock[0] += 50 * MS
    times.flush()
    assert times._pending == []


def test_a_forked_child_has_a_file_of_its_own(tmp_path, clock, monkeypatch):
    times = step_times.StepTimes(str(tmp_path), None)
    times.ended(2, is_unlike=False)
    monkeypatch.setattr(step_times.os, "getpid", lambda: 99)
    times.in_child()
    times.ended(2, is_unlike=False)
    clock[0] += 50 * MS
    times.ended(2, is_unlike=False)
    times.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["pid99.steps"]
    assert marks(tmp_path)[0][3] == 99


def test_threads_that_end_steps_at_once_break_nothing_and_lose_hardly_any(tmp_path):
    times = step_times.StepTimes(str(tmp_path), None)
    n_threads, each = 4, 1500

    def work():
        for _ in range(each):
            times.worked(10)
            times.ended(3, is_unlike=False)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns after each few instructions
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            for done in [pool.submit(work) for _ in range(n_threads)]:
                done.result()
    finally:
        sys.setswitchinterval(usual)
    times.flush()
    (path,) = tmp_path.glob("pid*.steps")
    assert path.read_bytes().count(step_times.MAGIC) == 1
    counts = [n for _, n, _, _ in marks(tmp_path)[1]]
    assert min(counts) > 0  # none is a pause
    assert sum(counts) == pytest.approx(n_threads * each, rel=0.1)


def test_a_mark_takes_eight_bytes():
    assert step_times.MARK.size == struct.calcsize("<q")
