from __future__ import annotations

import pytest

from stepscope.comparison.diagnosis.case import Suspect
from stepscope.comparison.diagnosis.ordering import folded
from stepscope.comparison.model import Cause, Evidence

MS = 1_000_000


def suspect(category, ms, **functions):
    """A suspect that explains so much, with functions as evidence: their time in the base and in the other run (ms)."""
    shown = tuple(
        Evidence("time", device="host", name=f"{name} (a.py)", base=base * MS, other=other * MS)
        for name, (base, other) in functions.items()
    )
    cause = Cause(category, "", "", None, "", None, None, ms * MS, 0.8, shown, (), "")
    return Suspect(cause, ms * MS)


def names(*suspects, reference_ms=20.0):
    return [cause.category for cause in folded(suspects, reference_ms * MS)]


@pytest.mark.parametrize("late", ["slow_tail", "periodic_work", "growing_steps"])
def test_steps_that_are_slow_in_a_place_of_their_own_are_no_consequence(late):
    disk = suspect("disk_io", 15, write=(0, 15))
    assert names(disk, suspect(late, 12, repair=(0, 12))) == ["disk_io", late]
    assert names(disk, suspect(late, 12, write=(0, 12))) == ["disk_io"]
    assert names(disk, suspect(late, 12)) == ["disk_io"]
    assert names(suspect("disk_io", 15), suspect(late, 12, repair=(0, 12))) == ["disk_io"]


@pytest.mark.parametrize(("before", "after", "is_there"), [(0, 12, True), (8, 16, False), (0, 0.5, False)])
def test_steps_grow_beside_busy_neighbours_only_in_what_the_base_hardly_has(before, after, is_there):
    found = names(suspect("cpu_contention", 20), suspect("growing_steps", 12, merge=(before, after)))
    assert found == ["cpu_contention", *["growing_steps"] * is_there]


@pytest.mark.parametrize("category", ["cpu_contention", "gil_contention"])
def test_a_function_that_the_base_does_not_have_does_not_follow_from_what_stretches_all(category):
    stretch = suspect(category, 18)
    assert names(stretch, suspect("slow_operator", 7, cdist=(0, 7))) == [category, "slow_operator"]
    assert names(stretch, suspect("slow_operator", 7, cdist=(7, 14))) == [category]


@pytest.mark.parametrize(("growth_ms", "found"), [(9, ["compilation", "memory_growth"]), (0.4, ["compilation"])])
def test_memory_that_costs_half_of_what_compiling_does_is_kept_besides(growth_ms, found):
    assert names(suspect("compilation", 14), suspect("memory_growth", growth_ms)) == found
