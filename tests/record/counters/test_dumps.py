from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.record.counters import dumps as _dumps
from stepscope.record.counters.dumps import Channel, Dumps, Ring, opened, request
from stepscope.record.counters.writer import NAME, CounterFile
from stepscope.record.system import meta as _meta


def test_the_sampler_and_the_hook_are_told_of_it():
    ring = Ring(30.0, 2.0, 3)
    assert ring.wanted((5, 15)) == {"keep_s": 30.0, "trigger": 2.0, "max_dumps": 3, "n_steps": 10}
    assert ring.wanted(None)["n_steps"] == 0
    assert ring.environment() == {"STEPSCOPE_RECORD_TRIGGER": "2"}
    assert Ring().environment() == {"STEPSCOPE_RECORD_TRIGGER": "0"}


def test_without_a_ring_nothing_is_opened(tmp_path):
    file = CounterFile(tmp_path / "counters.csv.gz")
    assert opened(tmp_path, file, None) == (None, [])
    file.close()


def test_where_no_pipe_can_be_made_a_signal_still_can_ask(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_dumps, "Channel", refuse)
    file = CounterFile(tmp_path / "counters.csv.gz")
    dumps, [issue] = opened(tmp_path, file, Ring().wanted(None))
    assert dumps.channel is None
    assert dumps.heard() == []
    assert (issue["code"], "only by signal" in issue["example"]) == ("no_triggers", True)
    file.close()


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


@pytest.fixture
def channel(tmp_path):
    (tmp_path / ".job").mkdir()
    found = Channel(tmp_path)
    yield found
    found.close()


def say_into(folder, text: bytes) -> None:
    handle = os.open(folder / ".job" / "asked", os.O_WRONLY | os.O_NONBLOCK)
    os.write(handle, text)
    os.close(handle)


def test_messages_are_lines_and_a_cut_one_is_waited_for(channel, tmp_path):
    assert channel.messages() == []
    say_into(tmp_path, b'{"a": 1}\nnonsense\n[1]\n{"b"')
    assert channel.messages() == [{"a": 1}]
    say_into(tmp_path, b": 2}\n")
    assert channel.messages() == [{"b": 2}]


def test_a_file_of_steps_that_is_cut_is_left_out(channel, tmp_path):
    (tmp_path / ".job" / "steps-7").write_bytes(b"short")
    (tmp_path / ".job" / "steps-8").write_bytes(bytes(32))
    (tmp_path / ".job" / "steps-mine").write_bytes((5).to_bytes(8, "little") + bytes(24))
    (tmp_path / ".job" / "steps-9").write_bytes((5).to_bytes(8, "little") + bytes(24))
    assert channel.steps() == {9: 5}


def answering(channel, **fields) -> threading.Thread:
    def run() -> None:
        while not (messages := channel.messages()):
            pass
        channel.answer(messages[0]["token"], **fields)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_request_is_answered_with_the_folder(channel, tmp_path):
    thread = answering(channel, dump="dump-0001-request")
    assert request(tmp_path) == tmp_path / "dump-0001-request"
    thread.join()
    assert not list((tmp_path / ".job").glob("answer-*"))


def test_a_request_that_is_refused_says_why(channel, tmp_path):
    thread = answering(channel, refused="10 dumps were made", hint="more of them")
    with pytest.raises(StepscopeError, match="10 dumps were made") as error:
        request(tmp_path)
    thread.join()
    assert error.value.hint == "more of them"


@pytest.mark.usefixtures("channel")
def test_a_recorder_that_does_not_answer_is_told(tmp_path):
    with pytest.raises(StepscopeError, match="does not answer"):
        request(tmp_path, timeout_s=0.1)


def test_a_token_that_is_none_of_ours_is_not_answered(channel, tmp_path):
    for token in (None, "../evil", 5):
        channel.answer(token, dump="x")
    assert sorted(path.name for path in (tmp_path / ".job").iterdir()) == ["asked", "wish"]


def test_a_folder_in_which_nothing_is_recorded_is_told(tmp_path):
    with pytest.raises(StepscopeError, match="no recording with --keep"):
        request(tmp_path)
    (tmp_path / ".job").mkdir()
    os.mkfifo(tmp_path / ".job" / "asked")  # whose recorder was killed
    with pytest.raises(StepscopeError, match="its recorder has ended"):
        request(tmp_path)
    (tmp_path / ".job" / "asked").unlink()
    (tmp_path / ".job" / "asked").write_text("a file")
    with pytest.raises(StepscopeError, match="it is not a recording"):
        request(tmp_path)
    (tmp_path / ".job" / "asked").unlink()
    (tmp_path / ".job" / "asked").mkdir()
    with pytest.raises(StepscopeError, match="Is a directory"):
        request(tmp_path)
