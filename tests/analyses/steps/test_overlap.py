from __future__ import annotations

import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.steps.overlap import ANALYSIS, OVERLAP, overlap
from stepscope.core.errors import MissingTable
from stepscope.core.trace import Meta, Trace

REDUCE, GATHER = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL"
ROWS = (
    kernel(STREAM_7, 0, 40),
    kernel(STREAM_7, 100, 10),
    kernel(STREAM_8, 30, 20, REDUCE),  # 10 hidden, 10 exposed
    kernel(STREAM_8, 60, 10, GATHER),  # exposed
    kernel(STREAM_8, 100, 10, REDUCE),  # hidden
)


def test_overlap_is_the_hidden_part_of_the_union_of_communication() -> None:
    got = overlap(spans_of(*ROWS), TRACKS_5)
    assert got.to_dicts() == [
        {
            "rank": 3, "calls": 3, "communication_ns": 40, "overlapped_ns": 20, "exposed_ns": 20,
            "overlap_ratio": 0.5, "computation_ns": 50,
        }
    ]  # fmt: skip


def test_concurrent_collectives_count_once_by_rank_and_each_by_name() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 20, REDUCE), kernel(STREAM_7, 5, 5), kernel(STREAM_8, 0, 10, GATHER))
    assert overlap(spans, TRACKS_5).select("communication_ns", "overlapped_ns").row(0) == (20, 5)
    assert overlap(spans, TRACKS_5, by="name").select("name", "communication_ns", "exposed_ns").rows() == [
        (REDUCE, 20, 15),
        (GATHER, 10, 5),
    ]


def test_by_collective_a_call_has_the_name_of_the_operator_that_launched_it() -> None:
    spans = spans_of(
        (HOST, 0, 9, "c10d::alltoall_base_", "operator"),
        kernel(STREAM_7, 10, 20, "ncclDevKernel_SendRecv", 0),
        kernel(STREAM_7, 40, 5, "ncclDevKernel_SendRecv"),
        kernel(STREAM_8, 15, 5),
    )
    columns = ("collective", "calls", "communication_ns", "exposed_ns")
    assert overlap(spans, TRACKS_5, by="collective").select(columns).rows() == [
        ("alltoall", 1, 20, 15), ("send_recv", 1, 5, 5),
    ]  # fmt: skip


def test_by_name_sorts_by_what_is_exposed() -> None:
    got = overlap(spans_of(*ROWS), TRACKS_5, by="name")
    assert got.select("name", "calls", "overlapped_ns", "exposed_ns").rows() == [
        (GATHER, 1, 0, 10),
        (REDUCE, 2, 20, 10),
    ]


def test_by_device_keeps_devices_apart_and_no_communication_has_no_ratio() -> None:
    got = overlap(spans_of(*ROWS, kernel(OTHER_DEVICE, 0, 100)), TRACKS_5, DEVICES_2, by="device")
    assert got.select("device", "communication_ns", "overlap_ratio").rows() == [
        ("cuda:0", 40, 0.5),
        ("cuda:1", 0, None),
    ]


def test_missing_things_are_said() -> None:
    with pytest.raises(MissingTable, match="communication kernels"):
        overlap(spans_of(*ROWS[:2]), TRACKS_5, by="name")


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": spans_of(*ROWS), "tracks": TRACKS_5, "devices": DEVICES_2})
    for by in ("rank", "device", "name"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: OVERLAP.dtypes[name] for name in got.columns}
