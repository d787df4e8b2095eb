from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observations import observation, pair

from stepscope.comparison.effects import effects, floor_of, function_deltas, part_deltas
from stepscope.comparison.statistics import differences, moments_of


def op(cycle, name, calls, total, own=None, device="host", category="operator"):
    return (cycle, device, name, category, calls, total, own)


def one(frame, **where):
    rows = frame.filter(pl.all_horizontal(pl.col(k).cast(pl.String) == v for k, v in where.items()))
    assert rows.height == 1, rows
    return rows.row(0, named=True)


def test_a_function_is_compared_by_calls_time_and_time_per_call():
    base = observation([100] * 3, functions=[op(c, "mm", 2, 20, 10) for c in (1, 2, 3)])
    other = observation([100] * 3, functions=[op(c, "mm", 4, 80, 40) for c in (1, 2, 3)])
    rows = effects([pair(base, other)])
    got = {row["measure"]: (row["base"], row["other"], row["ratio"]) for row in rows.to_dicts()}
    assert got == {
        "calls": (2, 4, 2), "total_ns": (20, 80, 4), "self_ns": (10, 40, 4), "ns_per_call": (10, 20, 2),
    }  # fmt: skip


def test_what_is_absent_takes_no_time():
    base = observation([100] * 4)
    other = observation([100] * 4, functions=[op(c, "copy", 1, 30) for c in (1, 3)])
    row = one(effects([pair(base, other)]), measure="total_ns")
    assert (row["base"], row["other"], row["delta"], row["ratio"]) == (None, 15, 15, None)


def test_a_resource_that_is_absent_is_unknown():
    base = observation([100] * 3)
    other = observation([100] * 3, resources=[(c, "gpu0", "clock", None, "MHz", 1000.0) for c in (1, 2, 3)])
    row = one(effects([pair(base, other)]), measure="mu")
    assert (row["base"], row["other"], row["delta"], row["is_different"]) == (None, 1000, None, False)


def test_incomplete_cycles_do_not_count():
    run = observation([100, 100], functions=[op(1, "mm", 1, 10), op(2, "mm", 1, 30)], complete=[True, False])
    assert one(effects([pair(run, run)]), measure="total_ns")["base"] == 10


def test_all_cycles_count_if_none_is_complete():
    run = observation([100, 100], complete=[False, False])
    assert run.complete_cycles.height == 2


def test_parts_are_compared_by_name():
    base = observation([100] * 3, parts=[(c, "idle", 40) for c in (1, 2, 3)])
    other = observation([100] * 3, parts=[(c, "idle", 90) for c in (1, 2, 3)])
    row = one(effects([pair(base, other)]), measure="part_ns", name="idle")
    assert (row["delta"], row["is_different"]) == (50, True)


def test_a_fallen_clock_is_different_and_a_small_change_is_drift():
    def run(clock):
        return observation([100] * 6, resources=[(c, "gpu0", "clock", None, "MHz", clock + c % 2) for c in range(1, 7)])

    frames = [effects([pair(run(1000), run(clock))]) for clock in (970, 500)]
    assert [one(frame, measure="mu")["is_different"] for frame in frames] == [False, True]


def test_rates_near_zero_must_double():
    def run(rate):
        return observation([100] * 6, resources=[(c, "eth0", "net", None, "bytes/s", rate) for c in range(1, 7)])

    rows = [effects([pair(run(100.0), run(rate))])["is_different"][0] for rate in (190.0, 210.0, 40.0, 60.0)]
    assert rows == [False, True, True, False]


def test_changed_rows_come_first_and_times_before_others():
    base = observation(
        [1000] * 6,
        functions=[op(c, name, 1, ns, ns) for c in range(1, 7) for name, ns in (("a", 300), ("b", 300))],
        resources=[(c, "cpu0", "clock", None, "MHz", 1e6) for c in range(1, 7)],
    )
    other = observation(
        [1000] * 6,
        functions=[op(c, name, 1, ns, ns) for c in range(1, 7) for name, ns in (("a", 310), ("b", 600))],
        resources=[(c, "cpu0", "clock", None, "MHz", 1e5) for c in range(1, 7)],
    )
    rows = effects([pair(base, other)])
    assert rows["name"].cast(pl.String).to_list()[:3] == ["b", "b", "b"]
    assert rows["measure"].to_list()[3] == "mu"
    assert rows["is_different"].to_list() == sorted(rows["is_different"], reverse=True)


def test_no_pairs_have_no_effects():
    assert effects([]).is_empty()


@pytest.mark.parametrize(
    ("measure", "unit", "expected"),
    [
        ("total_ns", "ns", (0.05, 0.0)),
        ("mu", "ratio", (0.05, 0.05)),
        ("mu", "ns/s", (0.05, 5e7)),
        ("mu", "1/s", (0.5, 0.0)),
        ("mu", "bytes", (0.05, 0.0)),
        ("mu", None, (0.1, 0.0)),
        ("mu", "°C", (0.1, 0.0)),
    ],
)
def test_the_drift_of_healthy_runs_goes_by_the_kind_of_quantity(measure, unit, expected):
    assert floor_of(measure, unit) == expected


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.integers(2, 7), st.data())
def test_effects_are_those_of_the_values_by_cycle(n_base, n_other, data):
    runs = []
    for n in (n_base, n_other):
        times = data.draw(st.lists(st.integers(1, 10**6) | st.none(), min_size=n, max_size=n))
        runs.append(times)
    if all(t is None for side in runs for t in side):
        return
    observed = [
        observation([10**7] * len(s), functions=[op(i + 1, "f", 1, t) for i, t in enumerate(s) if t is not None])
        for s in runs
    ]
    row = one(effects([pair(*observed)]), measure="total_ns")
    dense = [np.array([0 if t is None else t for t in side], float) for side in runs]
    left, right = (moments_of([values]) for values in dense)
    level = max(left.mean[0], right.mean[0])
    expected = differences(left, right, np.array([(0.05 * level + 0.002 * 10**7) / (2.7764451 * 2**0.5)]))
    assert row["delta"] == pytest.approx(expected.delta[0])
    assert row["drift"] == pytest.approx(expected.drift[0])
    assert row["p_value"] == pytest.approx(expected.p_value[0], abs=1e-9)


def parted(*cycles):
    """A run whose cycles are dicts of parts."""
    rows = [(i, part, ns) for i, cycle in enumerate(cycles, 1) for part, ns in cycle.items()]
    return observation([sum(cycle.values()) for cycle in cycles], parts=rows)


def test_changes_of_parts_add_up_to_that_of_the_cycle():
    rows = part_deltas([pair(parted({"work": 60, "idle": 40}), parted({"work": 90, "loading": 50}))])
    assert rows.select(pl.col("part").cast(pl.String), "base_ns", "other_ns", "delta_ns", "share_ratio").rows() == [
        ("work", 60, 90, 30, 0.75), ("idle", 40, 0, -40, -1.0), ("loading", 0, 50, 50, 1.25),
    ]  # fmt: skip


def test_what_no_part_covers_is_said():
    short = observation([100], parts=[(1, "work", 70)])
    rows = part_deltas([pair(short, short)])
    assert rows.select(pl.col("part").cast(pl.String), "base_ns").rows() == [("work", 70), ("not accounted for", 30)]


def test_an_unchanged_cycle_has_no_shares():
    run = parted({"work": 5})
    assert part_deltas([pair(run, run)])["share_ratio"].to_list() == [None]


def test_no_pairs_have_no_parts():
    assert part_deltas([]).is_empty()


_CYCLE = st.fixed_dictionaries(
    {"work": st.integers(1, 10**9), "idle": st.integers(0, 10**9), "sync": st.integers(0, 10**6)}
)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(st.lists(_CYCLE, min_size=1, max_size=6), st.lists(_CYCLE, min_size=1, max_size=6))
def test_the_sum_of_parts_is_the_change_of_the_mean_cycle(base, other):
    rows = part_deltas([pair(parted(*base), parted(*other))])
    means = [sum(sum(cycle.values()) for cycle in side) / len(side) for side in (base, other)]
    assert rows["delta_ns"].sum() == pytest.approx(means[1] - means[0], abs=1e-3)


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
