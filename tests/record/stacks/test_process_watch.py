from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from py_spies import fake

from stepscope.record.stacks import process_watch
from stepscope.record.stacks.process_watch import Ledger, Watch
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
        monkeypatch.setattr(process_watch, name, 0.2)


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
    monkeypatch.setattr(process_watch, "_SHORTEST_S", 0.2)
    monkeypatch.setattr(process_watch, "_SETTLES_S", 0.1)
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
    monkeypatch.setattr(process_watch, "_FIRST_S", 1.2)
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
    monkeypatch.setattr(process_watch, "_MATTERS_S", 0.1)
    ledger = ledger_of(tmp_path, fake(tmp_path, after="sys.exit(1)"))
    watch = Watch(7, ledger, tree=False)
    turn(watch, lambda: ledger.counts["lost"] == 2)
    watch.finish()
    assert ledger.file.n_samples == 0
