from __future__ import annotations

import pytest

from stepscope.record.system.parse import (
    cgroup_cpu_stats,
    core_times,
    counted_lines,
    disk_bytes,
    meminfo_bytes,
    n_threads,
    net_bytes,
    pressure_us,
    process_stat,
    schedstat_ns,
    switches,
)

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
