from __future__ import annotations

import numpy as np
import pytest
from cycle_traces import samples_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.sample_hold import stretches
from stepscope.analyses.common.sampled import pieces_of, resources_of, spread_of

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
