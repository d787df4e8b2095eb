from __future__ import annotations

import polars as pl
import pytest
from device_traces import HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.fusion_runs import FUSIBLE, members_of_runs
from stepscope.core.names import KERNEL_CLASSES

MUL, ADD, NORM, GEMM = "elementwise_kernel<Mul>", "elementwise_kernel<Add>", "layer_norm_kernel", "ampere_gemm"


def runs(spans, min_kernels=2, max_gap_ns=1_000_000):
    """The span ids of each run."""
    work = device_work(spans, TRACKS_5, needed_by="test")
    found = members_of_runs(work, spans, min_kernels=min_kernels, max_gap_ns=max_gap_ns)
    return [part["span_id"].to_list() for part in found.partition_by("run", maintain_order=True)]


def gaps(spans):
    work = device_work(spans, TRACKS_5, needed_by="test")
    return members_of_runs(work, spans, min_kernels=2, max_gap_ns=1_000_000)["gap_ns"].to_list()


def test_other_work_on_the_stream_ends_a_run_and_that_on_other_streams_does_not():
    spans = spans_of(
        kernel(STREAM_7, 0, 10, MUL),
        kernel(STREAM_7, 10, 10, NORM),
        kernel(STREAM_7, 20, 10, GEMM),
        kernel(STREAM_7, 30, 10, ADD),
        kernel(STREAM_7, 40, 10, "softmax_warp_forward"),
        kernel(STREAM_7, 50, 10, "reduce_kernel"),
        kernel(STREAM_8, 5, 10, GEMM),
        kernel(OTHER_DEVICE, 5, 10, ADD),
    )
    assert runs(spans) == [[0, 1], [3, 4, 5]]
    assert runs(spans, min_kernels=3) == [[3, 4, 5]]
    assert runs(spans.head(1)) == []


@pytest.mark.parametrize("name", ["flash_fwd_kernel", "ncclDevKernel_AllReduce", "implicit_convolve_sgemm", "mystery"])
def test_attention_collectives_convolutions_and_what_is_not_known_end_it(name):
    middle = [kernel(STREAM_7, 20, 5, name)]
    assert runs(spans_of(kernel(STREAM_7, 0, 10, MUL), *middle, kernel(STREAM_7, 30, 10, MUL))) == []


def test_classes_that_can_be_fused_are_classes_of_kernels():
    assert set(FUSIBLE) < set(KERNEL_CLASSES)


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("Memset (Device)", "memset", [[0, 2]]),
        ("Memcpy DtoD (Device -> Device)", "memcpy", [[0, 2]]),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy", []),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy", []),
        ("__amd_rocclr_fillBufferAligned", "kernel", [[0, 2]]),
        ("vectorized_elementwise_kernel<FillFunctor>", "kernel", []),
    ],
)
def test_fills_and_copies_within_the_device_lie_beside_a_run(name, category, expected):
    spans = spans_of(kernel(STREAM_7, 0, 10, MUL), (STREAM_7, 20, 5, name, category), kernel(STREAM_7, 30, 10, MUL))
    assert runs(spans) == expected


def test_a_step_ends_it():
    rows = [kernel(STREAM_7, 10 * i, 5, MUL) for i in range(5)]
    assert runs(spans_of(*rows, step=[1, 1, 2, 2, None])) == [[0, 1], [2, 3]]
    assert runs(spans_of(*rows, step=[None] * 5)) == [[0, 1, 2, 3, 4]]


def test_a_long_gap_ends_it_and_time_in_which_other_work_ran_is_no_gap():
    spans = spans_of(
        kernel(STREAM_7, 0, 10, MUL),
        (STREAM_7, 12, 100, "Memset (Device)", "memset"),
        kernel(STREAM_7, 115, 10, MUL),
        kernel(STREAM_7, 120, 10, MUL),  # overlaps, as a recorder may round
        kernel(STREAM_7, 200, 10, MUL),
    )
    assert gaps(spans) == [None, 5, 0, 70]
    assert runs(spans, max_gap_ns=69) == [[0, 2, 3]]
    assert runs(spans, max_gap_ns=4) == [[2, 3]]


def launched(*rows, waits=()):
    """Kernels from (start, name, launch start), and calls of the host that wait, from (start, duration)."""
    calls = [(HOST, at, 2, "cudaLaunchKernel", "runtime") for _, _, at in rows]
    calls += [(HOST, at, dur, "cudaStreamSynchronize", "runtime") for at, dur in waits]
    works = [kernel(STREAM_7, ts, 5, name, i) for i, (ts, name, _) in enumerate(rows)]
    return spans_of(*calls, *works)


def test_a_wait_of_the_host_between_two_launches_ends_it():
    rows = ((100, MUL, 0), (200, MUL, 20), (300, MUL, 40))
    assert runs(launched(*rows)) == [[3, 4, 5]]
    assert runs(launched(*rows, waits=[(25, 10)])) == [[4, 5]]
    assert runs(launched(*rows, waits=[(5, 10), (50, 10)])) == [[6, 7]]
    assert runs(launched(*rows, waits=[(35, 10)])) == [[4, 5, 6]]  # another thread's, still going on


def test_without_a_clock_the_order_alone_counts():
    spans = spans_of(*(kernel(STREAM_7, i, 5, name) for i, name in enumerate((MUL, GEMM, ADD, NORM))))
    spans = spans.with_columns(ts_ns=pl.lit(None, pl.Int64))
    assert runs(spans) == [[2, 3]]
    assert gaps(spans) == [None, None]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([STREAM_7, STREAM_8]), st.integers(0, 6), st.integers(0, 6), st.sampled_from([MUL, NORM, GEMM]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=14,
)  # fmt: skip


@given(ROWS, st.integers(0, 6))
def test_runs_agree_with_a_walk_over_each_stream(rows, max_gap):
    placed, reached = [], {STREAM_7: 0, STREAM_8: 0}
    for track, gap, dur, name, step in rows:
        placed.append((track, reached[track] + gap, dur, name, step))
        reached[track] += gap + dur
    placed.sort(key=lambda row: row[0])
    expected, open_run, before = [], [], None
    for i, (track, ts, dur, name, step) in enumerate(placed):
        member = name != GEMM
        joins = open_run and member and before[0] == track and before[2] == step and ts - before[1] <= max_gap
        if not joins and open_run:
            expected.append(open_run)
            open_run = []
        if member:
            open_run = [*open_run, i]
        before = (track, ts + dur, step)
    expected += [open_run] if open_run else []
    if not placed:
        return
    spans = spans_of(
        *(kernel(track, ts, dur, name) for track, ts, dur, name, _ in placed), step=[row[4] for row in placed]
    )
    assert runs(spans, max_gap_ns=max_gap) == [run for run in expected if len(run) > 1]
