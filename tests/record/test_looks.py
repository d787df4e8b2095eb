from __future__ import annotations

import os
import subprocess
import time

import pytest

from stepscope.record import _looks
from stepscope.record._looks import Looks


@pytest.fixture
def job():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def metrics(ticked) -> set[str]:
    return {metric for _, rows in ticked for metric, *_ in rows}


def test_the_second_tick_has_all_rates_and_later_ones_what_is_due(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    levels = metrics(list(looks.tick(0)))
    assert {"num_threads", "process_mem_rss", "host_mem_available"} <= levels
    time.sleep(0.1)
    everything = metrics(list(looks.tick(1)))
    assert everything >= levels | {"process_oncpu_time", "process_voluntary_ctx_switches", "host_cpu_usage"}
    assert metrics(list(looks.tick(3))) >= {"process_oncpu_time", "process_cpu_usage"}
    assert "host_mem_available" not in metrics(list(looks.tick(3)))
    assert looks.seen == {job.pid}


def test_times_are_those_of_the_readings(job, tmp_path):
    before = time.time_ns()
    times = [time_ns for time_ns, _ in Looks(job.pid, 20.0, tmp_path).tick(0)]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()


def test_a_process_that_ended_is_forgotten_with_its_files(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    list(looks.tick(0))
    job.kill()
    job.wait()
    assert not {row[2] for _, rows in looks.tick(3) for row in rows} & {f"pid:{job.pid}"}
    assert not [path for path in looks.kept._open if str(job.pid) in path]
    assert "host_mem_available" in metrics(list(looks.tick(20)))


def test_a_child_that_ended_is_forgotten_when_the_tree_is_looked_at(tmp_path):
    with subprocess.Popen(["sh", "-c", "sleep 0.3; exec sleep 60"]) as shell:
        looks = Looks(shell.pid, 20.0, tmp_path)
        deadline = time.monotonic() + 20
        while len(looks.seen) < 2:
            list(looks.tick(0))
            assert time.monotonic() < deadline
        while len(looks._processes) > 1:
            list(looks.tick(0))
            assert time.monotonic() < deadline
        shell.kill()


def test_a_reading_that_was_interrupted_is_made_again(monkeypatch, job, tmp_path):
    looks, calls = Looks(job.pid, 20.0, tmp_path), []

    def read(_kept, sample):
        calls.append(sample)
        if len(calls) < 3:
            time.sleep(0.002)

    found = looks._read(read)
    assert len(calls) == 3
    assert found is calls[-1]
    calls.clear()
    monkeypatch.setattr(_looks, "_TRIES", 2)
    looks._read(read)
    assert len(calls) == 2


def test_the_hooks_file_is_noticed(tmp_path):
    looks = Looks(os.getpid(), 20.0, tmp_path)
    list(looks.tick(0))
    (tmp_path / f"gc-{os.getpid()}").write_bytes(bytes(24))
    list(looks.tick(0))
    time.sleep(0.01)
    assert "process_python_gc_time" in metrics(list(looks.tick(1)))


def test_a_job_of_many_threads_is_read_less_often(monkeypatch, tmp_path):
    monkeypatch.setattr(_looks, "_THREADS_A_TICK", 1)
    looks = Looks(os.getpid(), 20.0, tmp_path)
    list(looks.tick(0))
    looks._n_threads = 2
    assert "process_oncpu_time" not in metrics(list(looks.tick(4)))


def test_a_limit_of_cpu_is_read_with_what_changes_slowly(monkeypatch, job, tmp_path):
    (tmp_path / "cpu.stat").write_text("throttled_usec 5\n")
    monkeypatch.setattr(_looks, "cgroup_file", lambda _: str(tmp_path / "cpu.stat"))
    looks = Looks(job.pid, 20.0, tmp_path)
    list(looks.tick(0))
    (tmp_path / "cpu.stat").write_text("throttled_usec 9\n")
    rows = {metric: device for _, rows in looks.tick(1) for metric, _, device, _ in rows}
    assert rows["cgroup_cpu_throttled_time"] == f"pid:{job.pid}"
