from __future__ import annotations

import gc
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from fakes import Clock

import stepscope
from stepscope.record.counters import counter_sources, dumps, readings, writer
from stepscope.record.counters import gpus as _gpus
from stepscope.record.counters import sampler as _sampler
from stepscope.record.counters.counter_sources import CounterSources
from stepscope.record.counters.dumps import Ring
from stepscope.record.counters.writer import CounterFile
from stepscope.record.system import child_main
from stepscope.record.system import meta as _meta

if TYPE_CHECKING:
    from collections.abc import Callable

RING = Ring(keep_s=5).wanted(None)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".job").mkdir()
    CounterFile(tmp_path / "counters.csv.gz").close()
    _meta.write(tmp_path, {"issues": [], "end_unix_ns": None})
    return tmp_path


@pytest.fixture
def sample(folder, monkeypatch, capsys):
    """Runs the sampler here, on a process, in time that passes as it waits; its exit code and its messages.

    `at` has functions that are called in ticks: with the writing end of its standard input, and its signal handlers.
    """
    handlers = {}
    monkeypatch.setattr(child_main.signal, "signal", handlers.__setitem__)
    clock = Clock()
    for module in (_sampler, counter_sources, readings, writer, dumps):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(_sampler, "select", clock)
    tick, n_ticks = CounterSources.tick, count()

    def run(pid: int | None, at: dict[int, Callable] | None = None, **wanted) -> tuple[int, list[dict]]:
        reading, writing = os.pipe()
        stdin = os.fdopen(writing, "wb", 0)

        def tick_and_act(sources: CounterSources, number: int) -> None:
            tick(sources, number)
            (at or {}).get(next(n_ticks), lambda *_: None)(stdin, handlers)

        monkeypatch.setattr(CounterSources, "tick", tick_and_act)
        with os.fdopen(reading) as theirs, stdin:
            if pid is None:
                stdin.close()
            else:
                stdin.write(b"%d\n" % pid)
            monkeypatch.setattr(sys, "stdin", theirs)
            code = _sampler.main(json.dumps({"folder": str(folder), "hz": 20, "seconds": None} | wanted))
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    yield run
    gc.enable()


@pytest.fixture
def job():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def samples(folder) -> list[list[str]]:
    return [
        line.split(",") for line in gzip.decompress((folder / "counters.csv.gz").read_bytes()).decode().splitlines()
    ]


READY = {"ready": True}
ENDS = {
    "job": lambda *_: None,
    "recorder": lambda stdin, _: stdin.close(),
    "signal 15": lambda _, handlers: handlers[signal.SIGTERM](signal.SIGTERM, None),
}


@pytest.mark.parametrize("how", ["job", "signal 15", "recorder", "duration"])
def test_it_ends_with_the_job_the_recorder_the_time_or_a_signal(sample, folder, meta, job, how):
    def end_job(*_) -> None:
        job.kill()
        job.wait()

    if how == "duration":
        assert sample(job.pid, seconds=30) == (0, [READY])
    else:
        assert sample(job.pid, {5: end_job if how == "job" else ENDS[how]}) == (0, [READY])
    document = meta(folder)
    assert (document["ended_by"], document["pids"]) == (how, [job.pid])
    assert document["end_unix_ns"] > 0
    rows = samples(folder)
    assert len(rows) == document["n_samples"] + 1
    assert {"process_oncpu_time", "num_threads", "host_mem_available"} <= {row[1] for row in rows}
    assert sorted(path.name for path in folder.iterdir()) == ["counters.csv.gz", "meta.json"]
    gpu = [issue for issue in document["issues"] if issue["code"] == "no_gpu_counters"]
    assert len(gpu) == (0 if document["devices"] else 1)


def test_without_a_job_it_goes_and_leaves_nothing_of_its_own(sample, folder, meta):
    assert sample(None) == (1, [READY])
    assert meta(folder)["end_unix_ns"] is None
    assert not (folder / _meta.FOLDER).exists()


@pytest.mark.parametrize("ring", [None, RING], ids=["all", "ring"])
def test_a_job_that_is_gone_already_is_noticed(sample, folder, meta, job, ring):
    job.kill()
    job.wait()
    assert sample(job.pid, ring=ring) == (0, [READY])
    assert meta(folder)["ended_by"] == "job"
    assert next(iter(stepscope.load_run(folder))).counters.height > 0


def test_a_folder_that_cannot_be_written_is_told_at_once(sample, folder):
    code, [message] = sample(1, folder=str(folder / "none"))
    assert (code, "No such file" in message["error"]) == (1, True)


@pytest.mark.slow
def test_counters_of_a_minute_take_less_than_a_megabyte(sample, folder):
    wake = threading.Event()
    threads = [threading.Thread(target=wake.wait) for _ in range(9)]
    for thread in threads:
        thread.start()
    try:
        assert sample(os.getpid(), seconds=60) == (0, [READY])
    finally:
        wake.set()
    [trace] = stepscope.load_run(folder)
    assert trace.counters["ts_ns"].max() / 1e9 == pytest.approx(60, abs=0.2)
    assert trace.counters.filter(metric="num_threads", pid=os.getpid())["value"].min() >= 10
    assert (folder / "counters.csv.gz").stat().st_size < 1_000_000


@pytest.mark.slow
def test_with_a_ring_the_last_seconds_alone_are_left(sample, folder, job):
    assert sample(job.pid, seconds=100, ring=RING) == (0, [READY])
    times = [int(row[0]) for row in samples(folder)[1:]]
    assert 5 <= (times[-1] - times[0]) / 1e9 < 7.5


def test_dumps_are_made_at_a_signal_and_by_request(sample, folder, meta, job):
    asked, answer = folder / ".job" / "asked", folder / ".job" / "answer-abc"
    answers = []
    acts = {
        100: lambda stdin, _: stdin.write(b"dump\n"),
        200: lambda *_: asked.write_bytes(b'{"ask": "request", "token": "abc"}\n'),
        205: lambda *_: answers.append(json.loads(answer.read_text())),
    }
    assert sample(job.pid, acts, seconds=20, ring=RING) == (0, [READY])
    assert answers == [{"dump": "dump-0002-request"}]
    names = ["dump-0001-signal", "dump-0002-request"]
    assert [dump["folder"] for dump in meta(folder)["dumps"]] == names
    for name, reason in zip(names, ("signal", "request"), strict=True):
        assert meta(folder / name)["dump"]["reason"] == reason
        times = [int(row[0]) for row in samples(folder / name)[1:]]
        assert 5 <= (times[-1] - times[0]) / 1e9 < 8.5  # the last seconds, and one more after the event
        assert stepscope.load_run(folder / name)
    assert sorted(path.name for path in folder.iterdir()) == ["counters.csv.gz", *names, "meta.json"]


def test_without_a_ring_nothing_is_dumped(sample, folder, job):
    assert sample(job.pid, {3: lambda stdin, _: stdin.write(b"dump\n")}, seconds=1) == (0, [READY])
    assert sorted(path.name for path in folder.iterdir()) == ["counters.csv.gz", "meta.json"]


def test_what_accelerators_are_sampled_for_is_written(sample, folder, meta, job, monkeypatch):
    class Watch:
        def __init__(self, maker, hz, on_sample) -> None:
            assert (maker.described(), hz) == (["gpu"], 10)
            on_sample(1_700_000_000_500_000_000, [("gpu_usage", "%", "gpu0", 5.0)])

        def stop(self) -> None:
            watched.append("stopped")

    watched = []
    issue = _meta.issue("gpu_counters", "no links")
    maker = _gpus.Gpus(lambda: ["gpu"], list, list, list, lambda: [issue], list)
    monkeypatch.setattr(_sampler._gpus, "opened", lambda: ([maker], []))
    monkeypatch.setattr(_sampler._gpus, "GpuWatch", Watch)
    assert sample(job.pid, seconds=1) == (0, [READY])
    assert ["1700000000500000000", "gpu_usage", "%", "gpu0", "5"] in samples(folder)
    assert (meta(folder)["devices"], watched) == (["gpu"], ["stopped"])
    assert "gpu_counters" in {known["code"] for known in meta(folder)["issues"]}


def test_a_profile_that_was_not_finished_is_removed_and_reported(sample, folder, meta, job):
    (folder / ".rank0.pt.trace.json.gz.part").write_text("half")
    assert sample(job.pid, seconds=1) == (0, [READY])
    assert "profile_cut" in {issue["code"] for issue in meta(folder)["issues"]}
    assert sorted(path.name for path in folder.iterdir()) == ["counters.csv.gz", "meta.json"]


def test_an_outcome_that_cannot_be_written_is_an_error(sample, folder, job):
    code, messages = sample(job.pid, {3: lambda *_: (folder / "meta.json").unlink()}, seconds=1)
    assert (code, messages[0]) == (1, READY)
    assert "meta.json: No such file" in messages[1]["error"]


def test_it_imports_nothing_heavy():
    code = (
        "import sys, stepscope.record.counters.sampler;"
        " print([m for m in ('polars', 'numpy', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.fixture
def small_files():
    """Files of this process hold 2 kB at most, for a moment."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("ring", [None, RING], ids=["all", "ring"])
def test_a_file_that_may_not_grow_ends_the_counters_with_one_message(sample, folder, meta, job, ring):
    code, messages = sample(job.pid, ring=ring)
    assert (code, messages[0], list(messages[1])) == (1, READY, ["error"])
    assert "counters.csv.gz: File too large" in messages[1]["error"]
    assert "the job goes on" in messages[1]["error"]
    assert job.poll() is None
    assert samples(folder)[0] == ["ts_ns", "metric", "unit", "device", "value"]
    assert "counters_ended" in {issue["code"] for issue in meta(folder)["issues"]}


def test_the_pace_slackens_when_it_costs_too_much_and_recovers(monkeypatch):
    used = [0.0]
    monkeypatch.setattr(_sampler.time, "process_time", lambda: used[0])
    pace = _sampler._Pace(20)
    for _ in range(20):
        used[0] += 0.05
        pace.adapt(1.0, warm=False)
    assert pace.period == 1 / 20
    assert pace.issues() == []
    for _ in range(40):
        used[0] += 0.05
        pace.adapt(1.0, warm=True)
    assert pace.period == 1  # once a second at least
    for _ in range(60):
        pace.adapt(1.0, warm=True)
    assert pace.period == 1 / 20
    assert pace.issues()[0]["code"] == "sampled_less"
    assert "1 samples" in pace.issues()[0]["example"]
