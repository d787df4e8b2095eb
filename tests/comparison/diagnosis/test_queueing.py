"""Requests that wait for their turn: because more of them come, or because they are not shared out evenly."""

from __future__ import annotations

import pytest
from faulty_jobs import MS, loop
from msgspec.structs import replace
from observations import observation, pair

from stepscope.comparison.diagnosis.case import Suspect, view_of
from stepscope.comparison.diagnosis.queueing import queueing
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Answers, RuledOut, Waits
from stepscope.comparison.stack_functions import FROM_QUEUE
from stepscope.comparison.verdict import compare_runs


def queue(base, other):
    both = pair(observation([1_000_000] * 6), observation([1_000_000] * 6))
    both = replace(both, waits=(base, other) if base else None)
    return queueing(view_of(both, effects((both,))))


def test_requests_that_come_more_often_find_the_job_busy():
    found = queue(Waits(100, 0.9, 10 * MS), Waits(100, 0.5, 2 * MS))
    assert isinstance(found, Suspect)
    assert "Requests come 5 times as often: a step comes every 2 ms (was 10 ms)" in found.cause.statement
    assert "busy 50 % of the time (was 10 %)" in found.cause.statement
    assert found.cause.explained_ns == 0


def test_few_requests_that_come_more_often_by_chance_are_no_cause():
    assert isinstance(queue(Waits(9, 0.9, 10 * MS), Waits(9, 0.5, 4 * MS)), RuledOut)


def test_a_job_that_never_waits_any_more_needs_fewer_requests_to_show_that_more_come():
    """It answers as many as it can, and not as many as come."""
    assert isinstance(queue(Waits(134, 0.44, 6.6 * MS), Waits(45, 0.02, 4.7 * MS)), Suspect)
    assert isinstance(queue(Waits(134, 0.44, 6.6 * MS), Waits(45, 0.2, 4.7 * MS)), RuledOut)


def test_a_job_that_is_busy_no_more_than_before_lets_no_request_wait_longer():
    found = queue(Waits(100, 0.99, 10 * MS), Waits(100, 0.97, 5 * MS))
    assert isinstance(found, RuledOut)
    assert "busy 3 % of the time" in found.reason


def test_a_job_without_waits_for_requests_has_no_queue():
    assert isinstance(queue(None, None), RuledOut)


WAITS = FROM_QUEUE + "work (a.py)"


def service(ms, waits_ms, idle, *, seed=0):
    """A service with two threads, that wait for so long a step and for these parts of the time each."""
    run = loop(ms, ms - waits_ms, {"render (a.py)": ms - waits_ms, WAITS: waits_ms}, seed=seed)
    answers = Answers(run.python_functions, run.python_functions.clear(), run.steps, 1000, 10.0, True, idle)
    return replace(run, answers=answers)


@pytest.mark.parametrize(
    ("before", "after", "category"),
    [
        ((0.0, 0.0), (0.0, 0.5), "queueing"),
        ((0.0, 0.0), (0.25, 0.25), "data_loading"),  # too few come for both
        ((0.0, 0.4), (0.0, 0.5), "data_loading"),  # as uneven as before
    ],
)
def test_a_thread_that_waits_while_another_has_too_many_requests_is_a_queue(before, after, category):
    base, other = service(60.0, 0.5, before), service(80.0, 20.0, after, seed=1)
    (cause,) = compare_runs([[base]], [[other]]).causes
    assert cause.category == category
    assert ("one thread that answers them waits for 50 % of the time" in cause.statement) is (category == "queueing")
    assert cause.explained_ns == pytest.approx(19.5 * MS, rel=0.1)
