from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observations import observation, pair

from stepscope.comparison.accounting import function_deltas, part_deltas
from stepscope.comparison.effects import effects


def parted(*cycles):
    """A run whose cycles are dicts of parts."""
    rows = [(i, part, ns) for i, cycle in enumerate(cycles, 1) for part, ns in cycle.items()]
    return observation([sum(cycle.values()) for cycle in cycles], parts=rows)


def test_changes_of_parts_add_up_to_that_of_the_cycle():
    found = part_deltas([pair(parted({"work": 60, "idle": 40}), parted({"work": 90, "loading": 50}))])
    assert found.select(pl.col("part").cast(pl.String), "base_ns", "other_ns", "delta_ns", "share_ratio").rows() == [
        ("work", 60, 90, 30, 0.75), ("idle", 40, 0, -40, -1.0), ("loading", 0, 50, 50, 1.25),
    ]  # fmt: skip


def test_what_no_part_covers_is_said():
    short = observation([100], parts=[(1, "work", 70)])
    found = part_deltas([pair(short, short)])
    assert found.select(pl.col("part").cast(pl.String), "base_ns").rows() == [("work", 70), ("not accounted for", 30)]


def test_an_unchanged_cycle_has_no_shares():
    run = parted({"work": 5})
    assert part_deltas([pair(run, run)])["share_ratio"].to_list() == [None]


def test_no_pairs_have_no_parts():
    assert part_deltas([]).is_empty()


_CYCLE = st.fixed_dictionaries(
    {"work": st.integers(1, 10**9), "idle": st.integers(0, 10**9), "sync": st.integers(0, 10**6)}
)


@settings(deadline=None, max_examples=50)
@given(st.lists(_CYCLE, min_size=1, max_size=6), st.lists(_CYCLE, min_size=1, max_size=6))
def test_the_sum_of_parts_is_the_change_of_the_mean_cycle(base, other):
    found = part_deltas([pair(parted(*base), parted(*other))])
    means = [sum(sum(cycle.values()) for cycle in side) / len(side) for side in (base, other)]
    assert found["delta_ns"].sum() == pytest.approx(means[1] - means[0], abs=1e-3)


def deltas(base, other):
    """Change of one function from (calls, ns) on each side."""
    runs = [
        observation(
            [100] * 3, functions=[(c, "host", "f", "operator", calls, ns, ns) for c in (1, 2, 3)] if calls else ()
        )
        for calls, ns in (base, other)
    ]
    row = function_deltas(effects([pair(*runs)])).row(0, named=True)
    return row["delta_ns"], row["calls_delta_ns"], row["per_call_delta_ns"]


def test_more_calls_at_the_same_time_each_are_all_calls():
    assert deltas((2, 20), (4, 40)) == (20, 20, 0)


def test_longer_calls_are_all_time_per_call():
    assert deltas((2, 20), (2, 60)) == (40, 0, 40)


def test_a_mixed_change_is_split_at_the_means_and_closes():
    # 1 to 3 calls at 10 to 20 ns: two more at 15, ten longer each at two.
    assert deltas((1, 10), (3, 60)) == (50, 30, 20)


def test_what_one_side_lacks_is_all_calls():
    assert deltas((0, 0), (2, 30)) == (30, 30, 0)


def test_device_work_counts_its_time_as_it_does_not_nest():
    run = observation([100], functions=[(1, "gpu0", "k", "kernel", 1, 9, None)])
    assert function_deltas(effects([pair(run, run)]))["base_ns"].to_list() == [9]
