from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from faulty_jobs import Job, case_of, found

from stepscope.comparison.diagnosis import Case, diagnose

BASE, SLOW = Job(), replace(Job(), gaps_ms=25.0)


def shares(n_looks: int = 500, **functions: float) -> pl.DataFrame:
    """Shares of functions, as an observation has them."""
    rows = {"function": list(functions), "share_ratio": list(functions.values())}
    return pl.DataFrame(rows, schema={"function": pl.String, "share_ratio": pl.Float64}).with_columns(n_looks=n_looks)


def told(base: pl.DataFrame | None, other: pl.DataFrame | None) -> list[tuple[str, float, float]]:
    """What the cause says of functions."""
    case = case_of(BASE, SLOW)
    pair = case.pairs[0]
    pair = replace(
        pair,
        base=tuple(replace(each, functions_seen=base) for each in pair.base),
        other=tuple(replace(each, functions_seen=other) for each in pair.other),
    )
    (cause,) = diagnose(Case((pair,), case.effects)).causes
    assert cause.category == "host_overhead"
    return [(row.name, row.base, row.other) for row in cause.evidence if "main thread" in row.text]


def test_functions_that_grew_are_evidence_with_their_time_per_cycle():
    ((name, base, other),) = told(shares(load=0.1, step=0.9), shares(load=0.1, step=0.5, augment=0.4))
    assert name == "augment"
    assert base == 0.0
    assert other == pytest.approx(0.4 * slow_ns(), rel=0.1)


def slow_ns() -> float:
    """What a cycle of the slow job takes."""
    return case_of(BASE, SLOW).pairs[0].other[0].cycles["dur_ns"].mean()


def test_only_the_two_that_grew_most_are_told():
    other = shares(step=0.3, a=0.3, b=0.2, c=0.2)
    assert [name for name, *_ in told(shares(step=1.0), other)] == ["a", "b"]


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (None, shares(augment=1.0)),
        (shares(step=1.0), None),
        (shares(n_looks=20, step=1.0), shares(augment=1.0)),
        (shares(step=0.5, load=0.5), shares(n_looks=31, step=0.4, load=0.4, augment=0.2)),
        (shares(), shares()),
    ],
    ids=["no base", "no other", "few looks", "by chance", "no function"],
)
def test_too_few_looks_say_nothing(base, other):
    assert told(base, other) == []


def test_other_causes_are_as_they_were():
    other = replace(BASE, gaps_ms=27.0).levels(process_python_gc_time=2.75e8, process_python_gc_collections=9.0)
    assert not [row for cause in found(BASE, other).causes for row in cause.evidence if "main thread" in row.text]
