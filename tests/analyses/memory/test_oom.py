from __future__ import annotations

import memory_snapshots as lab
import pytest
from memory_snapshots import tables

from stepscope.analyses.memory.oom import failures


@pytest.mark.parametrize(("kind", "seed"), [(kind, 2 if kind == "other process" else 1) for kind in lab.KINDS])
def test_the_kind_of_failure_and_the_stack_to_blame(kind, seed):
    case = lab.make(kind, seed)
    events, segments, blocks, stacks = tables(case.snapshot)
    answers = failures(events, segments, blocks, None)
    assert [answer.kind for answer in answers] == [lab.ANSWERS[kind]] * (kind != "healthy")
    if case.guilty:
        first = answers[0].stacks["stack_id"][0]
        assert stacks[first][1:] == tuple(f"/job/{frame}" for frame in case.guilty)
    for answer in answers:
        assert answer.allocated_bytes == case.held.total()
        assert answer.idle_bytes == case.idle


def test_a_known_device_says_what_others_hold():
    case = lab.make("leak", 1)
    events, segments, blocks, _ = tables(case.snapshot)
    (answer,) = failures(events, segments, blocks, None, capacity=4 * case.device.total)
    assert answer.kind == "other process"
    assert answer.outside_bytes > 2 * case.device.total
