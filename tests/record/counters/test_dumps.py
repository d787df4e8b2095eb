from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from types import SimpleNamespace

import pytest

import stepscope
from stepscope.record.counters import dumps as _dumps
from stepscope.record.counters.channel import Channel
from stepscope.record.counters.dumps import Dumps
from stepscope.record.counters.writer import NAME, CounterFile
from stepscope.record.system import meta as _meta

SLOW = {"ask": "slow-step", "pid": 7, "rank": "2", "step": 12, "step_ns": 50_000_000, "median_ns": 20_000_000}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".job").mkdir()
    document = {"recorder": "stepscope", "start_unix_ns": 1, "end_unix_ns": None, "command": ["x"], "issues": []}
    _meta.write(tmp_path, document)
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    # Not in the module `time` itself: servers of other tests wait by that clock.
    monkeypatch.setattr(_dumps, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns))
    return now


@pytest.fixture
def dumps(folder, clock):  # noqa: ARG001  time that stands still
    """Dumps of a file in which one row is kept."""
    file = CounterFile(folder / NAME, keep_s=60)
    file.add(1_000, [("num_threads", "count", "pid:7", 3.0)])
    file.flush()
    channel = Channel(folder)
    yield Dumps(folder, file, channel, keep_s=60, most=2, n_steps=10)
    channel.close()
    file.close()


def flush(dumps, time_ns: int) -> None:
    dumps.file.add(time_ns, [("num_threads", "count", "pid:7", 4.0)])
    dumps.flushed(dumps.file.flush())


def steps(folder, pid: int, n: int) -> None:
    (folder / ".job" / f"steps-{pid}").write_bytes(n.to_bytes(8, "little") + bytes(24))


def say(folder, **message) -> None:
    handle = os.open(folder / ".job" / "asked", os.O_WRONLY | os.O_NONBLOCK)
    os.write(handle, (json.dumps(message) + "\n").encode())
    os.close(handle)


def meta(folder) -> dict:
    return json.loads((folder / "meta.json").read_text())


def times(folder) -> list[int]:
    lines = gzip.decompress((folder / NAME).read_bytes()).decode().splitlines()
    return [int(line.split(",")[0]) for line in lines[1:]]


def test_a_dump_holds_what_was_before_and_a_second_after(dumps, folder, clock):
    dumps.take(SLOW, [_meta.issue("no_gpu_counters", "none")])
    found = folder / "dump-0001-slow-step"
    assert times(found) == [1_000]
    assert meta(found)["end_unix_ns"] is None
    clock[0] += 0.5
    flush(dumps, 2_000)
    clock[0] += 0.6
    flush(dumps, 3_000)
    flush(dumps, 4_000)
    assert times(found) == [1_000, 2_000, 3_000]
    told = meta(found)
    assert (told["mode"], told["command"], told["end_unix_ns"] > 0) == ("dump", ["x"], True)
    assert told["dump"].items() >= {"reason": "slow-step", "step": 12, "rank": "2", "pid": 7}.items()
    words = {issue["code"]: issue["example"] for issue in told["issues"]}
    assert words["slow_step"] == "step 12 of rank 2 took 50.0 ms, 2.5 times the 20.0 ms usual until then"
    assert words["no_gpu_counters"] == "none"
    assert dumps.made[0]["folder"] == found.name
    [trace] = stepscope.load_run(found)
    assert trace.counters.height == 3
    assert "slow_step" in trace.issues["code"].to_list()


def test_other_slow_steps_while_it_is_written_are_counted_in_it(dumps, folder, clock):
    for _ in range(3):
        dumps.take(SLOW, [])
    clock[0] += 2
    flush(dumps, 2_000)
    [left_out] = [
        issue for issue in meta(folder / "dump-0001-slow-step")["issues"] if issue["code"] == "dumps_left_out"
    ]
    assert left_out["count"] == 2
    assert len(dumps.made) == 1


def test_no_more_dumps_are_made_than_may_be(dumps, folder):
    for _ in range(4):
        dumps.take({"ask": "signal"}, [])
        dumps.complete()
    assert [path.name for path in sorted(folder.glob("dump-*"))] == ["dump-0001-signal", "dump-0002-signal"]
    told = {issue["code"]: issue for issue in dumps.issues()}
    assert (told["dumps_left_out"]["count"], told["dumps"]["count"]) == (2, 2)
    assert "dump-0002-signal" in told["dumps"]["example"]
    issue = meta(folder / "dump-0001-signal")["issues"][0]
    assert (issue["code"], issue["severity"], "signal" in issue["example"]) == ("dump", "info", True)


def test_the_processes_that_step_are_asked_for_a_profile_and_waited_for(dumps, folder, clock):
    me, other = os.getpid(), os.getppid()
    steps(folder, me, 20)
    steps(folder, other, 21)
    steps(folder, 2**22 + 5, 3)  # of a process that is gone
    dumps.take(SLOW, [])
    wish = (folder / ".job" / "wish").read_bytes()
    assert [int.from_bytes(wish[i : i + 8], "little") for i in (0, 8, 16)] == [1, 23, 10]
    assert wish[24:].rstrip(b"\0") == b"dump-0001-slow-step"
    clock[0] += 30
    flush(dumps, 2_000)
    say(folder, profiled="dump-0001-slow-step", pid=me)
    say(folder, profiled="dump-0009-slow-step", pid=other)
    assert dumps.heard() == []
    flush(dumps, 3_000)
    assert meta(folder / "dump-0001-slow-step")["end_unix_ns"] is None
    say(folder, profiled="dump-0001-slow-step", pid=other)
    dumps.heard()
    flush(dumps, 4_000)
    assert meta(folder / "dump-0001-slow-step")["end_unix_ns"] > 0
    assert times(folder / "dump-0001-slow-step") == [1_000, 2_000, 3_000, 4_000]


def test_a_profile_that_does_not_come_is_waited_for_no_longer_than_that(dumps, folder, clock):
    steps(folder, os.getpid(), 20)
    dumps.take({"ask": "signal"}, [])
    clock[0] += 61
    flush(dumps, 2_000)
    codes = [issue["code"] for issue in meta(folder / "dump-0001-signal")["issues"]]
    assert codes == ["dump", "profile_missing"]


def test_a_process_that_dies_is_not_waited_for(dumps, folder, clock):
    with subprocess.Popen(["sleep", "60"]) as job:
        steps(folder, job.pid, 20)
        dumps.take(SLOW, [])
        clock[0] += 2
        flush(dumps, 2_000)
        assert meta(folder / "dump-0001-slow-step")["end_unix_ns"] is None
        job.kill()
    flush(dumps, 3_000)
    assert meta(folder / "dump-0001-slow-step")["end_unix_ns"] > 0


def test_the_profile_from_the_start_pins_the_counters_around_it(dumps, folder):
    say(folder, profiled="", pid=1)
    assert dumps.heard() == []
    for later_ns in (2**61, 2**62):
        dumps.file.tail.add(later_ns, later_ns, b"much later")
    assert len(dumps.file.tail.packed(with_pinned=True)) > len(dumps.file.tail.packed())


def test_messages_that_ask_for_nothing_known_are_left_out(dumps, folder):
    say(folder, ask="../evil", pid=1)
    say(folder, other=1)
    say(folder, **SLOW | {"median_ns": 0})
    say(folder, **SLOW | {"step": "x"})
    say(folder, profiled="dump-0001-slow-step", pid=[1])
    say(folder, ask="request", token="abc")
    [message] = dumps.heard()
    assert message["token"] == "abc"
    dumps.take(message, [])
    answer = json.loads((folder / ".job" / "answer-abc").read_text())
    assert answer == {"dump": "dump-0001-request"}
    dumps.take(message, [])
    assert "being written" in json.loads((folder / ".job" / "answer-abc").read_text())["refused"]


def test_an_answer_that_cannot_be_written_is_told(dumps, folder):
    (folder / ".job" / ".abc").mkdir()
    dumps.take({"ask": "request", "token": "abc"}, [])
    assert "no answer to --dump: Is a directory" in {issue["example"] for issue in dumps.issues()}


def test_a_dump_that_cannot_be_written_is_told_and_leaves_nothing(dumps, folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_dumps.meta, "write", full)
    dumps.take(SLOW, [])
    monkeypatch.setattr(_dumps.CounterFile, "append", full)
    dumps.take(SLOW, [])
    assert not list(folder.glob("*dump*"))
    assert [issue["code"] for issue in dumps.issues()] == ["dump_failed"] * 2
    assert "No space left" in dumps.issues()[0]["example"]
    assert dumps.made == []


def test_a_dump_whose_counters_do_not_fit_leaves_nothing(dumps, folder, monkeypatch):
    append = _dumps.CounterFile.append

    def nearly_full(file, packed):
        if len(packed) == dumps.file.tail.size:
            raise OSError(28, "No space left on device")
        append(file, packed)

    monkeypatch.setattr(_dumps.CounterFile, "append", nearly_full)
    dumps.take(SLOW, [])
    assert not list(folder.glob("*dump*"))
    assert [issue["code"] for issue in dumps.issues()] == ["dump_failed"]


def test_a_dump_that_cannot_go_on_is_told_and_ends(dumps, monkeypatch):
    dumps.take(SLOW, [])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_dumps.CounterFile, "append", full)
        dumps.flushed(b"more")
    assert dumps._open is None
    assert "dump-0001-slow-step is cut: No space left" in dumps.issues()[0]["example"]
    dumps.take(SLOW, [])
    monkeypatch.setattr(_dumps.meta, "merge", full)
    dumps.complete()
    dumps.complete()
    assert "dump-0002-slow-step is cut" in dumps.issues()[1]["example"]


def test_a_process_of_no_rank_is_named_by_its_number(dumps, folder):
    dumps.take(SLOW | {"rank": None}, [])
    assert "process 7 took" in meta(folder / "dump-0001-slow-step")["issues"][0]["example"]
