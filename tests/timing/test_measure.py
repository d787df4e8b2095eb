from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stepscope.core.errors import FunctionFailed, StepscopeError
from stepscope.timing import _clock, _measure
from stepscope.timing._clock import Clock, Lap
from stepscope.timing._measure import Budget, Job, call_overhead_ns, inner_calls, measure


@pytest.fixture
def clock(monkeypatch):
    """A host's clock that only goes on when a call spends its time."""
    now = itertools.count()
    state = {"ns": 0}
    monkeypatch.setattr(_clock.time, "perf_counter_ns", lambda: state["ns"])

    def job(ns, log=None, name="f"):
        def call():
            state["ns"] += ns(next(now)) if callable(ns) else ns
            if log is not None:
                log.append(name)

        return Job(call, Clock(), name)

    return job


def test_repeats_follow_the_warm_up_and_functions_take_turns(clock):
    log = []
    jobs = [clock(50_000, log, "a"), clock(80_000, log, "b")]
    timings = measure(jobs, Budget(warmup=2, repeats=4), [0.0, 1.0])
    assert log[:4] == ["a", "a", "b", "b"]
    assert log[-8:] == ["a", "b", "b", "a", "a", "b", "b", "a"]  # every other round backwards
    assert [list(t.times_ns) for t in timings] == [[50_000.0] * 4, [80_000.0] * 4]
    assert [(t.n_inner, t.overhead_ns) for t in timings] == [(1, 0.0), (1, 1.0)]


def test_times_stay_in_the_order_in_which_they_were_measured(clock):
    (timings,) = measure([clock(lambda i: 100_000 + i)], Budget(warmup=0, repeats=5), [0.0])
    assert list(np.diff(timings.times_ns)) == [1.0] * 4


def test_without_a_number_it_goes_on_until_the_time_is_up(clock):
    (timings,) = measure([clock(10_000_000)], Budget(warmup=0, seconds=0.2), [0.0])
    assert timings.times_ns.size == 20
    fast, slow = measure([clock(10_000_000), clock(30_000_000)], Budget(warmup=0), [0.0, 0.0])
    assert fast.times_ns.size == slow.times_ns.size == 50  # of 2 s for both


def test_a_slow_function_is_still_measured_seven_times(clock):
    (timings,) = measure([clock(5_000_000_000)], Budget(warmup=0, seconds=1.0), [0.0])
    assert timings.times_ns.size == 7


@pytest.mark.parametrize(
    ("ns", "inner"), [(10_000, 1), (9_999, 20), (1_000, 100), (300, 500), (80, 2000), (1, 100_000), (10**9, 1)]
)
def test_short_calls_are_repeated_in_an_inner_loop_of_a_round_number(clock, ns, inner):
    job = clock(ns)
    assert inner_calls(job) == inner
    (timings,) = measure([job], Budget(warmup=0, repeats=3), [0.0])
    assert timings.n_inner == inner
    assert list(timings.times_ns) == [float(ns)] * 3  # of one call


def test_one_disturbed_call_does_not_make_a_short_function_long(clock):
    assert inner_calls(clock(lambda i: 50_000 if i == 0 else 1_000)) > 1


def test_a_clock_that_stands_still_ends_the_search(clock):
    assert inner_calls(clock(0)) == _measure.MOST_INNER


def test_the_loop_ends_where_the_device_says_next_to_nothing_and_the_host_does_not(monkeypatch):
    laps = []

    def told(_clock, _call, n, _what):
        laps.append(n)
        return Lap(ns=1.0, wall_ns=50_000.0)

    monkeypatch.setattr(_measure, "lap", told)
    assert inner_calls(Job(int, Clock(), "f")) == 1000
    assert sum(laps) < 1200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 3, "seconds": 1.0}, "both repeats and seconds"),
        ({"repeats": 0}, "repeats is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"seconds": math.inf}, "seconds is inf"),
        ({"seconds": math.nan}, "seconds is nan"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(StepscopeError, match=message):
        Budget(**options)


def test_a_failure_in_the_middle_is_the_function_s():
    numbers = iter(range(3))
    with pytest.raises(FunctionFailed, match="f, case 1, raised StopIteration"):
        measure([Job(lambda: next(numbers), Clock(), "f, case 1,")], Budget(repeats=10), [0.0])


def test_the_overhead_is_that_of_calling_nothing_with_these_arguments():
    assert 5 < call_overhead_ns((), {}) < 1e5
    assert call_overhead_ns((1, 2), {"x": 3}) > 5
