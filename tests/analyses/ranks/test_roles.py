from __future__ import annotations

import numpy as np
from job_simulator import Layout, Plan, simulate, tables

from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.roles import roles_of


def roles(layout: Layout) -> list[list[int]]:
    found = roles_of(job_of(tables(simulate(Plan(layout, steps=2)))))
    return [np.flatnonzero(found.of_rank == role).tolist() for role in np.unique(found.of_rank)]


def test_ranks_of_data_and_tensor_parallel_jobs_do_the_same_work():
    assert roles(Layout(tp=2, dp=4)) == [list(range(8))]


def test_stages_of_a_pipeline_do_different_work():
    assert roles(Layout(tp=2, dp=1, pp=3)) == [[0, 1], [2, 3], [4, 5]]


def test_groups_of_one_layout_play_the_same_part():
    job = job_of(tables(simulate(Plan(Layout(tp=2, dp=2), steps=2))))
    of_group = roles_of(job).of_group
    sizes = {(g.name, g.ranks): int(of_group[i]) for i, g in enumerate(job.groups)}
    assert len(set(sizes.values())) == 2
