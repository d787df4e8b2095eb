"""The steps of a recorded job, until it ends; its recording is asked for causes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record.step_times import Steps, TimedStep
from stepscope.watching import job_source
from stepscope.watching.core_waits import Stretch
from stepscope.watching.job_source import JobSource
from stepscope.watching.streams import Cycles, Stream


class Job:
    """A job of two processes, of which one has a rank."""

    def __init__(self, folder):
        self.folder, self.is_on, self.since = folder, True, {}

    def steps(self, since):
        self.since = since
        return [Steps(7, -1, 2, (5, 0), (1, 1)), Steps(8, 3, 1, (6,), (4,))] if self.is_on else []

    def is_recorded(self):
        return True

    def last_steps(self, _pid, _most):
        return 1, [TimedStep(50.0, 5, 1), TimedStep(51.0, 7, 1)]


def test_processes_are_streams_which_are_read_on(tmp_path):
    job = Job(tmp_path)
    rows = JobSource(job).read({"rank 3": Stream(epoch=8, n=1)})
    assert rows == [Cycles("process 1", 7, 2, (5, 0), (1, 1)), Cycles("rank 3", 8, 1, (6,), (4,))]
    assert job.since == {8: 1}


@pytest.mark.parametrize(("steps", "idle_s"), [(True, 5), (False, 65)])
def test_a_job_that_has_no_steps_any_more_is_over(tmp_path, monkeypatch, steps, idle_s):
    now = [100.0]
    monkeypatch.setattr(job_source.time, "monotonic", lambda: now[0])
    job = Job(tmp_path)
    source = JobSource(job)
    if steps:
        source.read({})
    job.is_on = False
    now[0] += idle_s - 1
    source.read({})
    assert not source.is_over()
    now[0] += 5
    source.read({})
    assert source.is_over()


def test_a_watch_that_got_no_core_for_a_while_goes_on(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(job_source.time, "monotonic", lambda: now[0])
    source = JobSource(Job(tmp_path))
    source.read({})
    now[0] += 60
    assert not source.is_over()
    source.read({})
    assert not source.is_over()


@pytest.mark.parametrize(("free", "status"), [(0, "the disk of run is full, so its steps cannot be read"), (10**6, "")])
def test_a_full_disk_is_said(monkeypatch, free, status):
    monkeypatch.setattr(job_source.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert JobSource(Job(Path("run"))).status() == status


@pytest.fixture(autouse=True)
def _with_a_profiler(monkeypatch):
    """No stacks are sampled of a job that has one."""
    monkeypatch.setattr(job_source.stack_samples, "has_profiler", lambda _: True)


def _alarmed(folder):
    """A job whose process 1 is slow."""
    source = JobSource(Job(folder))
    source.read({})
    return source


ALARM = {"kind": "slow", "stream": "process 1", "step_ns": 5}


def test_without_the_last_seconds_the_cause_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(job_source, "dump", lambda _: (_ for _ in ()).throw(StepscopeError("no ring", "")))
    assert _alarmed(tmp_path).cause(ALARM) == {"text": "cause unknown: no ring", "causes": []}


class Compare:
    """`stepscope compare` with an answer; its commands are kept."""

    def __init__(self, monkeypatch, folder, answer, error=""):
        self.commands: list[list[str]] = []
        self.answer, self.error = answer, error
        (folder / "dump").mkdir()
        (folder / "dump" / "meta.json").write_text('{"end_unix_ns": 1}')
        (folder / "dump" / "job.pt.trace.json.gz").touch()
        monkeypatch.setattr(job_source, "dump", lambda folder: folder / "dump")
        monkeypatch.setattr(job_source.subprocess, "run", self)

    def __call__(self, command, **_options):
        self.commands.append(command)
        return subprocess.CompletedProcess(command, int(bool(self.error)), self.answer, self.error)


def test_the_cause_of_an_alarm_comes_with_a_page(tmp_path, monkeypatch):
    names = ("category", "certainty", "statement", "rank", "explained_ns", "gain", "evidence", "advice")
    cause = dict.fromkeys(names) | {
        "category": "disk_io",
        "certainty": "certain",
        "statement": "The disk is slow.",
    }
    compare = Compare(monkeypatch, tmp_path, json.dumps({"causes": [cause], "verdict": "different"}))
    event = _alarmed(tmp_path).cause(ALARM)
    page = f"{tmp_path}/dump.html"
    assert event == {
        "text": f"cause, certain: disk_io: The disk is slow.; see {page}", "causes": [cause],
        "verdict": "different", "page": page, "is_usual": False, "dump": f"{tmp_path}/dump",
    }  # fmt: skip
    assert [command[7:] for command in compare.commands] == [["--format", "json"], ["--output", page, "--force"]]


def test_a_comparison_that_is_refused_says_why(tmp_path, monkeypatch):
    Compare(monkeypatch, tmp_path, "", "warning: x\nerror: only counters were recorded\nhint: y")
    event = _alarmed(tmp_path).cause(ALARM)
    assert event["text"] == f"cause unknown: only counters were recorded; see stepscope report {tmp_path}/dump"


def test_waits_for_a_core_in_the_slow_steps_are_the_first_cause(tmp_path, monkeypatch):
    Compare(monkeypatch, tmp_path, json.dumps({"causes": [], "verdict": "no_difference"}))
    asked = []

    def stretches_of(*given):
        asked.append(given)
        return Stretch(100.0, 0.0, 90.0), Stretch(200.0, 100.0, 90.0)

    cause = {"category": "cpu_contention", "certainty": "likely", "statement": "It waited."}
    monkeypatch.setattr(job_source.core_waits, "stretches_of", stretches_of)
    monkeypatch.setattr(job_source.core_waits, "cause_of", lambda *_: cause)
    event = _alarmed(tmp_path).cause(ALARM)
    [(counters, pid, steps, from_s, until_s)] = asked
    assert (counters, pid) == (tmp_path / "dump" / "counters.csv.gz", 7)
    assert [step.end_s for step in steps] == [50.0, 51.0]
    assert (from_s, until_s) == (pytest.approx(50), pytest.approx(50))
    assert event["text"].startswith("cause, likely: cpu_contention: It waited.; see ")
    assert event["is_usual"] is True


def test_waits_for_a_core_are_seen_in_the_counters_of_the_recording(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(job_source.core_waits, "stretches_of", lambda *given: asked.append(given))
    source = _alarmed(tmp_path)
    assert not source.waits_for_a_core(ALARM)
    [(counters, pid, *_)] = asked
    assert (counters, pid) == (tmp_path / "counters.csv.gz", 7)
    stretches = Stretch(100.0, 0.0, 90.0), Stretch(200.0, 100.0, 90.0)
    monkeypatch.setattr(job_source.core_waits, "stretches_of", lambda *_: stretches)
    assert source.waits_for_a_core(ALARM)
