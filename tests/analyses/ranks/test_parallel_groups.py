from __future__ import annotations

import numpy as np
import pytest
from job_simulator import Layout, Plan, simulate, tables
from jobs import part

from stepscope.analyses.ranks.groups import Comm
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import parallel_groups, parallelism_of, roles_of


def roles(layout: Layout) -> list[list[int]]:
    result = roles_of(job_of(tables(simulate(Plan(layout, steps=2)))))
    return [np.flatnonzero(result.of_rank == role).tolist() for role in np.unique(result.of_rank)]


def test_ranks_of_data_and_tensor_parallel_jobs_do_the_same_work():
    assert roles(Layout(tp=2, dp=4)) == [list(range(8))]


def test_stages_of_a_pipeline_do_different_work():
    assert roles(Layout(tp=2, dp=1, pp=3)) == [[0, 1], [2, 3], [4, 5]]


def test_groups_of_one_layout_play_the_same_part():
    job = job_of(tables(simulate(Plan(Layout(tp=2, dp=2), steps=2))))
    of_group = roles_of(job).of_group
    sizes = {(g.name, g.ranks): int(of_group[i]) for i, g in enumerate(job.groups)}
    assert len(set(sizes.values())) == 2


def named(
    comm: Comm, *kinds: str, ranks: tuple[int, ...] = (0, 1), other: bool = False, **columns: list
) -> tuple[str, str]:
    """What the first group is for, in a job of four ranks, perhaps with another group of all."""
    rows = [(100 * i, 100 * i + 10, kind) for i, kind in enumerate(kinds)]
    comms = (comm, Comm("all", None, 4, (0, 1, 2, 3)))
    last = (100 * len(kinds), 100 * len(kinds) + 5)
    columns = {name: [*values, values[-1]] if other else values for name, values in columns.items()}
    parts = [
        part(
            r,
            *rows,
            *([last] if other else []),
            comms=comms,
            comm=[0] * len(rows) + [1] * other,
            world_size=4,
            **columns,
        )
        for r in ranks
    ]
    return parallelism_of(job_of(parts))[0]


PAIR = Comm("1", None, 2, (0, 1))
ALL = Comm("0", None, 4, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("text", "label"),
    [("TENSOR_MODEL_PARALLEL_GROUP", "TP"), ("mesh_tp", "TP"), ("DATA_PARALLEL_GROUP", "DP"), ("mesh_dp", "DP"),
     ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"), ("EXPERT_MODEL_PARALLEL_GROUP", "EP"), ("mesh_ep", "EP"),
     ("CONTEXT_PARALLEL_GROUP", "CP"), ("mesh_fsdp", "FSDP"), ("mesh_dp_shard", "FSDP"), ("dp_replicate", "DP")],
)  # fmt: skip
def test_a_usual_word_in_its_description_names_it(text, label):
    assert named(Comm("1", text, 2, (0, 1)), "allreduce") == (label, "description")


@pytest.mark.parametrize(
    ("kinds", "label"),
    [(["send", "recv"], "PP"), (["alltoall"] * 2 + ["allreduce"], "EP"), (["allgather", "reduce_scatter"], "FSDP")],
)
def test_its_collectives_name_it(kinds, label):
    assert named(PAIR, *kinds, other=True) == (label, "exchanges")


def test_all_reduces_in_the_forward_pass_are_tensor_parallel():
    strided, four = Comm("1", None, 2, (0, 2)), ["allreduce"] * 4
    forward = {"work_ns": [90] * 4, "backward_ns": [0, 0, 90, 90], "optimizer_ns": [0] * 4}
    assert named(strided, *four, ranks=(0, 2), **forward) == ("TP", "phase")
    gradients = {"work_ns": [90] * 4, "backward_ns": [90] * 4, "optimizer_ns": [0] * 4}
    assert named(strided, *four, ranks=(0, 2), other=True, **gradients) == ("DP", "layout")


def test_many_all_reduces_of_one_size_are_those_of_activations():
    assert named(ALL, *["allreduce"] * 20, ranks=(0, 1, 2, 3), step=[1] * 20) == ("TP", "sizes")
    sizes = list(range(1, 21))
    few = named(ALL, *["allreduce"] * 20, ranks=(0, 1, 2, 3), step=[1] * 20, in_bytes=sizes, out_bytes=sizes)
    assert few == ("DP", "all ranks")


def test_layout_names_what_nothing_else_does():
    assert named(PAIR, "allreduce", other=True) == ("TP", "layout")
    assert named(Comm("1", None, 2, (0, 2)), "allreduce", ranks=(0, 2), other=True) == ("DP", "layout")
    assert named(Comm("1", None, 3, (0, 1, 3)), "allreduce", ranks=(0, 1, 3), other=True) == ("unknown", "layout")


def test_a_group_of_all_ranks_is_data_parallel_if_alone_else_the_world():
    assert named(ALL, "allreduce", ranks=(0, 1, 2, 3)) == ("DP", "all ranks")
    assert named(ALL, "allreduce", ranks=(0, 1, 2, 3), other=True) == ("world", "all ranks")


def test_a_group_of_one_is_for_nothing():
    assert named(Comm("1", None, 1, (0,)), "allreduce", ranks=(0,)) == ("unknown", "one rank")


def test_a_simulated_job_has_its_groups():
    table = parallel_groups(tables(simulate(Plan(Layout(tp=2, dp=2, pp=2), steps=2))))
    counts = dict(table.group_by("parallelism").len().iter_rows())
    assert counts == {"TP": 4, "DP": 4, "PP": 4, "world": 1}
    assert table.filter(table["parallelism"] == "TP")["ranks"].to_list()[0] == "0, 1"
    assert table["size_bytes"].null_count() == 0
