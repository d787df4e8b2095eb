from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stepscope.record.sched.sched_process import Collector, started
from stepscope.record.system import child_handle, meta


def child(code: str) -> Collector:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return Collector(child_handle.Beside(subprocess.Popen([sys.executable, "-c", code], **pipes)))


def test_nothing_is_started_that_is_not_wanted(tmp_path):
    collector = started(tmp_path, wanted=False)
    collector.send(1)
    assert collector.end(tell_it=True) == []


def test_what_went_wrong_is_told():
    collector = child('print(\'{"ready": true}\'); print(\'{"error": "disk"}\'); raise SystemExit(1)')
    assert collector.end() == ["disk"]
    assert child("raise SystemExit(3)").end() == ["the collector of scheduling events ended early (exit code 3)"]


def test_one_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(child_handle, "_END_S", 0.2)
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    assert child(code).end() == ["the collector of scheduling events ended early (signal 9)"]


def test_one_that_is_gone_is_told_nothing():
    collector = child("")
    collector.beside.process.wait()
    collector.send(1)
    assert collector.end(tell_it=True) == []


@pytest.mark.parametrize("told", ["", "{}\n", "[]\n", '{"issue": null}\n', '{"issue": {"code": "no_scheduling"}}\n'])
def test_what_it_cannot_record_is_an_issue(tmp_path, monkeypatch, told):
    meta.write(tmp_path, {"issues": []})
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nprintf '%s' '{told}'\ncat\n")
    fake.chmod(0o755)
    monkeypatch.setattr(child_handle, "_READY_S", 0.5)
    monkeypatch.setattr(child_handle.sys, "executable", str(fake))
    collector = started(tmp_path, wanted=True)
    assert collector.end() == []
    issues = json.loads((tmp_path / "meta.json").read_text())["issues"]
    assert [issue["code"] for issue in issues] == (["no_scheduling"] if "code" in told else [])
