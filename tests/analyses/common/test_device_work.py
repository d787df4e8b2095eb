from __future__ import annotations

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    COMPUTATION,
    MEMCPY,
    device_work,
    groups_of,
    label_devices,
)
from stepscope.core.errors import MissingTable

SPANS_6 = spans_of(
    (HOST, 0, 5, "cudaLaunchKernel", "runtime"),
    kernel(STREAM_7, 10, 5, "gemm", 0),
    (STREAM_7, 15, 5, "Stream Sync", "sync"),
    (STREAM_7, 20, 5, "Memcpy HtoD (Pageable -> Device)", "memcpy"),
    (STREAM_7, 30, 5, "Memset (Device)", "memset"),
    kernel(STREAM_8, 40, 5, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
)


def test_work_is_kernels_copies_and_fills_with_where_they_ran() -> None:
    work = device_work(SPANS_6, TRACKS_5, needed_by="test")
    assert work.select("span_id", "end_ns", "sort", "rank", "device_id", "stream").rows() == [
        (1, 15, COMPUTATION, 3, 0, 7),
        (3, 25, MEMCPY, 3, 0, 7),
        (4, 35, COMPUTATION, 3, 0, 7),
        (5, 45, COMMUNICATION, 3, 0, 8),
    ]


def test_no_device_work_is_said_not_returned_as_nothing() -> None:
    with pytest.raises(MissingTable, match="test needs device work"):
        device_work(SPANS_6.head(1), TRACKS_5, needed_by="test")


def test_linked_only_follows_arrows_where_the_trace_has_any() -> None:
    arrows = SPANS_6.with_columns(flow=pl.Series([None, False, None, True, False, False]))
    assert device_work(arrows, TRACKS_5, needed_by="test", linked_only=True)["span_id"].to_list() == [3]


def test_linked_only_follows_launch_records_in_a_trace_without_arrows() -> None:
    assert device_work(SPANS_6, TRACKS_5, needed_by="test", linked_only=True)["span_id"].to_list() == [1]
    with pytest.raises(MissingTable, match="tied to its launch"):
        device_work(SPANS_6.tail(2), TRACKS_5, needed_by="test", linked_only=True)


def test_groups_come_sorted_with_null_last() -> None:
    frame = pl.DataFrame({"rank": [None, 1, 0, 1]}, schema={"rank": pl.Int32})
    assert [(key, part.height) for key, part in groups_of(frame, ["rank"])] == [((0,), 1), ((1,), 2), ((None,), 1)]


def test_devices_are_labelled_as_the_framework_calls_them() -> None:
    frame = pl.DataFrame({"device_id": [1, None, 0]}, schema={"device_id": pl.UInt32})
    assert label_devices(frame, DEVICES_2)["device"].to_list() == ["cuda:1", None, "cuda:0"]
    unnumbered = DEVICES_2.with_columns(index=pl.lit(None, pl.Int32))
    assert label_devices(frame, unnumbered)["device"].to_list() == ["cuda", None, "cuda"]
