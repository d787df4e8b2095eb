from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record import hang

JOB = "import sys, time\ndef load():\n    print('here', flush=True)\n    time.sleep(60)\nload()\n"


@pytest.fixture
def ranks(tmp_path):
    """Two ranks of a job and a Python that has nothing to do with it. Yields their process numbers."""
    jobs = []
    try:
        for rank, port in (("0", "4711"), ("1", "4711"), ("0", "4712")):
            address = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
            dumps = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / f"dump_{port}_")}
            environment = {**os.environ, "RANK": rank, **address, **dumps}
            jobs.append(subprocess.Popen([sys.executable, "-c", JOB], env=environment, stdout=subprocess.PIPE))
        for job in jobs:
            assert job.stdout.readline() == b"here\n"
        yield [job.pid for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


@pytest.mark.slow
def test_all_ranks_of_a_job_are_asked_by_any_of_them(ranks, tmp_path):
    for name, age_s in (("dump_4711_0", 0), ("dump_4711_1", 10**6), ("dump_4712_0", 0)):
        (tmp_path / name).write_text("{}")
        written = time.time() + 1 - age_s
        os.utime(tmp_path / name, (written, written))
    folder, n_processes, n_dumps = hang.ask_job(ranks[1:2], tmp_path / "out")
    document = json.loads((folder / "processes.json").read_text())
    assert [(one["pid"], one["rank"], one["state"]) for one in document["processes"]] == [
        (ranks[0], 0, "S"), (ranks[1], 1, "S"),
    ]  # fmt: skip
    # The dump of rank 1 is older than its process: it is of another job.
    assert (n_processes, n_dumps) == (2, 1)
    assert (folder / "nccl_trace_rank_0").read_text() == "{}"
    for one in document["processes"]:
        if one["problem"] is None:
            assert "load" in [frame["name"] for frame in one["threads"][0]["frames"]]
        else:  # where py-spy may not read memory
            assert one["threads"] == []


def test_a_process_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StepscopeError, match="there is no process 4194305") as caught:
        hang.ask_job([4194305], tmp_path / "out")
    assert "pgrep" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_process_without_python_is_an_error(tmp_path):
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            with pytest.raises(StepscopeError, match="no Python runs in process"):
                hang.ask_job([process.pid], tmp_path / "out")
        finally:
            process.kill()


def test_without_py_spy_states_are_known_and_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(hang.py_spy, "program", lambda: None)
    monkeypatch.setattr(hang, "_WATCHED_S", 0.01)
    folder, n_processes, _ = hang.ask_job([os.getpid()], tmp_path / "out")
    document = json.loads((folder / "processes.json").read_text())
    assert n_processes == len(document["processes"]) >= 1
    assert document["processes"][0]["problem"] == "py-spy is not installed: pip install py-spy"


def test_a_pipe_that_the_job_opened_is_asked_for_a_dump(tmp_path):
    pipe = tmp_path / "pipe_3.pipe"
    os.mkfifo(pipe)
    environment = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_")}
    assert not hang._ask_for_dump("3", environment)  # nobody reads it
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert hang._ask_for_dump("3", environment)
        assert os.read(reading, 10) == b"1"
    finally:
        os.close(reading)
    assert not hang._ask_for_dump("4", environment)


def test_loader_workers_are_no_ranks(monkeypatch):
    environments = {10: {"RANK": "0"}, 11: {"RANK": "0"}, 20: {"RANK": "1"}}
    parents = {10: 1, 11: 10, 20: 1}
    monkeypatch.setattr(hang, "descendants", lambda _: list(environments))
    monkeypatch.setattr(hang.py_spy, "is_python", lambda pid: pid in environments)
    monkeypatch.setattr(hang, "_environment", environments.__getitem__)
    monkeypatch.setattr(hang, "_stat_of", lambda pid: ("S", parents.get(pid, 0), 0))
    assert list(hang._members_of([10])) == [10, 20]
