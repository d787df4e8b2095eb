from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time

import pytest

from stepscope.record.counters import readings
from stepscope.record.counters.readings import (
    Grown,
    Process,
    Sample,
    cgroup_file,
    cores,
    frequencies,
    garbage_collections,
    machine,
    memory_and_clocks,
    process_bytes,
    process_totals,
    rates,
    sample_now,
    thread_files,
    thread_switches,
    thread_times,
    throttled_ns,
)
from stepscope.record.system.proc import OpenFiles, Texts

SECOND = 1_000_000_000


class Fake(OpenFiles):
    """Files from a dictionary."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)


def sample(seconds: float, total: float = 0, part: float = 0, whole: float = 0) -> Sample:
    clock = int(seconds * SECOND)
    key = ("m", "u", "d")
    return Sample(clock + 7, clock, {("level", "u", "d"): 3.0}, {key: total}, {("share", "%", "d"): (part, whole)})


def test_levels_stand_and_totals_become_growth_per_second():
    found = list(rates(sample(1, 10, 1, 10), sample(1.5, 30, 2, 14)))
    assert found == [("level", "u", "d", 3.0), ("m", "u", "d", 40.0), ("share", "%", "d", 25.0)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, sample(1, 10)),
        (sample(1, 10), sample(1, 20)),  # no time between
        (sample(2, 10), sample(1, 20)),
        (sample(1, 10), sample(2, 5)),  # it began again
        (Sample(0, 0), sample(2, 5)),  # it is new
    ],
)
def test_without_two_readings_there_is_no_rate(before, after):
    assert [metric for metric, *_ in rates(before, after)] == ["level"]


def test_a_sample_of_now_has_both_clocks():
    first, second = sample_now(), sample_now()
    assert first.clock_ns <= second.clock_ns
    assert abs(first.time_ns - second.time_ns) < SECOND


def test_the_machine_is_read_from_the_kernels_files():
    files = {
        "/proc/stat": b"cpu  1 0 0 9 0 0 0 0\n",
        "/proc/pressure/io": b"some total=2\nfull total=1\n",
        "/proc/pressure/cpu": b"some total=3\nfull total=0\n",
        "/proc/diskstats": b" 8 0 sda 1 2 2 4 5 6 4 8 9 7 11\n",
        "/proc/net/dev": b"\n\n lo: 10 1 0 0 0 0 0 0 20 1\n",
    }
    found = Sample(0, 0)
    cores(Fake(files), found)
    machine(Fake(files), found)
    assert found.shares == {("host_cpu_usage", "%", "host"): (1, 10)}
    assert found.totals == {
        ("host_pressure_cpu_some", "ns/s", "host"): 3000,
        ("host_pressure_io_some", "ns/s", "host"): 2000,
        ("host_pressure_io_full", "ns/s", "host"): 1000,
        ("disk_read_bytes_rate", "bytes/s", "sda"): 1024,
        ("disk_write_bytes_rate", "bytes/s", "sda"): 2048,
        ("disk_busy_time", "ns/s", "sda"): 7_000_000,
        ("net_recv_bytes_rate", "bytes/s", "lo"): 10,
        ("net_sent_bytes_rate", "bytes/s", "lo"): 20,
    }


def test_a_machine_without_any_of_the_files_has_no_counters():
    found = Sample(0, 0)
    for read in (cores, machine):
        read(Fake({}), found)
    assert not found.levels | found.totals | found.shares


def test_memory_and_swap_are_levels(monkeypatch):
    monkeypatch.setattr(readings, "frequencies", lambda _: {"cpu0": 2000.0})
    found = Sample(0, 0)
    text = b"MemAvailable: 4 kB\nSwapTotal: 3 kB\nSwapFree: 1 kB\n"
    memory_and_clocks(Fake({"/proc/meminfo": text}), found)
    assert found.levels == {
        ("host_mem_available", "bytes", "host"): 4096,
        ("host_swap_used", "bytes", "host"): 2048,
        ("cpu_frequency", "MHz", "cpu0"): 2000.0,
    }
    bare = Sample(0, 0)
    memory_and_clocks(Fake({}), bare)
    memory_and_clocks(Fake({"/proc/meminfo": b"SwapTotal: 0 kB\n"}), bare)
    assert list(bare.levels) == [("cpu_frequency", "MHz", "cpu0")]


def test_clocks_come_from_cpufreq_or_else_from_cpuinfo(monkeypatch):
    monkeypatch.setattr(readings.os, "cpu_count", lambda: 2)
    where = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    assert frequencies(Fake({where.format(i): b"1500000\n" for i in (0, 1)})) == {"cpu0": 1500.0, "cpu1": 1500.0}
    monkeypatch.setattr(readings, "read_once", lambda _: "processor: 0\ncpu MHz\t\t: 2596.1\n")
    assert frequencies(Fake({})) == {"cpu0": 2596.1}
    monkeypatch.setattr(readings, "read_once", lambda _: None)
    assert frequencies(Fake({})) == {}


def test_threads_that_come_and_go_make_a_total_that_only_grows():
    grown = Grown()
    assert grown.add({"1": (100, 10), "2": (50, 5)}) == (0, 0)  # what they did before we looked
    assert grown.add({"1": (130, 12), "2": (50, 5), "3": (7, 1)}) == (37, 3)  # all of the new one's counts
    assert grown.add({"1": (130, 12)}) == (37, 3)  # what ended ones did stays
    assert grown.add({"1": (140, 12), "3": (2, 2)}) == (49, 5)  # the number of an ended thread, given again
    assert grown.add({"1": (140, 12), "3": (1, 1)}) == (50, 6)


@pytest.mark.slow
def test_a_process_that_computes_is_seen_to():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as job:
        try:
            kept, process = OpenFiles(), Process(job.pid)
            samples = []
            for _ in range(2):
                found = sample_now()
                assert process_totals(kept, found, process)
                process_bytes(kept, found, process)
                thread_times(kept.read_all(thread_files(job.pid, "schedstat")), found, process)
                thread_switches(kept.read_all(thread_files(job.pid, "status")), found, process)
                samples.append(found)
                time.sleep(0.4 * (len(samples) == 1))
        finally:
            job.kill()
    values = {metric: value for metric, _, device, value in rates(*samples) if device == f"pid:{job.pid}"}
    assert values["num_threads"] == 1
    assert values["process_mem_rss"] > 1 << 20
    assert 0 < values["process_oncpu_time"] + values["process_runq_time"] <= 1.5e9
    assert 0 < values["process_cpu_usage"] <= 150
    assert {"process_minor_faults", "process_major_faults", "process_read_bytes_rate", "process_write_bytes_rate"} <= {
        *values
    }
    assert {"process_voluntary_ctx_switches", "process_involuntary_ctx_switches"} <= {*values}
    assert not process_totals(kept, sample_now(), process)
    assert thread_files(job.pid, "status") == []
    gone = sample_now()
    for read in (process_bytes, thread_times, thread_switches):
        read(Texts(), gone, process)
    assert not gone.levels | gone.totals


def test_another_process_under_the_same_number_is_not_the_same():
    process = Process(os.getpid(), start_ticks=1)
    assert not process_totals(OpenFiles(), sample_now(), process)


def test_threads_are_summed():
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    found, process = sample_now(), Process(os.getpid())
    process_totals(OpenFiles(), found, process)
    stop.set()
    for thread in threads:
        thread.join()
    assert found.levels["num_threads", "count", process.device] >= 4


def test_garbage_collections_are_read_from_the_hooks_file():
    process, found = Process(9, has_hook=True), Sample(0, 5_000_000)
    garbage_collections(Texts(gc=struct.pack("<qqq", 3, 500, 0)), found, process)
    assert found.totals == {
        ("process_python_gc_time", "ns/s", "pid:9"): 500,
        ("process_python_gc_collections", "1/s", "pid:9"): 3,
    }
    # One under way counts as far as it is.
    garbage_collections(Texts(gc=struct.pack("<qqq", 3, 500, 4_000_000)), found, process)
    assert found.totals["process_python_gc_time", "ns/s", "pid:9"] == 1_000_500
    for there in (Texts(), Texts(gc=b"short")):
        empty = Sample(0, 0)
        garbage_collections(there, empty, process)
        assert not empty.totals


def test_the_file_of_limits_is_the_first_that_tells_of_them(tmp_path, monkeypatch):
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 7\n")
    places = [str(tmp_path / "none"), str(tmp_path / "cpu.stat")]
    monkeypatch.setattr(readings, "cgroup_cpu_stats", lambda _: places)
    assert cgroup_file(os.getpid()) == str(tmp_path / "cpu.stat")
    assert throttled_ns((tmp_path / "cpu.stat").read_bytes()) == 7000
    assert throttled_ns(b"nr_throttled 1\nthrottled_time 9\n") == 9
    monkeypatch.setattr(readings, "cgroup_cpu_stats", lambda _: [])
    assert cgroup_file(os.getpid()) is None
