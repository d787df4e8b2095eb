from __future__ import annotations

import threading
import weakref

import pytest
from literal_traces import Rows
from recordings import recording

from stepscope.api import comparing
from stepscope.api.comparing import compare_table, compare_two_runs, group, split_case
from stepscope.api.verbs import load_run
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Run


def _fail(label, error):
    raise AssertionError(f"{label}: {error}")


@pytest.fixture
def runs(examples):
    return [load_run(examples / "demo-slow-loader" / side) for side in ("normal0", "abnormal")]


def test_the_runs_of_a_case_are_its_folders(examples, runs):
    base, other = split_case(load_run(examples / "demo-slow-loader"))
    assert set(runs[0].paths) <= set(base.paths)
    assert other.paths == runs[1].paths
    assert split_case(runs[0]) is None


@pytest.mark.slow
def test_two_runs_are_compared_and_named(runs):
    comparison = compare_two_runs(*runs)
    assert comparison.causes[0].category == "data_loading"
    assert comparison.facts == {"base": runs[0].paths[0], "other": runs[1].paths[0]}


@pytest.mark.slow
def test_any_table_of_two_runs_is_joined_by_its_keys(runs):
    block = compare_table(*runs, "operators", on_missing=_fail)
    assert block.title == "operators"
    assert block.table.name == "operators-compared"
    assert {"base_calls", "other_calls", "delta_calls"} <= set(block.frame.columns)
    with pytest.raises(StepscopeError):
        compare_table(*runs, "nonsense", on_missing=_fail)


def test_processes_are_grouped(runs):
    assert group(runs[0]).headline == "1 processes, all do the same"


def test_runs_of_which_one_has_no_profile_are_compared_by_their_timed_steps():
    rows, timed = Rows(), recording(step_ms=60, seed=1)
    for i in range(10):
        rows.step(i, 100 * i, 90)
        rows.op(100 * i + 5, 20)
    without, profiled = (
        Run(("x",), lambda _, trace=trace: trace)
        for trace in (
            recording(step_ms=50),
            rows.trace().with_tables(counters=timed.counters, step_times=timed.step_times),
        )
    )
    assert compare_two_runs(without, profiled).step_time.ratio == pytest.approx(1.2, rel=0.02)
    assert compare_two_runs(profiled, without).step_time.ratio == pytest.approx(1 / 1.2, rel=0.02)


def test_repeats_without_a_profile_are_left_out_if_others_have_one():
    rows, timed = Rows(), recording(step_ms=60, seed=1)
    for i in range(10):
        rows.step(i, 100 * i, 90)
        rows.op(100 * i + 5, 20)
    without = recording(step_ms=50)
    profiled = rows.trace().with_tables(counters=timed.counters, step_times=timed.step_times)
    traces = {"without": without, "with": profiled}
    base, other = Run(("without", "with"), traces.__getitem__), Run(("with",), traces.__getitem__)
    result = compare_two_runs(base, other)
    assert result.whole_run.ratio == pytest.approx(1.0)
    assert len(result.pairs[0].base) == 1
    assert "1 recording has no profile and is left out" in result.notes


class _Opener:
    """Opens traces of 50 and of 60 ms, notes in which thread, and holds none."""

    def __init__(self):
        self.threads, self.held, self.most_held = [], [], 0

    def __call__(self, path):
        if path == "torn":
            raise StepscopeError("torn")
        trace = recording(step_ms=60 if path == "slow" else 50)
        self.threads.append(threading.current_thread() is threading.main_thread())
        self.held.append(weakref.ref(trace.counters))
        self.most_held = max(self.most_held, sum(one() is not None for one in self.held))
        return trace


@pytest.mark.parametrize(("most_bytes", "in_main_thread"), [(1 << 20, [False] * 4), (-1, [True] * 4)])
def test_small_traces_are_opened_while_another_is_used(monkeypatch, most_bytes, in_main_thread):
    opener = _Opener()
    monkeypatch.setattr(comparing, "_MOST_AHEAD", most_bytes)
    monkeypatch.setattr(comparing, "cores", lambda: 2)
    result = compare_two_runs(Run(("a", "b"), opener), Run(("slow", "slow"), opener))
    assert result.step_time.ratio == pytest.approx(1.2, rel=0.02)
    assert opener.threads[:4] == in_main_thread
    assert opener.most_held <= (2 if most_bytes > 0 else 1)


def test_on_one_core_traces_are_opened_one_after_the_other(monkeypatch):
    opener = _Opener()
    monkeypatch.setattr(comparing, "cores", lambda: 1)
    compare_two_runs(Run(("a",), opener), Run(("slow",), opener))
    assert opener.threads[:2] == [True, True]
    assert opener.most_held == 1


def test_a_trace_that_cannot_be_opened_is_the_error():
    for paths in (("torn", "a"), ("a", "torn")):
        with pytest.raises(StepscopeError, match="torn"):
            compare_two_runs(*(Run((path,), _Opener()) for path in paths))
