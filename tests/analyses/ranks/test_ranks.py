from __future__ import annotations

import pytest
from jobs import part

from stepscope import analyses
from stepscope.core.errors import UnknownName


@pytest.mark.parametrize("name", analyses.names("ranks"))
def test_each_analysis_says_its_units_and_where_its_definition_is_from(name):
    analysis = analyses.find(name)
    assert analysis.name == name
    assert analysis.scope == "ranks"
    text = analysis.run.__doc__ or ""
    assert "Units:" in text
    assert "Source:" in text


def test_an_unknown_name_or_option_is_refused():
    with pytest.raises(UnknownName, match="analysis"):
        analyses.find("nothing")
    with pytest.raises(UnknownName, match="option of collectives"):
        analyses.find("collectives")([part(0, (0, 1))], nothing=1)


def test_options_are_those_of_the_function():
    assert list(analyses.find("collectives").options()) == ["by"]
    assert analyses.find("stragglers").options()["min_share"].default == 0.001


@pytest.mark.parametrize("name", ["collectives", "parallel-groups", "message-sizes", "clock-offsets", "stragglers"])
def test_the_result_has_the_declared_columns(name):
    analysis = analyses.find(name)
    result = analysis([part(r, (0, 10), (20, 30), (45, 50)) for r in (0, 1)])
    declared = analysis.output.dtypes
    assert [c for c in declared if c in result.columns] == result.columns
    assert all(result.schema[c] == declared[c] for c in result.columns)
