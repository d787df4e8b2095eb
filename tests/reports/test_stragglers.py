from __future__ import annotations

import pytest
from bar_notes import texts
from job_simulator import Fault, Layout, Plan, simulate, tables
from jobs import part
from msgspec.structs import replace

import stepscope
from stepscope import store
from stepscope.core.trace import Meta, Trace
from stepscope.reports import _stragglers as stragglers_home
from stepscope.reports._headline_and_bars import overview_of_ranks
from stepscope.reports._stragglers import packed_calls, stragglers_among
from stepscope.reports._summary import Cost, Summary

MS = 1_000_000
LATE = Fault("late", 5, 400_000)


def packed(parts):
    return [store.packed(one) for one in parts]


def simulated(*faults, layout=None, **more):
    plan = Plan(layout or Layout(dp=16), faults=faults, **({"steps": 20, "offset_sd_ns": 1e6} | more))
    return tables(simulate(plan))


def findings(*faults, step_ns=10 * MS, **more):
    return stragglers_among(packed(simulated(*faults, **more)), step_ns=step_ns).findings


def test_a_late_rank_is_named_with_cause_time_and_certainty():
    (found,) = findings(LATE)
    assert found.title == "Rank 5 makes the others wait"
    assert found.command == "show stragglers"
    assert found.details[0].startswith("Host: ")
    assert found.details[0].endswith("without computing")
    assert found.details[1].startswith("all the time, over 79 collectives of steps 0 to 19, ")
    assert found.details[1].endswith("confidence 100 %")
    assert found.value_label == "per step"
    assert 0.05 < found.share_ratio < 0.1
    assert found.value_ns == pytest.approx(found.share_ratio * 10 * MS)


def test_without_steps_it_is_what_it_costs_in_all():
    (found,) = findings(LATE, step_ns=None)
    assert found.value_label == "in all"
    assert found.value_ns == pytest.approx(20 * 4 * 400_000, rel=0.2)


def test_a_healthy_job_has_no_straggler_but_its_ranks_wait_for_each_other():
    found = stragglers_among(packed(simulated()), step_ns=None)
    assert (found.findings, found.facts, found.compared) == ((), (), True)


def test_ranks_that_share_no_exchange_are_not_compared():
    alone = [part(0, (0, 5)), replace(part(1, (0, 5)), comms=(replace(part(1, (0, 5)).comms[0], name="7"),))]
    alone = [replace(one, comms=(replace(one.comms[0], members=(one.rank,), size=1),)) for one in alone]
    assert not stragglers_among(packed(alone), step_ns=None).compared
    assert not stragglers_among(packed([part(0, (0, 5))]), step_ns=None).compared


@pytest.mark.parametrize(
    ("fault", "when"),
    [
        (replace(LATE, first_step=30), "since step 30"),
        (replace(LATE, amount_ns=1e6, first_step=20, last_step=31), "in steps 20 to 3"),
        (replace(LATE, amount_ns=1e6, every=4), "every 4 steps, since step 0"),
    ],
    ids=["since", "for a while", "periodic"],
)
def test_it_is_said_since_when(fault, when):
    (found,) = findings(fault, steps=60)
    assert found.details[1].startswith(when)


def test_a_slow_link_is_told_from_a_slow_rank():
    (found,) = findings(Fault("link", 6, ratio=0.6), layout=Layout(tp=4, dp=8))
    assert found.title == "The links of rank 6 are slow"
    assert found.details[0].startswith("Network: transfers take")


def test_a_link_whose_end_cannot_be_told_is_named_by_its_group():
    (found,) = findings(Fault("link", 0, ratio=0.6, peer=1), layout=Layout(tp=4, dp=8))
    assert found.title == "A link among ranks 0–3 is slow"


def test_of_many_the_worst_are_told_and_the_rest_counted(monkeypatch):
    monkeypatch.setattr(stragglers_home, "_SHOWN", 1)
    two = Fault("late", 9, 600_000), Fault("late", 3, 300_000)
    found = stragglers_among(packed(simulated(*two)), step_ns=None)
    assert [fact["rank"] for fact in found.facts] == [9, 3]
    (first,) = found.findings
    assert first.title == "Rank 9 makes the others wait"
    assert first.details[-1] == "and 1 more rank or link that cost less"


def test_a_rank_without_a_number_is_called_by_its_file():
    parts = [replace(one, rank=None, label=f"run/worker-{one.rank}.json") for one in simulated(LATE)]
    (found,) = stragglers_among(packed(parts), step_ns=None).findings
    assert found.title == "worker-5 makes the others wait"


def test_a_trace_without_exchanges_hands_over_nothing(examples):
    assert packed_calls(Trace(Meta("x", "kineto"), {}), 100) is None
    whole = packed_calls(stepscope.load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz"), 100)
    assert whole is not None
    assert len(whole) < 10_000


def summary(one, *costs):
    windows = (10 * MS,) * 20
    meta = Meta(f"rank{one.rank}.json", "kineto", rank=one.rank)
    (pack,) = packed([one])
    return Summary(
        meta, 200 * MS, numbers=tuple(range(20)), windows_ns=windows, parts={"x": 200 * MS}, costs=costs, calls=pack
    )


def test_in_a_report_a_rank_that_others_wait_for_stands_before_their_waits():
    waits, work = Cost("communication", "Exposed", 100 * MS, ("calls",)), Cost("x", "Products", 150 * MS)
    report = overview_of_ranks([summary(one, waits, work) for one in simulated(LATE)])
    assert [f.title for f in report.findings] == ["Products", "Rank 5 makes the others wait", "Exposed"]
    assert report.findings[1].details[1].endswith("; part of the communication time")
    (fact,) = report.meta["stragglers"]
    assert (fact["rank"], fact["cause"]) == (5, "host")


def test_one_that_explains_little_of_them_stands_where_its_cost_puts_it():
    waits, work = Cost("communication", "Exposed", 190 * MS), Cost("x", "Products", 8 * MS)
    small = Fault("late", 5, 25_000)
    report = overview_of_ranks([summary(one, waits, work) for one in simulated(small, steps=60)])
    assert report.findings[0].title == "Exposed"
    assert "Rank 5 makes the others wait" in [f.title for f in report.findings]


def test_of_ranks_that_wait_for_each_other_none_is_called_slow_by_its_steps():
    ranks = [replace(summary(one), windows_ns=((10 + one.rank) * MS,) * 20) for one in simulated()]
    (bar,) = overview_of_ranks(ranks).bars
    assert texts(bar) == ("mean steps of ranks from 10 ms to 25 ms",)
    alone = [replace(one, calls=None) for one in ranks]
    assert texts(overview_of_ranks(alone).bars[0]) == ("slowest rank 15: 25 ms, fastest rank 0: 10 ms",)
    assert "stragglers" not in overview_of_ranks(alone).meta


def test_uneven_experts_are_named_with_what_others_wait():
    rows = [[(0, 10, "alltoall"), (100, 130, "alltoall")], [(0, 10, "alltoall"), (40, 130, "alltoall")]]
    sizes = [{"in_bytes": [60, 90], "out_bytes": [90, 60]}, {"in_bytes": [60, 30], "out_bytes": [30, 60]}]
    parts = [part(rank, *rows[rank], **sizes[rank], step=[1, 1]) for rank in (0, 1)]
    *_, finding = stragglers_among(packed(parts), step_ns=300.0).findings
    assert finding.title == "Experts are loaded unevenly: who gets most tokens gets 1.50 times the mean"
    assert (finding.value_ns, finding.share_ratio, finding.command) == (30, 0.1, "show experts")
    assert finding.details[1] == "Layer 0 costs most: rank 0 gets 1.50 times the mean"
