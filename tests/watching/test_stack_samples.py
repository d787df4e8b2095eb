"""Stacks of a job without a profiler are sampled once when it has started, and not of one with a profiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest

from stepscope.watching import stack_samples
from stepscope.watching.stack_samples import HealthyStacks

JOB = "import time\ndef wait_for_data():\n    time.sleep(60)\nwait_for_data()\n"


@pytest.fixture
def sampled(monkeypatch):
    """What was sampled."""
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(stack_samples, "sample", lambda folder, pid: calls.append((folder.name, pid)))
    return calls


def _notes(folder, *processes):
    (folder / ".job").mkdir()
    (folder / ".job" / "notes").write_text("".join(json.dumps(one) + "\n" for one in processes))


def _seen(folder, *steps):
    healthy = HealthyStacks(folder)
    for one in steps:
        healthy.see(one)
    time.sleep(0.05)


def test_a_job_is_sampled_once_after_its_first_steps(tmp_path, sampled):
    _notes(tmp_path, {"pid": 7, "python": "3.11.7"})
    _seen(tmp_path, [(7, 49)], [(7, 60), (8, 60)], [(7, 70)])
    assert sampled == [(tmp_path.name, 7)]


def test_a_job_with_a_profiler_or_with_stacks_is_not_sampled(tmp_path, sampled):
    _notes(tmp_path, {"pid": 7, "python": "3.11.7"}, {"pid": 7, "torch": "2.13.0"})
    assert stack_samples.has_profiler(tmp_path)
    _seen(tmp_path, [(7, 60)])
    shutil.rmtree(tmp_path / ".job")
    assert not stack_samples.has_profiler(tmp_path)
    (tmp_path / "stacks.tsv.gz").touch()
    _seen(tmp_path, [(7, 60)])
    assert sampled == []


def test_without_py_spy_there_are_no_stacks(tmp_path, monkeypatch):
    monkeypatch.setattr("stepscope.record.stacks.py_spy.program", lambda: None)
    stack_samples.sample(tmp_path, 7)
    assert stack_samples.span_s(tmp_path) is None


@pytest.mark.slow
def test_a_process_is_sampled_for_some_seconds(tmp_path):
    began = time.time()
    with subprocess.Popen([sys.executable, "-c", JOB]) as job:
        time.sleep(0.5)
        stack_samples.sample(tmp_path, job.pid, 1.5)
        job.kill()
    span = stack_samples.span_s(tmp_path)
    assert span is not None
    assert began < span[0] < span[1] < time.time()
