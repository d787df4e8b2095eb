from __future__ import annotations

import os
import pathlib

import pytest

from stepscope.query.workers import _plan
from stepscope.query.workers._plan import Plan, cores, memory_bytes, plan

MB, GB = 10**6, 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores, 100 GB of which 80 are ours."""
    monkeypatch.setattr(_plan, "cores", lambda: 8)
    monkeypatch.setattr(_plan, "memory_bytes", lambda: 100 * GB)


@pytest.fixture
def of(tmp_path):
    def made(*sizes, suffix=".json", **options):
        paths = []
        for i, size in enumerate(sizes):
            path = tmp_path / f"rank{i}{suffix}"
            with path.open("wb") as file:
                file.truncate(int(size))
            paths.append(str(path))
        return plan(paths, **options)

    return made


def test_there_is_a_worker_for_each_core_or_file(of):
    assert of(*[500 * MB] * 20).n_workers == 8
    assert of(*[500 * MB] * 3).n_workers == 3


def test_little_work_is_done_here(of):
    assert of(*[MB] * 8).n_workers == 0
    assert of(*[MB] * 8, suffix=".json.gz").n_workers == 0
    assert of(*[20 * MB] * 8, suffix=".json.gz").n_workers == 8
    assert of(10 * GB).n_workers == 0


def test_one_core_gets_no_worker(of, monkeypatch):
    monkeypatch.setattr(_plan, "cores", lambda: 1)
    assert of(*[GB] * 4).n_workers == 0


def test_memory_bounds_the_workers(of):
    each = of(GB).worker_bytes
    assert 0.9 * GB < each < 1.2 * GB
    assert of(*[GB] * 20, memory_limit=4 * GB).n_workers == 3
    assert of(*[GB] * 20, memory_limit=MB).n_workers == 1  # less is not possible
    assert of(*[20 * GB] * 20).n_workers == 4
    assert of(*[GB] * 20, workers=16, memory_limit=4 * GB).n_workers == 3


def test_a_number_can_be_asked_for(of):
    assert of(*[MB] * 8, workers=5).n_workers == 5
    assert of(*[MB] * 3, workers=5).n_workers == 3
    assert of(*[GB] * 8, workers=0) == Plan(0, of(GB).worker_bytes)


def test_stores_unpack_to_much_more(tmp_path):
    folder = tmp_path / "rank0"
    folder.mkdir()
    (folder / "spans.parquet").write_bytes(b"x" * 10 * MB)
    assert plan([str(folder)]).worker_bytes > 250 * MB * 0.9


def test_objects_elsewhere_are_not_asked_for_their_size():
    assert plan([f"s3://nowhere/rank{i}.json" for i in range(20)]) == Plan(8, plan(["s3://x/y"]).worker_bytes)
    assert 200 * MB < plan(["s3://x/y"]).worker_bytes < 300 * MB


def test_objects_in_the_memory_of_this_process_are_read_here():
    assert plan([f"memory://x/rank{i}.json" for i in range(20)], workers=4).n_workers == 0


def test_what_is_not_there_counts_as_nothing():
    assert plan(["/nothing"]).worker_bytes == plan([]).worker_bytes


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
    assert (cores(), memory_bytes()) == (1, _plan._UNKNOWN_BYTES)
