"""Limits follow the stream's own blocks; stalls, slow levels and creeping growth are each reported once."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from stepscope.watching.alarms import KINDS, StreamTest, Tail, find_alarms
from stepscope.watching.expected_time import ExpectedTime, observe

RATE = 1e-6


def _watch(log_time, cuts=()):
    """Alarms of a stream that arrives in pieces, cut at these places, and the last state, which was JSON each time."""
    model, test, alarms = ExpectedTime(), StreamTest(), []
    for start, end in pairwise([0, *cuts, len(log_time)]):
        expectation, model = observe(model, 1e7 * np.exp(log_time[start:end]))
        new, test = find_alarms(test, expectation.error, expectation.log_time, RATE)
        test = StreamTest.from_dict(json.loads(json.dumps(test.to_dict())))
        alarms += [(alarm.kind, start + alarm.cycle, alarm.ratio) for alarm in new]
    return alarms, test


def _healthy(n=30_000, seed=0):
    return np.random.default_rng(seed).normal(0, 0.02, n)


def test_healthy_cycles_raise_no_alarm():
    assert _watch(_healthy())[0] == []


def test_one_stall_is_reported_at_its_cycle():
    times = _healthy()
    times[20_000] += np.log(1.5)
    [(kind, cycle, ratio)] = _watch(times)[0]
    assert (kind, cycle) == ("stall", 20_000)
    assert ratio == pytest.approx(1.5, rel=0.1)


def test_a_new_level_is_reported_once_within_twenty_cycles():
    times = _healthy()
    times[20_000:] += np.log(1.1)
    [(kind, cycle, _)] = [alarm for alarm in _watch(times)[0] if alarm[0] != "stall"]
    assert kind == "slow"
    assert 20_005 <= cycle < 20_020


def test_a_fault_soon_after_the_begin_is_reported_and_does_not_hide_the_next():
    times = _healthy(400)
    times[[100, 300]] += 1.3
    assert [alarm[:2] for alarm in _watch(times)[0]] == [("stall", 100), ("stall", 300)]


def test_a_slowdown_that_is_not_worth_it_is_no_alarm_and_hides_none():
    times = _healthy()
    times[20_000:20_030] += np.log(1.08)
    times[20_060] += np.log(1.8)
    model, test = observe(ExpectedTime(), 1e7 * np.exp(times))[0], StreamTest()
    alarms, _ = find_alarms(test, model.error, model.log_time, RATE)
    assert alarms[0].cycle < 20_030
    [alarm], _ = find_alarms(test, model.error, model.log_time, RATE, 0.1)
    assert (alarm.kind, alarm.cycle, alarm.limit) == ("stall", 20_060, pytest.approx(1.6, rel=0.03))


def test_early_a_level_within_what_single_steps_reach_is_no_alarm():
    rng = np.random.default_rng(0)
    steady = rng.normal(0, 0.01, 400)
    steady[300:340] += 0.3
    assert [kind for kind, *_ in _watch(steady)[0]] == ["slow"]
    busy = steady + (rng.random(400) < 0.2) * 0.5
    assert "slow" not in [kind for kind, *_ in _watch(busy)[0]]


def test_long_steps_between_usual_ones_are_no_slow_level():
    times = _healthy(400)
    times[300:340] += np.where(np.arange(40) % 5 < 3, 0.15, 0.0)
    assert "slow" not in [kind for kind, *_ in _watch(times)[0]]
    times[300:340] = times[260:300] + 0.15
    assert "slow" in [kind for kind, *_ in _watch(times)[0]]


def test_a_stall_stands_out_from_the_steps_right_before_it():
    alone = _healthy(2000)
    alone[1960] += 0.25
    among = alone.copy()
    among[1945:1960] += 0.2 * (np.arange(15) % 3 == 0)
    assert ("stall", 1960) in [alarm[:2] for alarm in _watch(alone)[0]]
    assert ("stall", 1960) not in [alarm[:2] for alarm in _watch(among)[0]]


def test_early_a_single_step_is_no_alarm_unless_it_takes_three_times_as_long():
    for ratio, alarms in ((2.5, []), (3.5, [("stall", 200)])):
        times = _healthy(400)
        times[200] += np.log(ratio)
        assert [alarm[:2] for alarm in _watch(times)[0]] == alarms


def test_single_steps_of_a_level_that_was_reported_are_not_learned_as_usual():
    times = _healthy(3000)
    times[2000:2040] += 0.5
    alarms, test = _watch(times, cuts=[2010, 2017])
    assert ("slow", 2013) in [alarm[:2] for alarm in alarms]
    assert test.stall.limit(RATE) < 0.2
    assert (alarms, test) == _watch(times)


def test_creeping_growth_is_reported():
    times = _healthy(60_000)
    times[40_000:] += np.linspace(0, 0.4, 20_000)
    kinds = {alarm[0] for alarm in _watch(times)[0]}
    assert "creep" in kinds


def test_a_fault_that_begins_mildly_is_not_learned_as_healthy():
    times = _healthy(2000)
    times[1800:1825] += 0.05
    times[1825:] += 0.5
    assert [kind for kind, cycle, _ in _watch(times)[0] if 1800 <= cycle < 1850] == ["stall", "slow"]


@pytest.mark.parametrize("n", [1000, 12_000])
def test_only_what_is_usual_here_raises_the_limit_and_waits_for_a_core_are_known_again(n):
    times = _healthy(n + 500)
    before = _watch(times)[1].slow.limit(RATE)
    times[n : n + 30] += 0.7
    _, test = _watch(times)
    alarmed = test.slow.limit(RATE)
    fault, usual = (test.judged("slow", is_usual=is_usual).slow for is_usual in (False, True))
    waits = test.judged("slow", is_usual=True, by_waits=True).slow
    assert before <= alarmed
    for unlearned in (fault, waits):
        assert unlearned.limit(RATE) == pytest.approx(before, rel=0.1)
    assert usual.limit(RATE) > max(0.6, alarmed)
    assert fault.judged(is_usual=True) == fault
    assert [waits.had_waits(value) for value in (0.8, 1.2)] == [True, False]
    assert not fault.had_waits(0.1)


def test_a_fault_that_lasts_raises_no_limit():
    """The level becomes what is expected, and stalls within the fault are not those of the healthy job."""
    times = _healthy(9500)
    before = _watch(times[:8000])[1]
    times[8000:8900] += 0.9
    times[8000:8900] += np.random.default_rng(5).exponential(0.3, 900)
    _, test = _watch(times)
    test = test.judged("slow", is_usual=False).judged("stall", is_usual=False)
    for kind in ("stall", "slow"):
        assert getattr(test, kind).limit(RATE) == pytest.approx(getattr(before, kind).limit(RATE), rel=0.2)


def test_a_much_larger_level_soon_after_a_mild_one_is_another_alarm():
    times = _healthy(9000)
    times[8000:] += 0.25
    times[8100:] += 0.6
    kinds = [(kind, cycle) for kind, cycle, _ in _watch(times)[0] if kind == "slow"]
    assert len(kinds) == 2
    assert 8000 <= kinds[0][1] < 8030
    assert 8100 <= kinds[1][1] < 8130
    times[8100:] -= 0.4
    assert [kind for kind, *_ in _watch(times)[0]].count("slow") == 1


@pytest.mark.parametrize("n_between", [100, 1100])
def test_a_stall_is_told_again_when_a_slow_level_is_over(n_between):
    times = _healthy(10_000)
    times[8000:8200] += 0.9
    times[8200 + n_between] += 0.8
    alarms = [(kind, cycle) for kind, cycle, _ in _watch(times)[0]]
    assert ("stall", 8200 + n_between) in alarms
    times[8100] += 0.8
    assert ("stall", 8100) not in [(kind, cycle) for kind, cycle, _ in _watch(times)[0]]


def test_a_state_from_before_waits_were_kept_is_read():
    state = _watch(_healthy(1000))[1].to_dict()
    for kind in KINDS:
        del state[kind]["waits"], state[kind]["n_left_out"], state[kind]["level"]
    assert StreamTest.from_dict(state).slow == Tail(**state["slow"])


def test_a_limit_is_at_most_twice_what_was_seen():
    tail = Tail(10)
    for value in [*np.linspace(0.01, 0.03, 30), 0.3, 0.35, 0.4]:
        tail = tail.add(float(value), RATE)
    assert tail.limit(RATE) == pytest.approx(2 * 0.4 + 0.05)


def test_pieces_and_files_change_nothing():
    times = _healthy(5000)
    times[3000:3100] += 0.3
    whole, test = _watch(times)
    cuts = sorted(np.random.default_rng(1).choice(np.arange(1, 5000), 200, replace=False).tolist())
    assert _watch(times, cuts)[0] == whole
    assert test.stall == _watch(times, cuts)[1].stall


@pytest.mark.parametrize("rate", [1e-2, 1e-3])
def test_where_the_rate_allows_alarms_so_many_blocks_exceed_the_limit(rate):
    values = np.random.default_rng(2).standard_cauchy(4000)
    tail = Tail(10)
    for value in values:
        tail = tail.add(float(value), rate)
    later = np.random.default_rng(3).standard_cauchy(20_000)
    assert np.mean(later > tail.limit(rate)) == pytest.approx(10 * rate, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_chosen_rate_holds(rho):
    from lab.watch_streams import false_alarms

    n = false_alarms(300_000, rho, "t4", "none", 1e-4).total()
    assert 30 / 2 <= n <= 30 * 2
    assert len(KINDS) == 3
