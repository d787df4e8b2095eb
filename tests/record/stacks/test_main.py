"""The stack recorder, and recordings with stacks of real jobs."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from py_spies import fake, real

import stepscope
from stepscope.record.stacks import main
from stepscope.record.stacks.main import StackWatcher, on_core
from stepscope.record.stacks.stack_file import StackFile

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
import multiprocessing, time
def spin():
    end = time.time() + 1.5
    while time.time() < end: pass
def nap(): time.sleep(1.5)
context = multiprocessing.get_context("fork")
workers = [context.Process(target=function) for function in (spin, nap)]
for worker in workers: worker.start()
for worker in workers: worker.join()
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


@pytest.mark.slow
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
    assert right > 0.9 * seen
    found = stepscope.show(trace, "python-stacks", by="function")
    shares = {function.split()[0]: share for function, share in found.select("function", "total_ratio").iter_rows()}
    total = sum(int(end) - int(start) for _, start, end in marks)
    for name in ("alpha", "beta", "rest"):
        share = sum(int(end) - int(start) for what, start, end in marks if what == name) / total
        assert shares[name] == pytest.approx(share, abs=0.1)


def test_children_that_fork_are_told_apart(record, tmp_path, meta):
    real()
    (tmp_path / "forks.py").write_text(FORKS)
    done = record("--no-profiler", "--stacks-hz", "50", "--", sys.executable, str(tmp_path / "forks.py"))
    assert done.returncode == 0
    samples = trace_of(done.folder).stack_samples
    assert set(samples["pid"].unique()) == set(meta(done.folder)["pids"])
    holders = samples.filter(samples["on_gil"])
    assert holders.group_by("pid").len().height >= 1
    assert meta(done.folder)["stacks_hz"] == 50


def test_a_running_process_is_joined_and_left_as_it_was(record, meta):
    real()
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"]) as job:
        done = record("--stacks", "--pid", str(job.pid), "--duration", "1500ms")
        assert job.poll() is None
        state = Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0]
        job.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert state in "RS"  # not stopped, not traced
    assert meta(done.folder)["n_stack_samples"] > 20
    assert trace_of(done.folder).stack_samples["thread"].unique().to_list() == ["MainThread"]


@pytest.mark.parametrize("words", [["true"], ["sh", "-c", "sleep 0.3; exec true"], [sys.executable, "-c", "pass"]])
def test_jobs_that_give_no_stacks_end_as_they_would(record, words, meta):
    done = record("--no-profiler", "--stacks", "--", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if not (done.folder / "stacks.tsv.gz").exists():
        assert "no_stacks" in {issue["code"] for issue in meta(done.folder)["issues"]}
    assert {path.name for path in done.folder.iterdir()} <= {"meta.json", "counters.csv.gz", "stacks.tsv.gz"}


def test_an_old_recordings_stacks_are_replaced_and_other_files_stay(record, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("stacks.tsv.gz", "stacks.txt"):
        (folder / name).write_text("old")
    assert record("--force", "--", "true").returncode == 0
    assert not (folder / "stacks.tsv.gz").exists()
    assert (folder / "stacks.txt").exists()


@pytest.mark.parametrize("seed", range(int(os.environ.get("STEPSCOPE_KILLS", "5"))))
def test_a_kill_leaves_a_folder_that_loads_and_no_process(start, tmp_path, seed):
    real()
    folder = tmp_path / "run"
    mark = f"mark{os.getpid()}x{seed}"
    process = start("--no-profiler", "--stacks", "--", sys.executable, "-c", f"import time; time.sleep(40); '{mark}'")
    deadline = time.monotonic() + 30
    while not (folder / "stacks.tsv.gz").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.2 if seed % 5 == 3 else 0.15 * seed)  # of a py-spy that has just begun nothing is lost
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    watchers = [pid for pid in children if "stacks.main" in words[pid]]
    job = [pid for pid in children if mark in words[pid] and "counters.sampler" not in words[pid]]
    spies = [int(pid) for k in watchers for pid in Path(f"/proc/{k}/task/{k}/children").read_text().split()]
    for pid in [[process.pid], job, watchers, spies[:1], [process.pid, *job, *watchers]][seed % 5]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    if seed % 5 not in {1, 4}:
        assert all(Path(f"/proc/{pid}").exists() for pid in job)
        for pid in job:
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in (*watchers, *spies)) or pidfiles(str(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    codes = set(trace_of(folder).issues["code"])
    assert "stacks_unreadable" not in codes
    if seed % 5 in {0, 2, 3, 4}:
        assert codes & {"stacks_cut", "stacks_ended", "stacks_lost", "recording_cut"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".stacks")]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def keep(tmp_path, monkeypatch, capsys):
    """Runs the stack recorder here on a job, which ends once py-spy is at work (or at once); its outcome."""

    def run(*, at_once: bool = False, **how: str) -> dict:
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(signal, "set_wakeup_fd", lambda _fd: -1)
        wanted = json.dumps({"folder": str(tmp_path), "hz": 100, "spy": fake(tmp_path, **how)})
        read, write = os.pipe()
        command = [sys.executable, "-c", "pass" if at_once else "input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as job:
            turn = StackWatcher.turn

            def turn_and_end(watcher: StackWatcher) -> float:
                wait_s = turn(watcher)
                if any(watch.is_settled for watch in watcher._watches.values()) and not job.stdin.closed:
                    job.stdin.close()
                return wait_s

            monkeypatch.setattr(StackWatcher, "turn", turn_and_end)
            os.write(write, b"%d\n" % job.pid)
            with os.fdopen(read) as stdin:
                monkeypatch.setattr(sys, "stdin", stdin)
                assert main.main(wanted) == 0
        os.close(write)
        return json.loads(capsys.readouterr().out)

    return run


def test_the_stack_recorder_ends_with_the_job(keep, tmp_path):
    told = keep()
    assert told["fields"]["n_stack_samples"] > 0
    assert [issue["code"] for issue in told["issues"]] == ["stacks_unread"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


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


SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def watcher_of(tmp_path):
    made = []

    def make(root: int, **how: str) -> StackWatcher:
        made.append(StackWatcher(root, tmp_path, StackFile(tmp_path / "s.gz"), fake(tmp_path, **how), 100))
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
        time.sleep(0.02)


def test_each_python_below_is_watched_and_others_are_not(watcher_of):
    command = f"{sys.executable} -c 'import time; time.sleep(60)' & sleep 60 & wait"
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
    command = f"{sys.executable} -c 'import time; time.sleep(60)' & {sys.executable} -c 'import time; time.sleep(60)'"
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
    assert issue["example"].endswith("may not be read: record with sudo")


def test_a_job_without_a_python_has_no_stacks(watcher_of):
    with subprocess.Popen(["sleep", "60"]) as job:
        watcher = watcher_of(job.pid)
        assert watcher.turn() == 0.1
        job.kill()
    assert codes(watcher) == ["no_stacks"]


def test_why_py_spy_could_not_is_told(watcher_of):
    with subprocess.Popen(SLEEPS) as job:
        watcher = watcher_of(job.pid, before="print('Error: Unsupported version of Python: 4.0'); sys.exit(1)")
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
