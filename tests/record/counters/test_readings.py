from __future__ import annotations

import pytest

from stepscope.record.counters import readings
from stepscope.record.counters.readings import Sample, cores, frequencies, machine, memory_and_clocks, rates, sample_now
from stepscope.record.system.files import Kept

SECOND = 1_000_000_000


class Fake(Kept):
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
