"""Scheduling of real jobs: on machines that let us trace; the rest of the collector with sources made by hand."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stepscope
from stepscope.readers import recorded
from stepscope.readers.recorded import sched_events as reader
from stepscope.record.sched import main, perf
from stepscope.record.sched.main import SchedFile
from stepscope.record.system import tracefs

MARKS = """
import sys, time
marks = []
time.sleep(0.5)  # until the collector knows of us
for _ in range(60):
    time.sleep(0.003)
    start = now = time.time_ns()
    while now < start + 1_000_000:
        now = time.time_ns()
    marks.append((start, now))
open(sys.argv[1], "w").write(repr(marks))
"""
#: What kernels do not tell of.
_KNOWN = ("sched_gaps", "sched_from_idle")
BUSY = """
import threading, time
for _ in range(3):
    threading.Thread(target=lambda: [time.sleep(0.001) for _ in range(20000)]).start()
"""


@pytest.fixture
def _allowed():
    why = tracefs.why_not()
    if why is not None:
        pytest.skip(f"the kernel's tracer cannot be used here: {why}")


def left_behind() -> set[str]:
    """Instances of the tracer whose makers are gone; other tests may be using theirs."""
    found = {path.name for place in tracefs.PLACES[:1] for path in (place / "instances").glob("stepscope-*")}
    return {name for name in found if not Path(f"/proc/{name.split('-')[1]}").exists()}


def processes_of(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def on_cores(trace) -> pl.DataFrame:
    rows = trace.spans.filter(pl.col("category") == "sched_oncpu").join(trace.tracks, on="track_id")
    return rows.with_columns(pl.col("ts_ns") + trace.meta.origin_unix_ns, end=pl.col("ts_ns") + pl.col("dur_ns")).sort(
        "ts_ns"
    )


@pytest.mark.usefixtures("_allowed")
def test_time_on_cores_agrees_with_the_times_that_the_job_notes(record, tmp_path, meta):
    done = record("--sched", "--no-profiler", "--", sys.executable, "-c", MARKS, str(tmp_path / "marks"))
    assert (done.returncode, done.stderr) == (0, "")
    (trace,) = stepscope.load_run(done.folder)
    assert not [code for code in trace.issues["code"] if code.startswith("sched") and code not in _KNOWN]
    pid = meta(done.folder)["pid"]
    rows = on_cores(trace).filter(pl.col("tid") == pid)
    starts = rows["ts_ns"].to_numpy()
    ends = starts + rows["dur_ns"].to_numpy()
    marks = np.array(eval((tmp_path / "marks").read_text()))
    first, last = marks[:, 0], marks[:, 1]
    at_first = np.searchsorted(starts, first + 20_000, side="right") - 1
    assert (at_first >= 0).all()
    # At each mark it had a core; some kernels leave out a switch now and then.
    n_gaps = sum(trace.issues.filter(pl.col("code") == "sched_gaps")["count"])
    assert (first > ends[at_first] + 20_000).sum() <= n_gaps
    at_last = np.searchsorted(starts, last + 20_000, side="right") - 1
    # It woke up just before the first mark, and went to sleep just after the last one.
    assert np.median(first - starts[at_first]) < 100_000
    assert np.median(ends[at_last] - last) < 100_000


@pytest.mark.usefixtures("_allowed")
def test_a_job_that_is_joined_with_its_threads_and_children(record, meta, wait_until):
    code = BUSY + "\nimport subprocess\nsubprocess.run(['sleep', '30'])"
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        wait_until(lambda: len(list(Path(f"/proc/{job.pid}/task").iterdir())) == 4)
        done = record("--sched", "--pid", str(job.pid), "--duration", "1500ms")
        children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout
        subprocess.run(["pkill", "-P", str(job.pid)], check=True)
        job.kill()
    assert (done.returncode, done.stderr) == (0, "")
    (trace,) = stepscope.load_run(done.folder)
    counted = trace.spans.join(trace.tracks, on="track_id").group_by("tid").agg(pl.len())
    assert counted.filter(pl.col("len") > 200).height == 3
    # The sampler looks for new processes twice a second, the kernel tells of each at once.
    assert set(trace.tracks["pid"]) <= {*meta(done.folder)["pids"], *map(int, children.split())}
    assert not [code for code in trace.issues["code"] if code.startswith("sched") and code not in _KNOWN]


@pytest.mark.usefixtures("_allowed")
def test_without_the_tracer_perf_gives_time_on_cores_and_waits_after_preemptions(tmp_path):
    if (why := perf.why_not()) is not None:
        pytest.skip(f"perf events cannot be used here: {why}")
    use_perf = "from stepscope.record.sched import main; from stepscope.record.system import tracefs\n"
    use_perf += "tracefs.why_not = lambda: 'run with sudo'\n"
    use_perf += "main.opened.__defaults__ = (tracefs.why_not,); main.main(__import__('sys').argv[1])"
    job, collector = collected(tmp_path, use_perf, [sys.executable, "-c", BUSY.replace("20000", "100")])
    told = json.loads(collector.splitlines()[0])
    assert told["issue"]["code"] == "sched_no_wakeups"
    assert "run with sudo" in told["issue"]["example"]
    (tmp_path / "counters.csv").write_text(f"ts_ns,metric,unit,device,value\n{time.time_ns()},x,%,host,1\n")
    (trace,) = stepscope.load_run(tmp_path)
    counted = trace.spans.join(trace.tracks, on="track_id").filter(pl.col("category") == "sched_oncpu")
    assert counted.filter(pl.col("tid") != job)["tid"].n_unique() == 3
    assert set(trace.sched.join(trace.spans, on="span_id").filter(pl.col("category") == "sched_runq")["reason"]) <= {
        "preempted"
    }


def collected(folder: Path, code: str, command: list[str]) -> tuple[int, str]:
    """Runs a collector, given as code, on a job; the job's pid, and what the collector said."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    argument = json.dumps({"folder": str(folder)})
    with subprocess.Popen([sys.executable, "-c", code, argument], env=environment, **pipes) as process:
        first = process.stdout.readline()
        with subprocess.Popen(command) as job:
            process.stdin.write(f"{job.pid}\n")
            process.stdin.flush()
            job.wait(60)
        out, _ = process.communicate(timeout=60)
    return job.pid, first + out


@pytest.mark.usefixtures("_allowed")
def test_a_file_that_reaches_its_limit_counts_what_follows(tmp_path, wait_until):
    code = "from stepscope.record.sched import main; main.MOST_BYTES = 3000; main.main(__import__('sys').argv[1])"
    collected(tmp_path, code, [sys.executable, "-c", BUSY.replace("20000", "2500")])
    assert (tmp_path / "sched.ring").stat().st_size < 200_000
    (tmp_path / "counters.csv").write_text(f"ts_ns,metric,unit,device,value\n{time.time_ns()},x,%,host,1\n")
    (trace,) = stepscope.load_run(tmp_path)
    counts = dict(trace.issues.select("code", "count").iter_rows())
    assert counts["sched_full"] == 1
    assert counts["sched_unwritten"] > 100
    wait_until(lambda: not left_behind())


@pytest.mark.usefixtures("_allowed")
def test_a_full_disk_ends_the_recording_of_scheduling_and_not_the_job(record, tmp_path, wait_until):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        (folder / "filler").write_bytes(bytes(44 << 10))
        code = BUSY.replace("20000", "2500") + "\nprint('done')"
        done = record("--sched", "--force", "--no-profiler", "--", sys.executable, "-c", code, folder=folder)
        assert (done.stdout, done.returncode) == ("done\n", 0)
        assert "sched.ring: No space left on device" in done.stderr
        wait_until(lambda: not left_behind())
        assert next(iter(stepscope.load_run(folder)))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("_allowed")
@pytest.mark.parametrize("seed", range(int(os.environ.get("STEPSCOPE_KILLS", "6"))))
def test_a_kill_at_any_moment_leaves_no_instance_no_process_and_a_folder_that_loads(start, tmp_path, seed, wait_until):
    chance = random.Random(seed)
    folder = tmp_path / "run"
    process = start("--sched", "--", sys.executable, "-c", f"{BUSY}\n'{tmp_path}'")
    wait_until((folder / "meta.json").exists)
    time.sleep(chance.uniform(0, 2.5))
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    job = [pid for pid, line in words.items() if "stepscope.record" not in line]
    collector = [pid for pid, line in words.items() if "record.sched" in line]
    victims = {0: [process.pid], 1: job, 2: [*job, process.pid], 3: [*collector, process.pid], 4: collector}[seed % 5]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for pid in job:  # the job goes on without us
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if seed % 5 == 1 and not job:  # it was too early to kill it
        process.kill()
    process.wait(timeout=60)
    wait_until(lambda: not processes_of(tmp_path))
    if seed % 5 == 3:  # nobody is left to notice that the collector was killed but the next recording
        assert start("--force", "--sched", "--no-profiler", "--", "true").wait(timeout=60) == 0
        folder = None
    wait_until(lambda: not left_behind())
    if folder is None:
        return
    (trace,) = stepscope.load_run(folder)
    told = {"sched_cut", "sched_unreadable", "recording_cut", "sched_ended"} & set(trace.issues["code"])
    assert told or trace.sched.height
    if seed % 5 == 4 and job:
        assert "sched_ended" in told


def test_without_rights_counters_are_recorded_and_the_remedy_is_told(monkeypatch):
    monkeypatch.setattr(perf, "why_not", lambda: "sudo sysctl kernel.perf_event_paranoid=2 (it is 4)")
    source, issue = main.opened(lambda: "/sys/kernel/tracing may be read by root only: run with sudo")
    assert source is None
    assert issue["code"] == "no_scheduling"
    assert "run with sudo; or sudo sysctl kernel.perf_event_paranoid=2" in issue["example"]


def test_a_tracer_that_refuses_is_told(monkeypatch):
    def refuse():
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(tracefs, "Tracefs", refuse)
    monkeypatch.setattr(perf, "why_not", lambda: "no")
    assert "Device or resource busy" in main.opened(lambda: None)[1]["example"]


def test_a_collector_without_a_source_says_so_and_is_done(monkeypatch, capsys):
    monkeypatch.setattr(main, "opened", lambda: (None, {"code": "no_scheduling"}))
    monkeypatch.setattr(main.Ending, "watch", lambda _: None)
    assert main.main('{"folder": "/nowhere"}') == 0
    assert json.loads(capsys.readouterr().out)["issue"]["code"] == "no_scheduling"


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, capsys, tmp_path):
    class Source:
        closed = False

        def close(self):
            self.closed = True

    source = Source()
    monkeypatch.setattr(main, "opened", lambda: (source, None))
    monkeypatch.setattr(main.Ending, "watch", lambda _: None)
    assert main.main(json.dumps({"folder": str(tmp_path / "nowhere")})) == 1
    assert "cannot write" in json.loads(capsys.readouterr().out)["error"]
    assert source.closed


def test_writer_and_reader_mean_the_same_form():
    assert main.NAME == recorded.SCHEDULING
    assert (main.MAGIC, main.HEAD.format) == (reader.MAGIC, reader._HEAD.format)
    assert (main.FACTS, main.EVENTS) == (reader._FACTS, reader._EVENTS)


def test_what_is_added_is_read_again(tmp_path):
    file = SchedFile(tmp_path / "sched.ring")
    file.add_facts(5, source="tracefs")
    file.add(7, 3, b"pages" * 1000)
    assert file.size == len(main.MAGIC)  # nothing is written before a flush
    file.flush()
    file.flush()
    file.close()
    assert file.size == (tmp_path / "sched.ring").stat().st_size < 200
    with (tmp_path / "sched.ring").open("rb") as opened:
        assert opened.read(len(reader.MAGIC)) == reader.MAGIC
        found = list(reader._frames(opened, "", None))
    assert found == [(1, 0, 5, b'{"source":"tracefs"}'), (2, 3, 7, b"pages" * 1000)]


def test_a_full_disk_leaves_what_was_whole(tmp_path, monkeypatch):
    file = SchedFile(tmp_path / "sched.ring")
    file.add_facts(5, a=1)
    file.flush()
    whole, write = file.size, os.write
    left = [10]

    def full(handle, content):
        if not left:
            raise OSError(28, "No space left on device")
        return write(handle, content[: left.pop()])

    monkeypatch.setattr(main.os, "write", full)
    file.add_facts(6, b=2)
    with pytest.raises(OSError, match="No space"):
        file.flush()
    assert (tmp_path / "sched.ring").stat().st_size == whole
    file.close()
