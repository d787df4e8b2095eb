from __future__ import annotations

import pytest
from jobs import part
from path_traces import MAIN, NO_ARROWS, NO_OPS, PATH_TRACKS, STREAM_8, US, Row, call, kernel, spans_of, steps_of

from stepscope.analyses.critical_path.joint_replay import answers, job_predictions, joint_graph, paces
from stepscope.analyses.critical_path.predictions import recorded_program
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import EVENT_WAITS

N_STEPS = 4


def program(computes, *, ends=80):
    """Steps of 100 µs. A kernel computes for so long from 10 µs on; an exchange follows and ends at 80 µs on all ranks.

    The host waits for it, and then works on.
    """
    rows = []
    for i in range(N_STEPS):
        at = 100 * i
        rows += [
            call(at, 4, key=f"k{i}"),
            kernel(at + 10, computes, f"k{i}", "sgemm"),
            call(at + 4, 2, key=f"c{i}"),
            kernel(at + 10 + computes, ends - 10 - computes, f"c{i}", "ncclDevKernel_AllReduce", STREAM_8),
            call(at + 5 + 2, 1, "cudaStreamWaitEvent"),
            call(at + 9, ends - 9, "cudaDeviceSynchronize"),
            Row(MAIN, at, 100, f"ProfilerStep#{i}", "step", step=i),
        ]
    steps = steps_of(*((100 * i, 100 * i + 100) for i in range(N_STEPS)))
    spans = spans_of(*rows)
    return recorded_program(spans, PATH_TRACKS, steps, NO_OPS, NO_ARROWS, EVENT_WAITS.empty())


def job(*computes):
    """A job whose ranks compute for so many µs. The exchange takes 80 µs less what the slowest rank needs."""
    ends = [[(100 * i + 10 + c, 100 * i + 80) for i in range(N_STEPS)] for c in computes]
    parts = [part(rank, *((low * US, high * US) for low, high in calls)) for rank, calls in enumerate(ends)]
    return joint_graph([program(c) for c in computes], parts)


def predicted(graph, *texts):
    return [frame["predicted_ns"][0] / US for frame in job_predictions(graph, texts)]


def test_no_change_gives_the_recorded_step_on_all_ranks():
    assert predicted(job(40, 20), "device: 1x") == [100, 100]


def test_a_change_that_makes_the_last_rank_faster_shortens_the_others_waits():
    # Kernels take 20 and 10 µs, and the exchange begins once both have come: at 30 µs, 30 of 50 µs earlier.
    assert predicted(job(40, 20), "kernel ~ sgemm: 2x") == pytest.approx([80, 80], abs=1)


def test_only_the_transfer_of_a_collective_can_be_saved_and_not_the_wait_for_another_rank():
    # The transfer takes 30 µs, though on the second rank the kernel of the exchange takes 50.
    assert predicted(job(40, 20), "comm: free") == pytest.approx([70, 70], abs=1)


def test_without_stragglers_each_rank_computes_as_fast_as_the_typical_one():
    graph = job(40, 20)
    assert paces(graph.programs) == [0.5, 1.0]
    assert answers(graph, ["ranks: no stragglers"])
    assert predicted(graph, "ranks: no stragglers") == pytest.approx([80, 80], abs=1)
    assert not answers(job(40, 40), ["ranks: no stragglers"])


def test_ranks_that_share_no_collective_are_not_replayed_together():
    assert joint_graph([program(40)], [part(0, (50 * US, 80 * US))]) is None


def test_a_change_of_what_is_not_there_is_refused():
    with pytest.raises(StepscopeError, match="nothing to change"):
        predicted(job(40, 20), "loader: hidden")
