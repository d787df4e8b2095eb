from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from fakes import FakeSampler

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.record import Ring, recording
from stepscope.record.child_handles import ChildHandle, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def put(monkeypatch):
    """Puts a sampler in place of the process that would sample; what it was started with is its `wanted`."""

    def put_in_place(sampler: FakeSampler | Sampler | None = None) -> FakeSampler | Sampler:
        sampler = sampler or FakeSampler()
        monkeypatch.setattr(recording, "start_sampler", lambda *_: sampler)
        return sampler

    return put_in_place


def ended_by(code: str) -> Sampler:
    """A sampler's handle whose process is a shell."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return Sampler(ChildHandle(subprocess.Popen(["sh", "-c", code], **pipes)), None)


def sends(*numbers: int) -> Callable[[], None]:
    """A function that sends this thread, which blocks them, one signal each time, and nothing once all are sent."""
    signals = iter(numbers)
    return lambda: signal.pthread_kill(threading.get_ident(), next(signals, 0))


def issues_of(document: dict) -> dict[str, str]:
    return {issue["code"]: issue["example"] for issue in document["issues"]}


# The outcome


def test_the_exit_code_is_the_jobs_as_a_shell_reports_it(put, tmp_path, meta):
    for n, (code, expected) in enumerate({"exit 7": 7, "kill -TERM $$; sleep 60": 128 + signal.SIGTERM}.items()):
        sampler = put()
        done = recording.run(["sh", "-c", code], tmp_path / str(n))
        assert (done.exit_code, done.problems, sampler.asked) == (expected, (), ["sample", "end"])
        document = meta(done.folder)
        assert (document["exit_code"], document["command"]) == (expected, ["sh", "-c", code])
        assert document["start_unix_ns"] < document["end_unix_ns"] < time.time_ns()


@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        ("kill -9 $$", "the sampler ended early (signal 9)"),
        ('echo \'{"error": "No space left on device"}\'; exit 1', "No space left on device"),
    ],
)
def test_a_sampler_that_ends_early_is_reported_and_the_job_goes_on(put, tmp_path, meta, sampler, problem):
    put(ended_by(sampler))
    done = recording.run(["sh", "-c", "exit 4"], tmp_path / "run", steps=None)
    assert (done.exit_code, done.problems) == (4, (problem,))
    assert issues_of(meta(done.folder)) == {"counters_ended": problem}


def test_an_outcome_that_cannot_be_written_is_a_problem(put, tmp_path):
    folder = tmp_path / "run"
    sampler = put(FakeSampler(then={"sample": (folder / "meta.json").unlink}))
    assert "cannot write" in recording.run(["true"], folder).problems[0]
    sampler.problems = ["No space left on device"]  # the first reason is enough
    assert recording.run(["true"], folder, force=True).problems == ("No space left on device",)


def test_a_command_that_cannot_run_leaves_no_process_behind(put, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    sampler = put(ended_by("cat"))
    with pytest.raises(StepscopeError, match="No such file"):
        recording.run([str(script)], tmp_path / "run")
    assert sampler.child.process.returncode == -signal.SIGKILL
    with pytest.raises(StepscopeError, match="no such program"):
        recording.run(["no-such-program"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_with_a_ring_a_user_signal_asks_for_a_dump_and_is_not_handed_on(put, tmp_path, meta):
    sampler = put(FakeSampler(then={"sample": sends(signal.SIGUSR1), "dump": sends(signal.SIGTERM)}))
    done = recording.run(["sleep", "60"], tmp_path / "run", ring=Ring(5.0, 2.0))
    assert (done.exit_code, sampler.asked) == (128 + signal.SIGTERM, ["sample", "dump", "end"])
    assert meta(done.folder)["ring"] == {"keep_s": 5.0, "trigger": 2.0, "max_dumps": 10}


@pytest.mark.parametrize("ring", [None, Ring(5.0)])
def test_a_user_signal_asks_for_snapshots_of_memory(put, tmp_path, meta, monkeypatch, ring):
    asked = []
    monkeypatch.setattr(recording.profiles, "ask_for_snapshots", lambda _: asked.append(1) or sends(signal.SIGTERM)())
    sampler = put(FakeSampler(then={"sample": sends(signal.SIGUSR1)}))
    done = recording.run(["sleep", "60"], tmp_path / "run", memory_snapshots=True, ring=ring)
    assert (done.exit_code, asked, "dump" in sampler.asked) == (128 + signal.SIGTERM, [1], ring is not None)
    assert "memory_snapshot_missing" in {issue["code"] for issue in meta(done.folder)["issues"]}


def test_other_systems_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(recording.sys, "platform", "darwin")
    with pytest.raises(StepscopeError, match="Linux only"):
        recording.run(["true"], tmp_path / "run")
    with pytest.raises(StepscopeError, match="Linux only"):
        recording.attach(1, tmp_path / "run")


# The folder


@pytest.fixture
def never_started(monkeypatch):
    """Fails if the job is started."""
    monkeypatch.setattr(recording.job, "start", lambda *_: pytest.fail("the job was started"))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("never_started")
def test_a_folder_that_holds_something_is_not_recorded_into(tmp_path):
    (tmp_path / "notes.txt").write_text("old")
    with pytest.raises(StepscopeError, match="not empty") as error:
        recording.run(["echo", "ran"], tmp_path)
    assert "--force" in str(error.value.hint)


def test_force_replaces_an_earlier_recording_with_its_dumps_and_nothing_of_others(put, tmp_path):
    folder = tmp_path / "run"
    old = ["meta.json", "counters.csv.gz", "stacks.tsv.gz", "sched.ring", "pid7.pt.trace.json.gz"]
    dumped = ["dump-0001-signal/meta.json", "dump-0002-slow-step/meta.json"]
    mine = ["notes.txt", "stacks.txt", "dump-0002-slow-step/notes.txt", "dumps-mine/meta.json"]
    for name in (*old, *dumped, *mine):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    put()
    assert recording.run(["true"], folder, force=True).exit_code == 0
    assert files_in(folder) == {"meta.json", "counters.csv.gz", *mine}
    assert not (folder / "dump-0001-signal").exists()
    assert (folder / "meta.json").read_text() != "old"


@pytest.mark.usefixtures("never_started")
def test_a_target_that_cannot_be_written_is_an_error_before_the_job_starts(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(StepscopeError, match=r"cannot write into .*file/run"):
        recording.run(["echo", "ran"], tmp_path / "file" / "run")

    def refuse(*_):
        raise OSError(28, "No space left on device", "counters.csv.gz")

    monkeypatch.setattr(recording, "CounterFile", refuse)
    with pytest.raises(StepscopeError, match=r"cannot write counters.csv.gz: No space left on device"):
        recording.run(["echo", "ran"], tmp_path / "run")


@pytest.mark.usefixtures("never_started")
def test_a_target_that_is_mounted_read_only_is_an_error_before_the_job_starts(tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        for where in (folder, folder / "run"):
            with pytest.raises(StepscopeError, match="Read-only file system"):
                recording.run(["echo", "ran"], where)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# Processes that run already


@pytest.fixture
def sleeper():
    """A process to join."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("ring", [None, Ring(30.0)])
def test_joining_ends_with_an_interrupt_and_dumps_on_a_signal(put, sleeper, tmp_path, meta, ring):
    sampler = put(FakeSampler(then={"poll": sends(signal.SIGUSR1, signal.SIGINT)}))
    done = recording.attach(sleeper.pid, tmp_path / "run", ring=ring)
    assert (done.exit_code, done.problems) == (None, ())
    assert sampler.asked == ["sample", *(["dump"] if ring else []), "terminate"]
    assert sleeper.poll() is None
    document = meta(done.folder)
    assert (document["mode"], document["pid"], document["command"]) == ("attach", sleeper.pid, ["sleep", "60"])


def test_a_process_that_is_not_there_cannot_be_joined(tmp_path, sleeper):
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(StepscopeError, match=f"there is no process {sleeper.pid}"):
        recording.attach(sleeper.pid, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_may_not_be_read_of_another_users_process_is_told_with_the_remedy(
    put, sleeper, tmp_path, monkeypatch, meta
):
    read = recording.read_once
    monkeypatch.setattr(recording, "read_once", lambda path: None if path.endswith("/io") else read(path))
    put(ended_by("exit 0"))
    done = recording.attach(sleeper.pid, tmp_path / "run")
    assert (done.exit_code, done.problems) == (None, ())
    assert "sudo" in issues_of(meta(done.folder))["no_io_counters"]


# Real recordings: what only real processes show

#: Reads standard input, writes all three streams, forks, and notes what it was given.
JOB = """
import json, os, subprocess, sys
sys.stdout.write(sys.stdin.read().upper())
sys.stderr.write('err')
subprocess.run(["sh", "-c", "(sleep 0.1; exec true) & wait"])
with open(sys.argv[1], "w") as file:
    json.dump({"mine": os.environ["MINE"], "python_path": os.environ["PYTHONPATH"], "path": sys.path}, file)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def recorded(record_into, tmp_path_factory):
    """A whole recording of one job; `seen` is what the job was given."""
    folder = tmp_path_factory.mktemp("recorded")
    env = {**os.environ, "MINE": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "src")}
    command = [sys.executable, "-c", JOB, str(folder / "given")]
    done = record_into(folder / "run", "--", *command, input="hello", env=env)
    return SimpleNamespace(
        done=done,
        env=env,
        command=command,
        given=json.loads((folder / "given").read_text()),
        meta=json.loads((done.folder / "meta.json").read_text()),
    )


def test_streams_and_exit_code_pass_through(recorded):
    assert (recorded.done.stdout, recorded.done.stderr, recorded.done.returncode) == ("HELLO", "err", 7)


def test_the_jobs_environment_is_ours_and_the_hook_besides(recorded):
    assert recorded.given["mine"] == "1"
    assert recorded.given["python_path"].endswith(recorded.env["PYTHONPATH"])
    assert not [path for path in recorded.given["path"] if "startup" in path]


def test_a_recording_says_what_was_recorded_and_can_be_read(recorded):
    document = recorded.meta
    assert (document["command"], document["exit_code"]) == (recorded.command, 7)
    assert document["start_unix_ns"] < document["end_unix_ns"] < time.time_ns()
    assert document["pid"] in document["pids"]
    assert [issue["code"] for issue in document["issues"]] == ["no_gpu_counters", "profile_missing"]
    assert document["processes"][0]["python"].startswith("3.")
    assert [trace.counters.height > 0 for trace in stepscope.load_run(recorded.done.folder)] == [True]


def test_the_last_seconds_alone_are_recorded_and_dumped_on_a_signal(start, tmp_path, meta, wait_until):
    folder = tmp_path / "run"
    job = ["sh", "-c", "echo up; read line; exit 4"]
    ring = ["--keep", "500ms", "--hz", "200", "--trigger", "2x"]
    process = start(*ring, "--no-profiler", "--", *job, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    began, file = time.monotonic(), (folder / "counters.csv.gz").stat().st_ino
    wait_until(lambda: (folder / "counters.csv.gz").stat().st_ino != file)  # it holds the last seconds alone
    passed = time.monotonic() - began
    process.send_signal(signal.SIGUSR1)  # which would end the job, were it handed on
    wait_until((folder / "dump-0001-signal" / "meta.json").exists)
    _, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (4, "")
    for each in (folder, folder / "dump-0001-signal"):
        [trace] = stepscope.load_run(each)
        seconds = trace.counters["ts_ns"].max() / 1e9
        assert 0.3 < seconds < passed
    assert [dump["folder"] for dump in meta(folder)["dumps"]] == ["dump-0001-signal"]
    assert meta(folder / "dump-0001-signal")["dump"]["reason"] == "signal"
    assert not list(folder.glob(".*"))


def test_a_running_process_and_its_children_are_joined(start, tmp_path, meta, wait_until):
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo up; wait"], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "up\n"
        process = start("--pid", str(job.pid))
        counters = tmp_path / "run" / "counters.csv.gz"
        wait_until(lambda: counters.exists() and counters.stat().st_size > 200)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert job.poll() is None
        subprocess.run(["pkill", "-P", str(job.pid)], check=True)
    assert (process.returncode, out, err) == (0, "", "")
    document = meta(tmp_path / "run")
    assert (document["mode"], document["ended_by"], len(document["pids"])) == ("attach", "signal 15", 2)
    assert document["command"] == ["sh", "-c", "sleep 60 & echo up; wait"]


@pytest.fixture
def small_disks(tmp_path):
    """Two folders, each a file system of 64 kB."""
    folders = [tmp_path / "all", tmp_path / "ring"]
    try:
        for folder in folders:
            folder.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
            if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
                pytest.skip("a small file system can be mounted by root only")
        yield folders
    finally:
        for folder in folders:
            subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_leaves_the_job_alone(start, small_disks, wait_until):
    job = ["sh", "-c", "echo up; read line; echo done; exit 3"]
    words = ["--no-profiler", "--hz", "200"]
    pipes = {"stdin": subprocess.PIPE}
    recordings = {
        folder: start(*words, *ring, "--", *job, folder=folder, **pipes)
        for folder, ring in zip(small_disks, [(), ("--keep", "60s")], strict=True)
    }
    for folder in recordings:
        counters = folder / "counters.csv.gz"
        wait_until(lambda file=counters: file.exists() and file.stat().st_size > 200)
        fill(folder)
    for folder, process in recordings.items():
        assert process.stdout.readline() == "up\n"
        wait_until(lambda process=process: not children_of(process)[0])
        out, err = process.communicate("\n", timeout=60)
        assert (out, process.returncode, err.count("error:")) == ("done\n", 3, 1)
        assert "No space left on device" in err
        assert next(iter(stepscope.load_run(folder))).counters.height > 0


#: Collects garbage at times that it notes: the hook counts the collections, and the sampler reads the count.
COLLECTS = """
import gc, sys, time
gc.disable()
until, times = time.monotonic() + 2, []
while time.monotonic() < until:
    before = time.time_ns()
    gc.collect(0)
    times.append((before, time.time_ns()))
    while time.time_ns() < before + 50_000:
        pass
time.sleep(0.1)
with open(sys.argv[1], "w") as file:
    file.writelines(f"{before} {after}\\n" for before, after in times)
"""


def test_counters_tell_the_time_to_100_us(record, tmp_path):
    done = record("--no-profiler", "--hz", "100", "--", sys.executable, "-c", COLLECTS, str(tmp_path / "times"))
    assert done.returncode == 0
    times = [tuple(map(int, line.split())) for line in (tmp_path / "times").read_text().splitlines()]
    [trace] = stepscope.load_run(done.folder)
    rates = trace.counters.filter(metric="process_python_gc_collections").sort("ts_ns")
    ends = [ts_ns + trace.meta.origin_unix_ns for ts_ns in rates["ts_ns"]]
    grown = [round(rate * (b - a) / 1e9) for rate, a, b in zip(rates["value"][1:], ends, ends[1:], strict=False)]
    late, n_made = [], len(times)
    for end, n in zip(reversed(ends[1:]), reversed(grown), strict=True):
        # So many were made by then: the last of them had begun, and the next one had not ended.
        if 0 < n_made < len(times):
            late.append(max(times[n_made - 1][0] - end, end - times[n_made][1], 0))
        n_made -= n
    # A busy machine takes a few of the 200 samples: they are enough to tell whether clocks agree.
    assert len(late) > 10
    # A reading may be interrupted, on a busy machine, for less than the time after which it is made again.
    assert sorted(late)[int(0.9 * len(late))] < 100_000


# Kills

#: More of them try more moments.
ROUNDS = range(int(os.environ.get("STEPSCOPE_KILLS", "1")))
SLEEPS = "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); time.sleep(30)"
#: Each of these is killed in a recording of everything, and in one of the last seconds.
RINGS = ((), ("--keep", "1s"))


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in line:
                lines.append(line)
    return lines


def loads(folder: Path) -> None:
    """Every recording in the folder, dumps too, can be read, and says what is missing of it."""
    for each in (folder, *folder.glob("dump-*")):
        codes = [code for trace in stepscope.load_run(each) for code in trace.issues["code"]]
        assert "counters_unreadable" not in codes
        assert "recording_cut" in codes or not list(each.glob(".*"))


def children_of(process: subprocess.Popen) -> tuple[list[int], list[int]]:
    """The sampler, and the others."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    pids = [int(pid) for pid in text.split()]
    samplers = [pid for pid in pids if "counters.sampler" in Path(f"/proc/{pid}/cmdline").read_text()]
    return samplers, [pid for pid in pids if pid not in samplers]


def wait_for_a_moment(recordings: list[SimpleNamespace], chance: random.Random, wait_until) -> None:
    """Wait until all have begun, and then for some time; have those with a ring write a dump."""
    for each in recordings:
        wait_until((each.folder / "meta.json").exists)
    time.sleep(chance.uniform(0, 1.5))
    for each in recordings:
        if each.ring:
            each.process.send_signal(signal.SIGUSR1)
    time.sleep(chance.uniform(0, 0.1))


@pytest.mark.parametrize("seed", ROUNDS)
def test_a_kill_at_any_moment_leaves_a_folder_that_loads_and_nothing_else(start, tmp_path, wait_until, seed):
    recordings = [
        SimpleNamespace(victim=victim, ring=ring, folder=tmp_path / f"{victim}{len(ring)}")
        for victim in ("recorder", "job", "both")
        for ring in RINGS
    ]
    for each in recordings:
        job = [sys.executable, "-c", f"{SLEEPS}; '{each.folder}'"]
        each.process = start(*each.ring, "--", *job, folder=each.folder)
    wait_for_a_moment(recordings, random.Random(seed), wait_until)
    for each in recordings:
        _, each.job = children_of(each.process)
        recorder = [each.process.pid]
        for pid in {"recorder": recorder, "job": each.job or recorder, "both": [*each.job, *recorder]}[each.victim]:
            os.kill(pid, signal.SIGKILL)
        if each.victim == "recorder":  # the job goes on without us
            for pid in each.job:
                assert Path(f"/proc/{pid}").exists()
                os.kill(pid, signal.SIGKILL)
    for each in recordings:
        each.process.wait(timeout=60)
        wait_until(lambda folder=each.folder: not processes_of(folder))
        loads(each.folder)
        if each.victim == "job" and each.job:
            assert each.process.returncode == 137


@pytest.mark.parametrize("seed", ROUNDS)
def test_a_kill_while_a_process_is_joined_does_the_same(start, tmp_path, wait_until, seed):
    with contextlib.ExitStack() as jobs:
        recordings = [
            SimpleNamespace(victim=victim, ring=ring, folder=tmp_path / f"{victim}{len(ring)}")
            for victim in ("recorder", "job", "sampler")
            for ring in RINGS
        ]
        for each in recordings:
            each.job = jobs.enter_context(subprocess.Popen(["sleep", "60"]))
            jobs.callback(each.job.kill)
            each.process = start(*each.ring, "--pid", str(each.job.pid), folder=each.folder)
        wait_for_a_moment(recordings, random.Random(seed), wait_until)
        for each in recordings:
            sampler, _ = children_of(each.process)
            recorder = [each.process.pid]
            for pid in {"recorder": recorder, "job": [each.job.pid], "sampler": sampler or recorder}[each.victim]:
                os.kill(pid, signal.SIGKILL)
        for each in recordings:
            each.process.wait(timeout=60)
            wait_until(lambda folder=each.folder: not processes_of(folder))
            assert each.job.poll() is None or each.victim == "job"
            loads(each.folder)
