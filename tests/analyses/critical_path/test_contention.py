from __future__ import annotations

import pytest
from path_traces import MAIN, PATH_TRACKS, STREAM_8, US, Row, call, kernel, spans_of, steps_of

from stepscope.analyses.critical_path.predictions import predictions


def predicted(change, *, beside=130, n_steps=4):
    """Steps of 300 µs: a kernel that runs alone for 100 µs, and the same kernel beside an exchange, then a wait."""
    rows = []
    for i in range(n_steps):
        at = 300 * i
        rows += [
            *(call(at + ts, 2, key=f"{key}{i}") for ts, key in ((0, "alone"), (103, "exchange"), (106, "beside"))),
            kernel(at + 5, 100, f"alone{i}", "sgemm"),
            kernel(at + 109, beside, f"exchange{i}", "ncclDevKernel_AllReduce", STREAM_8),
            kernel(at + 110, beside, f"beside{i}", "sgemm"),
            call(at + 120, beside - 10, "cudaDeviceSynchronize"),
            Row(MAIN, at, 300, f"ProfilerStep#{i}", "step", step=i),
        ]
    steps = steps_of(*((300 * i, 300 * i + 300) for i in range(n_steps)))
    return predictions(spans_of(*rows), PATH_TRACKS, steps, changes=change).row(0, named=True)["predicted_ns"]


def test_a_kernel_is_as_fast_as_alone_once_no_exchange_runs_beside_it():
    assert predicted("comm: free") == pytest.approx(270 * US, abs=US)


def test_a_kernel_that_is_beside_a_shorter_exchange_is_slowed_down_for_less_of_its_time():
    # Its first 64 µs make 49 µs of progress, and the other 51 µs are as fast as alone.
    assert predicted("comm: 2x") == pytest.approx(285 * US, abs=US)


def test_where_kernels_lose_nothing_or_too_few_ran_alone_lengths_stay():
    assert predicted("comm: free", beside=100) == 300 * US
    assert predicted("comm: free", n_steps=2) == 300 * US


def test_no_change_gives_the_recorded_step():
    assert predicted("comm: 1x") == 300 * US
