from __future__ import annotations

import numpy as np
import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables
from jobs import part
from msgspec.structs import replace

from stepscope.analyses.ranks.groups import Comm
from stepscope.analyses.ranks.lateness import blocking_of, blocks_of, lateness_of, transfers_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import roles_of

THREE = Comm("0", None, 3, (0, 1, 2))


def by_rank(job) -> np.ndarray:
    lateness = lateness_of(job, roles_of(job))
    known = np.isfinite(lateness.excess)
    return np.bincount(job.rank[known], lateness.excess[known], minlength=len(job.ranks))


def three(*late: int) -> list:
    """Three ranks whose clocks are far apart; the last one comes late by so much each time, and all leave together."""
    parts = []
    for rank in range(3):
        now, rows = 1_000_000 * rank, []
        for much in late:
            start = now + 100 + (much if rank == 2 else rank)
            end = now + 100 + max(much, 1) + 50
            rows.append((start, end))
            now = end
        parts.append(part(rank, *rows, comms=(THREE,)))
    return parts


def test_lateness_is_counted_on_each_ranks_own_clock():
    job = job_of(three(40, 30, 50))
    lateness = lateness_of(job, roles_of(job))
    assert lateness.work[job.rank == 2].tolist()[1:] == [130, 150]
    assert lateness.excess[job.rank == 2].tolist() == [39.5, 29.5, 49.5]
    assert lateness.excess[job.rank == 0].tolist()[1:] == [-15.5, -25.5]


def test_what_a_profilers_start_delays_is_nobodys_lateness():
    job = job_of(three(5000, 30, 50))
    assert by_rank(job)[2] == 29.5 + 49.5


def test_a_rank_that_others_made_late_is_not_late():
    # 0 and 1 communicate, then 0 with 2 and 1 with 3: 1 comes late to the first, so both pairs are late by 60.
    pair, zero, one = Comm("a", "tp", 2, (0, 1)), Comm("b", "dp", 2, (0, 2)), Comm("c", "dp", 2, (1, 3))
    far = Comm("d", "tp", 2, (2, 3))
    rows = {"comm": [0, 1, 0, 1]}
    job = job_of([
        part(0, (10, 80), (100, 120), (130, 200), (220, 240), comms=(pair, zero), **rows),
        part(1, (70, 80), (100, 120), (190, 200), (220, 240), comms=(pair, one), **rows),
        part(2, (10, 20), (40, 120), (130, 140), (160, 240), comms=(far, zero), **rows),
        part(3, (10, 20), (40, 120), (130, 140), (160, 240), comms=(far, one), **rows),
    ])  # fmt: skip
    assert by_rank(job)[[0, 2, 3]].tolist() == pytest.approx([0, 0, 0], abs=1)
    assert by_rank(job)[1] >= 60


def test_the_transfer_is_the_time_of_the_last_to_come():
    job = job_of(three(40, 30))
    assert transfers_of(job).tolist() == [50, 50]
    assert np.isnan(transfers_of(job_of([part(0, (0, 5))]))).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        (Plan(Layout(dp=32), steps=10), 0.05),
        (Plan(Layout(tp=4, dp=4, pp=2), steps=3), 0.05),
        (Plan(Layout(tp=4, dp=8), steps=6), 0.05),
        (Plan(Layout(dp=32), steps=10, overlap=True), 0.15),
    ],
    ids=["dp", "tp-dp-pp", "tp-dp", "beside the work"],
)
def test_only_the_rank_that_is_late_is_late_by_what_it_is(plan, tolerance):
    late = Fault("late", rank=16, amount_ns=400_000)
    truth = simulate(replace(plan, faults=(late,), offset_sd_ns=1e6))
    result = by_rank(job_of(tables(truth)))
    assert result[16] == pytest.approx(truth.injected_ns[16], rel=tolerance)
    assert np.abs(np.delete(result, 16)).max() < 0.1 * result[16]


def test_a_rank_whose_trace_lacks_a_call_is_not_late_for_that():
    parts = tables(simulate(Plan(Layout(dp=4), steps=6)))
    hole = parts[1].calls.with_row_index().filter(~(parts[1].calls["seq"] == 10)).drop("index")
    parts[1] = replace(parts[1], calls=hole)
    assert np.abs(by_rank(job_of(parts))).max() < 1e6


def test_most_ranks_say_whether_a_collective_is_waited_for():
    flags = {0: [True, False], 1: [False, False], 2: [True, True]}
    job = job_of([part(r, (0, 5), (10, 15), comms=(THREE,), blocks=flags[r]) for r in range(3)])
    assert blocking_of(job).tolist() == [True, False] * 3


def test_where_ranks_differ_in_what_was_before_the_same_end_is_taken():
    # The second collective begins while the first still runs, but on rank 2 just after.
    rows = {0: [(0, 100), (90, 150)], 1: [(0, 100), (91, 150)], 2: [(0, 80), (92, 150)]}
    job = job_of([part(r, *rows[r], comms=(THREE,)) for r in range(3)])
    lateness = lateness_of(job, roles_of(job))
    second = np.flatnonzero(job.collective == 1)
    assert lateness.work[second].tolist() == [90, 91, 92]


def test_a_rank_of_its_own_role_is_compared_with_those_of_the_collective():
    lone = Comm("x", "ep", 2, (0, 9))
    rows = {"comm": [0, 1, 0, 1]}
    job = job_of([
        part(0, (0, 10), (15, 20), (60, 70), (75, 80), comms=(THREE, lone), **rows),
        part(1, (0, 10), (30, 70), comms=(THREE,)),
        part(2, (0, 10), (30, 70), comms=(THREE,)),
    ])  # fmt: skip
    lateness = lateness_of(job, roles_of(job))
    assert set(lateness.peers[job.rank == 0].tolist()) != {-1}


def job(n: int, steps: list[int | None]):
    rows = [(10 * i, 10 * i + 5) for i in range(n)]
    return job_of([part(r, *rows, step=steps) for r in (0, 1)])


def test_steps_are_blocks_where_there_are_enough():
    blocks = blocks_of(job(20, [i // 2 for i in range(20)]))
    assert (blocks.n, blocks.of_collective.tolist()) == (10, [i // 2 for i in range(20)])
    assert blocks.steps.tolist() == list(range(10))


def test_many_steps_are_put_together():
    blocks = blocks_of(job(512, list(range(512))))
    assert blocks.n == 128
    assert np.bincount(blocks.of_collective).tolist() == [4] * 128
    assert blocks.steps is None


def test_without_steps_each_group_is_cut_into_equal_parts():
    blocks = blocks_of(job(80, [None] * 80))
    assert np.bincount(blocks.of_collective).tolist() == [2] * 40
    few = Comm("x", None, 2, (0, 1))
    rows = [(10 * i, 10 * i + 5) for i in range(12)]
    both = job_of([part(r, *rows, comms=(few, Comm("y", None, 2, (0, 1))), comm=[0] * 10 + [1] * 2) for r in (0, 1)])
    assert blocks_of(both).of_collective.tolist() == [*range(10), 0, 5]


def test_sums_are_unknown_where_nothing_is():
    blocks = blocks_of(job(2, [None] * 2))
    result = blocks.sums(np.array([0, 0, 1]), np.array([1.0, 2.0, np.nan]), np.array([0, 0, 1]), 2)
    np.testing.assert_array_equal(result, [[3.0, np.nan], [np.nan, np.nan]])
