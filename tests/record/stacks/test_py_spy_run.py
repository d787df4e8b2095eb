from __future__ import annotations

import time

import pytest
from py_spies import FRAMES, FakeRun, S, fake

from stepscope.record.stacks.py_spy_output import StackSpan
from stepscope.record.stacks.py_spy_run import Ledger, ProcessWatch, PySpyRun, RunResult
from stepscope.record.stacks.stack_file import StackFile


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    FakeRun.put(monkeypatch)
    return Ledger(StackFile(tmp_path / "stacks.tsv.gz"), tmp_path, "py-spy", 100, 10.0, lambda *_: None)


def turn(watch: ProcessWatch, until, newest: float = 0.0, share: float = 10.0, seconds: float = 30) -> None:
    end = FakeRun.clock.monotonic() + seconds
    while not until():
        watch.turn(dict, newest, share)
        assert FakeRun.clock.monotonic() < end
        FakeRun.clock.sleep(0.02)


def test_one_look_follows_the_other_before_it_ends(ledger):
    watch = ProcessWatch(7, ledger, tree=False)
    began = FakeRun.clock.monotonic()
    turn(watch, lambda: len(watch.handles) == 2)  # the next one begins while the first is at work
    assert FakeRun.clock.monotonic() - began == pytest.approx(2.0, abs=0.1)  # the first one is brief
    turn(watch, lambda: ledger.file.n_samples and watch.is_settled)
    began = FakeRun.clock.monotonic()
    turn(watch, lambda: len(watch.handles) == 2)
    assert FakeRun.clock.monotonic() - began == pytest.approx(10.0, abs=0.2)
    watch.finish()
    assert watch.handles == []
    assert ledger.until
    assert ledger.counts["errors"] == 6
    assert ledger.cpu_seconds > 0
    assert ledger.least_hz == 100


@pytest.mark.parametrize(("tree", "n"), [(False, 1), (True, 2)])
def test_a_process_that_began_calls_for_another_look_in_a_tree_only(ledger, tree, n):
    watch = ProcessWatch(7, ledger, tree=tree)
    turn(watch, lambda: len(watch.handles) == 2)
    turn(watch, lambda: watch.is_settled)
    newest, most = FakeRun.clock.monotonic() + 2.5, 0
    for _ in range(200):  # 4 s, of a look that is to last 10
        watch.turn(dict, newest, 10.0)
        FakeRun.clock.sleep(0.02)
        most = max(most, len(watch.handles))
        if len(watch.handles) == 2:
            assert FakeRun.clock.monotonic() == pytest.approx(newest + 0.5, abs=0.1)
    assert most == n
    watch.drop()
    assert watch.handles == []


def test_what_costs_too_much_is_looked_at_less_often(ledger, monkeypatch):
    monkeypatch.setattr(FakeRun, "cost", 0.2)
    watch = ProcessWatch(7, ledger, tree=False)
    turn(watch, lambda: ledger.file.n_samples > 0, share=0.1)
    assert ledger.least_hz == 45
    watch.drop()


def test_a_run_that_began_before_the_rate_fell_does_not_lower_it_again(ledger, monkeypatch):
    monkeypatch.setattr(FakeRun, "cost", property(lambda run: 0.002 * run.hz))
    watch = ProcessWatch(7, ledger, tree=False)
    for seconds in (4.0, 20.0):  # the second run has begun at the first rate, and others follow
        end = FakeRun.clock.monotonic() + seconds
        turn(watch, lambda end=end: FakeRun.clock.monotonic() > end, share=0.1, seconds=seconds + 1)
        assert ledger.least_hz in (44, 45)
    watch.drop()


def test_who_holds_the_lock_is_asked_a_few_times_a_second_at_least(tmp_path):
    rates = {}
    for hz in (100, 20, 3):
        run = PySpyRun(fake(tmp_path), 7, hz, tmp_path, {})
        while not run.is_ready:
            assert run.listen()
            time.sleep(0.01)
        rates[hz] = run.end().gil_hz
    assert rates == {100: 10, 20: 5, 3: 3}


def test_a_look_that_writes_too_much_is_followed_by_a_shorter_one(ledger):
    watch = ProcessWatch(7, ledger, tree=False)
    turn(watch, lambda: len(watch.handles) == 2)
    watch._run.size_bytes = 400_000
    turn(watch, lambda: watch.is_settled)
    began = FakeRun.clock.monotonic()
    turn(watch, lambda: len(watch.handles) == 2)
    assert FakeRun.clock.monotonic() - began == pytest.approx(4.0, abs=0.2)
    watch.drop()


def test_a_spy_that_cannot_begin_is_tried_some_times_only(ledger, monkeypatch):
    monkeypatch.setattr(FakeRun, "complaint", "not a Python")
    watch = ProcessWatch(7, ledger, tree=False)
    turn(watch, lambda: watch.is_settled)
    assert watch.handles == []
    assert ledger.failure == "not a Python"
    assert ledger.counts["lost"] == 0


def test_a_look_that_is_lost_is_counted_and_another_follows(ledger, monkeypatch):
    monkeypatch.setattr(FakeRun, "is_lost", True)
    watch = ProcessWatch(7, ledger, tree=False)
    turn(watch, lambda: ledger.counts["lost"] == 2)
    watch.finish()
    assert ledger.file.n_samples == 0


class Paper:
    """A file of stacks that keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []

    def add(self, kind, when, pid, tid, frames, n) -> None:
        self.rows.append((kind, *when, pid, tid, frames, n))

    def run(self, *words) -> None:
        self.rows.append(("L", *words))

    def on_core(self, *words) -> None:
        self.rows.append(("C", *words))

    def process(self, *words) -> None:
        self.rows.append(("P", *words))

    def thread(self, *words) -> None:
        self.rows.append(("T", *words))

    def of(self, kind: str) -> list[tuple]:
        return [row[1:] for row in self.rows if row[0] == kind]


def witnessed(*stacks: StackSpan, held: tuple[StackSpan, ...] = (), cpu=None, zero: int = S) -> RunResult:
    return RunResult(zero, 1000, 100, 10, stacks, held, n_samples=0, n_errors=0, cpu=cpu or {})


def test_a_look_gives_what_both_spies_saw(tmp_path):
    run = PySpyRun(fake(tmp_path), 7, 100, tmp_path, {})
    while not run.is_ready:
        assert run.listen()
        time.sleep(0.01)
    found = run.end()
    assert [(seen.start_us, seen.end_us, seen.frames) for seen in found.stacks] == [(1000, 9000, FRAMES)]
    assert [(seen.n_samples, seen.pid) for seen in found.held] == [(4, 7)]
    assert (found.n_samples, found.n_errors, found.hz, found.gil_hz) == (8, 2, 100, 10)
    assert run.cpu_seconds > 0
    assert run.size_bytes > 100
    assert run.was_ready


def test_a_look_that_came_to_nothing_says_why(tmp_path):
    before = "print('Error: No python processes found in process 7'); sys.exit(1)"
    run = PySpyRun(fake(tmp_path, before=before), 7, 100, tmp_path, {}, tree=True)
    while run.listen():
        time.sleep(0.01)
    assert run.end() is None
    assert run.complaint == "No python processes found in process 7"
    assert not run.was_ready


def test_times_are_unix_and_names_are_told():
    file = Paper()
    seen = StackSpan(10, 30, 8, 80, "pool", FRAMES, processes=((7, "sh"), (8, "python")))
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
    seen = (
        StackSpan(10, 15, 7, 7, "", FRAMES),
        StackSpan(15, 30, 7, 7, "", FRAMES),
        StackSpan(0, 30, 9, 9, "", FRAMES),
    )
    assert witnessed(*seen).write(file, until, {}, lambda *_: None) == 5_000
    assert [row[:4] for row in file.of("W")] == [(S + 20_000, 10_000, 7, 7), (S, 30_000, 9, 9)]
    assert file.of("C") == []


def test_a_thread_that_ended_is_seen_no_longer():
    file = Paper()
    gone = {(7, 70): S + 12_000, (7, 71): S - 1}  # the second number was used before
    seen = (StackSpan(10, 30, 7, 70, "", FRAMES), StackSpan(10, 30, 7, 71, "", FRAMES))
    witnessed(*seen).write(file, {}, gone, lambda *_: None)
    assert [row[1:4] for row in file.of("W")] == [(2_000, 7, 70), (20_000, 7, 71)]


def test_holders_of_the_gil_stand_for_the_time_between_looks():
    file = Paper()
    witnessed(held=(StackSpan(0, 1000, 7, 7, "MainThread", FRAMES, 3),)).write(file, {}, {}, lambda *_: None)
    assert file.of("G") == [(S, 300_000_000, 7, 7, FRAMES, 3)]
    assert file.of("T") == [(7, 7, "MainThread")]


def test_a_thread_that_began_during_the_look_ran_since_then():
    file = Paper()
    witnessed(StackSpan(10, 30, 7, 70, "", FRAMES)).write(file, {}, {}, lambda *_: (S + 50_000, 40_000))
    assert file.of("C") == [(S + 10_000, 40_000, 7, 70, 40_000)]
