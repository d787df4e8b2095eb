from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from stepscope.record.counters import counter_sources
from stepscope.record.counters.counter_sources import CounterSources


@pytest.fixture
def job():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def ticked(sources, number) -> list:
    sources.tick(number)
    return list(sources.rows())


def metrics(sources, number) -> set[str]:
    return {metric for _, rows in ticked(sources, number) for metric, *_ in rows}


def test_the_second_tick_has_all_rates_and_later_ones_what_is_due(job, tmp_path):
    sources = CounterSources(job.pid, 20.0, tmp_path)
    levels = metrics(sources, 0)
    assert {"num_threads", "process_mem_rss", "host_mem_available"} <= levels
    time.sleep(0.1)
    everything = metrics(sources, 1)
    assert everything >= levels | {"process_oncpu_time", "process_voluntary_ctx_switches", "host_cpu_usage"}
    assert metrics(sources, 3) >= {"process_oncpu_time", "process_cpu_usage"}
    assert "host_mem_available" not in metrics(sources, 3)
    assert sources.pids == {job.pid}


def test_times_are_those_of_the_readings(job, tmp_path):
    before = time.time_ns()
    times = [time_ns for time_ns, _ in ticked(CounterSources(job.pid, 20.0, tmp_path), 0)]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()


def test_a_process_that_ended_is_forgotten_with_its_files(job, tmp_path):
    sources = CounterSources(job.pid, 20.0, tmp_path)
    ticked(sources, 0)
    job.kill()
    job.wait()
    assert not {row[2] for _, rows in ticked(sources, 3) for row in rows} & {f"pid:{job.pid}"}
    assert not [path for path in sources.files._open if str(job.pid) in path]
    assert "host_mem_available" in metrics(sources, 20)


@pytest.mark.slow
def test_a_child_that_ended_is_forgotten_when_the_tree_is_looked_at(tmp_path):
    with subprocess.Popen(["sh", "-c", "sleep 0.3; exec sleep 60"]) as shell:
        sources = CounterSources(shell.pid, 20.0, tmp_path)
        deadline = time.monotonic() + 20
        while len(sources.pids) < 2:
            ticked(sources, 0)
            assert time.monotonic() < deadline
        while len(sources._watched) > 1:
            ticked(sources, 0)
            assert time.monotonic() < deadline
        shell.kill()


def test_a_reading_that_was_interrupted_is_made_again(monkeypatch, job, tmp_path):
    sources, calls = CounterSources(job.pid, 20.0, tmp_path), []
    read_all = sources.files.read_all

    def slow(paths):
        calls.append(time.time_ns())
        if len(calls) < 3:
            time.sleep(0.002)
        return read_all(paths)

    monkeypatch.setattr(sources.files, "read_all", slow)
    sources._read(["/proc/stat"], "cores", counter_sources.cores)
    assert len(calls) == 3
    [(time_ns, _)] = sources.rows()
    assert time_ns >= calls[-1] - 1_000_000
    calls.clear()
    monkeypatch.setattr(counter_sources, "_TRIES", 2)
    sources._read(["/proc/stat"], "cores", counter_sources.cores)
    assert len(calls) == 2


def test_many_ticks_are_made_into_rows_at_once(job, tmp_path):
    sources = CounterSources(job.pid, 20.0, tmp_path)
    for number in range(4):
        sources.tick(number)
        time.sleep(0.01)
    found = list(sources.rows())
    cpu = [t for t, rows in found for metric, *_ in rows if metric == "process_oncpu_time"]
    assert len(cpu) == 3
    assert cpu == sorted(cpu)
    assert not list(sources.rows())


def test_another_process_under_the_same_number_is_let_go(job, tmp_path):
    sources = CounterSources(job.pid, 20.0, tmp_path)
    ticked(sources, 0)
    sources._watched[job.pid].process.start_ticks += 1
    sources.tick(3)
    sources.tick(4)
    rows = [row for _, rows in sources.rows() for row in rows]
    assert "process_cpu_usage" not in {metric for metric, *_ in rows}
    assert not sources._watched
    assert not sources._n_threads


def test_threads_that_began_are_read_from_the_next_tick_on(tmp_path):
    code = "import threading, time, sys; sys.stdin.readline();"
    code += "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(3)]; print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        sources = CounterSources(job.pid, 20.0, tmp_path)
        for number in (0, 1, 3):
            sources.tick(number)
        [watched] = sources._watched.values()
        assert len(watched.times) == 1
        job.stdin.write(b"\n")
        job.stdin.flush()
        job.stdout.readline()
        sources.tick(4)
        assert len(watched.times) == 4
        watched.times[-1] = f"/proc/{job.pid}/task/0/schedstat"  # that ended, while another began
        sources.tick(6)
        sources.tick(7)
        assert len(watched.times) == 4
        assert "/task/0/" not in "".join(watched.times)
        job.kill()


def test_the_hooks_file_is_noticed(tmp_path):
    sources = CounterSources(os.getpid(), 20.0, tmp_path)
    ticked(sources, 0)
    (tmp_path / f"gc-{os.getpid()}").write_bytes(bytes(24))
    ticked(sources, 0)
    time.sleep(0.01)
    assert "process_python_gc_time" in metrics(sources, 1)


def test_a_job_of_many_threads_is_read_less_often(monkeypatch, tmp_path):
    monkeypatch.setattr(counter_sources, "_THREADS_A_TICK", 1)
    sources = CounterSources(os.getpid(), 20.0, tmp_path)
    ticked(sources, 0)
    sources._n_threads = {"pid:1": 2}
    assert "process_oncpu_time" not in metrics(sources, 4)


def test_a_limit_of_cpu_is_read_with_what_changes_slowly(monkeypatch, job, tmp_path):
    (tmp_path / "cpu.stat").write_text("throttled_usec 5\n")
    monkeypatch.setattr(counter_sources, "cgroup_file", lambda _: str(tmp_path / "cpu.stat"))
    sources = CounterSources(job.pid, 20.0, tmp_path)
    ticked(sources, 0)
    (tmp_path / "cpu.stat").write_text("throttled_usec 9\n")
    rows = {metric: device for _, rows in ticked(sources, 1) for metric, _, device, _ in rows}
    assert rows["cgroup_cpu_throttled_time"] == f"pid:{job.pid}"
