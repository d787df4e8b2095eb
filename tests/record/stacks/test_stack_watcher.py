from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from py_spies import fake

from stepscope.record.stacks import stack_watcher
from stepscope.record.stacks.stack_file import StackFile
from stepscope.record.stacks.stack_watcher import Keeper, on_core

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def keeper_of(tmp_path):
    made = []

    def make(root: int, **how: str) -> Keeper:
        made.append(Keeper(root, tmp_path, StackFile(tmp_path / "s.gz"), fake(tmp_path, **how), 100))
        return made[-1]

    yield make
    for keeper in made:
        keeper.drop()


def codes(keeper: Keeper) -> list[str]:
    return [issue["code"] for issue in keeper.issues()]


def turn(keeper: Keeper, until) -> None:
    deadline = time.monotonic() + 30
    while not until():
        wait_s = keeper.turn()
        assert 0 < wait_s <= 0.5
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_python_below_is_watched_and_others_are_not(keeper_of):
    command = f"{sys.executable} -c 'import time; time.sleep(60)' & sleep 60 & wait"
    with subprocess.Popen(["sh", "-c", command], start_new_session=True) as job:
        keeper = keeper_of(job.pid)
        turn(keeper, lambda: keeper.handles)
        (watched,) = keeper._watches
        assert watched != job.pid
        os.killpg(job.pid, 9)
    turn(keeper, lambda: not keeper._watches)
    assert (watched, watched) in keeper.ledger.gone


def test_many_are_watched_by_one(keeper_of, monkeypatch):
    monkeypatch.setattr(stack_watcher, "_EACH", 1)
    command = f"{sys.executable} -c 'import time; time.sleep(60)' & {sys.executable} -c 'import time; time.sleep(60)'"
    with subprocess.Popen(["sh", "-c", command], start_new_session=True) as job:
        keeper = keeper_of(job.pid)
        turn(keeper, lambda: set(keeper._watches) == {job.pid} and keeper.handles)
        os.killpg(job.pid, 9)


def test_what_was_seen_is_written_at_the_end(keeper_of):
    with subprocess.Popen(SLEEPS) as job:
        keeper = keeper_of(job.pid)
        turn(keeper, lambda: keeper._watches and all(watch.is_settled for watch in keeper._watches.values()))
        assert keeper.turn() == 0.5
        keeper.finish()
        job.kill()
    assert keeper.file.n_samples > 0
    assert "stacks_unread" in codes(keeper)


def test_a_process_that_may_not_be_read_is_told_with_the_remedy(keeper_of, monkeypatch):
    monkeypatch.setattr(stack_watcher.pyspy, "denied", lambda _pid: True)
    monkeypatch.setattr(stack_watcher.pyspy, "remedy", lambda _pid: "record with sudo")
    with subprocess.Popen(SLEEPS) as job:
        keeper = keeper_of(job.pid)
        keeper.turn()
        job.kill()
    (issue,) = keeper.issues()
    assert issue["code"] == "stacks_denied"
    assert issue["example"].endswith("may not be read: record with sudo")


def test_a_job_without_a_python_has_no_stacks(keeper_of):
    with subprocess.Popen(["sleep", "60"]) as job:
        keeper = keeper_of(job.pid)
        assert keeper.turn() == 0.1
        job.kill()
    assert codes(keeper) == ["no_stacks"]


def test_why_py_spy_could_not_is_told(keeper_of):
    with subprocess.Popen(SLEEPS) as job:
        keeper = keeper_of(job.pid, before="print('Error: Unsupported version of Python: 4.0'); sys.exit(1)")
        turn(keeper, lambda: keeper.ledger.failure)
        job.kill()
    assert codes(keeper) == ["stacks_failed"]
    assert "version of Python: 4.0" in keeper.issues()[0]["example"]


def test_all_that_is_amiss_is_named(keeper_of):
    keeper = keeper_of(os.getpid())
    keeper.ledger.least_hz = 20
    keeper.ledger.lost_ns = 10**9
    keeper.ledger.counts.update(lost=2, errors=3)
    keeper.file._most_bytes = 0
    expected = ["no_stacks", "stacks_looked_less", "stacks_lost", "stacks_gaps", "stacks_unread", "stacks_ended"]
    assert codes(keeper) == expected


def test_the_time_of_a_thread_on_a_core_is_known_or_was(keeper_of):
    now, ran = on_core(os.getpid(), os.getpid())
    assert 0 < ran < now
    assert on_core(os.getpid(), 2**22 + 1) is None
    keeper = keeper_of(os.getpid())
    keeper._ran = {(1, 2**22 + 1): (5, 6)}
    assert keeper._on_core(1, 2**22 + 1) == (5, 6)
    assert stack_watcher._tids(2**22 + 1) == []
