from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables

from stepscope.analyses.ranks.calls import CALLS


def test_the_same_plan_gives_the_same_job():
    plan = Plan(Layout(tp=2, dp=2, pp=2), steps=2, offset_sd_ns=1e6)
    assert simulate(plan).rows.equals(simulate(plan).rows)
    assert not simulate(plan).rows.equals(simulate(Plan(plan.layout, steps=2, seed=1)).rows)


@pytest.mark.parametrize("layout", [Layout(dp=4), Layout(tp=2, dp=2, pp=2), Layout(pp=3)], ids=str)
def test_no_exchange_of_a_group_ends_before_all_have_come(layout):
    rows = simulate(Plan(layout, steps=2)).rows.filter(pl.col("kind") == "allreduce")
    ends = rows.group_by("group", "seq").agg(pl.col("start").max(), pl.col("end").min())
    assert (ends["end"] > ends["start"]).all()
    assert rows.group_by("group", "seq").len()["len"].unique().to_list()


def test_a_fault_makes_its_rank_late_by_what_it_says():
    job = simulate(Plan(Layout(dp=4), steps=10, faults=(Fault("late", 2, amount_ns=1e6, first_step=2, every=3),)))
    assert job.injected_ns.tolist() == [0, 0, 3 * 4 * 1e6, 0]


def test_a_slow_link_slows_the_groups_that_hold_both_ends():
    healthy, slow = (
        simulate(Plan(Layout(tp=4, dp=2), steps=2, faults=f)) for f in ((), (Fault("link", 0, ratio=1.0, peer=1),))
    )
    lengths = [
        j.rows.group_by("group").agg((pl.col("end") - pl.col("start")).min()).sort("group") for j in (healthy, slow)
    ]
    ratio = (lengths[1]["end"] / lengths[0]["end"]).to_numpy()
    assert (ratio > 1.5).sum() == 1


def test_tables_are_those_of_the_analyses():
    parts = tables(simulate(Plan(Layout(tp=2, dp=2), steps=2, offset_sd_ns=1e6)))
    assert [p.rank for p in parts] == [0, 1, 2, 3]
    assert all(p.calls.schema == CALLS.empty().schema for p in parts)
    assert all(np.all(np.diff(p.calls["start_ns"].to_numpy()) >= 0) for p in parts)


def test_heavy_tails_make_large_delays_common_and_the_mean_no_larger():
    calm, wild = (
        simulate(Plan(Layout(dp=8), steps=60, heavy_tails=heavy)).rows["idle"].to_numpy() for heavy in (False, True)
    )
    assert wild.mean() == pytest.approx(calm.mean(), rel=0.2)
    assert np.quantile(wild, 0.999) > 1.5 * np.quantile(calm, 0.999)
