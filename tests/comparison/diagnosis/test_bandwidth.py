"""Other processes that use the memory's bandwidth slow what moves memory more than what computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_jobs import MODEL, Job, diagnosed, not_judged

BASE = Job(operators=MODEL)


def slowed(moves, computes):
    """The job beside a neighbour that keeps the other core busy."""
    factors = {"aten::mm": computes, "aten::addmm": computes}
    rows = (replace(op, each_ns=op.each_ns * factors.get(op.name, moves)) for op in MODEL)
    return replace(BASE, operators=tuple(rows)).at("host", "host_cpu_usage", 99.0)


def first(base, other):
    causes = diagnosed(base, other).causes
    return causes[0].category if causes else None


def test_work_that_moves_memory_is_slowed_more_than_products():
    assert first(BASE, slowed(2.0, 1.3)) == "memory_bandwidth"


@pytest.mark.parametrize(("moves", "computes"), [(1.5, 1.5), (1.3, 1.6)])
def test_a_neighbour_that_slows_products_as_much_shares_cores(moves, computes):
    assert first(BASE, slowed(moves, computes)) == "cpu_contention"


def test_operators_that_are_slow_on_a_machine_that_is_not_busier_have_other_reasons():
    other = slowed(2.0, 1.3).at("host", "host_cpu_usage", 50.0)
    assert first(BASE, other) != "memory_bandwidth"


def test_without_operators_of_both_kinds_it_is_not_judged():
    only = tuple(op for op in MODEL if op.name in ("aten::mm", "aten::addmm"))
    base = replace(BASE, operators=only)
    other = replace(base, operators=tuple(replace(op, each_ns=2 * op.each_ns) for op in only))
    assert "memory_bandwidth" in not_judged(diagnosed(base, other.at("host", "host_cpu_usage", 99.0)))
