from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from py_spies import fake

from stepscope.record.stacks import py_spy_run
from stepscope.record.stacks.py_spy_output import Seen
from stepscope.record.stacks.py_spy_run import Ledger, Look, Watch, Witnessed
from stepscope.record.stacks.stack_file import StackFile

if TYPE_CHECKING:
    from pathlib import Path


def ledger_of(folder: Path, spy: str, allowed: float = 10.0) -> Ledger:
    return Ledger(StackFile(folder / "stacks.tsv.gz"), folder, spy, 100, allowed, lambda *_: None)


def turn(watch: Watch, until, newest: float = 0.0, share: float = 10.0) -> None:
    deadline = time.monotonic() + 30
    while not until():
        watch.turn(dict, newest, share)
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def brief(monkeypatch):
    for name in ("_FIRST_S", "_LONGEST_S", "_SHORTEST_S"):
        monkeypatch.setattr(py_spy_run, name, 0.2)


@pytest.mark.usefixtures("brief")
def test_one_look_follows_the_other_before_it_ends(tmp_path):
    ledger = ledger_of(tmp_path, fake(tmp_path))
    watch = Watch(7, ledger, tree=False)
    turn(watch, lambda: len(watch.handles) == 2)  # the next one begins while the first is at work
    turn(watch, lambda: ledger.file.n_samples > 12 and watch.is_settled)
    watch.finish()
    assert watch.handles == []
    assert ledger.until
    assert ledger.counts["errors"] >= 4
    assert ledger.cpu_seconds > 0
    assert ledger.least_hz == 100


def test_a_process_that_began_calls_for_another_look_in_a_tree_only(tmp_path, monkeypatch):
    monkeypatch.setattr(py_spy_run, "_SHORTEST_S", 0.2)
    monkeypatch.setattr(py_spy_run, "_SETTLES_S", 0.1)
    for tree, n in ((False, 1), (True, 2)):
        watch = Watch(7, ledger_of(tmp_path, fake(tmp_path)), tree=tree)
        turn(watch, lambda watch=watch: watch.is_settled)
        end = time.monotonic() + 1.0
        newest = time.monotonic()
        most = 0

        def over(watch=watch, end=end) -> bool:
            nonlocal most
            most = max(most, len(watch.handles))
            return time.monotonic() > end or most == 2

        turn(watch, over, newest)
        assert most == n
        watch.drop()
        assert watch.handles == []


def test_what_costs_too_much_is_looked_at_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(py_spy_run, "_FIRST_S", 1.2)
    ledger = ledger_of(
        tmp_path, fake(tmp_path, before="e = time.process_time() + 0.4\nwhile time.process_time() < e: 1")
    )
    watch = Watch(7, ledger, tree=False)
    turn(watch, lambda: ledger.file.n_samples > 0, share=0.1)
    watch.drop()
    assert 1 <= ledger.least_hz < 60


def test_a_spy_that_cannot_begin_is_tried_some_times_only(tmp_path):
    ledger = ledger_of(tmp_path, fake(tmp_path, before="print('Error: not a Python'); sys.exit(1)"))
    watch = Watch(7, ledger, tree=False)
    turn(watch, lambda: watch.is_settled)
    assert watch.handles == []
    assert ledger.failure == "not a Python"
    assert ledger.counts["lost"] == 0


@pytest.mark.usefixtures("brief")
def test_a_look_that_is_lost_is_counted_and_another_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(py_spy_run, "_MATTERS_S", 0.1)
    ledger = ledger_of(tmp_path, fake(tmp_path, after="sys.exit(1)"))
    watch = Watch(7, ledger, tree=False)
    turn(watch, lambda: ledger.counts["lost"] == 2)
    watch.finish()
    assert ledger.file.n_samples == 0


FRAMES = (("f", "/a.py", 3),)
S = 1_000_000_000


class Paper:
    """A file of stacks that keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []

    def add(self, kind, when, pid, tid, frames, n) -> None:
        self.rows.append((kind, *when, pid, tid, frames, n))

    def look(self, *words) -> None:
        self.rows.append(("L", *words))

    def on_core(self, *words) -> None:
        self.rows.append(("C", *words))

    def process(self, *words) -> None:
        self.rows.append(("P", *words))

    def thread(self, *words) -> None:
        self.rows.append(("T", *words))

    def of(self, kind: str) -> list[tuple]:
        return [row[1:] for row in self.rows if row[0] == kind]


def witnessed(*stacks: Seen, held: tuple[Seen, ...] = (), cpu=None, zero: int = S) -> Witnessed:
    return Witnessed(zero, 1000, 100, 10, stacks, held, n_samples=0, n_errors=0, cpu=cpu or {})


def test_a_look_gives_what_both_spies_saw(tmp_path):
    look = Look(fake(tmp_path), 7, 100, tmp_path, {})
    while not look.is_ready:
        assert look.listen()
        time.sleep(0.01)
    found = look.end()
    assert [(seen.start_us, seen.end_us, seen.frames) for seen in found.stacks] == [(1000, 9000, FRAMES)]
    assert [(seen.n_samples, seen.pid) for seen in found.held] == [(4, 7)]
    assert (found.n_samples, found.n_errors, found.hz, found.gil_hz) == (8, 2, 100, 10)
    assert look.cpu_seconds > 0
    assert look.size_bytes > 100
    assert look.was_ready


def test_a_look_that_came_to_nothing_says_why(tmp_path):
    before = "print('Error: No python processes found in process 7'); sys.exit(1)"
    look = Look(fake(tmp_path, before=before), 7, 100, tmp_path, {}, tree=True)
    while look.listen():
        time.sleep(0.01)
    assert look.end() is None
    assert look.complaint == "No python processes found in process 7"
    assert not look.was_ready


def test_times_are_unix_and_names_are_told():
    file = Paper()
    seen = Seen(10, 30, 8, 80, "pool", FRAMES, processes=((7, "sh"), (8, "python")))
    until: dict[int, int] = {}
    assert witnessed(seen, cpu={(8, 80): (S, 5)}).write(file, until, {}, lambda *_: (2 * S, 105)) == 0
    assert file.of("W") == [(S + 10_000, 20_000, 8, 80, FRAMES, 1)]
    assert file.of("P") == [(7, 0, "sh"), (8, 7, "python")]
    assert file.of("T") == [(8, 80, "pool")]
    assert file.of("C") == [(S, S, 8, 80, 100)]
    assert file.of("L") == [(S, 1_000_000, 100)]
    assert until == {8: S + 30_000}


def test_what_the_look_before_saw_stands_and_gaps_are_counted():
    file = Paper()
    until = {7: S + 20_000, 9: S - 5_000}
    seen = (Seen(10, 15, 7, 7, "", FRAMES), Seen(15, 30, 7, 7, "", FRAMES), Seen(0, 30, 9, 9, "", FRAMES))
    assert witnessed(*seen).write(file, until, {}, lambda *_: None) == 5_000
    assert [row[:4] for row in file.of("W")] == [(S + 20_000, 10_000, 7, 7), (S, 30_000, 9, 9)]
    assert file.of("C") == []


def test_a_thread_that_ended_is_seen_no_longer():
    file = Paper()
    gone = {(7, 70): S + 12_000, (7, 71): S - 1}  # the second number was used before
    seen = (Seen(10, 30, 7, 70, "", FRAMES), Seen(10, 30, 7, 71, "", FRAMES))
    witnessed(*seen).write(file, {}, gone, lambda *_: None)
    assert [row[1:4] for row in file.of("W")] == [(2_000, 7, 70), (20_000, 7, 71)]


def test_holders_of_the_gil_stand_for_the_time_between_looks():
    file = Paper()
    witnessed(held=(Seen(0, 1000, 7, 7, "MainThread", FRAMES, 3),)).write(file, {}, {}, lambda *_: None)
    assert file.of("G") == [(S, 300_000_000, 7, 7, FRAMES, 3)]
    assert file.of("T") == [(7, 7, "MainThread")]


def test_a_thread_that_began_during_the_look_ran_since_then():
    file = Paper()
    witnessed(Seen(10, 30, 7, 70, "", FRAMES)).write(file, {}, {}, lambda *_: (S + 50_000, 40_000))
    assert file.of("C") == [(S + 10_000, 40_000, 7, 70, 40_000)]
