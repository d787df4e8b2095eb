from __future__ import annotations

import pytest
from operator_calls import cost

from stepscope.analyses.costs.cost_matrix import Cost
from stepscope.analyses.costs.costs import FORMULAS, cost_of


def test_every_formula_gives_a_cost_or_a_reason():
    for name in FORMULAS:
        assert isinstance(cost_of(name, "[[2,3],[3,4]]", '["float","float"]', '["",""]'), (Cost, str))
        assert isinstance(cost_of(name, "[]", "[]", "[]"), str)
        assert isinstance(cost_of(name, None, None, None), str)


def test_reasons_are_words():
    assert cost_of("aten::mm", None, None, None) == "shapes were not recorded (record_shapes=True)"
    assert cost_of("aten::mm", "[[2,3],[4,5]]", '["float","float"]', None) == "the factors' shapes do not fit"
    assert (
        cost("aten::mm", ((2, 3), "c10::Weird"), ((3, 4), "c10::Weird")) == "argument 0 is no tensor of a known shape"
    )


def test_equal_calls_are_worked_out_once():
    cost_of.cache_clear()
    first = cost("aten::mm", ((2, 3), "float"), ((3, 4), "float"))
    assert cost("aten::mm", ((2, 3), "float"), ((3, 4), "float")) is first


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_names_are_those_of_operators(name):
    assert "::" in name
