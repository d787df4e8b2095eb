from __future__ import annotations

import pytest

from stepscope.core.errors import UnknownName
from stepscope.query import tables as views
from stepscope.query.sql.guard import Names
from stepscope.query.sql.views import known_names, resolve


def found(*tables, shadowed=()):
    return resolve(Names(tables, frozenset(shadowed)))


def test_names_mean_what_they_mean_elsewhere():
    spans, steps, raw, breakdown = found(("", "spans"), ("", "steps"), ("trace", "steps"), ("", "step_breakdown"))
    assert (spans.raw, steps.raw, raw.raw, breakdown.raw) == ("spans", None, "steps", None)
    assert steps.question == views.find("steps")
    assert breakdown.question == views.find("step-breakdown")


@pytest.mark.parametrize("name", ["step-breakdown", "STEP_BREAKDOWN", "Step_Breakdown"])
def test_signs_and_case_of_names_do_not_matter(name):
    (view,) = found(("", name))
    assert view.question == views.find("step-breakdown")
    assert view.name == name


def test_every_known_name_is_found():
    assert {"traces", "spans", "operators", "step_breakdown", "cycles"} <= set(known_names())
    assert "diff" not in known_names()
    for name in known_names():
        schema, _, plain = name.rpartition(".")
        assert found((schema, plain))


@pytest.mark.parametrize(
    "table",
    [("", "span"), ("trace", "operators"), ("other", "spans"), ("", "/etc/passwd"), ("", "diff"), ("", "x.csv")],
)
def test_what_is_not_known_is_an_error(table):
    with pytest.raises(UnknownName, match="no table named") as caught:
        found(table)
    assert "`stepscope tables` lists" in caught.value.hint


def test_parts_of_the_query_itself_are_not_looked_for():
    assert found(("", "busy"), shadowed=["busy"]) == []
    (view,) = found(("", "spans"), shadowed=["spans"])
    assert view.optional
