"""Times of steps are read once each while a job runs, also after a pause."""

from __future__ import annotations

import os
import sys

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record import step_times
from stepscope.record.recording import _STARTUP
from stepscope.record.step_times import RunningJob

sys.path.append(str(_STARTUP))

import _stepscope_step_times as hook


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Ends steps that take so many µs."""
    (tmp_path / ".job").mkdir()
    now = [10**9]
    monkeypatch.setattr(hook.time, "monotonic_ns", lambda: now[0])

    def run(*times: int, kind="", rank=None) -> hook.StepTimes:
        ends = hook.StepTimes(str(tmp_path), rank, kind)
        for took in times:
            now[0] += took * 1000
            ends.ended(2, is_unlike=took == 100)
        ends.flush()
        return ends

    return run


def test_each_step_is_read_once_and_those_of_a_profiler_have_no_time(tmp_path, steps):
    steps(5, 7, 100, 8, rank=3)
    job = RunningJob.open(tmp_path)
    assert job.steps({}) == [(os.getpid(), 3, 3, (7000, 0, 8000), (1, 1, 1))]
    assert job.steps({os.getpid(): 2}) == [(os.getpid(), 3, 3, (8000,), (1,))]
    assert job.steps({os.getpid(): 3})[0].times_ns == ()


def test_what_comes_before_another_thread_goes_on_is_no_step(tmp_path, steps, monkeypatch):
    now = [10**9]
    ends = steps(5, 7)
    monkeypatch.setattr(hook.time, "monotonic_ns", lambda: now[0])
    now[0] += 900_000_000
    ends.paused()
    now[0] += 8000
    ends.ended(2, is_unlike=False)
    ends.flush()
    [row] = RunningJob.open(tmp_path).steps({})
    assert (row.times_ns, row.counts) == ((7000, 0, 8000), (1, 0, 1))  # a pause is no step


def test_the_job_s_own_marks_count(tmp_path, steps):
    steps(5, 7, 8)
    steps(9, 9, kind=".loop")
    [row] = RunningJob(tmp_path).steps({})
    assert row.times_ns == (9000,)


def test_half_a_mark_waits_and_a_file_that_has_only_begun_is_left_out(tmp_path, steps):
    steps(5, 7, 8)
    path = tmp_path / f"pid{os.getpid()}.steps"
    path.write_bytes(path.read_bytes()[:-3])
    assert RunningJob(tmp_path).steps({})[0].n == 1
    path.write_bytes(b"STEP")
    assert RunningJob(tmp_path).steps({}) == []


def test_a_long_wait_for_a_folder_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(step_times, "_BEGINS_S", 0)
    monkeypatch.setattr(step_times, "_APPEARS_S", 0.3)
    told = []
    with pytest.raises(StepscopeError, match="no recording runs"):
        RunningJob.open(tmp_path / "nothing", told.append)
    assert len(told) == 1
    assert 0 < told[0] <= 0.3


def test_a_folder_without_a_running_recording_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(step_times, "_BEGINS_S", 0)
    with pytest.raises(StepscopeError, match="no recording runs"):
        RunningJob.open(tmp_path)
    monkeypatch.setattr(step_times, "_APPEARS_S", 0)
    with pytest.raises(StepscopeError, match="no recording runs"):
        RunningJob.open(tmp_path / "nothing")
    file = tmp_path / "trace.json"
    file.write_text("{}")
    monkeypatch.undo()
    with pytest.raises(StepscopeError, match="no recording runs"):
        RunningJob.open(file)
    with pytest.raises(StepscopeError, match="is not recorded"):
        RunningJob.of_process(os.getpid())


def test_the_last_steps_have_their_times_and_can_be_written_again(tmp_path, steps):
    steps(5, 7, 100, 8, 9)
    first, timed = RunningJob(tmp_path).last_steps(os.getpid(), 3)
    assert first == 1
    assert [(step.time_ns, step.n_steps) for step in timed] == [(0, 1), (8000, 1), (9000, 1)]
    ends = [round((step.end_s - timed[-1].end_s) * 1e6) for step in timed]
    assert ends == [-17, -9, 0]
    assert timed[-1].begin_s == pytest.approx(timed[-2].end_s, abs=1e-6)
    again = tmp_path / "again"
    again.mkdir()
    step_times.write_steps(again, os.getpid(), timed[1:])
    _, written = RunningJob(again).last_steps(os.getpid(), 3)
    assert [step.time_ns for step in written] == [8000, 9000]
    assert written[-1].end_s == pytest.approx(timed[-1].end_s, abs=2e-6)
    assert RunningJob(again).last_steps(1, 3) == (0, [])
    assert RunningJob(again).steps_within(os.getpid(), written[1].begin_s + 1e-6, 2e9) == written[1:]


def test_a_pause_between_steps_that_are_written_is_none_of_them(tmp_path):
    steps = [step_times.TimedStep(at, 10**9, 1) for at in (1000.0, 1001.0, 9000.0)]
    step_times.write_steps(tmp_path, 7, steps)
    _, written = RunningJob(tmp_path).last_steps(7, 99)
    assert [(step.end_s, step.n_steps) for step in written if step.n_steps] == [(1000, 1), (1001, 1), (9000, 1)]
    assert [step.time_ns for step in written] == [10**9, 10**9, 0, 0, 10**9]
