from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.record.system.child_handle import Beside, Ended, begin


def child(code: str, **pipes) -> Beside:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | pipes
    return Beside(subprocess.Popen([sys.executable, "-c", code], **pipes))


def test_what_it_says_first_is_read_alone_and_the_rest_at_its_end():
    beside = child("print('{\"ready\": true}'); print('{\"heard\": \"' + input() + '\"}')")
    assert beside.first_line() == {"ready": True}
    beside.say("42")
    assert beside.end(tell_it=False) == Ended(({"heard": "42"},), None)


def test_an_end_with_an_error_says_how():
    ended = child('print(\'{"error": "disk"}\'); raise SystemExit(3)').end(tell_it=False)
    assert (ended.errors, ended.how) == (["disk"], "exit code 3")
    assert child("import time; time.sleep(60)").end(tell_it=True).how == "signal 15"


def test_a_process_without_pipes_is_a_mistake():
    beside = child("", stdin=None)
    with pytest.raises(TypeError):
        beside.say("x")
    assert beside.end(tell_it=False).how is None


def test_a_module_of_the_recorder_is_started_with_what_it_is_to_do(tmp_path):
    beside = begin("counters.sampler", {"folder": str(tmp_path / "gone"), "hz": 20.0, "seconds": None, "ring": None})
    assert "cannot write" in beside.first_line()["error"]
    assert beside.end(tell_it=False).how == "exit code 1"
