from __future__ import annotations

import pytest
from observations import observation

from stepscope.comparison.run import compare_runs
from stepscope.core.errors import StepscopeError


def run(durations, **facts):
    rows = [
        (c, "host", name, "operator", 1, ns // 2, ns // 2)
        for c, ns in enumerate(durations, 1)
        for name in ("aten::mm", "aten::add")
    ]
    parts = [(c, "operators", ns) for c, ns in enumerate(durations, 1)]
    return observation(durations, functions=rows, parts=parts, **facts)


BASE = [100_000_000 + 100_000 * (i % 5) for i in range(20)]


def test_equal_runs_are_no_difference():
    found = compare_runs([[run(BASE)]], [[run(BASE)]])
    assert (found.verdict, found.causes) == ("no_difference", ())
    assert found.step_time.delta == 0


def test_parts_sum_to_the_difference_of_the_step():
    found = compare_runs([[run(BASE)]], [[run([2 * ns for ns in BASE])]])
    assert (found.verdict, found.reason) == ("different", "slower")
    assert found.parts["delta_ns"].sum() == pytest.approx(found.step_time.delta)


def test_one_cycle_is_inconclusive_and_says_so():
    found = compare_runs([[run(BASE[:1])]], [[run(BASE[:1])]])
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert "one cycle on a side: nothing is known of how much cycles scatter" in found.notes


def test_notes_of_the_recordings_are_said_once():
    noted = run(BASE, notes=("no counters",))
    found = compare_runs([[noted]], [[noted]])
    assert found.notes.count("no counters") == 1


def test_runs_without_a_common_rank_have_nothing_to_compare():
    ranks = [[run(BASE, rank=0), run(BASE, rank=1)]]
    other = [[observation(BASE, rank=2), observation(BASE, rank=3)]]
    with pytest.raises(StepscopeError, match="nothing to compare: rank 2, rank 3 of made"):
        compare_runs(ranks, other)


def test_cycles_of_different_kinds_are_refused():
    with pytest.raises(StepscopeError, match="cannot be compared: cycles are calls of"):
        compare_runs([[run(BASE, anchor="step")]], [[run(BASE, anchor="layer")]])
