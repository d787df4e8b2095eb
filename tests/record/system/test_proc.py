from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
import time
from pathlib import Path

import pytest

from stepscope.record.system import proc
from stepscope.record.system.proc import (
    OpenFiles,
    cgroup_cpu_stats,
    core_times,
    counted_lines,
    descendants,
    disk_bytes,
    is_alive,
    meminfo_bytes,
    n_threads,
    net_bytes,
    pressure_us,
    process_stat,
    read_once,
    schedstat_ns,
    switches,
    threads_of,
)


def test_threads_of_a_process_and_its_children_with_their_process(monkeypatch):
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    with subprocess.Popen(["sleep", "60"]) as child:
        found = threads_of(os.getpid())
        child.kill()
    go_on.set()
    thread.join()
    assert found[os.getpid()] == found[thread.native_id] == os.getpid()
    assert found[child.pid] == child.pid
    monkeypatch.setattr(proc, "descendants", lambda _: [child.pid])  # gone since it was listed
    assert threads_of(child.pid) == {}


def test_descendants_are_found_and_the_dead_are_not():
    with subprocess.Popen(["sh", "-c", "sleep 60 & sh -c 'sleep 60; true'; true"]) as job:
        try:
            deadline = time.monotonic() + 20
            while len(descendants(job.pid)) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            found = descendants(job.pid)
            assert found[0] == job.pid
            assert job.pid in descendants(os.getpid())
        finally:
            for pid in reversed(descendants(job.pid)):
                with contextlib.suppress(ProcessLookupError):  # its parent ended it
                    os.kill(pid, 9)
        while is_alive(job.pid):  # it waits to be reaped then, and lives no more
            time.sleep(0.01)
        assert os.path.exists(f"/proc/{job.pid}")  # noqa: PTH110
        assert descendants(job.pid) == []
    assert not is_alive(job.pid)


def test_a_kept_file_is_opened_once_and_read_as_it_is_now(tmp_path):
    path = tmp_path / "total"
    path.write_text("1")
    kept = OpenFiles()
    assert kept.read(str(path)) == b"1"
    path.write_text("22")
    assert (kept.read(str(path)), len(kept)) == (b"22", 1)
    kept.close()
    assert len(kept) == 0


def test_a_file_that_is_not_there_is_asked_for_again(tmp_path):
    kept = OpenFiles()
    path = tmp_path / "later"
    assert kept.read(str(path)) is None
    path.write_text("now")
    assert kept.read(str(path)) == b"now"


def test_a_file_that_cannot_be_read_any_more_is_closed(tmp_path):
    kept = OpenFiles()
    (tmp_path / "f").write_text("x")
    kept.read(str(tmp_path / "f"))
    os.close(next(iter(kept._open.values())))
    kept._open[str(tmp_path / "f")] = os.open(tmp_path, os.O_RDONLY)  # a folder: pread fails
    assert kept.read(str(tmp_path / "f")) is None
    assert len(kept) == 0


def test_beyond_the_limit_files_are_read_without_being_kept(tmp_path):
    kept = OpenFiles(most=1)
    for name in "ab":
        (tmp_path / name).write_text(name)
        assert kept.read(str(tmp_path / name)) == name.encode()
    assert len(kept) == 1


def test_files_are_read_together_and_those_that_are_gone_left_out(tmp_path, monkeypatch):
    kept = OpenFiles()
    a, b, none = (str(tmp_path / name) for name in ("a", "b", "none"))
    for path in (a, b):
        Path(path).write_text(Path(path).name)
    for _ in range(2):
        texts = kept.read_all([a, none, b])
        assert texts == {a: b"a", b: b"b"}
        assert (texts.read(a), texts.read(none)) == (b"a", None)
    pread = os.pread

    def gone(handle, size, at):  # as a thread's file is, once it has ended
        if handle == kept_of_a:
            raise ProcessLookupError
        return pread(handle, size, at)

    kept_of_a = kept._open[a]
    os.unlink(a)  # noqa: PTH108  the other half of os.open
    monkeypatch.setattr(proc.os, "pread", gone)
    assert kept.read_all([a, b]) == {b: b"b"}
    assert list(kept._open) == [b]


def test_files_of_a_folder_are_dropped_together(tmp_path):
    kept = OpenFiles()
    for name in ("1", "12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_text(name)
        kept.read(f"{tmp_path}/{name}/stat")
    kept.drop_below(f"{tmp_path}/1/")
    assert list(kept._open) == [f"{tmp_path}/12/stat"]
    kept.close()


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits, found in (
        ((1024, 4096), 4096),
        ((1024, resource.RLIM_INFINITY), 1 << 16),
        ((4096, 4096), 4096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1 << 16),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert proc._raised_limit() == found
    assert asked == [(4096, 4096), (1 << 16, resource.RLIM_INFINITY)]


def test_a_file_is_read_once_or_not_at_all(tmp_path):
    (tmp_path / "f").write_bytes(b"a\xff")
    assert read_once(str(tmp_path / "f")) == "a\ufffd"
    assert read_once(str(tmp_path / "none")) is None
    assert read_once(str(tmp_path)) is None


STAT = (
    b"4242 (a (b) c) S 17 4242 4242 0 -1 4194304 900 11 33 0 50 25 1 2 20 0 6 0 12345 1000 200 18446744073709551615\n"
)


def test_cores_are_busy_unless_idle_or_waiting_for_disks():
    text = b"cpu  10 1 5 80 4 2 3 1 7 0\ncpu1 10 1 5 80 4 2 3 1 7 0\nintr 9\ncpu9 1 1 1 1 1 1 1 1\n"
    assert core_times(text) == {"host": (22, 106), "cpu1": (22, 106)}


def test_memory_is_given_in_bytes():
    text = b"MemTotal:       1000 kB\nMemAvailable:    600 kB\nHugePages_Total:       0\n"
    assert meminfo_bytes(text) == {"MemTotal": 1_024_000, "MemAvailable": 614_400}


def line(name: str, read: int = 0, written: int = 0, open_ms: int = 0) -> str:
    return f"   8 0 {name} 1 2 {read} 4 5 6 {written} 8 9 {open_ms} 11"


def test_whole_disks_are_counted_and_neither_partitions_nor_what_is_made_of_them():
    names = ("sda", "sda1", "nvme0n1", "nvme0n1p2", "loop0", "dm-0", "md0", "vdb", "ram1", "zram0")
    text = "\n".join([*(line(name, 2, 4, 7) for name in names), "short"]).encode()
    assert disk_bytes(text) == dict.fromkeys(("sda", "nvme0n1", "vdb"), (1024, 2048, 7))


def test_interfaces_are_read_below_their_header():
    text = b"Inter-| Receive\n face |bytes\n    lo: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  eth0:30 1 0 0 0 0 0 0 40 1\n\n"
    assert net_bytes(text) == {"lo": (10, 20), "eth0": (30, 40)}


def test_pressure_of_an_older_kernel_may_lack_a_line():
    assert pressure_us(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n") == {"some": 12}
    assert pressure_us(b"") == {}


def test_a_process_name_may_hold_anything():
    found = process_stat(STAT)
    assert found is not None
    assert (found.parent, found.minor_faults, found.major_faults) == (17, 900, 33)
    assert (found.n_threads, found.ticks, found.start_ticks) == (6, 75, 12345)


@pytest.mark.parametrize("text", [b"", b"1 (a) S", STAT[:40]])
def test_a_line_that_is_cut_short_is_no_process(text):
    assert process_stat(text) is None


def test_a_thread_ran_and_waited():
    assert schedstat_ns(b"5000 70 3\n") == (5000, 70)


def test_switches_are_told_apart():
    assert switches(b"Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n") == (5, 7)


def test_a_line_that_is_not_there_counts_nothing():
    assert counted_lines(b"nr_periods 5\nthrottled_usec 9\nodd\nword text\n", b"throttled_usec", b"no") == [9, 0]


def test_the_group_of_a_process_is_found_in_both_versions():
    assert cgroup_cpu_stats("0::/\n") == ["/sys/fs/cgroup/cpu.stat"]
    assert cgroup_cpu_stats("4:memory:/m\n3:cpu,cpuacct:/docker/ab\nbad\n") == [
        "/sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.stat",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
    ]


def test_a_name_that_begins_like_another_is_not_taken_for_it():
    text = b"read_bytes_more: 5\nold read_bytes: 7\nread_bytes: x\nread_bytes:\t 6 kB\n"
    assert counted_lines(text, b"read_bytes", b"bytes", b"read_bytes_more") == [6, 0, 5]


def test_the_number_of_threads_is_that_of_the_whole_line():
    line = b"7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 12 0 99 0 0"
    assert n_threads(line) == process_stat(line).n_threads == 12
    assert n_threads(line[:30]) == 0
