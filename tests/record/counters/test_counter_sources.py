from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from stepscope.record.counters import counter_sources
from stepscope.record.counters.counter_sources import Looks


@pytest.fixture
def job():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def ticked(looks, number) -> list:
    looks.tick(number)
    return list(looks.rows())


def metrics(looks, number) -> set[str]:
    return {metric for _, rows in ticked(looks, number) for metric, *_ in rows}


def test_the_second_tick_has_all_rates_and_later_ones_what_is_due(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    levels = metrics(looks, 0)
    assert {"num_threads", "process_mem_rss", "host_mem_available"} <= levels
    time.sleep(0.1)
    everything = metrics(looks, 1)
    assert everything >= levels | {"process_oncpu_time", "process_voluntary_ctx_switches", "host_cpu_usage"}
    assert metrics(looks, 3) >= {"process_oncpu_time", "process_cpu_usage"}
    assert "host_mem_available" not in metrics(looks, 3)
    assert looks.seen == {job.pid}


def test_times_are_those_of_the_readings(job, tmp_path):
    before = time.time_ns()
    times = [time_ns for time_ns, _ in ticked(Looks(job.pid, 20.0, tmp_path), 0)]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()


def test_a_process_that_ended_is_forgotten_with_its_files(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    ticked(looks, 0)
    job.kill()
    job.wait()
    assert not {row[2] for _, rows in ticked(looks, 3) for row in rows} & {f"pid:{job.pid}"}
    assert not [path for path in looks.kept._open if str(job.pid) in path]
    assert "host_mem_available" in metrics(looks, 20)


def test_a_child_that_ended_is_forgotten_when_the_tree_is_looked_at(tmp_path):
    with subprocess.Popen(["sh", "-c", "sleep 0.3; exec sleep 60"]) as shell:
        looks = Looks(shell.pid, 20.0, tmp_path)
        deadline = time.monotonic() + 20
        while len(looks.seen) < 2:
            ticked(looks, 0)
            assert time.monotonic() < deadline
        while len(looks._watched) > 1:
            ticked(looks, 0)
            assert time.monotonic() < deadline
        shell.kill()


def test_a_reading_that_was_interrupted_is_made_again(monkeypatch, job, tmp_path):
    looks, calls = Looks(job.pid, 20.0, tmp_path), []
    read_all = looks.kept.read_all

    def slow(paths):
        calls.append(time.time_ns())
        if len(calls) < 3:
            time.sleep(0.002)
        return read_all(paths)

    monkeypatch.setattr(looks.kept, "read_all", slow)
    looks._read(["/proc/stat"], "cores", counter_sources.cores)
    assert len(calls) == 3
    [(time_ns, _)] = looks.rows()
    assert time_ns >= calls[-1] - 1_000_000
    calls.clear()
    monkeypatch.setattr(counter_sources, "_TRIES", 2)
    looks._read(["/proc/stat"], "cores", counter_sources.cores)
    assert len(calls) == 2


def test_many_ticks_are_made_into_rows_at_once(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    for number in range(4):
        looks.tick(number)
        time.sleep(0.01)
    found = list(looks.rows())
    cpu = [t for t, rows in found for metric, *_ in rows if metric == "process_oncpu_time"]
    assert len(cpu) == 3
    assert cpu == sorted(cpu)
    assert not list(looks.rows())


def test_another_process_under_the_same_number_is_let_go(job, tmp_path):
    looks = Looks(job.pid, 20.0, tmp_path)
    ticked(looks, 0)
    looks._watched[job.pid].process.start_ticks += 1
    looks.tick(3)
    looks.tick(4)
    rows = [row for _, rows in looks.rows() for row in rows]
    assert "process_cpu_usage" not in {metric for metric, *_ in rows}
    assert not looks._watched
    assert not looks._n_threads


def test_threads_that_began_are_read_from_the_next_tick_on(tmp_path):
    code = "import threading, time, sys; sys.stdin.readline();"
    code += "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(3)]; print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        looks = Looks(job.pid, 20.0, tmp_path)
        for number in (0, 1, 3):
            looks.tick(number)
        [watched] = looks._watched.values()
        assert len(watched.times) == 1
        job.stdin.write(b"\n")
        job.stdin.flush()
        job.stdout.readline()
        looks.tick(4)
        assert len(watched.times) == 4
        watched.times[-1] = f"/proc/{job.pid}/task/0/schedstat"  # that ended, while another began
        looks.tick(6)
        looks.tick(7)
        assert len(watched.times) == 4
        assert "/task/0/" not in "".join(watched.times)
        job.kill()


def test_the_hooks_file_is_noticed(tmp_path):
    looks = Looks(os.getpid(), 20.0, tmp_path)
    ticked(looks, 0)
    (tmp_path / f"gc-{os.getpid()}").write_bytes(bytes(24))
    ticked(looks, 0)
    time.sleep(0.01)
    assert "process_python_gc_time" in metrics(looks, 1)


def test_a_job_of_many_threads_is_read_less_often(monkeypatch, tmp_path):
    monkeypatch.setattr(counter_sources, "_THREADS_A_TICK", 1)
    looks = Looks(os.getpid(), 20.0, tmp_path)
    ticked(looks, 0)
    looks._n_threads = {"pid:1": 2}
    assert "process_oncpu_time" not in metrics(looks, 4)


def test_a_limit_of_cpu_is_read_with_what_changes_slowly(monkeypatch, job, tmp_path):
    (tmp_path / "cpu.stat").write_text("throttled_usec 5\n")
    monkeypatch.setattr(counter_sources, "cgroup_file", lambda _: str(tmp_path / "cpu.stat"))
    looks = Looks(job.pid, 20.0, tmp_path)
    ticked(looks, 0)
    (tmp_path / "cpu.stat").write_text("throttled_usec 9\n")
    rows = {metric: device for _, rows in ticked(looks, 1) for metric, _, device, _ in rows}
    assert rows["cgroup_cpu_throttled_time"] == f"pid:{job.pid}"
