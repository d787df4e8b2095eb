from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from cycle_traces import samples_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.sampled import (
    covers_the_past,
    means,
    pieces_of,
    resources_of,
    series_of,
    spread_of,
    stretches,
)

EVENTS = st.lists(st.tuples(st.integers(-20, 90), st.integers(1, 40), st.integers(0, 2)), max_size=8)


@given(st.lists(st.integers(0, 70), min_size=1, max_size=7, unique=True).map(sorted), EVENTS, st.booleans())
def test_the_spread_of_a_group_is_that_of_all_moments_of_its_events(times, events, backward):
    held = stretches(np.array(times), backward=backward)
    values = np.arange(len(times)) ** 2 + 0.5
    starts = np.array([e[0] for e in events], np.int64)
    ends = starts + np.array([e[1] for e in events], np.int64)
    group = np.array([e[2] for e in events], np.int64)
    pieces = pieces_of(held, starts, ends, group, 3)
    mu, sigma = spread_of(pieces, values)
    for g in range(3):
        moments = [
            v
            for start, length, of in events
            if of == g
            for t in range(start, start + length)
            for s, e, v in zip(held.starts, held.ends, values, strict=True)
            if s <= t < e
        ]
        if moments:
            assert mu[g] == pytest.approx(np.mean(moments))
            assert sigma[g] == pytest.approx(np.std(moments), abs=1e-6)
        else:
            assert np.isnan(mu[g])
            assert np.isnan(sigma[g])
        mine = [(start, start + length) for start, length, of in events if of == g]
        assert pieces.events[g] == len(mine)
        assert pieces.sampled[g] == sum(any(low <= t < high for t in times) for low, high in mine)


def test_resources_sampled_at_the_same_times_stand_together():
    counters = samples_of(
        (0, "host", "a", 1.0, "%"), (10, "host", "a", 2.0, "%"),
        (0, "gpu3", "b", 3.0, "%"), (10, "gpu3", "b", 4.0, "%"),
        (0, "gpu3", "clock", 5.0, "MHz"), (10, "gpu3", "clock", 6.0, "MHz"),
        (5, "gpu3", "c", 7.0, "%"),
    )  # fmt: skip
    groups = [[(r.device, r.metric, r.unit, r.values.tolist()) for r in group] for group in resources_of(counters)]
    assert groups == [
        [("gpu3", "b", "%", [3.0, 4.0]), ("host", "a", "%", [1.0, 2.0])],
        [("gpu3", "c", "%", [7.0])],
        [("gpu3", "clock", "MHz", [5.0, 6.0])],  # a level: its samples stand for other stretches
    ]


def at_each_ns(held, values, low, high):
    """The value at each whole nanosecond of the window for which one is known."""
    found = []
    for t in range(low, high):
        inside = [v for s, e, v in zip(held.starts, held.ends, values, strict=True) if s <= t < e]
        assert len(inside) <= 1
        found += inside
    return found


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted),
    st.data(),
    st.booleans(),
)
def test_the_mean_of_a_window_is_that_of_all_its_known_moments(times, data, backward):
    values = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=len(times), max_size=len(times))))
    low = data.draw(st.integers(-20, 80))
    high = low + data.draw(st.integers(1, 50))
    held = stretches(np.array(times), backward=backward)
    mu, count = means(held, values, np.array([low]), np.array([high]))
    moments = at_each_ns(held, values, low, high)
    assert count[0] == sum(low <= t < high for t in times)
    if moments:
        assert mu[0] == pytest.approx(np.mean(moments), abs=1e-9)
    else:
        assert math.isnan(mu[0])


def test_a_rate_covers_the_interval_before_it_and_a_level_its_surroundings():
    times = np.array([100, 200, 300])
    rate, level = stretches(times, backward=True), stretches(times, backward=False)
    assert (rate.starts.tolist(), rate.ends.tolist()) == ([0, 100, 200], [100, 200, 400])
    assert (level.starts.tolist(), level.ends.tolist()) == ([0, 150, 250], [150, 250, 400])


def test_nothing_is_known_in_a_hole():
    level = stretches(np.array([0, 10, 20, 500, 510]), backward=False)
    assert (level.ends[2], level.starts[3]) == (30, 490)
    rate = stretches(np.array([0, 10, 20, 500, 510]), backward=True)
    assert (rate.ends[2], rate.starts[3]) == (20, 480)
    mu, count = means(level, np.ones(5), np.array([100]), np.array([200]))
    assert math.isnan(mu[0])
    assert count.tolist() == [0]


def test_a_value_is_carried_over_the_border_of_a_cycle_without_samples():
    held = stretches(np.array([0, 100, 200]), backward=False)
    mu, count = means(held, np.array([1.0, 3.0, 9.0]), np.array([110]), np.array([190]))
    assert mu.tolist() == [6.0]
    assert count.tolist() == [0]


def test_a_single_sample_stands_for_its_own_instant():
    held = stretches(np.array([50]), backward=False)
    mu, _ = means(held, np.array([7.0]), np.array([0, 60]), np.array([60, 90]))
    assert mu[0] == 7.0
    assert math.isnan(mu[1])


def test_units_tell_rates_from_levels():
    units = pl.Series(["bytes/s", "%", "ns/s", "MHz", "bytes", None], dtype=pl.Categorical)
    assert covers_the_past(units).to_list() == [True, True, True, False, False, False]


def test_samples_of_nobody_and_no_numbers_are_left_out():
    counters = pl.DataFrame(
        {
            "ts_ns": [0, 10, 20, 30],
            "device": ["host", None, "host", "host"],
            "metric": ["load"] * 4,
            "unit": ["%"] * 4,
            "value": [1.0, 2.0, math.nan, 4.0],
        }
    )
    ((device, metric, unit, held, values),) = series_of(counters)
    assert (device, metric, unit, held.times.tolist(), values.tolist()) == ("host", "load", "%", [0, 30], [1.0, 4.0])


def test_samples_of_one_reading_count_as_one():
    times = [0, 1, 2, 1000, 1001, 1002, 2000, 2001, 2002]
    counters = pl.DataFrame({"ts_ns": times, "value": [3.0, 6, 9, 1, 1, 1, 2, 4, 6]}).with_columns(
        device=pl.lit("host"), metric=pl.lit("net_rx_rate"), unit=pl.lit("bytes/s")
    )
    ((*_, held, values),) = series_of(counters)
    assert held.times.tolist() == [0, 1000, 2000]
    assert values.tolist() == [6.0, 1.0, 4.0]
