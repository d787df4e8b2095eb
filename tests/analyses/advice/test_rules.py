from __future__ import annotations

from typing import Any

import pytest

from stepscope.analyses.advice.rules import RULES, STEPSCOPE, TENSORBOARD, Facts, advice


def said(**facts: Any) -> dict[str, str]:
    """Texts of the rules that speak, by name."""
    return {rule.name: f"{told.found}: {told.remedy}" for rule, told in advice(Facts(**facts))}


def test_nothing_known_is_nothing_advised() -> None:
    assert said() == {}


@pytest.mark.parametrize(
    ("fact", "rule", "threshold"),
    [
        ("loading", "data_loading", 0.05),
        ("communication", "communication", 0.1),
        ("pageable", "pageable_copies", 0.01),
        ("sync", "sync_waits", 0.05),
    ],
)
def test_a_part_of_the_step_matters_from_a_threshold_on(fact: str, rule: str, threshold: float) -> None:
    assert said(**{fact: threshold}) == {}
    (found,) = (found for _, found in advice(Facts(**{fact: 2 * threshold})))
    assert (found.value, found.threshold) == (2 * threshold, threshold)
    assert f"{2 * threshold:.0%}".replace("%", " %") in said(**{fact: 2 * threshold})[rule]


def test_devices_that_are_used_for_less_than_half_of_the_time_are_named() -> None:
    assert said(busy={"cuda:0": 0.5}) == {}
    text = said(busy={"cuda:0": 0.4, "cuda:1": 0.9, "cuda:2": 0.25})["device_underused"]
    assert "(cuda:0 40 %, cuda:2 25 %)" in text
    (found,) = (found for _, found in advice(Facts(busy={"cuda:0": 0.4, "cuda:2": 0.25})))
    assert found.value == 0.25


def test_tensor_cores_are_missed_only_where_there_are_some_and_none_is_used() -> None:
    facts = {"on_units": 0.0, "eligible": 0.68, "capability": 7}
    assert "68 %" in said(**facts)["tensor_cores_unused"]
    assert said(**facts)["tensor_cores_unused"].endswith("autocast to float16")
    assert said(**facts | {"capability": 8})["tensor_cores_unused"].endswith("or allow TF32")
    for change in ({"on_units": 0.01}, {"on_units": None}, {"eligible": 0.04}, {"capability": 6}, {"capability": None}):
        assert said(**facts | change) == {}


def test_the_fullest_device_is_named() -> None:
    assert said(memory={"cuda:0": 0.9}) == {}
    assert "95 % of the memory of cuda:1" in said(memory={"cuda:0": 0.91, "cuda:1": 0.95})["memory_full"]


def test_data_parallel_matters_on_more_than_one_device() -> None:
    assert said(n_data_parallel=1) == {}
    assert "drives 4 devices" in said(n_data_parallel=4)["data_parallel"]
    assert "by gloo" in said(backend="gloo")["slow_backend"]


def test_late_launches_matter_where_most_are_longer_than_their_work() -> None:
    assert said(short=0.5, late=0.9) == {}
    assert said(short=0.6, late=0.1) == {}
    text = said(short=0.6, late=0.2)["launch_bound"]
    assert text.startswith("60 % of launches take longer than the work they queue, and the device waits 20 %")


def test_rules_of_the_plugin_come_first_and_all_have_names_of_their_own() -> None:
    origins = [rule.origin for rule in RULES]
    assert origins == sorted(origins, key=[TENSORBOARD, STEPSCOPE].index)
    assert len({rule.name for rule in RULES}) == len(RULES)
