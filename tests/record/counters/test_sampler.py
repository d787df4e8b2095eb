from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time

import pytest

from stepscope.record.counters import sampler as _sampler
from stepscope.record.counters.writer import CounterFile
from stepscope.record.system import meta as _meta


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".job").mkdir()
    CounterFile(tmp_path / "counters.csv.gz").close()
    _meta.write(tmp_path, {"issues": [], "end_unix_ns": None})
    return tmp_path


@pytest.fixture
def sampler(folder):
    """Starts the sampler on the folder, as the recorder does."""
    started = []

    def run(**wanted) -> subprocess.Popen:
        wanted = {"folder": str(folder), "hz": 50, "seconds": None} | wanted
        command = [sys.executable, "-m", "stepscope.record.counters.sampler", json.dumps(wanted)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        started.append(subprocess.Popen(command, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def job():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def samples(folder) -> list[list[str]]:
    return [
        line.split(",") for line in gzip.decompress((folder / "counters.csv.gz").read_bytes()).decode().splitlines()
    ]


@pytest.mark.parametrize("how", ["job", "signal 15", "recorder", "duration"])
def test_it_ends_with_the_job_the_recorder_the_time_or_a_signal(sampler, folder, meta, job, how):
    process = sampler(seconds=0.5 if how == "duration" else None)
    assert json.loads(process.stdout.readline()) == {"ready": True}
    process.stdin.write(f"{job.pid}\n")
    process.stdin.flush()
    if how != "duration":
        time.sleep(0.3)
    if how == "job":
        job.kill()
    if how == "recorder":
        process.stdin.close()
    if how == "signal 15":
        process.terminate()
    assert process.wait(timeout=60) == 0
    found = meta(folder)
    assert (found["ended_by"], found["pids"]) == (how, [job.pid])
    assert found["end_unix_ns"] > 0
    rows = samples(folder)
    assert len(rows) == found["n_samples"] + 1
    assert {"process_oncpu_time", "num_threads", "host_mem_available"} <= {row[1] for row in rows}
    assert sorted(path.name for path in folder.iterdir()) == ["counters.csv.gz", "meta.json"]
    gpu = [issue for issue in found["issues"] if issue["code"] == "no_gpu_counters"]
    assert len(gpu) == (0 if found["devices"] else 1)


def test_without_a_job_it_goes_and_leaves_nothing_of_its_own(sampler, folder, meta):
    (folder / _meta.FOLDER).mkdir(exist_ok=True)
    process = sampler()
    process.stdin.close()
    assert process.wait(timeout=60) == 1
    assert meta(folder)["end_unix_ns"] is None
    assert not (folder / _meta.FOLDER).exists()


def test_a_job_that_is_gone_already_is_noticed(sampler, folder, meta, job):
    job.kill()
    job.wait()
    process = sampler()
    process.stdin.write(f"{job.pid}\n")
    process.stdin.flush()
    assert process.wait(timeout=60) == 0
    assert meta(folder)["ended_by"] == "job"


def test_a_folder_that_cannot_be_written_is_told_at_once(sampler, folder):
    process = sampler(folder=str(folder / "none"))
    assert "No such file" in json.loads(process.stdout.readline())["error"]
    assert process.wait(timeout=60) == 1


def test_it_imports_nothing_heavy():
    code = (
        "import sys, stepscope.record.counters.sampler;"
        " print([m for m in ('polars', 'numpy', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_disk_that_fills_up_ends_the_counters_with_one_message(folder, job):
    code = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
    code += "from stepscope.record.counters.sampler import main; sys.exit(main(sys.argv[1]))"
    wanted = json.dumps({"folder": str(folder), "hz": 50, "seconds": None})
    with subprocess.Popen(
        [sys.executable, "-c", code, wanted], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(f"{job.pid}\n")
        process.stdin.flush()
        lines = process.stdout.read().splitlines()
    assert process.returncode == 1
    assert [list(json.loads(line)) for line in lines] == [["ready"], ["error"]]
    error = json.loads(lines[1])["error"]
    assert "counters.csv.gz: File too large" in error
    assert "the job goes on" in error
    assert job.poll() is None
    assert samples(folder)[0] == ["ts_ns", "metric", "unit", "device", "value"]


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
