from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_simulator import Fault, Layout, Plan, simulate, tables
from jobs import part

from stepscope.analyses.ranks.clocks import clock_offsets, clocks_of, solved
from stepscope.analyses.ranks.groups import Comm
from stepscope.analyses.ranks.matching import job_of
from stepscope.core.errors import MissingTable


def errors(plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How wrong the offsets and drifts are, less a common one, and the error that is stated."""
    truth = simulate(plan)
    clocks = clocks_of(job_of(tables(truth)))
    off = clocks.offset - truth.offset_ns - truth.drift * clocks.mid_ns
    drift = clocks.drift - truth.drift
    return off - np.median(off), drift - np.median(drift), clocks.error


@pytest.mark.parametrize("layout", [Layout(dp=32), Layout(tp=4, dp=4, pp=2), Layout(pp=8)], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_offsets_of_a_millisecond_are_found_to_a_few_microseconds(layout, seed):
    off, _, stated = errors(Plan(layout, steps=6, offset_sd_ns=1e6, seed=seed))
    assert np.abs(off).max() < 5_000
    assert (np.abs(off) <= stated).mean() > 0.95


def test_a_late_rank_is_not_taken_for_a_clock():
    late = (Fault("late", rank=5, amount_ns=2e6),)
    off, _, _ = errors(Plan(Layout(dp=16), steps=10, offset_sd_ns=1e6, faults=late))
    assert np.abs(off).max() < 5_000


def test_drift_is_found_and_taken_out():
    off, drift, _ = errors(Plan(Layout(dp=16), steps=200, offset_sd_ns=1e6, drift_sd=2e-5))
    assert np.abs(off).max() < 5_000
    assert np.abs(drift).max() < 1e-6


@pytest.mark.slow
def test_a_thousand_ranks_are_solved():
    off, _, _ = errors(Plan(Layout(dp=1024), steps=6, layers=1, offset_sd_ns=1e6))
    assert np.abs(off).max() < 50_000


def test_no_collective_ends_before_it_has_begun_everywhere():
    # Rank 1's clock is 1,000 ns ahead; the last to come leaves at once, and ends differ by more than transfers last.
    rng = np.random.default_rng(0)
    begin = np.arange(40) * 10_000
    arrive = begin[:, None] + rng.integers(0, 3_000, (40, 2))
    end = arrive.max(axis=1)[:, None] + rng.integers(20, 800, (40, 2)) * [1, 2]
    shown = np.array([0, 1_000])
    job = job_of([part(r, *zip((arrive + shown)[:, r], (end + shown)[:, r], strict=True)) for r in (0, 1)])
    clocks = clocks_of(job)
    start, stop = clocks.true(job.rank, job.start), clocks.true(job.rank, job.end)
    for collective in range(job.collectives.height):
        rows = job.collective == collective
        assert stop[rows].min() >= start[rows].max() - 1
    assert (clocks.low <= clocks.offset + 1).all()
    assert (clocks.offset <= clocks.high + 1).all()


def test_ranks_of_a_host_share_its_clock_where_ends_agree():
    plan = Plan(Layout(dp=8), steps=10, hosts_of=4, end_noise_ns=50_000)
    parts = tables(simulate(plan))
    assert set(clocks_of(job_of(parts)).method) == {"host"}
    skewed = tables(simulate(Plan(Layout(dp=8), steps=10, hosts_of=4, offset_sd_ns=1e6)))
    assert set(clocks_of(job_of(skewed)).method) == {"ends"}


def test_ranks_that_share_nothing_keep_their_clock():
    rows = [(0, 10), (20, 30)]
    lone = Comm("9", None, 1, (2,))
    table = clock_offsets([part(0, *rows), part(1, *rows), part(2, *rows, comms=(lone,))])
    assert table["method"].to_list() == ["ends", "ends", "none"]
    assert table["offset_ns"].to_list()[2] is None
    assert table["component"].n_unique() == 2


def test_one_rank_or_no_common_collective_is_refused():
    with pytest.raises(MissingTable, match="second rank"):
        clock_offsets([part(0, (0, 1))])
    unshared = [part(r, (0, 1), comms=(Comm(str(r), None, 1, (r,)),)) for r in (0, 1)]
    with pytest.raises(MissingTable, match="share"):
        clock_offsets(unshared)


def test_clocks_of_ranks_that_share_nothing_are_left_alone():
    unshared = job_of([part(r, (0, 1), comms=(Comm(str(r), None, 1, (r,)),)) for r in (0, 1)])
    clocks = clocks_of(unshared)
    assert clocks.offset.tolist() == [0.0, 0.0]
    assert clocks.method == ("none", "none")


def test_calls_of_different_sorts_that_share_a_number_say_nothing():
    job = job_of([part(0, (0, 9), seq=[1]), part(1, (50, 59, "allgather"), seq=[1])])
    assert clocks_of(job).method == ("none", "none")


def edges(groups: list[list[int]], truth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """What members say who are above their group's own, arbitrary level."""
    member = np.array([m for members in groups for m in members])
    group = np.array([g for g, members in enumerate(groups) for _ in members])
    level = rng.normal(0, 100, len(groups))
    return member, group, truth[member] - level[group]


@given(st.integers(0, 1000))
def test_overlapping_groups_give_every_member_its_value(seed):
    rng = np.random.default_rng(seed)
    groups = [[0, 1, 2], [2, 3], [3, 4, 5], [0, 5]]
    truth = rng.normal(0, 10, 6)
    member, group, value = edges(groups, truth, rng)
    result = solved(member, group, value, np.ones(member.size), 6, 4)
    assert result.values == pytest.approx(truth - np.median(truth), abs=1e-6)
    assert set(result.parts.tolist()) == {result.parts[0]}


def test_a_long_chain_is_solved():
    n = 300
    truth = np.cumsum(np.ones(n))
    member, group, value = edges([[i, i + 1] for i in range(n - 1)], truth, np.random.default_rng(0))
    result = solved(member, group, value, np.ones(member.size), n, n - 1)
    assert result.values == pytest.approx(truth - np.median(truth), abs=1e-4)


def test_parts_without_a_common_group_have_levels_of_their_own():
    truth = np.array([0.0, 2.0, 100.0, 104.0])
    member, group, value = edges([[0, 1], [2, 3]], truth, np.random.default_rng(0))
    result = solved(member, group, value, np.ones(4), 5, 2)
    assert result.values == pytest.approx([-1.0, 1.0, -2.0, 2.0, 0.0])
    assert len(set(result.parts.tolist())) == 3
    assert np.isinf(result.errors).tolist() == [False, False, False, False, True]


def test_an_edge_far_off_counts_little():
    member, group = np.tile(np.arange(3), 5), np.repeat(np.arange(5), 3)
    value = np.tile([0.0, 5.0, -5.0], 5)
    value[1] += 1000.0
    result = solved(member, group, value, np.ones(15), 3, 5)
    assert result.values == pytest.approx([0.0, 5.0, -5.0], abs=12.0)
