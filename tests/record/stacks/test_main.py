"""The stack recorder, and recordings with stacks of real jobs."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from py_spies import FakeRun, real

import stepscope
from stepscope.record.stacks import main
from stepscope.record.stacks.main import StackWatcher, on_core
from stepscope.record.stacks.stack_file import StackFile

SLEEPS = [sys.executable, "-IS", "-c", "import time; time.sleep(60)"]
MARKED = """
import sys, time
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
def alpha(): spin(0.03)
def beta(): spin(0.02)
def rest(): time.sleep(0.02)
marks = []
end = time.time() + float(sys.argv[2])
while time.time() < end:
    for function in (alpha, beta, rest):
        start = time.time_ns()
        function()
        marks.append((function.__name__, start, time.time_ns()))
with open(sys.argv[1], "w") as file:
    for mark in marks: print(*mark, file=file)
"""
FORKS = """
import os, time
end = time.time() + 20
if os.fork() == 0:
    while time.time() < end: pass
elif os.fork() == 0:
    while time.time() < end: time.sleep(0.01)
else:
    print("up", flush=True)
    while time.time() < end: time.sleep(0.01)
"""


def trace_of(folder: Path) -> stepscope.Trace:
    return next(iter(stepscope.load_run(folder)))


def pidfiles(word: str) -> list[int]:
    """Processes whose command line has a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_stacks_lie_on_the_jobs_own_time(record, tmp_path):
    real()
    script = tmp_path / "marked.py"
    script.write_text(MARKED)
    done = record("--no-profiler", "--stacks", "--", sys.executable, str(script), str(tmp_path / "marks"), "3.5")
    assert (done.returncode, done.stderr) == (0, "")
    marks = [line.split() for line in (tmp_path / "marks").read_text().splitlines()]
    trace = trace_of(done.folder)
    rows = trace.stack_samples.join(trace.stacks, on="stack_id").filter(~trace.stack_samples["on_gil"])
    rows = rows.filter(rows["tid"] == rows["pid"]).select("ts_ns", "frames")
    right = 0
    seen = 0
    for ts, frames in rows.iter_rows():
        at = trace.meta.origin_unix_ns + ts
        name = next((frame.split()[0] for frame in frames if frame.split()[0] in ("alpha", "beta", "rest")), None)
        if name is None or not int(marks[0][1]) < at < int(marks[-1][2]):
            continue
        seen += 1
        near = (mark for mark in marks if int(mark[1]) - 5_000_000 <= at <= int(mark[2]) + 5_000_000)
        right += name in {mark[0] for mark in near}
    assert seen > 50
    # By chance a third would be right; on a busy machine some samples are taken a few ms late.
    assert right > 0.75 * seen
    found = stepscope.show(trace, "python-stacks", by="function")
    shares = {function.split()[0]: share for function, share in found.select("function", "total_ratio").iter_rows()}
    total = sum(int(end) - int(start) for _, start, end in marks)
    for name in ("alpha", "beta", "rest"):
        share = sum(int(end) - int(start) for what, start, end in marks if what == name) / total
        # Some 70 samples: a standard deviation of their share is 6 points.
        assert shares[name] == pytest.approx(share, abs=3.5 * (share * (1 - share) / seen) ** 0.5)


def test_a_running_process_and_its_forks_are_joined_and_left_as_they_were(record, meta):
    real()
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout.readline() == "up\n"
        done = record("--stacks-hz", "50", "--pid", str(job.pid), "--duration", "1500ms")
        assert job.poll() is None
        state = Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0]
        os.killpg(job.pid, signal.SIGKILL)
    assert (done.returncode, done.stderr) == (0, "")
    assert state in "RS"  # not stopped, not traced
    document, samples = meta(done.folder), trace_of(done.folder).stack_samples
    assert document["stacks_hz"] == 50
    assert document["n_stack_samples"] > 20
    assert samples["thread"].unique().to_list() == ["MainThread"]
    assert len(document["pids"]) == 3
    assert set(samples["pid"].unique()) == set(document["pids"])
    assert samples.filter(samples["on_gil"])["pid"].n_unique() >= 1


#: Which processes are killed, and so many seconds after all have begun.
KILLED = {"recorder": 0.0, "job": 0.15, "watcher": 0.3, "all": 0.6, "py-spy": 1.2}


@pytest.mark.parametrize("seed", range(int(os.environ.get("STEPSCOPE_KILLS", "1"))))
def test_a_kill_leaves_a_folder_that_loads_and_no_process(start, tmp_path, wait_until, seed):
    real()
    recordings = {}
    for victim in KILLED:
        folder = tmp_path / victim
        job = [sys.executable, "-c", f"import time; time.sleep(40); 'job of {folder}'"]
        recordings[victim] = SimpleNamespace(
            folder=folder, process=start("--no-profiler", "--stacks", "--", *job, folder=folder)
        )
    for each in recordings.values():
        wait_until((each.folder / "stacks.tsv.gz").exists)
    began = time.monotonic()
    for victim, after_s in KILLED.items():
        time.sleep(max(0.0, began + after_s * (1 + 0.1 * seed) - time.monotonic()))
        each = recordings[victim]
        children = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children_of(each.process.pid)}
        each.watchers = [pid for pid, line in children.items() if "stacks.main" in line]
        each.job = [pid for pid, line in children.items() if f"job of {each.folder}" in line]
        each.spies = [pid for watcher in each.watchers for pid in children_of(watcher)]
        recorder = [each.process.pid]
        victims = {"recorder": recorder, "job": each.job, "watcher": each.watchers, "py-spy": each.spies[:1]}
        for pid in victims.get(victim, [*recorder, *each.job, *each.watchers]):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    for victim, each in recordings.items():
        if victim not in {"job", "all"}:
            assert all(is_running(pid) for pid in each.job)
            for pid in each.job:
                os.kill(pid, signal.SIGKILL)
    for victim, each in recordings.items():
        each.process.communicate(timeout=60)
        wait_until(lambda each=each: not any(map(is_running, [*each.watchers, *each.spies])))
        wait_until(lambda each=each: not pidfiles(str(each.folder)))
        codes = set(trace_of(each.folder).issues["code"])
        assert "stacks_unreadable" not in codes
        if victim != "job":
            assert codes & {"stacks_cut", "stacks_ended", "stacks_lost", "recording_cut"}
        assert not [path for path in each.folder.iterdir() if path.name.startswith(".stacks")]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def clock(request, monkeypatch):
    """Time that passes only while the recorder waits, and runs of py-spy that are not real. Not for real jobs."""
    if "record_into" in request.fixturenames or "start" in request.fixturenames:
        return None
    FakeRun.put(monkeypatch)
    for name in ("time", "select"):
        monkeypatch.setattr(main, name, FakeRun.clock)
    return FakeRun.clock


@pytest.fixture
def keep(tmp_path, monkeypatch, capsys):
    """Runs the stack recorder here on a job, which ends once py-spy is at work (or at once); its outcome."""

    def run(*, at_once: bool = False) -> dict:
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(signal, "set_wakeup_fd", lambda _fd: -1)
        wanted = json.dumps({"folder": str(tmp_path), "hz": 100, "spy": "py-spy"})
        read, write = os.pipe()
        with subprocess.Popen(SLEEPS) as job:
            turn = StackWatcher.turn

            def end_job() -> None:
                job.kill()
                job.wait()

            def turn_and_end(watcher: StackWatcher) -> float:
                wait_s = turn(watcher)
                if any(watch.is_settled for watch in watcher._watches.values()):
                    end_job()
                return wait_s

            monkeypatch.setattr(StackWatcher, "turn", turn_and_end)
            os.write(write, b"%d\n" % job.pid)
            if at_once:
                end_job()
            with os.fdopen(read) as stdin:
                monkeypatch.setattr(sys, "stdin", stdin)
                assert main.main(wanted) == 0
        os.close(write)
        return json.loads(capsys.readouterr().out)

    yield run
    gc.enable()


def test_the_stack_recorder_ends_with_the_job(keep, tmp_path):
    outcome = keep()
    assert outcome["fields"]["n_stack_samples"] > 0
    assert [issue["code"] for issue in outcome["issues"]] == ["stacks_unread"]
    assert [path.name for path in tmp_path.iterdir()] == ["stacks.tsv.gz"]


def test_a_job_that_ends_at_once_gives_no_stacks_and_leaves_no_file(keep, tmp_path):
    outcome = keep(at_once=True)
    assert outcome["fields"]["n_stack_samples"] == 0
    assert [issue["code"] for issue in outcome["issues"]] == ["no_stacks"]
    assert not list(tmp_path.iterdir())


def test_without_a_job_it_ends_and_says_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda _fd: -1)
    with Path(os.devnull).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main.main(json.dumps({"folder": str(tmp_path), "hz": 100, "spy": "py-spy"})) == 1
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_a_disk_that_is_full_ends_the_stacks_and_is_told(keep, monkeypatch):
    def full(_self: StackFile) -> None:
        if _self.n_samples:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StackFile, "flush", full)
    told = keep()
    assert told["issues"][-1]["code"] == "stacks_ended"
    assert "No space left" in told["issues"][-1]["example"]


def test_a_folder_that_cannot_be_written_is_told(keep, monkeypatch):
    def refuse(_self: StackFile, _path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(StackFile, "__init__", refuse)
    told = keep(at_once=True)
    assert told["fields"]["n_stack_samples"] == 0
    assert "Read-only" in told["issues"][0]["example"]


def test_nobody_listens_any_more(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        main.tell({"issues": []})
        stdout.write("that goes nowhere\n")


@pytest.fixture
def watcher_of(tmp_path):
    made = []

    def make(root: int) -> StackWatcher:
        made.append(StackWatcher(root, tmp_path, StackFile(tmp_path / "s.gz"), "py-spy", 100))
        return made[-1]

    yield make
    for watcher in made:
        watcher.drop()


def codes(watcher: StackWatcher) -> list[str]:
    return [issue["code"] for issue in watcher.issues()]


def turn(watcher: StackWatcher, until) -> None:
    deadline = time.monotonic() + 30
    while not until():
        wait_s = watcher.turn()
        assert 0 < wait_s <= 0.5
        assert time.monotonic() < deadline
        FakeRun.clock.sleep(0.02)
        time.sleep(0.001)


def test_each_python_below_is_watched_and_others_are_not(watcher_of):
    command = f"{sys.executable} -IS -c 'import time; time.sleep(60)' & sleep 60 & wait"
    with subprocess.Popen(["sh", "-c", command], start_new_session=True) as job:
        watcher = watcher_of(job.pid)
        turn(watcher, lambda: watcher.handles)
        (watched,) = watcher._watches
        assert watched != job.pid
        os.killpg(job.pid, 9)
    turn(watcher, lambda: not watcher._watches)
    assert (watched, watched) in watcher.ledger.gone


def test_many_are_watched_by_one(watcher_of, monkeypatch):
    monkeypatch.setattr(main, "_EACH", 1)
    command = (
        f"{sys.executable} -IS -c 'import time; time.sleep(60)' & {sys.executable} -IS -c 'import time; time.sleep(60)'"
    )
    with subprocess.Popen(["sh", "-c", command], start_new_session=True) as job:
        watcher = watcher_of(job.pid)
        turn(watcher, lambda: set(watcher._watches) == {job.pid} and watcher.handles)
        os.killpg(job.pid, 9)


def test_what_was_seen_is_written_at_the_end(watcher_of):
    with subprocess.Popen(SLEEPS) as job:
        watcher = watcher_of(job.pid)
        turn(watcher, lambda: watcher._watches and all(watch.is_settled for watch in watcher._watches.values()))
        assert watcher.turn() == 0.5
        watcher.finish()
        job.kill()
    assert watcher.file.n_samples > 0
    assert "stacks_unread" in codes(watcher)


def test_a_process_that_may_not_be_read_is_told_with_the_remedy(watcher_of, monkeypatch):
    monkeypatch.setattr(main.py_spy, "denied", lambda _pid: True)
    monkeypatch.setattr(main.py_spy, "remedy", lambda _pid: "record with sudo")
    with subprocess.Popen(SLEEPS) as job:
        watcher = watcher_of(job.pid)
        watcher.turn()
        job.kill()
    (issue,) = watcher.issues()
    assert issue["code"] == "stacks_denied"
    assert issue["example"].endswith("the recorder may not read: record with sudo")


def test_a_job_without_a_python_has_no_stacks(watcher_of):
    with subprocess.Popen(["sleep", "60"]) as job:
        watcher = watcher_of(job.pid)
        assert watcher.turn() == 0.1
        job.kill()
    assert codes(watcher) == ["no_stacks"]


def test_why_py_spy_could_not_is_told(watcher_of, monkeypatch):
    monkeypatch.setattr(FakeRun, "complaint", "Unsupported version of Python: 4.0")
    with subprocess.Popen(SLEEPS) as job:
        watcher = watcher_of(job.pid)
        turn(watcher, lambda: watcher.ledger.failure)
        job.kill()
    assert codes(watcher) == ["stacks_failed"]
    assert "version of Python: 4.0" in watcher.issues()[0]["example"]


def test_all_that_is_amiss_is_named(watcher_of):
    watcher = watcher_of(os.getpid())
    watcher.ledger.least_hz = 20
    watcher.ledger.lost_ns = 10**9
    watcher.ledger.counts.update(lost=2, errors=3)
    watcher.file._most_bytes = 0
    expected = ["no_stacks", "stacks_looked_less", "stacks_lost", "stacks_gaps", "stacks_unread", "stacks_ended"]
    assert codes(watcher) == expected


def test_the_time_of_a_thread_on_a_core_is_known_or_was(watcher_of):
    now, ran = on_core(os.getpid(), os.getpid())
    assert 0 < ran < now
    assert on_core(os.getpid(), 2**22 + 1) is None
    watcher = watcher_of(os.getpid())
    watcher._ran = {(1, 2**22 + 1): (5, 6)}
    assert watcher._on_core(1, 2**22 + 1) == (5, 6)
    assert main._tids(2**22 + 1) == []
