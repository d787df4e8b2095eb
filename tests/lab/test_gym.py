"""The gymnasium's faults and its scores."""

from __future__ import annotations

import gym
import gym_jobs
import pytest
from gym import Answer, Run

from stepscope.comparison.model import CATEGORIES


def answer(fault, change, *causes, job="image"):
    return Answer(Run(job, fault, 1), "0 1", "different", change, causes)


def test_every_fault_is_one_of_its_jobs():
    assert set(gym.FAULTS) <= set(gym_jobs.HARD)
    assert set(gym.STEPS) == set(gym_jobs.JOBS)


def test_severities_are_in_order():
    assert all(a < b < c or a > b > c for a, b, c in gym_jobs.HARD.values())


@pytest.mark.parametrize(
    ("found", "named", "among_two"),
    [
        (answer("fsync", 0.5, "disk_io", "slow_tail"), True, True),
        (answer("fsync", 0.5, "slow_tail", "disk_io"), False, True),
        (answer("fsync", 0.5), False, False),
    ],
)
def test_the_first_cause_counts_and_the_first_two(found, named, among_two):
    assert (found.is_named, found.is_among_two) == (named, among_two)


def test_contention_is_the_right_answer_only_under_load():
    assert not answer("load", 0.2, "cpu_contention").is_accused
    assert answer("load", 0.2, "slow_tail").is_accused
    assert answer("none", 0.2, "cpu_contention").is_accused


def test_the_table_counts_by_size_and_lists_what_is_not_right():
    rows = [
        answer("fsync", 0.5, "disk_io"),
        answer("garbage", 0.2, "slow_tail"),
        answer("lock", 0.01),
        answer("none", 0.0),
    ]
    text = gym.table(rows).splitlines()
    assert "| image | 3, 3 compared | 1 of 2 (50 %) | 1 of 2 (50 %) | 0 of 0 | 0 of 1 (0 %) | 0 of 0 |" in text
    assert "| image: garbage | 1 | +20% | python_gc | slow_tail |" in text
    assert text[-1] == "| image: lock | 1 | +1% | lock_contention | different |"


@pytest.mark.parametrize("fault", gym.FAULTS)
def test_each_fault_has_a_name_that_compare_can_say(fault):
    assert any(cause in CATEGORIES for cause in gym.FAULTS[fault].causes)


def test_recordings_that_cannot_be_compared_are_no_healthy_ones():
    refused = Answer(Run("server", "none", 1), "0", "failed: cycles are calls of another range", 0.0, ())
    assert (
        "| server | 0, 0 compared | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 |" in gym.table([refused]).splitlines()
    )
