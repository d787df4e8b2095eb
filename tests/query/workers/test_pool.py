from __future__ import annotations

import gc
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import cluster_jobs
import pytest

from stepscope.query.workers import pool
from stepscope.query.workers.pool import COMMAND, Died, Plan, _ended, plan, pooled, serve

PATIENT = pickle.dumps(cluster_jobs.length_of_the_patient)
FILE = __file__


def children():
    done = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "stepscope.query.workers"], capture_output=True, check=False
    )
    return done.stdout.split()


@pytest.mark.slow
def test_every_item_comes_back_with_its_number():
    found = dict(pooled(PATIENT, [(i, FILE) for i in range(20, 25)], n_workers=3))
    assert found == dict.fromkeys(range(20, 25), Path(FILE).stat().st_size)
    assert children() == []


@pytest.mark.slow
def test_no_more_workers_than_items_are_started():
    found = pooled(PATIENT, [(0, FILE)], n_workers=50)
    assert next(found)[0] == 0
    assert list(found) == []


@pytest.mark.slow
def test_leaving_early_ends_the_workers():
    found = pooled(PATIENT, [(i, FILE) for i in range(1000)], n_workers=2)
    next(found)
    began = time.monotonic()
    found.close()
    assert time.monotonic() - began < 5
    assert children() == []


@pytest.mark.slow
def test_an_interrupt_ends_the_workers():
    found = pooled(PATIENT, [(i, FILE) for i in range(1000)], n_workers=2)
    next(found)
    with pytest.raises(KeyboardInterrupt):
        found.throw(KeyboardInterrupt)
    assert children() == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_a_worker_that_is_killed_from_outside_is_replaced():
    found = pooled(PATIENT, [(i, FILE) for i in range(30)], n_workers=2)
    results = [next(found) for _ in range(4)]
    os.kill(int(children()[0]), signal.SIGKILL)
    results += list(found)
    assert sorted(number for number, _ in results) == list(range(30))
    assert sum(isinstance(result, Died) for _, result in results) == 1


def test_how_a_worker_ended_is_said_in_words():
    assert Died(-9).ending == "was killed (signal 9), as the system does when memory runs out"
    assert Died(-11).ending == "was killed (signal 11)"
    assert Died(3).ending == "ended with exit code 3; its messages are above"


def test_a_worker_that_answers_no_more_but_lives_is_ended(monkeypatch):
    monkeypatch.setattr(pool, "_PATIENCE_S", 0.2)
    code = "import os, time; os.close(0); os.close(1); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert _ended(process) == -9


def test_a_system_that_starts_no_more_processes_is_told(monkeypatch):
    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    ((number, error),) = pooled(PATIENT, [(3, FILE)], n_workers=2)
    assert number == 3
    assert "cannot start a process: " in error.message


def tasks(*values):
    return io.BytesIO(b"".join(pickle.dumps(value) for value in values))


def test_a_function_is_applied_to_what_follows_until_there_is_no_more():
    results = io.BytesIO()
    serve(tasks(str.upper, "a", "b"), results)
    results.seek(0)
    assert [pickle.load(results), pickle.load(results)] == ["A", "B"]
    with pytest.raises(EOFError):
        pickle.load(results)


def test_cycles_are_searched_for_between_items_only(monkeypatch):
    found = []
    monkeypatch.setattr(gc, "collect", lambda: found.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: found.append("freeze"))
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    serve(tasks(str.upper, "a", "b"), io.BytesIO())
    assert found == ["collect", "freeze"] * 2


def test_without_a_function_there_is_nothing_to_do():
    with pytest.raises(EOFError):
        serve(tasks(), io.BytesIO())


@pytest.mark.slow
def test_a_process_of_its_own_keeps_what_is_printed_apart():
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, json.dumps(sys.path)],
        input=tasks(print, "hello", "you").getvalue(),
        capture_output=True,
        check=True,
    )
    results = io.BytesIO(done.stdout)
    assert [pickle.load(results), pickle.load(results)] == [None, None]
    assert done.stderr.decode().split() == ["hello", "you"]


MB, GB = 10**6, 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores, 100 GB of which 80 are ours."""
    monkeypatch.setattr(pool, "cores", lambda: 8)
    monkeypatch.setattr(pool, "memory_bytes", lambda: 100 * GB)


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
    monkeypatch.setattr(pool, "cores", lambda: 1)
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
