from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from py_spies import fake

from stepscope.record import child_handles
from stepscope.record.child_handles import (
    ChildHandle,
    Outcome,
    SchedCollector,
    StackRecorder,
    start_sched_collector,
    start_stack_recorder,
)
from stepscope.record.stacks.stack_file import NAME
from stepscope.record.system import meta


def child(code: str, **pipes) -> ChildHandle:
    """A handle of a shell."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | pipes
    return ChildHandle(subprocess.Popen(["sh", "-c", code], **pipes))


def collector_of(code: str) -> SchedCollector:
    return SchedCollector(child(code))


def test_nothing_is_started_that_is_not_wanted(tmp_path):
    collector = start_sched_collector(tmp_path, wanted=False)
    collector.send(1)
    assert collector.end(terminate=True) == []


def test_what_went_wrong_is_told():
    collector = collector_of("""echo '{"ready": true}'; echo '{"error": "disk"}'; exit 1""")
    assert collector.end() == ["disk"]
    assert collector_of("exit 3").end() == ["the collector of scheduling events ended early (exit code 3)"]


def test_one_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(child_handles, "_END_S", 0.2)
    assert collector_of("trap '' TERM; exec sleep 60").end() == [
        "the collector of scheduling events ended early (signal 9)"
    ]


def test_one_that_is_gone_is_told_nothing():
    collector = collector_of("")
    collector.child.process.wait()
    collector.send(1)
    assert collector.end(terminate=True) == []


@pytest.mark.parametrize("told", ["", "{}\n", "[]\n", '{"issue": null}\n', '{"issue": {"code": "no_scheduling"}}\n'])
def test_what_it_cannot_record_is_an_issue(tmp_path, monkeypatch, told):
    meta.write(tmp_path, {"issues": []})
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nprintf '%s' '{told}'\ncat\n")
    fake.chmod(0o755)
    monkeypatch.setattr(child_handles, "_READY_S", 0.2)
    monkeypatch.setattr(child_handles.sys, "executable", str(fake))
    collector = start_sched_collector(tmp_path, wanted=True)
    assert collector.end() == []
    issues = json.loads((tmp_path / "meta.json").read_text())["issues"]
    assert [issue["code"] for issue in issues] == (["no_scheduling"] if "code" in told else [])


def test_what_it_says_first_is_read_alone_and_the_rest_at_its_end():
    handle = child("""echo '{"ready": true}'; read -r line; echo "{\\"heard\\": \\"$line\\"}" """)
    assert handle.first_message() == {"ready": True}
    handle.send("42")
    assert handle.end(terminate=False) == Outcome(({"heard": "42"},), None)


def test_an_end_with_an_error_says_how():
    ended = child("""echo '{"error": "disk"}'; exit 3""").end(terminate=False)
    assert (ended.errors, ended.early_end) == (["disk"], "exit code 3")
    assert child("exec sleep 60").end(terminate=True).early_end == "signal 15"


def test_a_process_without_pipes_is_a_mistake():
    handle = child("", stdin=None)
    with pytest.raises(TypeError):
        handle.send("x")
    assert handle.end(terminate=False).early_end is None


def test_a_module_of_the_recorder_is_started_with_what_it_is_to_do(tmp_path):
    handle = ChildHandle.start(
        "counters.sampler", {"folder": str(tmp_path / "gone"), "hz": 20.0, "seconds": None, "ring": None}
    )
    assert "cannot write" in handle.first_message()["error"]
    assert handle.end(terminate=False).early_end == "exit code 1"


def test_nothing_is_started_where_no_stacks_are_wanted(tmp_path):
    stack_recorder = start_stack_recorder(tmp_path, None)
    stack_recorder.send(1)
    assert stack_recorder.environment() == {}
    result = stack_recorder.end()
    assert (result.fields, result.issues, result.remarks) == ({}, (), ())


def test_a_missing_py_spy_is_told_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setattr(child_handles.py_spy, "program", lambda: None)
    result = start_stack_recorder(tmp_path, 100).end()
    assert result.remarks == ("no Python stacks: py-spy is not installed: pip install py-spy",)
    assert result.issues[0]["code"] == "no_stacks"


@pytest.mark.slow
def test_the_stack_recorder_runs_py_spy_until_it_is_ended(tmp_path, monkeypatch, wait_until):
    program = fake(tmp_path, ready=f"open({str(tmp_path)!r} + '/ready-' + str(time.time_ns()), 'w')")
    monkeypatch.setattr(child_handles.py_spy, "program", lambda: program)
    stack_recorder = start_stack_recorder(tmp_path, 100)
    assert stack_recorder.environment() == {"STEPSCOPE_RECORD_TRACER": str(stack_recorder.child.process.pid)}
    with subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(60)"]) as job:
        stack_recorder.send(job.pid)
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        time.sleep(0.3)  # until it has read that both sample
        result = stack_recorder.end()
        job.kill()
    assert result.fields["n_stack_samples"] > 0
    assert set(result.fields["stacks_cpu_seconds"]) == {"keeping", "py-spy"}
    assert [issue["code"] for issue in result.issues] == ["stacks_unread"]
    assert result.remarks == ()  # that is no more than a note
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("code", ["exit 1", "kill -9 $$", "exec sleep 60"])
def test_a_stack_recorder_that_reports_nothing_ended_early(monkeypatch, code):
    monkeypatch.setattr(child_handles, "_END_S", 0.2)
    stack_recorder = StackRecorder(child(f"trap '' TERM; echo '{{}}'; {code}"))
    assert stack_recorder.child.first_message() == {}
    stack_recorder.send(1)
    result = stack_recorder.end()
    how = "exit code 1" if code == "exit 1" else "signal 9"
    assert result.remarks == (f"the recorder of Python stacks ended early ({how}); stacks end there",)
    assert (result.issues[0]["code"], result.fields) == ("stacks_ended", {"n_stack_samples": None})
