from __future__ import annotations

import os
import pathlib
import threading

import pytest

from stepscope.core import machine
from stepscope.core.machine import cores, cores_at_most, cores_for_threads, memory_bytes, threads_for

MEMINFO = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\nHugePages: 0\n"


@pytest.fixture
def system(monkeypatch):
    """What the files of the system say; others are not there."""
    texts = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/job\n"}

    def read_text(self, **_):
        if str(self) not in texts:
            raise FileNotFoundError(2, "no such file", str(self))
        return texts[str(self)]

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    monkeypatch.setattr(pathlib.Path, "exists", lambda self: str(self) in texts)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    return texts


def test_without_limits_it_is_what_the_machine_has(system):
    assert cores() == 6
    assert memory_bytes() == 20_000_000 * 1024
    system["/proc/self/cgroup"] = "1:name=systemd:/\n"
    assert (cores(), memory_bytes()) == (6, 20_000_000 * 1024)


@pytest.mark.parametrize(
    ("quota", "expected"), [("200000 100000", 2), ("max 100000", 6), ("50000 100000", 1), ("9", 6)]
)
def test_a_container_s_share_of_the_cores_counts(system, quota, expected):
    system["/sys/fs/cgroup/job/cpu.max"] = quota
    assert cores() == expected


def test_what_a_container_has_left_counts(system):
    system["/sys/fs/cgroup/memory.max"] = "4000000000\n"  # seen from inside, the group is the root
    system["/sys/fs/cgroup/memory.current"] = "1000000000\n"
    assert memory_bytes() == 3_000_000_000
    system["/sys/fs/cgroup/memory.current"] = "5000000000\n"
    assert memory_bytes() == 0
    system["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory_bytes() == 20_000_000 * 1024


def test_systems_without_such_files_are_asked_otherwise(system, monkeypatch):
    system.clear()
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert (cores(), memory_bytes()) == (3, 4_096_000)

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert (cores(), memory_bytes()) == (1, machine._UNKNOWN_BYTES)


@pytest.mark.usefixtures("system")
def test_a_caller_may_allow_fewer_cores():
    with cores_at_most(2):
        assert cores() == 2
        with cores_at_most(None):
            assert cores() == 2
    with cores_at_most(0):
        assert cores() == 1
    with cores_at_most(100):
        assert cores() == 6
    assert cores() == 6


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(("share", "expected"), [("", 6), ("2", 2), ("0", 1), ("64", 6), ("many", 6)])
def test_a_worker_process_has_threads_for_its_share_of_the_cores(share, expected, monkeypatch):
    monkeypatch.setenv(machine.SHARE, share)
    assert cores_for_threads() == expected


@pytest.mark.parametrize(
    ("n_cores", "n_rows", "is_mine"), [(2, 10**6, False), (1, 10**6, True), (2, 1_000, True), (2, 10**8, True)]
)
def test_work_on_many_rows_runs_at_the_same_time(n_cores, n_rows, is_mine, monkeypatch):
    monkeypatch.setattr(machine, "cores_for_threads", lambda: n_cores)
    with threads_for(n_rows) as start:
        ran_on, failed = start(threading.get_ident), start(int, "seven")
        assert (ran_on() == threading.get_ident()) is is_mine
        with pytest.raises(ValueError, match="seven"):
            failed()
