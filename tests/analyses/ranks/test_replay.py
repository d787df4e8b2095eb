from __future__ import annotations

import numpy as np
import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables
from jobs import part
from msgspec.structs import replace

from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.lateness import lateness_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import roles_of
from stepscope.analyses.ranks.replay import Change, job_times

NONE = np.empty(0)
NO_ROWS = NONE.astype(np.int64)


def whole(plan: Plan) -> float:
    rows = simulate(plan).rows
    return float(rows["end"].max() - rows["start"].min())


def test_without_a_change_the_job_takes_as_long_as_it_took():
    plan = Plan(Layout(tp=4, dp=4, pp=2), steps=3, offset_sd_ns=1e6)
    job = job_of(tables(simulate(plan)))
    time, changed = job_times(job, clocks_of(job), [])
    assert time == pytest.approx(whole(plan), rel=1e-3)
    assert changed == []


@pytest.mark.parametrize("layout", [Layout(dp=16), Layout(tp=4, dp=4, pp=2), Layout(tp=4, dp=4)], ids=str)
def test_without_a_ranks_lateness_it_takes_as_long_as_without_the_fault(layout):
    healthy = Plan(layout, steps=5, offset_sd_ns=1e6)
    plan = replace(healthy, faults=(Fault("late", rank=9, amount_ns=400_000),))
    job = job_of(tables(simulate(plan)))
    excess = lateness_of(job, roles_of(job)).excess
    rows = np.flatnonzero((job.rank == 9) & np.isfinite(excess))
    time, (without,) = job_times(job, clocks_of(job), [Change(rows, excess[rows], NO_ROWS, NONE)])
    assert time == pytest.approx(whole(plan), rel=2e-3)
    assert without == pytest.approx(whole(healthy), rel=5e-3)


def test_a_faster_transfer_is_all_saved_where_all_wait_for_it():
    job = job_of([part(r, (0, 10), (30, 60), (70, 80)) for r in (0, 1)])
    faster = [Change(NO_ROWS, NONE, np.array([1]), np.array([ns])) for ns in (20.0, 99.0)]
    time, (without, zero) = job_times(job, clocks_of(job), faster)
    assert (time, without, zero) == (80, 60, 50)


def test_the_next_slowest_rank_sets_the_pace():
    parts = [part(0, (0, 10), (20, 60)), part(1, (0, 10), (50, 60)), part(2, (0, 10), (45, 60))]
    job = job_of(parts)
    row = np.flatnonzero((job.rank == 1) & (job.start == 50))
    time, (without,) = job_times(job, clocks_of(job), [Change(row, np.array([30.0]), NO_ROWS, NONE)])
    assert (time, without) == (60, 55)


def test_what_nobody_waits_for_takes_its_own_time():
    job = job_of([part(0, (0, 10, "broadcast"), (20, 30)), part(1, (0, 15, "broadcast"), (25, 30))])
    assert job_times(job, clocks_of(job), [])[0] == 30


def test_traces_that_contradict_each_other_come_to_an_end():
    # Rank 0 says A before B, rank 1 says B before A.
    job = job_of([part(0, (0, 10), (20, 30), seq=[1, 2]), part(1, (0, 10), (20, 30), seq=[2, 1])])
    assert job_times(job, clocks_of(job), [])[0] > 0


def test_more_changes_than_are_tried_at_once_keep_their_order():
    job = job_of([part(r, (0, 10), (30, 60)) for r in (0, 1)])
    changes = [Change(NO_ROWS, NONE, np.array([1]), np.array([float(ns)])) for ns in range(10)]
    assert job_times(job, clocks_of(job), changes)[1] == [60.0 - ns for ns in range(10)]
