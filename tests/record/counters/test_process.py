from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time

from stepscope.record.counters import process as _process
from stepscope.record.counters.process import (
    Grown,
    Process,
    cgroup_file,
    garbage_collections,
    process_bytes,
    process_totals,
    thread_files,
    thread_switches,
    thread_times,
    throttled_ns,
)
from stepscope.record.counters.readings import Sample, rates, sample_now
from stepscope.record.system.files import Kept, Texts


def test_threads_that_come_and_go_make_a_total_that_only_grows():
    grown = Grown()
    assert grown.add({"1": (100, 10), "2": (50, 5)}) == (0, 0)  # what they did before we looked
    assert grown.add({"1": (130, 12), "2": (50, 5), "3": (7, 1)}) == (37, 3)  # all of the new one's counts
    assert grown.add({"1": (130, 12)}) == (37, 3)  # what ended ones did stays
    assert grown.add({"1": (140, 12), "3": (2, 2)}) == (49, 5)  # the number of an ended thread, given again
    assert grown.add({"1": (140, 12), "3": (1, 1)}) == (50, 6)


def test_a_process_that_computes_is_seen_to():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as job:
        try:
            kept, process = Kept(), Process(job.pid)
            samples = []
            for _ in range(2):
                found = sample_now()
                assert process_totals(kept, found, process)
                process_bytes(kept, found, process)
                thread_times(kept.read_all(thread_files(job.pid, "schedstat")), found, process)
                thread_switches(kept.read_all(thread_files(job.pid, "status")), found, process)
                samples.append(found)
                time.sleep(0.5)
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
    assert not process_totals(Kept(), sample_now(), process)


def test_threads_are_summed():
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    found, process = sample_now(), Process(os.getpid())
    process_totals(Kept(), found, process)
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
    monkeypatch.setattr(_process, "cgroup_cpu_stats", lambda _: places)
    assert cgroup_file(os.getpid()) == str(tmp_path / "cpu.stat")
    assert throttled_ns((tmp_path / "cpu.stat").read_bytes()) == 7000
    assert throttled_ns(b"nr_throttled 1\nthrottled_time 9\n") == 9
    monkeypatch.setattr(_process, "cgroup_cpu_stats", lambda _: [])
    assert cgroup_file(os.getpid()) is None
