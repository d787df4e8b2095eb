from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.record.stacks import pyspy


def test_the_one_beside_our_python_is_taken_or_that_on_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert pyspy.program() is None
    for folder in ("other", "bin"):
        program = tmp_path / folder / "py-spy"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert pyspy.program() == str(program)


def test_a_python_is_known_by_its_program_or_its_library(monkeypatch):
    assert pyspy.is_python(os.getpid())
    with subprocess.Popen(["sleep", "30"]) as job:
        assert not pyspy.is_python(job.pid)
        monkeypatch.setattr(pyspy, "read_once", lambda _: "7f00 r-xp /usr/lib/libpython3.11.so.1.0\n")
        assert pyspy.is_python(job.pid)
        job.kill()
    assert not pyspy.is_python(job.pid)


def test_what_may_be_read_is_not_denied(monkeypatch):
    assert not pyspy.denied(os.getpid())
    assert not pyspy.denied(2**22 + 1)

    def refuse(*_args: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    assert pyspy.denied(os.getpid())


@pytest.fixture
def system(monkeypatch):
    """Sets what the system looks like: files that exist, what they hold, who we are."""

    def set_to(*, scope: str | None = None, caps: str = "0", uid: int = 1000, owner: int = 1000, docker: bool = False):
        held = {"/proc/sys/kernel/yama/ptrace_scope": scope, "/proc/self/status": f"Name:\tx\nCapEff:\t{caps}\n"}
        monkeypatch.setattr(pyspy, "read_once", held.get)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(Path, "exists", lambda path: docker and str(path) == "/.dockerenv")
        monkeypatch.setattr(Path, "stat", lambda _path: os.stat_result((0, 0, 0, 0, owner, 0, 0, 0, 0, 0)))
        return pyspy.remedy(1)

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
    monkeypatch.setattr(pyspy, "read_once", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert pyspy.remedy(2**22 + 1) == "record with sudo"


def test_words_for_a_look():
    words = pyspy.look_command("/bin/py-spy", 7, 100)
    assert words[:6] == ["/bin/py-spy", "record", "--pid", "7", "--rate", "100"]
    assert "--nonblocking" in words
