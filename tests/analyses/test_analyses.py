from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint

import pytest

from stepscope import analyses
from stepscope.core.errors import UnknownName
from stepscope.core.schema import TABLES

GROUP = "stepscope.analyses"


def offered(monkeypatch, *points):
    known = {point.name: point for point in points}
    monkeypatch.setattr("stepscope.core.registry.entry_points_of", lambda group: known if group == GROUP else {})


@pytest.mark.parametrize("name", analyses.names("trace"))
def test_an_analysis_is_found_under_its_own_name_and_reads_tables_of_a_trace(name):
    found = analyses.find(name)
    assert (found.name, found.output.name) == (name, name)
    assert {t.name for t in (*found.inputs, *found.optional)} <= set(TABLES)
    assert found.doc
    assert all(option.default is not inspect.Parameter.empty for option in found.options().values())


@pytest.mark.parametrize("name", analyses.names())
def test_a_value_that_is_none_of_the_choices_is_refused_before_anything_is_read(name):
    for option in analyses.find(name).options().values():
        if option.choices:
            with pytest.raises(UnknownName, match=f"choice of {option.name} for {name} named 'x'") as caught:
                analyses.find(name)(None, **{option.name: "x"})
            assert all(choice in caught.value.hint for choice in option.choices[:5])


def test_an_unknown_name_lists_the_known_ones_nearest_first():
    with pytest.raises(UnknownName) as caught:
        analyses.find("kernel")
    assert caught.value.hint.startswith("known: kernels")


def test_other_packages_add_theirs_after_ours(monkeypatch):
    offered(monkeypatch, EntryPoint("extra", "stepscope.analyses.steps.steps:ANALYSIS", GROUP))
    assert analyses.names("trace")[-1] == "extra"
    assert analyses.find("extra").name == "steps"


def test_other_packages_do_not_replace_ours(monkeypatch):
    offered(monkeypatch, EntryPoint("steps", "nowhere:ANALYSIS", GROUP))
    assert analyses.names("trace").count("steps") == 1
    assert analyses.find("steps").name == "steps"


def test_an_entry_point_that_gives_something_else_is_refused(monkeypatch):
    offered(monkeypatch, EntryPoint("extra", "stepscope.core.schema:TABLES", GROUP))
    with pytest.raises(TypeError, match="extra"):
        analyses.find("extra")
