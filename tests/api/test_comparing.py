from __future__ import annotations

import pytest
from literal_traces import Rows
from recordings import recording

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
