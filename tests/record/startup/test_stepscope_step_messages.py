from __future__ import annotations

import json
import os
import struct
from itertools import accumulate

import pytest

from stepscope.record.counters.dumps import Channel
from stepscope.record.startup import _stepscope_step_messages
from stepscope.record.startup._stepscope_step_messages import StepEnds

MS = 1_000_000


@pytest.fixture
def channel(tmp_path):
    (tmp_path / ".job").mkdir()
    found = Channel(tmp_path)
    yield found
    found.close()


@pytest.fixture
def stepping(monkeypatch):
    """Makes steps of given times (ms); the messages that came of it."""
    clock = [10**12]
    monkeypatch.setattr(_stepscope_step_messages.time, "monotonic_ns", lambda: clock[0])
    n_steps = [0]

    def run(steps: StepEnds, times) -> list:
        wishes = []
        for took in times:
            clock[0] += int(took * MS)
            n_steps[0] += 1
            wishes.append(steps.ended(n_steps[0]))
        return wishes

    return run


def told(folder) -> tuple[int, int, int, int]:
    return struct.unpack("<qqqq", (folder / ".job" / f"steps-{os.getpid()}").read_bytes())


def test_the_end_of_each_step_can_be_read_by_others(tmp_path, channel, stepping):
    steps = StepEnds(str(tmp_path), 0)
    stepping(steps, [5, 10, 20])
    assert told(tmp_path) == (3, 10**12 + 35 * MS, 20 * MS, 0)
    assert channel.steps() == {os.getpid(): 3}
    stepping(steps, [10] * 9)
    assert told(tmp_path)[3] == 10 * MS
    steps.open()  # as a forked child does
    assert channel.steps() == {}


def test_a_slow_step_is_told_with_what_was_usual(tmp_path, channel, stepping, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    steps = StepEnds(str(tmp_path), 2.0)
    stepping(steps, [100, *[10] * 20, 19, 21, 10])
    assert channel.messages() == [
        {"ask": "slow-step", "step": 22, "step_ns": 21 * MS, "median_ns": 10 * MS, "pid": os.getpid(), "rank": "3"}
    ]


def test_without_enough_steps_or_a_trigger_none_is_slow(tmp_path, channel, stepping):
    stepping(StepEnds(str(tmp_path), 2.0), [10] * 6 + [500])
    stepping(StepEnds(str(tmp_path), 0), [10] * 30 + [500])
    assert channel.messages() == []


def test_steps_in_which_a_profiler_works_are_no_measure(tmp_path, channel, stepping):
    steps = StepEnds(str(tmp_path), 2.0)
    stepping(steps, [10] * 10)
    for took in (500, 10):
        steps.skip()
        stepping(steps, [took])
    assert channel.messages() == []
    stepping(steps, [25])
    assert [message["median_ns"] for message in channel.messages()] == [10 * MS]


def test_the_median_is_that_of_recent_steps(tmp_path, channel, stepping):
    steps = StepEnds(str(tmp_path), 2.0)
    stepping(steps, [10] * 100 + [15] * 200)
    assert told(tmp_path)[3] == 15 * MS
    stepping(steps, [25])
    assert channel.messages() == []


def test_a_wish_is_heard_once(tmp_path, channel, stepping):
    steps = StepEnds(str(tmp_path), 0)
    assert stepping(steps, [1, 1]) == [None, None]
    channel.wish(1, 4, 10, "dump-0001-signal")
    found = stepping(steps, [1, 1])
    assert found == [(1, 4, 10, "dump-0001-signal"), None]
    assert StepEnds(str(tmp_path), 0).ended(1) is None  # of a process that began after it


@pytest.mark.parametrize(("wished", "first"), [(0, 4), (2, 4), (4, 4), (5, 5), (7, 7), (8, 4), (500, 4)])
def test_ranks_in_lockstep_profile_the_same_steps_and_others_their_next(tmp_path, channel, stepping, wished, first):
    steps = StepEnds(str(tmp_path), 0)
    stepping(steps, [1, 1])
    channel.wish(1, wished, 10, "d")
    [wish] = stepping(steps, [1])
    assert wish.first == first


def test_a_recorder_that_is_gone_is_no_matter(tmp_path, stepping):
    steps = StepEnds(str(tmp_path / "gone"), 2.0)
    assert stepping(steps, [*[10] * 10, 100]) == [None] * 11
    assert not list(tmp_path.glob("gone"))


def test_a_pipe_that_nobody_reads_is_no_matter(tmp_path):
    (tmp_path / ".job").mkdir()
    os.mkfifo(tmp_path / ".job" / "asked")
    steps = StepEnds(str(tmp_path), 2.0)
    steps.tell(ask="slow-step")
    reader = os.open(tmp_path / ".job" / "asked", os.O_RDONLY | os.O_NONBLOCK)
    for _ in range(3000):  # more than a pipe holds
        steps.tell(ask="slow-step")
    assert json.loads(os.read(reader, 1 << 16).splitlines()[0])["ask"] == "slow-step"
    os.close(reader)


@pytest.mark.usefixtures("channel")
def test_the_window_slides_as_a_sorted_list_would(tmp_path, stepping):
    times = [(7 * i * i) % 50 + 1 for i in range(150)]
    steps = StepEnds(str(tmp_path), 0)
    for i, took in enumerate(times):
        stepping(steps, [took])
        before = sorted(int(each * MS) for each in times[1:i][-_stepscope_step_messages._WINDOW :])
        assert told(tmp_path)[3] == (before[len(before) // 2] if len(before) >= 8 else 0)
    assert list(accumulate(times))[-1] * MS + 10**12 == told(tmp_path)[1]
