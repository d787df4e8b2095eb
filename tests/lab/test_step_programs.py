from __future__ import annotations

import json
from dataclasses import replace

import pytest
from step_programs import (
    RECORDED,
    WARM_UP,
    as_graphs,
    build,
    loader_scaled,
    random_case,
    random_traits,
    without_syncs,
    works_scaled,
)
from step_recordings import FIELDS, kineto, write
from step_simulator import Fork, Host, Launch, Loader, Next, Program, Step, Sync, Work, simulate

import stepscope

MATRIX = Work("gemm", 100)
SYNCED = (Step(), Next(0), Launch(7, (MATRIX,), 10), Host(30), Fork((("autograd", (Launch(7, (MATRIX,), 10),)),)),
          Sync("stream", 7, 1))  # fmt: skip
PROGRAM = Program((SYNCED * 6 + (Step(),),), loader=Loader(0, ((40,) * 6,)), first_step=2)


@pytest.mark.parametrize(
    ("change", "step_ns"),
    [
        (lambda program: program, 250),  # 40 for the batch, 10 to the first start, two kernels of 100
        (works_scaled(lambda work: work.name == "gemm", 0.5), 150),
        (loader_scaled(0.0), 210),
        (without_syncs, 200),  # nothing waits any more: two kernels a step, the host needs 90
    ],
)  # fmt: skip
def test_a_change_is_worth_what_it_is_worth(change, step_ns):
    assert simulate(change(PROGRAM)).step_ns == step_ns


def test_graphs_leave_one_launch_of_all_works_and_what_waits():
    """The host time between the launches goes; that before the first and after the last stays."""
    body = (Step(), Next(0), Host(7), *SYNCED[2:5], Host(9), SYNCED[5])
    changed = as_graphs(replace(PROGRAM, ranks=((*body, Step()),))).ranks[0]
    assert [type(i).__name__ for i in changed] == ["Step", "Next", "Host", "Launch", "Host", "Sync", "Step"]
    assert [work.name for work in changed[3].works] == ["gemm", "gemm"]


def test_the_same_seed_gives_the_same_program():
    traits = replace(random_traits(7), noise=0.1)
    assert build(traits, 7) == build(traits, 7) != build(traits, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_recording_shows_the_steps_that_were_simulated(seed, tmp_path):
    case = random_case(seed)
    write(case.run.ranks[0], case.program.first_step, tmp_path / "trace.json")
    steps = stepscope.load(tmp_path / "trace.json").steps
    assert steps.height == RECORDED
    mean = (steps["ts_ns"][-1] + steps["dur_ns"][-1] - steps["ts_ns"][0]) / RECORDED
    assert mean == pytest.approx(case.run.host_step_ns, abs=1)
    assert mean == pytest.approx(case.run.step_ns, rel=0.01)


@pytest.mark.slow
def test_each_field_can_be_left_out():
    case = random_case(2)  # with exchanges, and reading a number back from the device
    full = len(json.dumps(kineto(case.run.ranks[0], WARM_UP)))
    assert all(len(json.dumps(kineto(case.run.ranks[0], WARM_UP, name))) < full for name in FIELDS if name != "graph")
