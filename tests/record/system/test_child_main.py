from __future__ import annotations

import os
import select
import signal
import subprocess

import pytest

from stepscope.record.system import child_main
from stepscope.record.system.child_main import Ending, pid_from, pidfd, tell


@pytest.fixture
def pipe(monkeypatch):
    """A pipe whose reading end is standard input."""
    reading, writing = os.pipe()

    class Input:
        def fileno(self):
            return reading

    monkeypatch.setattr(child_main.sys, "stdin", Input())
    yield reading, writing
    for handle in (reading, writing):
        os.close(handle)


def test_it_ends_with_a_signal_and_outlives_those_meant_for_the_job():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    ending = Ending()
    try:
        ending.watch()
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert ending.reason is None
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert ending.reason == "signal 15"


def test_it_ends_with_the_job():
    with subprocess.Popen(["true"]) as job:
        handle = pidfd(job.pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        events = dict(poll.poll(10_000))
    ending = Ending()
    ending.look(events, handle, job.pid)
    assert ending.reason == "job"
    ending.reason = "duration"
    ending.look(events, handle, job.pid)
    assert ending.reason == "duration"  # the first one counts
    os.close(handle)


@pytest.mark.usefixtures("pipe")
def test_without_handles_proc_tells_of_the_jobs_end():
    with subprocess.Popen(["true"]) as job:
        pass
    assert pidfd(job.pid) is None
    ending = Ending()
    ending.look({}, None, os.getpid())
    assert ending.reason is None
    ending.look({}, None, job.pid)
    assert ending.reason == "job"


def test_it_ends_when_nobody_listens_any_more(pipe, monkeypatch):
    reading, writing = pipe
    ending = Ending()
    os.write(writing, b"more\n")
    ending.look({reading: select.POLLIN}, -5, os.getpid())
    assert ending.reason is None
    monkeypatch.setattr(child_main.os, "read", lambda *_: b"")
    ending.look({reading: select.POLLHUP}, -5, os.getpid())
    assert ending.reason == "recorder"


def test_the_pid_comes_as_a_line(pipe, monkeypatch):
    reading, writing = pipe
    os.write(writing, b"123\n")
    assert pid_from(reading) == 123
    parts = iter([b"12", b"34\n", b""])
    monkeypatch.setattr(child_main.os, "read", lambda *_: next(parts))
    assert pid_from(reading) == 1234
    assert pid_from(reading) is None


def test_a_listener_that_is_gone_is_no_error(monkeypatch, capsys):
    assert tell({"ready": True}) == 1
    assert capsys.readouterr().out == '{"ready": true}\n'

    class Gone:
        def write(self, _):
            raise BrokenPipeError

        def fileno(self):
            return handle

    handle = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(child_main.sys, "stdout", Gone())
    assert tell({}) == 1
    os.close(handle)
