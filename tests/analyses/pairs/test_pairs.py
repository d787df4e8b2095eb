from __future__ import annotations

import pytest
from chrome_traces import op, read

from stepscope import analyses
from stepscope.core.errors import UnknownName


def test_comparisons_are_found_by_name():
    assert analyses.names("pair") == ["diff", "memory-growth"]
    found = analyses.find("diff")
    assert found.name == "diff"
    assert list(found.options()) == ["by"]
    with pytest.raises(UnknownName):
        analyses.find("dif")


def test_a_comparison_takes_two_traces_and_its_own_options():
    trace = read([op("a", 0, 1)])
    assert analyses.find("diff")(trace, trace, by="part").height == 1
    with pytest.raises(UnknownName, match="option of diff"):
        analyses.find("diff")(trace, trace, colour="red")
