from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time

import pytest

import stepscope
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


def test_what_accelerators_report_is_kept_with_their_errors(monkeypatch, tmp_path):
    closed = []
    maker = hang.gpus.Gpus(
        described=list,
        quick=lambda: iter([("gpu_usage", "%", "gpu0", 100.0)]),
        slow=lambda: iter([("gpu_memory_used", "bytes", "gpu0", 5e9)]),
        totals=lambda: iter(()),
        issues=lambda: [{"code": "xid_errors", "severity": "warning", "count": 1, "example": "gpu0: Xid 79"}],
        close=lambda: closed.append(True),
    )
    monkeypatch.setattr(hang.gpus, "opened", lambda: ([maker], []))
    monkeypatch.setattr(hang.py_spy, "program", lambda: None)
    monkeypatch.setattr(hang, "_WATCHED_S", 0.01)
    folder, _, _ = hang.ask_job([os.getpid()], tmp_path / "out")
    trace = stepscope.load(folder)
    assert trace.counters.select("metric", "device", "value").rows() == [
        ("gpu_usage", "gpu0", 100.0), ("gpu_memory_used", "gpu0", 5e9),
    ]  # fmt: skip
    report = stepscope.report(trace)
    assert "Gpu0: Xid 79." in report.quality
    assert [block.title for block in report.tables] == ["What each process does", "What the devices report"]
    assert closed == [True]


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """Two ranks of one job and, with `more`, a rank of another one; nothing is really asked."""
    environments = {10: {"RANK": "0", "MASTER_PORT": "1"}, 11: {"RANK": "1", "MASTER_PORT": "1"}}
    monkeypatch.setattr(hang, "descendants", lambda pid: [pid])
    monkeypatch.setattr(hang, "is_alive", lambda _: True)
    monkeypatch.setattr(hang.os, "listdir", lambda _: [*map(str, environments), "self"])
    monkeypatch.setattr(hang.py_spy, "is_python", lambda pid: pid in environments)
    monkeypatch.setattr(hang, "_environment", environments.__getitem__)
    monkeypatch.setattr(hang, "_stat_of", lambda _: ("S", 1, 0))
    monkeypatch.setattr(hang, "_watched", lambda members: [{"pid": pid} for pid in members])
    monkeypatch.setattr(hang, "_copy_dumps", lambda *_: 0)
    return environments, tmp_path / "out"


def pids_asked(folder):
    return [one["pid"] for one in json.loads((folder / "processes.json").read_text())["processes"]]


def test_without_a_process_the_only_job_of_the_machine_is_asked(jobs):
    _, folder = jobs
    hang.ask_job([], folder)
    assert pids_asked(folder) == [10, 11]


def test_only_the_ranks_that_are_named_are_asked(jobs):
    _, folder = jobs
    hang.ask_job([], folder, ranks={1, 5})
    assert pids_asked(folder) == [11]
    with pytest.raises(StepscopeError, match="none of these ranks runs on this machine"):
        hang.ask_job([10], folder.with_name("more"), ranks={7})


def test_of_several_jobs_one_must_be_named(jobs):
    environments, folder = jobs
    environments[20] = {"RANK": "0", "MASTER_PORT": "2"}
    with pytest.raises(StepscopeError, match="2 jobs run on this machine") as caught:
        hang.ask_job([], folder)
    assert "--pid 10, 20" in caught.value.hint
    environments.clear()
    with pytest.raises(StepscopeError, match="no process of this machine has a rank"):
        hang.ask_job([], folder)


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


@pytest.fixture
def stepping(tmp_path, monkeypatch):
    """A recorded job whose last step ended so many seconds ago, as set; the folders that are asked for."""
    (tmp_path / ".job").mkdir()
    asked = []

    def ask(pids, folder):
        asked.append((pids, folder.name))
        if folder.name == "hang-0002":
            raise StepscopeError("there is no process 7")
        return folder, 1, 0

    def ended(seconds_ago, n_steps=5, pid=7):
        last = time.monotonic_ns() - int(seconds_ago * 1e9)
        (tmp_path / ".job" / f"steps-{pid}").write_bytes(struct.pack("<qqqq", n_steps, last, 0, 0))

    monkeypatch.setattr(hang, "ask_job", ask)
    return tmp_path, ended, asked


def wait_for(asked, n):
    deadline = time.monotonic() + 20
    while len(asked) < n and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_job_that_stands_still_is_asked_once_each_time(stepping):
    folder, ended, asked = stepping
    ended(1)
    watch = hang.HangWatch(folder, 7, 0.2)
    wait_for(asked, 1)
    ended(1, n_steps=6)
    wait_for(asked, 2)
    issues = watch.end()
    assert asked == [([7], "hang-0001"), ([7], "hang-0002")]
    assert [issue["example"] for issue in issues] == [
        "no step ended for 0.2 s: see stepscope report hang-0001",
        "no step ended for 0.2 s, and the job could not be asked: there is no process 7",
    ]


def test_a_rank_that_goes_on_and_a_job_without_steps_are_no_hang(stepping):
    folder, ended, asked = stepping
    ended(100, pid=7)
    ended(0, pid=8)
    ended(100, n_steps=1, pid=9)
    (folder / ".job" / "steps-10").write_bytes(b"short")
    watch = hang.HangWatch(folder, 7, 5)
    time.sleep(0.05)
    assert watch.end() == asked == []
    assert time.monotonic_ns() - hang.last_step_ns(folder) < 20e9
    assert hang.last_step_ns(folder / "nothing") == 0
