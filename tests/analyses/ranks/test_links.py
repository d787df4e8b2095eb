from __future__ import annotations

from job_simulator import Fault, Layout, Plan, simulate, tables

from stepscope.analyses.ranks.lateness import blocks_of
from stepscope.analyses.ranks.links import slow_links
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import roles_of


def links(layout: Layout, *faults: Fault, **more: object):
    job = job_of(tables(simulate(Plan(layout, steps=10, offset_sd_ns=1e6, faults=faults, **more))))
    return [(link.rank, link.peer, link.groups.size) for link in slow_links(job, roles_of(job), blocks_of(job))]


def test_a_rank_all_of_whose_groups_are_slow_has_the_slow_link():
    assert links(Layout(tp=4, dp=4), Fault("link", rank=6, ratio=0.5)) == [(6, None, 2)]


def test_a_slow_pair_of_a_pipeline_is_named_with_both_ends():
    assert links(Layout(dp=4, pp=2), Fault("link", rank=1, peer=5, ratio=1.0)) == [(1, 5, 1)]


def test_ranks_of_one_slow_group_cannot_be_told_apart():
    assert links(Layout(tp=4, dp=4), Fault("link", rank=4, peer=5, ratio=0.5)) == [(None, None, 1)]


def test_healthy_links_and_late_ranks_are_no_slow_links():
    assert links(Layout(tp=4, dp=4)) == []
    assert links(Layout(tp=4, dp=4), Fault("late", rank=6, amount_ns=1e6)) == []


def test_a_single_group_has_nothing_to_be_compared_with():
    assert links(Layout(dp=8), Fault("link", rank=1, ratio=3.0)) == []
