from __future__ import annotations

import numpy as np
from path_traces import AUTOGRAD, MAIN, PATH_TRACKS, US, Row, call, kernel, op, spans_of

from stepscope.analyses.critical_path.path_threads import exchanges, host_threads


def active(spans, thread):
    starts, ends = host_threads(spans, PATH_TRACKS).active[thread]
    return list(zip((starts // US).tolist(), (ends // US).tolist(), strict=True))


def test_a_thread_is_active_in_operators_and_calls_not_in_ranges_and_python():
    spans = spans_of(
        Row(MAIN, 0, 100, "ProfilerStep#1", "step"),
        Row(MAIN, 5, 90, "train.py(3): step", "python"),
        Row(MAIN, 6, 80, "forward", "user_range"),
        op(10, 5),
        call(20, 5),
        Row(MAIN, 30, 5, "enumerate(DataLoader)#next", "dataloader"),
        op(12, 8),
    )
    assert active(spans, 0) == [(10, 25), (30, 35)]


def test_an_exchange_of_data_on_the_host_is_activity_though_it_is_a_range():
    spans = spans_of(Row(MAIN, 10, 5, "gloo:all_reduce", "user_range"), Row(MAIN, 0, 5, "my:all_reduce", "user_range"))
    assert active(spans, 0) == [(10, 15)]
    assert exchanges(spans, np.array([1, 0])).tolist() == [0]


def test_threads_are_those_that_hold_spans_of_the_host_in_order_of_tracks():
    spans = spans_of(op(0, 5), kernel(0, 5), op(1, 3, track=AUTOGRAD), op(1, 3))
    threads = host_threads(spans, PATH_TRACKS)
    assert threads.track.tolist() == [MAIN, AUTOGRAD]
    assert threads.cuts.tolist() == [0, 2, 3]
    assert threads.parent.tolist() == [-1, 0, -1]
    assert threads.n_active.tolist() == [2, 1]
    assert threads.of(1) == slice(2, 3)
    assert threads.codes(np.array([0, 3, 1, 9, -1])).tolist() == [0, -1, 1, -1, -1]


def test_a_trace_without_a_host_has_no_threads():
    threads = host_threads(spans_of(kernel(0, 5)), PATH_TRACKS)
    assert threads.track.size == 0
    assert threads.codes(np.array([0])).tolist() == [-1]
