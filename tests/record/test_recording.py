from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.record import dump, recording

TELLS = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('err'); sys.exit(7)"


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in words:
                found.append(words)
    return found


@pytest.mark.parametrize("words", [(), ("--keep", "5s", "--trigger", "2x")], ids=["all", "ring"])
def test_streams_and_exit_code_pass_through(record, meta, words):
    done = record(*words, "--", sys.executable, "-c", TELLS, input="hello")
    assert (done.stdout, done.stderr, done.returncode) == ("HELLO", "err", 7)
    found = meta(done.folder)
    assert found["command"] == [sys.executable, "-c", TELLS]
    assert found["exit_code"] == 7
    assert found["start_unix_ns"] < found["end_unix_ns"] < time.time_ns()
    assert found["pid"] in found["pids"]
    assert [issue["code"] for issue in found["issues"]] == ["no_gpu_counters", "profile_missing"]
    assert found["processes"][0]["python"].startswith("3.")


@pytest.mark.parametrize("options", [(), ("--keep", "5s")], ids=["all", "ring"])
@pytest.mark.parametrize(
    "words", [["true"], ["sh", "-c", "exec true"], ["sh", "-c", "(sleep 0.1; echo done) & wait"], ["echo", "--help"]]
)
def test_a_job_that_ends_at_once_execs_or_forks_is_recorded(record, words, options):
    done = record(*options, "--", *words)
    assert (done.returncode, done.stderr) == (0, "")
    trace = stepscope.load_run(done.folder)
    assert [t.counters.height > 0 for t in trace] == [True]


def test_the_jobs_environment_is_ours_and_the_hook_besides(record):
    code = "import os, sys; print(os.environ['MINE'], os.environ['PYTHONPATH'], *sys.path, sep='\\n')"
    env = {**os.environ, "MINE": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "src")}
    out = record("--", sys.executable, "-c", code, env=env).stdout.splitlines()
    assert out[0] == "1"
    assert out[1].endswith(env["PYTHONPATH"])
    assert not [path for path in out[2:] if "startup" in path]


def test_a_folder_that_holds_something_is_not_recorded_into(record, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("meta.json", "pid7.pt.trace.json.gz", "notes.txt"):
        (folder / name).write_text("old")
    done = record("--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert "not empty" in done.stderr
    assert "--force" in done.stderr
    assert record("--force", "--", "true").returncode == 0
    assert {path.name for path in folder.iterdir()} == {"meta.json", "counters.csv.gz", "notes.txt"}


def test_a_target_that_cannot_be_written_is_an_error_before_the_job_starts(record, tmp_path):
    (tmp_path / "file").write_text("")
    done = record("--", "echo", "ran", folder=tmp_path / "file" / "run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot write into")


#: Ends when it is sent a line.
WAITS = ["sh", "-c", "echo up; read line; echo done; exit 3"]


def end_after_sampler(process: subprocess.Popen, wait_until) -> str:
    """End the job once the sampler has given up; what the recorder writes on standard error."""
    assert process.stdout.readline() == "up\n"
    wait_until(lambda: not children_of(process)[0])
    out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode, err.count("error:")) == ("done\n", 3, 1)
    return err


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--keep", "60s")], ids=["all", "ring"])
def test_a_full_disk_leaves_the_job_alone(start, tmp_path, wait_until, words):
    folder = tmp_path / "run"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        process = start("--no-profiler", "--hz", "200", *words, "--", *WAITS, stdin=subprocess.PIPE)
        assert "No space left on device" in end_after_sampler(process, wait_until)
        assert next(iter(stepscope.load_run(folder))).counters.height > 0
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_limit_on_the_size_of_files_leaves_the_job_alone(start, tmp_path, wait_until):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    process = start("--no-profiler", "--hz", "200", "--", *WAITS, stdin=subprocess.PIPE, preexec_fn=limit)
    assert "File too large" in end_after_sampler(process, wait_until)
    assert next(iter(stepscope.load_run(tmp_path / "run"))).counters.height > 0


def test_a_target_that_is_mounted_read_only_is_an_error_before_the_job_starts(record, tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        for where in (folder, folder / "run"):
            done = record("--", "echo", "ran", folder=where)
            assert (done.returncode, done.stdout) == (1, "")
            assert (done.stderr.count("error:"), "Read-only file system" in done.stderr) == (1, True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_sampler_that_is_killed_is_told_and_the_job_goes_on(start, tmp_path, meta):
    process = start("--no-profiler", "--", "sh", "-c", "echo up; read line; exit 4", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    sampler = subprocess.run(
        ["pgrep", "-f", f"counters.sampler.*{tmp_path}"], capture_output=True, text=True, check=True
    ).stdout
    os.kill(int(sampler.split()[0]), signal.SIGKILL)
    _, err = process.communicate("\n", timeout=60)
    assert process.returncode == 4
    assert "the sampler ended early (signal 9)" in err
    assert "counters_ended" in {issue["code"] for issue in meta(tmp_path / "run")["issues"]}


#: More of them try more moments.
KILLS = range(int(os.environ.get("STEPSCOPE_KILLS", "3")))
SLEEPS = "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); time.sleep(30)"


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


@pytest.mark.parametrize("words", [(), ("--keep", "1s")], ids=["all", "ring"])
@pytest.mark.parametrize("seed", KILLS)
def test_a_kill_at_any_moment_leaves_a_folder_that_loads_and_nothing_else(start, tmp_path, wait_until, seed, words):
    chance = random.Random(seed)
    folder = tmp_path / "run"
    process = start(*words, "--", sys.executable, "-c", f"{SLEEPS}; '{tmp_path}'")
    wait_until((folder / "meta.json").exists)
    time.sleep(chance.uniform(0, 1.5))
    if words:
        process.send_signal(signal.SIGUSR1)
        time.sleep(chance.uniform(0, 0.1))
    _, job = children_of(process)
    victims = {0: [process.pid], 1: job or [process.pid], 2: [*job, process.pid]}[seed % 3]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if seed % 3 == 0:  # the job goes on without us
        for pid in job:
            assert Path(f"/proc/{pid}").exists()
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)
    wait_until(lambda: not processes_of(tmp_path))
    loads(folder)
    if seed % 3 == 1 and job:
        assert process.returncode == 137


@pytest.mark.parametrize("words", [(), ("--keep", "1s")], ids=["all", "ring"])
@pytest.mark.parametrize("seed", KILLS)
def test_a_kill_while_a_process_is_joined_does_the_same(start, tmp_path, wait_until, seed, words):
    chance = random.Random(seed)
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as job:
        process = start(*words, "--pid", str(job.pid))
        wait_until((folder / "meta.json").exists)
        time.sleep(chance.uniform(0, 1.5))
        if words:
            process.send_signal(signal.SIGUSR1)
            time.sleep(chance.uniform(0, 0.1))
        sampler, _ = children_of(process)
        for pid in {0: [process.pid], 1: [job.pid], 2: sampler or [process.pid]}[seed % 3]:
            os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)
        wait_until(lambda: not processes_of(tmp_path))
        assert job.poll() is None or seed % 3 == 1
        job.kill()
    loads(folder)


def test_the_last_seconds_alone_are_kept_and_dumped_on_a_signal(start, tmp_path, meta, wait_until):
    folder = tmp_path / "run"
    process = start(
        "--keep",
        "500ms",
        "--hz",
        "100",
        "--no-profiler",
        "--",
        "sh",
        "-c",
        "echo up; read line; exit 4",
        stdin=subprocess.PIPE,
    )
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


def test_a_joined_process_is_dumped_on_a_signal_and_by_request(start, tmp_path, wait_until):
    folder = tmp_path / "run"
    with subprocess.Popen(["sleep", "60"]) as job:
        process = start("--keep", "30s", "--pid", str(job.pid))
        wait_until(lambda: (folder / "counters.csv.gz").exists() and (folder / "counters.csv.gz").stat().st_size > 200)
        process.send_signal(signal.SIGUSR1)
        first = folder / "dump-0001-signal"
        wait_until(lambda: first.exists() and "clocks_at_end" in (first / "meta.json").read_text())
        assert dump(folder) == folder / "dump-0002-request"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert job.poll() is None
        job.kill()
    assert (process.returncode, err) == (0, "")
    loads(folder)
    assert not list(folder.glob(".*"))


def test_force_replaces_earlier_dumps_and_nothing_of_others(record, tmp_path):
    folder = tmp_path / "run"
    for name in ("dump-0001-signal", "dump-0002-slow-step", "dumps-mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "meta.json").write_text("old")
    (folder / "dump-0002-slow-step" / "notes.txt").write_text("mine")
    assert record("--force", "--", "true").returncode == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "meta.json", "counters.csv.gz", "dump-0002-slow-step/notes.txt", "dumps-mine/meta.json",
    }  # fmt: skip


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
time.sleep(0.3)
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
    assert len(late) > 50
    # A reading may be interrupted, on a busy machine, for less than the time after which it is made again.
    assert sorted(late)[int(0.9 * len(late))] < 100_000


@pytest.mark.slow
def test_counters_of_a_minute_take_less_than_a_megabyte(record):
    code = "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(3,)).start()"
    done = record("--no-profiler", "--", sys.executable, "-c", code)
    [trace] = stepscope.load_run(done.folder)
    seconds = trace.counters["ts_ns"].max() / 1e9
    assert seconds > 2
    assert (done.folder / "counters.csv.gz").stat().st_size / seconds * 60 < 1_000_000


def test_a_running_process_and_its_children_are_joined(record, meta):
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as job:
        done = record("--pid", str(job.pid), "--duration", "500ms")
        subprocess.run(["pkill", "-P", str(job.pid)], check=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = meta(done.folder)
    assert (found["mode"], found["ended_by"], len(found["pids"])) == ("attach", "duration", 2)
    assert found["command"] == ["sh", "-c", "sleep 60 & wait"]


def test_joining_ends_with_an_interrupt(start, tmp_path, meta, wait_until):
    with subprocess.Popen(["sleep", "60"]) as job:
        process = start("--pid", str(job.pid))
        counters = tmp_path / "run" / "counters.csv.gz"
        wait_until(lambda: counters.exists() and counters.stat().st_size > 200)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        job.kill()
    assert (process.returncode, err) == (0, "")
    assert meta(tmp_path / "run")["ended_by"] == "signal 15"


def test_a_process_that_is_not_there_cannot_be_joined(record):
    with subprocess.Popen(["true"]) as job:
        pass
    done = record("--pid", str(job.pid))
    assert (done.returncode, done.folder.exists()) == (1, False)
    assert f"there is no process {job.pid}" in done.stderr


def test_other_systems_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(recording.sys, "platform", "darwin")
    with pytest.raises(StepscopeError, match="Linux only"):
        recording.run(["true"], tmp_path / "run")
    with pytest.raises(StepscopeError, match="Linux only"):
        recording.attach(1, tmp_path / "run")


def test_a_command_that_cannot_run_leaves_no_process_behind(record, tmp_path, wait_until):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert record("--", str(script)).returncode == 126
    wait_until(lambda: not processes_of(tmp_path))


def test_what_may_not_be_read_of_another_users_process_is_told_with_the_remedy(tmp_path, monkeypatch, meta):
    read = recording.read_once
    monkeypatch.setattr(recording, "read_once", lambda path: None if path.endswith("/io") else read(path))
    with subprocess.Popen(["sleep", "60"]) as job:
        done = recording.attach(job.pid, tmp_path / "run", seconds=0.2)
        job.kill()
    assert (done.exit_code, done.problems) == (None, ())
    told = {issue["code"]: issue["example"] for issue in meta(done.folder)["issues"]}
    assert "sudo" in told["no_io_counters"]
