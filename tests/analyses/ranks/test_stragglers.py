from __future__ import annotations

import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables
from jobs import part

from stepscope.analyses.ranks.stragglers import STRAGGLERS, straggler_evidence, stragglers
from stepscope.core.errors import MissingTable

LATE = Fault("late", rank=16, amount_ns=400_000)


def stragglers_in(layout: Layout, *faults: Fault, **more: object):
    plan = Plan(layout, faults=faults, **({"steps": 20, "offset_sd_ns": 1e6} | more))
    truth = simulate(plan)
    return stragglers(tables(truth)), truth


@pytest.mark.parametrize("seed", range(5))
def test_of_32_ranks_with_clocks_off_by_a_millisecond_the_late_one_is_named_with_its_lateness(seed):
    table, truth = stragglers_in(Layout(dp=32), LATE, seed=seed, drift_sd=1e-5)
    assert table["rank"].to_list() == [16]
    assert table["lateness_ns"][0] == pytest.approx(truth.injected_ns[16], rel=0.1)
    assert table["blame_ns"][0] == pytest.approx(truth.injected_ns[16], rel=0.2)
    assert table.select("kind", "cause", "pattern").row(0) == ("slow rank", "host", "steady")
    assert table["confidence"][0] > 0.99


@pytest.mark.slow
def test_of_a_thousand_ranks_too():
    table, truth = stragglers_in(Layout(dp=1024), LATE, steps=12, layers=1, buckets=2)
    assert table["rank"].to_list() == [16]
    assert table["lateness_ns"][0] == pytest.approx(truth.injected_ns[16], rel=0.1)


def test_of_a_job_in_three_dimensions_only_the_late_one_is_named():
    table, truth = stragglers_in(Layout(tp=4, dp=4, pp=2), LATE, steps=6)
    assert table["rank"].to_list() == [16]
    assert table["lateness_ns"][0] == pytest.approx(truth.injected_ns[16], rel=0.1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [Layout(dp=32), Layout(dp=4), Layout(tp=8, dp=4), Layout(tp=2, dp=4, pp=2)], ids=str)
def test_of_healthy_ranks_none_is_named(layout):
    named = sum(stragglers_in(layout, seed=seed, jitter=0.05)[0].height > 0 for seed in range(20))
    assert named <= 1


def test_a_fault_of_a_while_has_its_steps():
    late = Fault("late", rank=5, amount_ns=2e6, first_step=30, last_step=44)
    table, _ = stragglers_in(Layout(dp=16), late, steps=100)
    row = table.row(0, named=True)
    assert (row["rank"], row["pattern"]) == (5, "transient")
    assert abs(row["since_step"] - 30) <= 1
    assert abs(row["until_step"] - 44) <= 1
    assert 0 < row["since_ns"] < row["until_ns"]


def test_a_fault_of_every_seventh_step_has_its_period():
    late = Fault("late", rank=5, amount_ns=3e6, every=7)
    table, _ = stragglers_in(Layout(dp=16), late, steps=100)
    assert table.select("rank", "pattern", "period").row(0) == (5, "periodic", 7)


def test_two_are_named_the_worse_one_first():
    other = Fault("compute", rank=3, amount_ns=900_000)
    table, _ = stragglers_in(Layout(dp=32), LATE, other)
    assert table.select("rank", "cause").rows() == [(3, "compute"), (16, "host")]


def test_a_slow_link_is_told_from_a_slow_rank():
    table, _ = stragglers_in(Layout(tp=4, dp=4), Fault("link", rank=6, ratio=1.0))
    row = table.row(0, named=True)
    assert table.height == 1
    assert (row["rank"], row["kind"], row["cause"]) == (6, "slow link", "network")
    assert row["slower_ns"] > 0
    assert abs(row["lateness_ns"]) < 0.05 * row["slower_ns"]
    assert "longer than those of other groups" in row["evidence"]
    pair, _ = stragglers_in(Layout(tp=4, dp=4), Fault("link", rank=4, peer=5, ratio=1.0))
    assert pair.select("rank", "group").row(0) == (None, "4–7")


def test_what_costs_less_than_asked_is_not_named():
    truth = simulate(Plan(Layout(dp=32), steps=20, faults=(LATE,)))
    assert stragglers(tables(truth), min_share=0.5).is_empty()
    assert stragglers(tables(truth), min_share=0.5).schema == STRAGGLERS.empty().schema


def test_the_step_without_it_is_shorter():
    table, truth = stragglers_in(Layout(dp=32), LATE)
    row = table.row(0, named=True)
    assert row["step_ns"] - row["step_without_ns"] == pytest.approx(truth.injected_ns[16] / 20, rel=0.25)
    recorded = straggler_evidence(tables(truth)).recorded_ns
    assert row["share_ratio"] == pytest.approx(row["blame_ns"] / recorded, rel=0.01)


def test_the_evidence_tells_of_every_rank():
    truth = simulate(Plan(Layout(dp=8), steps=10, faults=(Fault("late", rank=2, amount_ns=1e6),)))
    evidence = straggler_evidence(tables(truth))
    rows = evidence.by_rank
    assert rows["rank"].to_list() == list(range(8))
    assert rows.sort("lateness_ns")["rank"][-1] == 2
    assert rows.sort("wait_ns")["rank"][0] == 2
    assert evidence.recorded_ns > 0


def test_ranks_that_share_nothing_are_refused():
    with pytest.raises(MissingTable, match="share"):
        stragglers([part(0, (0, 1))])
