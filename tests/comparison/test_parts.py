from __future__ import annotations

import polars as pl
from cycle_traces import BACKWARD, LANE, MAIN, STREAM, spans_of, trace_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.comparison._parts import parts_of

THREADS = pl.Series([MAIN, BACKWARD], dtype=pl.UInt32)


def parts(spans, *cycles, threads=THREADS):
    frame = pl.DataFrame(
        [(i, ts, dur) for i, (ts, dur) in enumerate(cycles)], schema=["cycle", "ts_ns", "dur_ns"], orient="row"
    )
    found = parts_of(trace_of(spans), frame, threads)
    return {(row["cycle"], row["part"]): row["total_ns"] for row in found.iter_rows(named=True)}  # fmt: skip


def test_the_device_comes_first_and_the_host_where_it_idles():
    spans = spans_of(
        (MAIN, 0, 20, "loader", "dataloader"), (MAIN, 5, 5, "aten::copy_", "operator"),
        (MAIN, 30, 30, "aten::mm", "operator"), (MAIN, 35, 10, "cudaLaunchKernel", "runtime"),
        (MAIN, 70, 30, "cudaStreamSynchronize", "runtime"),
        (STREAM, 40, 30, "gemm", "kernel", "cudaLaunchKernel"), (STREAM, 60, 15, "ncclAllReduce", "kernel"),
        (STREAM, 74, 6, "Memcpy", "memcpy"),
    )  # fmt: skip
    assert parts(spans, (0, 110)) == {
        (0, "computation"): 30, (0, "exposed communication"): 5, (0, "exposed memcpy"): 5,
        (0, "data loading"): 20, (0, "synchronisation"): 20, (0, "launch and runtime calls"): 5, (0, "operators"): 5,
        (0, "python and other"): 20,
    }  # fmt: skip


def test_without_device_work_an_exchange_is_exposed_where_the_host_does_nothing_else():
    spans = spans_of(
        (MAIN, 10, 20, "aten::mm", "operator"), (LANE, 20, 30, "gloo:all_reduce", "user_range"),
        (MAIN, 60, 5, "c10d::allreduce_", "operator"),
    )  # fmt: skip
    assert parts(spans, (0, 100)) == {
        (0, "operators"): 20, (0, "exposed communication"): 25, (0, "python and other"): 55,
    }  # fmt: skip


def test_where_only_the_device_was_recorded_the_rest_is_idle():
    spans = spans_of((STREAM, 10, 20, "gemm", "kernel"))
    assert parts(spans, (0, 100)) == {(0, "computation"): 20, (0, "idle"): 80}


def test_work_of_threads_that_are_not_the_jobs_does_not_count():
    spans = spans_of((BACKWARD, 10, 20, "aten::mm", "operator"), (MAIN, 90, 1, "x", "python"))
    assert parts(spans, (0, 100), threads=pl.Series([MAIN], dtype=pl.UInt32)) == {(0, "python and other"): 100}


ROW = st.tuples(
    st.sampled_from([MAIN, BACKWARD, STREAM]),
    st.integers(0, 90),
    st.integers(1, 40),
    st.sampled_from([("aten::mm", "operator"), ("cudaDeviceSynchronize", "runtime"), ("load", "dataloader")]),
)


@given(st.lists(ROW, min_size=1, max_size=12))
def test_parts_of_a_cycle_sum_to_it(rows):
    device = [("gemm", "kernel"), ("ncclSend", "kernel"), ("copy", "memcpy")]
    spans = spans_of(
        *((t, ts, dur, *(device[dur % 3] if t == STREAM else kind)) for t, ts, dur, kind in rows)
    )  # fmt: skip
    found = parts(spans, (0, 40), (40, 25), (80, 30))
    for cycle, length in enumerate((40, 25, 30)):
        assert sum(ns for (i, _), ns in found.items() if i == cycle) == length
    assert all(ns >= 0 for ns in found.values())
