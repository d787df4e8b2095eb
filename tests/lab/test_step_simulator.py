"""Machines so small that what they do can be worked out by hand; all times in ns."""

from __future__ import annotations

import pytest
from step_simulator import (
    Close,
    Fork,
    Host,
    Launch,
    Loader,
    Next,
    Open,
    Program,
    Record,
    Step,
    Sync,
    Wait,
    Work,
    simulate,
)


def kernel(ns, **how):
    return Work("kernel", ns, **how)


def launch(ns, stream=7, call_ns=10, **how):
    return Launch(stream, (kernel(ns, **how),), call_ns)


def times(run, rank=0):
    return [(item.start, item.ended.at) for item in run.ranks[rank].items]


def calls(run, name, rank=0):
    return [(span.begin, span.end) for span in run.ranks[rank].spans if span.name == name]


def steps_of(body, n=8):
    return (*body, Step()) if n == 1 else (*(body * n), Step())


@pytest.mark.parametrize(("kernel_ns", "step_ns"), [(100, 400), (50, 200), (5, 40)])
def test_a_full_queue_makes_the_host_as_slow_as_the_device(kernel_ns, step_ns):
    """Four launches of 10, kernels of 100, a queue of 2: a step takes 4 × 100, and 4 × 10 if kernels are short."""
    body = (Step(), *(launch(kernel_ns) for _ in range(4)))
    run = simulate(Program((steps_of(body),), queue=2, first_step=4))
    assert run.host_step_ns == run.step_ns == step_ns


def test_a_launch_into_a_full_queue_ends_when_the_work_two_before_it_starts():
    run = simulate(Program((steps_of((Step(), *(launch(100) for _ in range(4))), 1),), queue=2))
    assert times(run) == [(10, 110), (110, 210), (210, 310), (310, 410)]
    assert calls(run, "cudaLaunchKernel") == [(0, 10), (10, 20), (20, 30), (30, 110)]


@pytest.mark.parametrize(("service_ns", "step_ns"), [(1000, 500), (500, 310), (0, 310)])
def test_two_workers_deliver_a_batch_in_half_of_their_time(service_ns, step_ns):
    """Taking over a batch takes 10, the rest of the step 300."""
    body = steps_of((Step(), Next(10), Host(300)), 20)
    run = simulate(Program((body,), loader=Loader(2, ((service_ns,) * 20,)), first_step=10))
    assert run.step_ns == step_ns


def test_a_loader_without_workers_makes_the_batch_in_the_step():
    run = simulate(Program((steps_of((Step(), Next(10), Host(300))),), loader=Loader(0, ((200,) * 8,)), first_step=1))
    assert run.step_ns == 510


def test_workers_stop_when_they_are_two_batches_ahead():
    """One worker makes a batch in 100; batches 0 and 1 are ready at 200, and the next begins when batch 0 is taken."""
    body = (Host(1000), Next(0), Next(0), Next(0))
    run = simulate(Program((body,), loader=Loader(1, ((100,) * 3,))))
    assert run.ranks[0].loader_waits == [0, 0, 100]


@pytest.mark.parametrize(("other_ns", "starts"), [(300, 320), (80, 110), (100, 120)])
def test_a_stream_waits_for_the_event_of_another(other_ns, starts):
    """100 on stream 7 from 10 on, the other on stream 8 from 20 on; the third waits for both."""
    body = (launch(100), launch(other_ns, 8), Record(1, 8, 1), Wait(1, 7, 1), launch(50))
    assert times(simulate(Program((body,))))[2] == (starts, starts + 50)


def test_a_wait_means_the_last_record_before_it():
    body = (launch(100, 8), Record(1, 8, 0), launch(900, 8), Wait(1, 7, 0), launch(50), Record(1, 8, 0))
    assert times(simulate(Program((body,))))[2] == (110, 160)


def test_synchronisations_end_with_what_they_wait_for():
    body = (
        launch(100),
        launch(500, 8),
        Record(1, 7, 0),
        Sync("event", 1, 5),
        Sync("stream", 8, 5),
        Sync("device", 0, 5),
    )
    run = simulate(Program((body,)))
    assert calls(run, "cudaEventSynchronize") == [(20, 110)]
    assert calls(run, "cudaStreamSynchronize") == [(110, 520)]
    assert calls(run, "cudaDeviceSynchronize") == [(520, 525)]
    assert [(w.of, w.on_stream) for w in run.ranks[0].waited] == [
        ("Event Sync", 7), ("Stream Sync", -1), ("Context Sync", -1)
    ]  # fmt: skip


def test_a_blocking_copy_returns_with_its_end_and_other_launches_at_once():
    copy = Work("Memcpy HtoD (Pageable -> Device)", 200, "memcpy")
    run = simulate(Program(((Launch(7, (copy,), 10, 0, blocks=True), launch(50)),)))
    assert calls(run, "cudaMemcpyAsync") == [(0, 210)]
    assert times(run) == [(10, 210), (220, 270)]


def test_an_exchange_ends_when_the_last_rank_has_come_and_the_data_are_through():
    def body(ns):
        return (launch(ns), Launch(7, (Work("all-reduce", 50, "exchange"),), 10), Sync("stream", 7, 1))

    run = simulate(Program((body(90), body(290))))
    assert times(run, 0)[1] == (100, 350)
    assert times(run, 1)[1] == (300, 350)


def test_computation_is_slower_while_an_exchange_runs():
    """Both begin at 20, the exchange ends at 60: by then the kernel has done half of 40, and has 80 left."""
    body = (Launch(8, (Work("all-reduce", 40, "exchange", 10),), 10), launch(100))
    run = simulate(Program((body,), slowdown=2.0))
    assert times(run) == [(20, 60), (20, 140)]


def test_calls_of_two_threads_wait_for_the_lock_and_the_parent_for_both_threads():
    thread = (launch(5), Host(100))
    run = simulate(Program(((Fork((("a", thread), ("b", thread)), 3), Sync("device", 0, 1)),)))
    assert calls(run, "cudaLaunchKernel") == [(3, 13), (3, 23)]
    assert calls(run, "cudaDeviceSynchronize") == [(126, 127)]


def test_the_nodes_of_a_graph_run_one_after_the_other_after_one_call():
    nodes = (kernel(30, lag_ns=5), kernel(20, gap_ns=2))
    run = simulate(Program(((Launch(7, nodes, 10, 1, after_ns=8),),)))
    assert times(run) == [(15, 45), (47, 67)]
    assert calls(run, "cudaGraphLaunch") == [(0, 18)]


def test_spans_hold_what_ran_in_them_and_calls_know_their_operator():
    body = (Open("aten::mm", "cpu_op", 4), Host(20), launch(5), Close())
    outer, call = sorted(simulate(Program((body,))).ranks[0].spans, key=lambda span: span.begin)
    assert (outer.begin, outer.end, outer.sequence, call.operator) == (0, 30, 4, outer.ident)


def test_the_step_of_the_long_run_is_the_devices_if_the_host_runs_ahead():
    body = (Step(), *(launch(100) for _ in range(4)))
    run = simulate(Program((steps_of(body),), first_step=2))
    assert (run.host_step_ns, run.device_step_ns, run.step_ns) == (40, 400, 400)
