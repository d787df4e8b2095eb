"""What counts as communication, and which collective it is: the recorder's words first, the kernel's name second."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from device_traces import HOST, STREAM_7, STREAM_8, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.collective_calls import (
    collectives_on_host,
    communicates,
    computing_on_host,
    named_calls,
    open_time,
)
from stepscope.core.intervals import enclosing
from stepscope.core.schema import COLLECTIVES, SPANS

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
DEEP_EP = "void deep_ep::internode::combine<false, 8>(int4*)"
LAUNCHED = spans_of(
    (HOST, 0, 90, "c10d::alltoall_base_", "operator"),
    (HOST, 10, 70, "record_param_comms", "operator"),
    (HOST, 20, 5, "cudaLaunchKernel", "runtime"),
    (HOST, 30, 20, "aten::copy_", "operator"),
    kernel(STREAM_7, 40, 9, SEND_RECV, 2),
    kernel(STREAM_7, 50, 9, "vendor_exchange", 2),
    kernel(STREAM_7, 60, 9, "vendor_exchange", 2),
    (STREAM_7, 70, 9, "Memcpy DtoD (Device -> Device)", "memcpy", 2),
    kernel(STREAM_8, 80, 9, DEEP_EP),
    kernel(STREAM_8, 90, 9, "elementwise_kernel", 2),
    parent_id=[None, 0, 1, 1, *[None] * 6],
    op_id=[None, None, 1, None, 1, 1, 3, 1, None, 1],
)
WORK = LAUNCHED[4:]


@pytest.mark.parametrize(
    ("communication", "expected"),
    [
        ("any", [SEND_RECV, "vendor_exchange", DEEP_EP]),
        ("library", [SEND_RECV]),
        ("^vendor", ["vendor_exchange", "vendor_exchange"]),
    ],
)
def test_a_kernel_communicates_by_its_name_or_if_a_library_s_operator_launched_it(
    communication: str, expected: list[str]
) -> None:
    mask = communicates(WORK, LAUNCHED, communication)
    assert WORK.filter(mask)["name"].cast(pl.String).to_list() == expected


def test_what_the_recorder_lists_among_collectives_communicates_whatever_its_name() -> None:
    work = spans_of(kernel(STREAM_7, 0, 5, "Default/Broadcast-op3"), kernel(STREAM_7, 5, 5, "Default/Broadcast-op3"))
    work = work.with_columns(recorded_category=pl.Series(["communication", None], dtype=pl.Categorical))
    assert communicates(work, work).to_list() == communicates(work, work, "library").to_list() == [True, False]


def test_a_kernel_that_another_operator_launched_inside_does_not() -> None:
    assert communicates(WORK, LAUNCHED).to_list() == [True, True, False, False, True, False]


def named(collectives: pl.DataFrame) -> list[tuple[int, str]]:
    rows = WORK.select("span_id", caller="launch_id").head(1)
    return named_calls(rows, LAUNCHED, collectives).select("call_id", "collective").rows()


def test_an_all_to_all_that_runs_as_send_and_receive_has_the_name_of_its_operator() -> None:
    assert named(COLLECTIVES.empty()) == [(0, "alltoall")]


def test_what_is_recorded_comes_before_the_operator() -> None:
    recorded = COLLECTIVES.conform(pl.DataFrame({"span_id": [1], "collective": ["all_to_allv"]}))
    assert named(recorded) == [(1, "all_to_allv")]


def test_without_either_the_kernel_names_the_collective() -> None:
    rows = LAUNCHED.select("span_id", caller=pl.lit(None, pl.UInt32))[4:9]
    named = named_calls(rows, LAUNCHED, COLLECTIVES.empty())
    assert named["collective"].to_list() == [
        "send_recv", "vendor_exchange", "vendor_exchange", "Memcpy DtoD (Device -> Device)", "alltoall",
    ]  # fmt: skip


def test_on_the_host_the_collectives_are_those_that_move_data_there_else_those_that_no_kernels_do() -> None:
    rows = [
        ("gloo:all_reduce", "user_range"),
        ("c10d::allreduce_", "operator"),
        ("aten::mm", "operator"),
        ("gemm", "kernel"),
        ("gloo:all_reduce", "python"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel"),
    ]
    spans = SPANS.conform(pl.DataFrame(rows, schema=("name", "category"), orient="row").with_row_index("span_id"))
    assert collectives_on_host(spans).to_list() == [True, *[False] * 5]
    assert collectives_on_host(spans[1:5]).to_list() == [True, *[False] * 3]
    assert collectives_on_host(spans[1:]).to_list() == [False] * 5


ROW = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.booleans())


@given(st.lists(ROW, max_size=12))
def test_open_time_holds_each_nanosecond_of_wanted_spans(rows: list[tuple[int, int, int, bool]]) -> None:
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    frame = pl.DataFrame(rows, schema=("track_id", "ts_ns", "dur_ns", "wanted"), orient="row")
    track, start, length = (frame[c].cast(pl.Int64).to_numpy() for c in ("track_id", "ts_ns", "dur_ns"))
    parents = pl.Series("parent_id", enclosing(start, start + length, track)).replace(-1, None)
    spans = SPANS.conform(frame.with_row_index("span_id").with_columns(parents))
    lows, highs = open_time(spans, frame["wanted"].cast(pl.Boolean))
    got = [at for low, high in zip(lows, highs, strict=True) for at in range(low, high)]
    assert got == sorted({at for _, ts, dur, wanted in rows if wanted for at in range(ts, ts + dur)})
    assert np.all(lows[1:] > highs[:-1])


def test_the_host_computes_while_an_operator_is_open_and_no_collective_in_it() -> None:
    rows = [
        (0, 0, 20, "aten::mm", "operator"),
        (0, 5, 10, "c10d::allreduce_", "operator"),
        (0, 7, 3, "aten::add", "operator"),  # part of the collective
        (1, 30, 10, "## all2all:wait ##", "user_range"),
        (1, 32, 3, "aten::to", "operator"),  # computes in a range that only names one
        (2, 34, 11, "aten::mm", "operator"),  # while another thread waits
        (2, 50, 5, "my range", "user_range"),
    ]
    frame = pl.DataFrame(rows, schema=("track_id", "ts_ns", "dur_ns", "name", "category"), orient="row")
    lows, highs = computing_on_host(SPANS.conform(frame.with_row_index("span_id")))
    assert list(zip(lows, highs, strict=True)) == [(0, 5), (15, 20), (32, 45)]
