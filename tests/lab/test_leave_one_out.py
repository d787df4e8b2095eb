from __future__ import annotations

import sys

import leave_one_out as lab
from gym import Run
from gym_scores import Answer

from stepscope.comparison.diagnosis import case, over_time


def answer(job, fault, named, change=0.2, number=1):
    return Answer(Run(job, fault, number), "n0", "different", change, 1e7, ((named, 1e6),) if named else ())


def test_while_a_setting_holds_a_threshold_has_another_value_wherever_it_was_imported():
    users = [module for name, module in sys.modules.items() if name.startswith("stepscope.comparison")]
    users = [module for module in users if getattr(module, "MATERIAL", None) == case.MATERIAL]
    assert users
    before = case.MATERIAL
    with lab.changed({lab.DIAGNOSIS + "case.MATERIAL": 1.4}):
        assert {round(module.MATERIAL / before, 6) for module in users} == {1.4}
    assert {module.MATERIAL for module in users} == {before}


def test_what_is_scaled_is_the_distance_from_the_value_that_asks_for_nothing():
    with lab.changed({lab.DIAGNOSIS + "over_time._STEADY": 1.4}):
        assert round(over_time._STEADY, 6) == round(1 - 1.4 * 0.2, 6)


def test_each_threshold_is_tried_lower_and_higher():
    assert len(lab.settings()) == 1 + 2 * len(lab.THRESHOLDS)
    for module, name, _ in lab.THRESHOLDS:
        assert isinstance(getattr(sys.modules[module], name), float)


def test_an_accused_healthy_run_costs_more_than_a_miss():
    right = answer("pool", "fsync", "disk_io")
    small = answer("pool", "fsync", "disk_io", change=0.01)
    assert lab.value_of([right, answer("pool", "fsync", None), small]) == 1
    assert lab.value_of([right, answer("pool", "none", "disk_io")]) < 0


def test_a_threshold_moves_only_if_that_is_worth_something():
    worth = dict.fromkeys(lab.settings(), 10)
    assert lab.chosen(worth) == {}
    steady = lab.DIAGNOSIS + "over_time._STEADY"
    assert lab.chosen({**worth, f"{steady} × 0.7": 12, f"{steady} × 1.4": 11}) == {steady: 0.7}
