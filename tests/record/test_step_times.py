"""Durations of steps that the hook shares are read once each, and the last 512 after a pause."""

from __future__ import annotations

import os
import sys

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record import step_times
from stepscope.record.recording import _STARTUP
from stepscope.record.step_times import RunningJob

sys.path.append(str(_STARTUP))

import _stepscope_step_messages as messages


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Ends steps of these durations."""
    (tmp_path / ".job").mkdir()
    now = [10**9]
    monkeypatch.setattr(messages.time, "monotonic_ns", lambda: now[0])
    ends = messages.StepEnds(str(tmp_path), 0)

    def run(*times: int) -> None:
        for took in times:
            now[0] += took
            run.n += 1
            ends.ended(run.n)

    run.n, run.ends = 0, ends
    return run


def test_each_step_is_read_once_and_those_of_a_profiler_have_no_time(tmp_path, steps):
    job = RunningJob.open(tmp_path)
    steps(5, 7, 8)
    [row] = job.steps({})
    assert (row.pid, row.n, row.times_ns) == (os.getpid(), 3, (0, 7, 8))
    steps.ends.skip()
    steps(100, 9)
    [row] = job.steps({os.getpid(): 3})
    assert (row.n, row.times_ns) == (5, (0, 9))


def test_after_a_long_pause_the_last_steps_are_read(tmp_path, steps):
    steps(*range(1, 2001))
    [row] = RunningJob(tmp_path).steps({os.getpid(): 7})
    assert row.times_ns == tuple(range(2000 - 510, 2001))


def test_a_folder_without_a_running_recording_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(step_times, "_APPEARS_S", 0)
    with pytest.raises(StepscopeError, match="no recording runs"):
        RunningJob.open(tmp_path)
    with pytest.raises(StepscopeError, match="is not recorded"):
        RunningJob.of_process(os.getpid())
