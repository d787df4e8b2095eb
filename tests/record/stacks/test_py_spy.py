from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from py_spies import EVENTS, fake

from stepscope.record.stacks import py_spy
from stepscope.record.stacks import py_spy as _spy
from stepscope.record.stacks.py_spy import PySpyProcess


def test_the_one_beside_our_python_is_taken_or_that_on_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert py_spy.program() is None
    for folder in ("other", "bin"):
        program = tmp_path / folder / "py-spy"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert py_spy.program() == str(program)


def test_a_python_is_known_by_its_program_or_its_library(monkeypatch):
    assert py_spy.is_python(os.getpid())
    with subprocess.Popen(["sleep", "30"]) as job:
        assert not py_spy.is_python(job.pid)
        monkeypatch.setattr(py_spy, "read_once", lambda _: "7f00 r-xp /usr/lib/libpython3.11.so.1.0\n")
        assert py_spy.is_python(job.pid)
        job.kill()
    assert not py_spy.is_python(job.pid)


def test_what_may_be_read_is_not_denied(monkeypatch):
    assert not py_spy.denied(os.getpid())
    assert not py_spy.denied(2**22 + 1)

    def refuse(*_args: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    assert py_spy.denied(os.getpid())


@pytest.fixture
def system(monkeypatch):
    """Sets what the system looks like: files that exist, what they hold, who we are."""

    def set_to(*, scope: str | None = None, caps: str = "0", uid: int = 1000, owner: int = 1000, docker: bool = False):
        held = {"/proc/sys/kernel/yama/ptrace_scope": scope, "/proc/self/status": f"Name:\tx\nCapEff:\t{caps}\n"}
        monkeypatch.setattr(py_spy, "read_once", held.get)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(Path, "exists", lambda path: docker and str(path) == "/.dockerenv")
        monkeypatch.setattr(Path, "stat", lambda _path: os.stat_result((0, 0, 0, 0, owner, 0, 0, 0, 0, 0)))
        return py_spy.remedy(1)

    return set_to


def test_the_remedy_fits_what_is_in_the_way(system):
    assert system(owner=0) == "it runs as root: record as that user, or with sudo"
    assert system(owner=54321) == "it runs as user 54321: record as that user, or with sudo"
    assert system(scope="1\n") == "sudo sysctl kernel.yama.ptrace_scope=0, or record with sudo"
    assert "until the next boot" in system(scope="3\n")
    assert system(scope="0\n") == "record with sudo"
    assert system(scope="1\n", caps="80000") == "record with sudo"
    assert "--cap-add SYS_PTRACE" in system(docker=True)
    assert "--cap-add SYS_PTRACE" in system(uid=0, owner=0)


def test_without_a_word_on_capabilities_or_owner_there_is_still_a_remedy(monkeypatch):
    monkeypatch.setattr(py_spy, "read_once", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert py_spy.remedy(2**22 + 1) == "record with sudo"


def test_words_for_a_look():
    words = py_spy.record_command("/bin/py-spy", 7, 100)
    assert words[:6] == ["/bin/py-spy", "record", "--pid", "7", "--rate", "100"]
    assert "--nonblocking" in words


def until_ready(spy: PySpyProcess) -> None:
    deadline = time.monotonic() + 20
    while spy.ready_ns is None:
        assert spy.listen()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_it_writes_comes_here_and_leaves_no_file(tmp_path):
    program = fake(tmp_path)
    spy = PySpyProcess([program], tmp_path)
    until_ready(spy)
    assert [path.name for path in tmp_path.iterdir()] == ["py-spy"]
    before = time.time_ns()
    spy.interrupt()
    assert json.loads(spy.end()) == EVENTS
    assert b"Samples: 8" in spy.output
    assert spy.process.returncode == 0
    assert spy.cpu_seconds > 0
    # The last time, 9 ms, is that at which it opened the pipe.
    assert before - 9_000_000 <= spy.zero_ns(9000) <= time.time_ns() - 9_000_000 or spy.zero_ns(9000) == spy.ready_ns


def test_its_zero_lies_between_its_start_and_its_first_word(tmp_path):
    spy = PySpyProcess([fake(tmp_path)], tmp_path)
    until_ready(spy)
    spy.interrupt()
    spy.end()
    assert spy.zero_ns(0) == spy.ready_ns
    assert spy.zero_ns(10**9) == spy.started_ns


def test_one_that_dies_before_it_opens_the_pipe_gives_nothing(tmp_path):
    spy = PySpyProcess([fake(tmp_path, after="import os; os.abort()")], tmp_path)
    until_ready(spy)
    spy.interrupt()
    assert spy.end() == b""
    assert spy.process.returncode == -signal.SIGABRT


def test_one_that_has_not_begun_is_killed(tmp_path):
    spy = PySpyProcess([fake(tmp_path, before="time.sleep(60)")], tmp_path)
    spy.interrupt()
    assert spy.end() == b""
    assert spy.process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(_spy, "_END_S", 0.3)
    spy = PySpyProcess([fake(tmp_path, after="time.sleep(60)")], tmp_path)
    until_ready(spy)
    spy.interrupt()
    assert spy.end() == b""


def test_a_program_that_cannot_be_run_is_an_error_and_leaves_no_handle(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No such file"):
        PySpyProcess([str(tmp_path / "nothing")], tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_a_file_system_has_no_pipes_it_lies_elsewhere_for_a_moment(tmp_path, monkeypatch):
    made = []
    mkfifo = os.mkfifo

    def only_elsewhere(path: Path, mode: int) -> None:
        made.append(Path(path).parent)
        if Path(path).parent == tmp_path:
            raise PermissionError
        mkfifo(path, mode)

    monkeypatch.setattr(os, "mkfifo", only_elsewhere)
    monkeypatch.setattr(_spy.tempfile, "gettempdir", lambda: str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    os.close(_spy._pipe(tmp_path))
    assert made == [tmp_path, tmp_path / "t"]
    assert not list((tmp_path / "t").iterdir())
    (tmp_path / "t").rmdir()
    with pytest.raises(FileNotFoundError):
        _spy._pipe(tmp_path)


def test_it_ends_when_we_are_killed(tmp_path):
    program = fake(tmp_path)
    child = os.fork()
    if child == 0:
        spy = PySpyProcess([program], tmp_path)
        until_ready(spy)
        (tmp_path / "pid").write_text(str(spy.process.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
