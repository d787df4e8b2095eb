from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from py_spies import fake

from stepscope.record.stacks import stack_process
from stepscope.record.stacks.stack_file import NAME
from stepscope.record.system import child_handle


def test_nothing_is_started_where_no_stacks_are_wanted(tmp_path):
    keeping = stack_process.begin(tmp_path, None)
    keeping.send(1)
    assert keeping.environment() == {}
    kept = keeping.end()
    assert (kept.fields, kept.issues, kept.remarks) == ({}, (), ())


def test_a_missing_py_spy_is_told_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_process.pyspy, "program", lambda: None)
    kept = stack_process.begin(tmp_path, 100).end()
    assert kept.remarks == ("no Python stacks: py-spy is not installed: pip install 'stepscope[record]'",)
    assert kept.issues[0]["code"] == "no_stacks"


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    program = fake(tmp_path)
    monkeypatch.setattr(stack_process.pyspy, "program", lambda: program)
    begun = stack_process.begin(tmp_path, 100)
    yield begun
    begun.beside.process.kill()
    begun.beside.process.communicate()


def test_what_is_kept_and_what_is_amiss_comes_back(tmp_path, keeping):
    assert keeping.environment() == {"STEPSCOPE_RECORD_TRACER": str(keeping.beside.process.pid)}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as job:
        keeping.send(job.pid)
        time.sleep(2.0)
        kept = keeping.end()
        job.kill()
    assert kept.fields["n_stack_samples"] > 0
    assert set(kept.fields["stacks_cpu_seconds"]) == {"keeping", "py-spy"}
    assert [issue["code"] for issue in kept.issues] == ["stacks_unread"]
    assert kept.remarks == ()  # that is no more than a note
    assert (tmp_path / NAME).exists()


def test_without_a_job_it_ends_and_says_nothing(tmp_path, keeping):
    keeping.beside.process.stdin.close()
    assert keeping.beside.process.wait(30) == 1
    keeping.beside.process.stdin = None
    assert keeping.end().issues[0]["code"] == "stacks_ended"
    assert not (tmp_path / NAME).exists()


def test_one_that_was_killed_is_told(keeping):
    os.kill(keeping.beside.process.pid, signal.SIGKILL)
    keeping.beside.process.wait()
    keeping.send(1)
    (remark,) = keeping.end().remarks
    assert remark == "what keeps Python stacks ended early (signal 9); stacks end there"


def test_one_that_does_not_end_is_killed(keeping, monkeypatch):
    monkeypatch.setattr(child_handle, "_END_S", 0.2)
    os.kill(keeping.beside.process.pid, signal.SIGSTOP)
    assert keeping.end().issues[0]["code"] == "stacks_ended"
