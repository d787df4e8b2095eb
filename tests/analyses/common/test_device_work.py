from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    COMPUTATION,
    MEMCPY,
    by_device,
    device_work,
    groups_of,
    hidden_ns,
    label_devices,
    mean_of,
    measures,
    occupancy,
    occupied,
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
    one = frame.filter(pl.col("rank") == 1)
    assert [(key, part.height) for key, part in groups_of(one, ["rank"])] == [((1,), 2)]
    unknown = frame.filter(pl.col("rank").is_null())
    assert [(key, part.height) for key, part in groups_of(unknown, ["rank"])] == [((None,), 1)]
    assert groups_of(frame.clear(), ["rank"]) == []


def test_devices_are_labelled_as_the_framework_calls_them() -> None:
    frame = pl.DataFrame({"device_id": [1, None, 0]}, schema={"device_id": pl.UInt32})
    assert label_devices(frame, DEVICES_2)["device"].to_list() == ["cuda:1", None, "cuda:0"]
    unnumbered = DEVICES_2.with_columns(index=pl.lit(None, pl.Int32))
    assert label_devices(frame, unnumbered)["device"].to_list() == ["cuda", None, "cuda"]


PARTS = ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
PIECES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, None]),
        st.integers(0, 30),
        st.integers(0, 10),
        st.sampled_from([COMPUTATION, COMMUNICATION, MEMCPY]),
    ),
    min_size=1,
    max_size=12,
)


def work_of(pieces: list[tuple[int | None, int, int, int]]) -> pl.DataFrame:
    columns = {"device_id": pl.UInt32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "sort": pl.Int8}
    frame = pl.DataFrame(pieces, schema=columns, orient="row")
    return frame.with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns"), rank=pl.lit(3, pl.Int32))


def parts_by_moment(pieces: list[tuple[int | None, int, int, int]], low: int, high: int) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for moment in range(low, high):
        open_ = {sort for _, start, length, sort in pieces if start <= moment < start + length}
        part = next((name for sort, name in enumerate(PARTS) if sort in open_), "idle_ns")
        counts[part] += 1
    return counts


@given(PIECES, st.integers(0, 20), st.integers(0, 30))
def test_each_devices_parts_are_those_of_its_own_moments_and_the_mean_sums_to_the_window(pieces, low, length) -> None:
    work = work_of(pieces)
    lows, highs = np.array([low]), np.array([low + length])
    known = {device for device, *_ in pieces if device is not None}
    each = []
    for (_, device), mine in by_device(work):
        expected = parts_by_moment([piece for piece in pieces if piece[0] == device], low, low + length)
        got = measures(occupied(mine), lows, highs)
        assert {name: int(got[name][0]) for name in PARTS} == expected
        each.append(expected)
    means, n_devices = occupancy(work, lows, highs)
    assert n_devices == len(each) == max(len(known), 1)
    assert sum(int(means[name][0]) for name in PARTS) == length == int(means["total_ns"][0])
    assert int(means["busy_ns"][0]) == length - int(means["idle_ns"][0])
    for name in PARTS:
        assert abs(int(means[name][0]) - sum(one[name] for one in each) / len(each)) < 1


def test_work_without_a_device_is_on_the_only_device_of_its_rank_and_no_device_beside_several() -> None:
    tracks = TRACKS_5.with_columns(device_id=pl.when(pl.col("track_id") != STREAM_8).then("device_id"))
    one = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_8, 20, 10))
    work = device_work(one, tracks, needed_by="test")
    assert work["device_id"].to_list() == [0, 0]
    several = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_8, 20, 10), kernel(OTHER_DEVICE, 0, 30))
    work = device_work(several, tracks, needed_by="test")
    assert work["device_id"].to_list() == [0, None, 1]
    assert [key for key, _ in by_device(work)] == [(3, 0), (3, 1)]
    means, n_devices = occupancy(work, np.array([0]), np.array([30]))
    assert (n_devices, int(means["busy_ns"][0]), int(means["idle_ns"][0])) == (2, 20, 10)


def test_devices_that_are_all_unknown_are_one() -> None:
    work = work_of([(None, 0, 10, COMPUTATION), (None, 5, 10, COMPUTATION)])
    assert [key for key, _ in by_device(work)] == [(3, None)]


def test_what_computes_on_one_device_hides_nothing_on_another() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 10, NCCL), kernel(OTHER_DEVICE, 0, 10, "gemm"))
    work = device_work(spans, TRACKS_5, needed_by="test")
    calls = work.filter(pl.col("sort") == COMMUNICATION)
    assert hidden_ns(work, calls, "computation").to_list() == [0]
    means, _ = occupancy(work, np.array([0]), np.array([10]))
    assert (int(means["computation_ns"][0]), int(means["exposed_communication_ns"][0])) == (5, 5)


def test_a_mean_of_nothing_is_empty_and_of_one_itself() -> None:
    assert mean_of([]) == {}
    parts = {"a": np.array([3, 4])}
    assert mean_of([parts], parts) == parts
