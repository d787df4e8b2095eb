from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from observations import observation, pair

from stepscope.comparison.model import RUN_RESOURCES, TIMED_STEPS, Pair
from stepscope.comparison.statistics import more_often
from stepscope.comparison.verdict import step_effect
from stepscope.comparison.whole_run import (
    growth,
    growth_on_cores,
    part_of_slow,
    run_steps,
    stretches,
    tail,
    tails_of,
    timed_steps,
    without_growth,
)
from stepscope.core.schema import STEP_TIMES
from stepscope.core.trace import Meta, Trace

WAIT = "process_runq_time"

MS = 1_000_000
N = 400


def steps_of(durations_ms, n_steps=1):
    dur = np.asarray(durations_ms, float) * MS
    counts = np.full(dur.size, n_steps)
    at = np.cumsum(counts) - counts
    begin = (np.cumsum(dur * counts) - dur * counts).astype(np.int64)
    return TIMED_STEPS.conform(pl.DataFrame({"step": at, "ts_ns": begin, "dur_ns": dur, "n_steps": counts}))


def noisy(mean_ms=20.0, n=N, seed=0):
    return mean_ms * (1 + 0.02 * np.random.default_rng(seed).standard_normal(n))


def trace_of(rows):
    columns = ("pid", "ts_ns", "dur_ns", "n_steps", "source", "is_profiled")
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return Trace(Meta("x", "kineto"), {"step_times": STEP_TIMES.conform(frame)})


def test_warm_up_and_profiled_steps_are_left_out_and_keep_their_numbers():
    rows = [(1, i * 10 * MS, 10 * MS, 1, "optimizer steps", i in (50, 51)) for i in range(100)]
    steps = timed_steps(trace_of(rows), 1)
    assert steps["step"].to_list() == [i for i in range(5, 100) if i not in (50, 51)]
    assert timed_steps(trace_of(rows), 2).is_empty()


def test_the_source_of_most_steps_counts_and_short_steps_are_means():
    rows = [(1, i * 30 * MS, 30 * MS, 3, "optimizer steps", False) for i in range(100)]
    rows += [(1, -40 * MS, 40 * MS, 1, "module calls", False)]
    steps = timed_steps(trace_of(rows), None)
    assert steps["dur_ns"].unique().to_list() == [10 * MS]
    assert steps["n_steps"].sum() == 300 - 15


def test_stretches_are_means_of_equal_numbers_of_steps():
    values = noisy()
    assert stretches(steps_of(values), 10) / MS == pytest.approx(values.reshape(10, -1).mean(axis=1))


@given(st.lists(st.floats(0.1, 1000), min_size=2, max_size=120), st.integers(1, 40))
def test_the_mean_of_stretches_is_that_of_all_steps(durations_ms, n):
    assert stretches(steps_of(durations_ms), n).mean() / MS == pytest.approx(np.mean(durations_ms))


def test_rows_of_many_steps_leave_no_stretch_without_a_value():
    assert np.isfinite(stretches(steps_of([10.0] * 7, n_steps=20), 40)).all()


@pytest.mark.parametrize("every", [3, 7, 20, 50])
@pytest.mark.parametrize("phase", [0, 1])
def test_slow_steps_at_a_distance_have_it_although_others_are_slow_too(every, phase):
    values = noisy()
    random = np.random.default_rng(1)
    values[random.random(N) < 0.03] += 15.0
    values[phase::every] += 60.0
    slow = tail(steps_of(values))
    assert (slow.every, slow.n_slow) == (every, len(values[phase::every]))
    assert slow.excess_ns / MS == pytest.approx(60 / every, rel=0.1)


def test_slow_steps_at_random_have_no_distance():
    values = noisy()
    slow = np.random.default_rng(3).random(N) < 0.06
    values[slow] += 60.0
    one = tail(steps_of(values))
    assert (one.every, one.n_slow, one.is_spread) == (None, int(slow.sum()), True)


def test_slow_steps_of_the_base_count_all_if_those_of_the_other_run_have_no_distance():
    base, other = noisy(), noisy(seed=1)
    irregular = np.random.default_rng(3).random(N) < 0.06
    base[irregular] += 60.0
    base[::20] += 60.0
    other[irregular] += 60.0
    tails = tails_of(pair(_with(base), _with(other)))
    assert tails.other.every is None
    assert tails.base.n_slow >= tails.other.n_slow
    assert tails.added_ns < 0


@pytest.mark.parametrize(("at", "ms", "is_tail"), [
    ((40, 170, 290), 80.0, True),  # five times as long as others, all over the run
    ((40, 170, 290), 30.0, False),  # not far enough from them to be three alone
    ((40, 41, 290), 80.0, False),  # two of them are one event
    ((40, 170), 80.0, False),
])  # fmt: skip
def test_few_steps_are_a_tail_if_they_are_far_from_all_others(at, ms, is_tail):
    values = noisy()
    values[list(at)] += ms
    slow = tail(steps_of(values))
    assert (slow.n_slow, slow.is_spread) == (len(at), is_tail)


def waiting(values, wait_ms, metric=WAIT):
    """An observation of these steps, in whose stretches the process waits for a core so long per step."""
    steps = steps_of(values)
    step_ns = stretches(steps)
    rows = {"stretch": np.arange(40), "mu": 1e9 * np.asarray(wait_ms) * MS / step_ns, "step_ns": step_ns}
    of_core = {"device": "process", "metric": metric, "unit": "ns/s"}
    frame = pl.DataFrame(rows).with_columns(pl.lit(value).alias(name) for name, value in of_core.items())
    return replace(observation([20 * MS] * 10), steps=steps, run_resources=RUN_RESOURCES.conform(frame))


def test_what_slow_steps_wait_for_is_what_their_stretches_wait_for_more():
    values = noisy()
    values[5::80] += 100.0  # each makes a stretch of ten steps 10 ms a step longer
    in_slow = np.where(stretches(steps_of(values)) > 25 * MS, 8.0, 0.0)
    assert part_of_slow(waiting(values, 1.0 + in_slow), WAIT) == pytest.approx(0.8, abs=0.05)
    assert part_of_slow(waiting(values, 1.0 + in_slow), "not_recorded", WAIT) == pytest.approx(0.8, abs=0.05)
    assert part_of_slow(waiting(values, 1.0 + in_slow), "not_recorded") is None
    assert part_of_slow(waiting(values, np.full(40, 1.0)), WAIT) == pytest.approx(0.0, abs=0.01)
    assert part_of_slow(waiting(noisy(), np.full(40, 1.0)), WAIT) is None
    assert part_of_slow(_with(values), WAIT) is None


def test_of_sampled_steps_half_of_those_at_a_distance_must_seem_slow():
    chance = np.random.default_rng(3)
    values = 20 + 8 * chance.standard_normal(200)
    values[7::12] += np.where(chance.random(values[7::12].size) < 0.75, 60.0, 0.0)  # samples miss some
    values[chance.random(200) < 0.04] += 60.0
    found = tail(steps_of(values), is_sampled=True)
    assert (found.every, found.n_slow) == (12, values[7::12].size)
    assert tail(steps_of(values)).every is None


@pytest.mark.parametrize("seed", range(20))
def test_slow_sampled_steps_at_random_have_no_distance(seed):
    chance = np.random.default_rng(seed)
    values = 20 + 8 * chance.standard_normal(400)
    values[chance.random(400) < 0.1] += 60.0
    assert tail(steps_of(values), is_sampled=True).every is None


def with_slow(values, at, ms):
    values[at] += ms
    return values


def test_all_repeats_of_the_base_count_as_if_each_had_as_many_slow_steps_as_the_worst():
    other = _with(with_slow(noisy(seed=1), np.random.default_rng(3).choice(N, 12, replace=False), 60.0))
    worst = _with(with_slow(noisy(seed=2), [40, 90, 170], 60.0))
    calm = [_with(noisy(seed=seed)) for seed in (3, 4)]
    alone, three = (tails_of(Pair("job", base, (other,), "rank")) for base in ((worst,), (worst, *calm)))
    assert (alone.n_steps_base, three.n_steps_base) == (N, 3 * N)
    assert three.p_value < 0.1 * alone.p_value
    assert three.p_value >= more_often(12, N, 9, 3 * N)


def test_few_slow_steps_at_a_distance_are_no_accident_although_as_many_are_slow_at_random_in_the_base():
    at_random = np.random.default_rng(3).choice(N, 9, replace=False)
    base, regular = (
        _with(with_slow(noisy(seed=seed), at, 60)) for seed, at in ((1, at_random), (2, np.arange(20, N, N // 10)))
    )
    tails = tails_of(pair(base, regular))
    assert tails.other.every is not None
    assert tails.p_value < 1e-6
    # Samples of a server's threads may find such a distance by chance.
    assert replace(tails, is_sampled=True).p_value > 0.1


def test_far_shorter_slow_steps_of_the_base_are_something_else():
    other = _with(with_slow(noisy(seed=1), np.random.default_rng(3).choice(N, 9, replace=False), 100.0))
    base = _with(with_slow(noisy(seed=2), [40, 90, 170, 210, 300], 12.0))
    assert tails_of(pair(base, other)).base.n_slow == 0


def test_slow_steps_at_the_distance_of_the_base_are_usual_though_they_are_somewhat_longer():
    base, longer, far_longer = (
        _with(with_slow(noisy(seed), slice(5, None, 9), ms)) for seed, ms in enumerate((40, 60, 200))
    )
    assert tails_of(pair(base, longer)).is_usual
    assert not tails_of(pair(base, far_longer)).is_usual
    assert not tails_of(pair(_with(noisy(seed=4)), longer)).is_usual


def test_one_stretch_of_slow_steps_is_no_tail():
    values = noisy()
    values[100:112] += 60.0
    assert not tail(steps_of(values)).is_spread


def test_healthy_steps_have_no_tail_and_do_not_grow():
    steps = steps_of(noisy())
    assert tail(steps).n_slow == 0
    rise, steadiness = growth(steps)
    assert abs(rise) < 0.2 * MS
    assert abs(steadiness) < 0.9


def test_growth_is_the_rise_from_the_first_quarter_to_the_last():
    rise, steadiness = growth(steps_of(noisy() + np.linspace(0, 16, N)))
    assert rise / MS == pytest.approx(12, rel=0.1)
    assert steadiness > 0.9


def test_time_on_cores_grows_although_waits_for_others_hide_that_steps_do():
    wave = 10 * np.sin(np.arange(N) / N * 20)
    run = waiting(noisy() + wave, np.linspace(4, 8, 40), "process_oncpu_time")
    assert abs(growth(run.steps)[1]) < 0.5
    rise, steadiness = growth_on_cores(run)
    assert rise / MS == pytest.approx(3, rel=0.1)
    assert steadiness > 0.9
    assert growth_on_cores(waiting(noisy(), np.ones(40))) == (0.0, 0.0)


def test_growth_does_not_count_as_scatter():
    base, other = stretches(steps_of(noisy())), stretches(steps_of(noisy(seed=1) + np.linspace(0, 12, N)))
    assert not step_effect([base], [other]).is_different
    effect = step_effect(without_growth([base]), without_growth([other]))
    assert effect.is_different
    assert effect.delta / MS == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize(("more", "is_different"), [(0.0, False), (0.15, True)])
def test_hundreds_of_steps_decide(more, is_different):
    base, other = (noisy(seed=seed) * factor for seed, factor in ((0, 1.0), (1, 1 + more)))
    runs = [pair(_with(base), _with(other))]
    effect = step_effect(run_steps(runs, side="base"), run_steps(runs, side="other"))
    assert effect.is_different == is_different


def test_too_few_steps_decide_nothing():
    assert run_steps([pair(_with(noisy(n=30)), _with(noisy()))], side="base") == []
    assert tails_of(pair(_with(noisy(n=30)), _with(noisy()))) is None


def _with(values):
    return replace(observation([20 * MS] * 8), steps=steps_of(values))
