from __future__ import annotations

import errno
import mmap
import os
import select
import struct
import subprocess
import sys

import pytest

from stepscope.record.sched import perf
from stepscope.record.sched.perf import Switches, why_not


@pytest.fixture
def switches():
    why = why_not()
    if why is not None:
        pytest.skip(f"perf events cannot be used here: {why}")
    found = Switches()
    yield found
    found.close()


def test_switches_of_a_process_and_its_children_arrive(switches):
    code = "import subprocess, time, sys\nsys.stdin.read(1)\nfor _ in range(30): time.sleep(0.001)\n"
    code += "subprocess.run(['sleep', '0.01'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as job:
        assert switches.follow(job.pid) == [(job.pid, job.pid)]
        poll = select.poll()
        switches.register(poll)
        switches.unregister(poll)
        job.communicate(b"x")
    switches.stop()
    assert (switches.facts(), switches.new_threads(job.pid), switches.lost()) == ({}, [], {})
    content = b"".join(records for _, records in switches.read())
    pids, at = set(), 0
    while at < len(content):
        kind, _, size = struct.unpack_from("<IHH", content, at)
        if kind == 14:
            pids.add(struct.unpack_from("<I", content, at + size - 24)[0])
        at += size
    assert at == len(content)
    assert job.pid in pids
    assert len(pids) == 2
    assert switches.unread() == 0


def test_a_process_that_is_gone_gives_nothing(switches):
    with subprocess.Popen(["true"]) as gone:
        pass
    assert switches.follow(gone.pid) == []
    switches._follow(gone.pid)
    assert switches.read() == []


def refusing(code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    return refuse


def test_why_it_cannot_be_used_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setattr(perf, "_open", refusing(errno.EACCES))
    monkeypatch.setattr(perf, "read_once", lambda _: "4\n")
    assert why_not() == "sudo sysctl kernel.perf_event_paranoid=2 (it is 4)"
    monkeypatch.setattr(perf, "read_once", lambda _: "-1\n")
    assert "--cap-add PERFMON" in why_not()
    monkeypatch.setattr(perf, "read_once", lambda _: None)
    assert "--cap-add PERFMON" in why_not()
    monkeypatch.setattr(perf, "_open", refusing(errno.ENOSYS))
    assert "not available: Function not implemented" in why_not()


def test_other_errors_are_errors(monkeypatch):
    monkeypatch.setattr(perf, "_open", refusing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        Switches()._follow(os.getpid())


def test_machines_whose_calls_are_not_known_have_none(monkeypatch):
    monkeypatch.setattr(perf.platform, "machine", lambda: "vax")
    assert "not known on vax" in why_not()


def test_records_around_the_end_of_the_buffer_are_joined():
    buffer = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    size = mmap.PAGESIZE
    buffer[size:] = bytes(range(256)) * (size // 256)
    head, tail = 3 * size + 8, 3 * size - 16
    struct.pack_into("<QQ", buffer, 1024, head, tail)
    assert perf._records(buffer) == bytes(range(240, 256)) + bytes(range(8))
    assert struct.unpack_from("<QQ", buffer, 1024) == (head, head)
    assert perf._records(buffer) == b""
