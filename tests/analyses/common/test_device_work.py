from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    COMPUTATION,
    MEMCPY,
    device_steps,
    device_work,
    groups_of,
    label_devices,
    stretches,
    whole,
    windows_of,
)
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import SPANS, STEPS, TRACKS

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


def steps_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Steps of rank 3 from (step, ts_ns, dur_ns)."""
    frame = pl.DataFrame(rows, schema=("step", "ts_ns", "dur_ns"), orient="row")
    return STEPS.conform(frame.with_columns(rank=3, source=pl.lit("annotation")))


def work_of(*rows: tuple[int, int, int | None, int | None]) -> pl.DataFrame:
    """Device work from (ts_ns, end_ns, step, launch_id)."""
    schema = {"ts_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Int32, "launch_id": pl.UInt32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def bounds(steps: pl.DataFrame, *work: tuple[int, int, int | None, int | None]) -> list[tuple[int, int]]:
    return device_steps(steps, work_of(*work)).select("ts_ns", "end_ns").rows()


def test_a_step_lasts_until_the_last_work_that_it_queued_has_ended_and_the_next_one_starts_there() -> None:
    assert bounds(steps_of((1, 0, 50), (2, 50, 50)), (10, 80, 1, 0), (80, 90, 2, 1)) == [(0, 80), (80, 100)]


def test_a_step_whose_work_is_done_before_its_end_on_the_host_ends_there() -> None:
    assert bounds(steps_of((1, 0, 50), (2, 60, 40)), (10, 20, 1, 0), (70, 80, 2, 1)) == [(0, 50), (60, 100)]


def test_a_step_that_is_overtaken_by_the_work_of_the_one_before_is_empty_and_never_negative() -> None:
    assert bounds(steps_of((1, 0, 10), (2, 10, 10), (3, 20, 10)), (5, 40, 1, 0)) == [(0, 40), (40, 40), (40, 40)]


def test_without_work_the_bounds_are_those_on_the_host() -> None:
    assert bounds(steps_of((2, 60, 40), (1, 0, 50))) == [(0, 50), (60, 100)]
    assert device_steps(STEPS.empty(), work_of()).is_empty()


def test_the_first_step_starts_when_work_queued_before_the_recording_is_done() -> None:
    before = ((0, 8, 1, None), (8, 20, 1, None))
    assert bounds(steps_of((1, 5, 50)), *before, (22, 60, 1, 0)) == [(20, 60)]
    assert bounds(steps_of((1, 5, 50)), (0, 30, 1, None), (22, 60, 1, 0)) == [(22, 60)]  # on another stream


def test_work_without_launch_amid_the_steps_shows_that_launches_were_lost_and_says_nothing() -> None:
    assert bounds(steps_of((1, 5, 50)), (0, 20, 1, None), (22, 40, 1, 0), (45, 70, 1, None)) == [(5, 55)]


def test_without_any_launch_record_work_counts_for_the_step_in_which_it_ran() -> None:
    assert bounds(steps_of((1, 0, 50), (2, 50, 50)), (10, 60, 1, None), (60, 120, 2, None)) == [(0, 60), (60, 120)]


def test_without_steps_the_window_is_that_of_operators_and_device_work() -> None:
    rows = {"span_id": range(4), "track_id": [0, 0, 0, 1], "ts_ns": [0, 10, 20, 30], "dur_ns": [99, 5, 5, 20],
            "name": list("abcd"), "category": ["python", "operator", "runtime", "kernel"]}  # fmt: skip
    spans = SPANS.conform(pl.DataFrame(rows))
    assert whole(spans) == (10, 50)
    assert whole(spans.filter(pl.col("category") == "python")) == (0, 99)
    tracks = TRACKS.conform(pl.DataFrame({"track_id": [0, 1], "rank": [None, 5]}))
    got = windows_of(spans, tracks, STEPS.empty(), work_of())
    assert got.rows() == [(None, 5, 10, 50)]
    assert windows_of(spans, TRACKS.empty(), STEPS.empty(), work_of())["rank"].to_list() == [None]
    assert windows_of(spans, tracks, steps_of((1, 0, 50)), work_of())["step"].to_list() == [1]


some_work = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(1, 3), st.sampled_from([None, 0])), max_size=8
)


@pytest.mark.parametrize("shift", [0, 7])
@given(some_work, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_steps_are_in_order_and_hold_their_own_span_and_work_or_start_after_what_came_before(
    shift: int, work: list[tuple[int, int, int, int | None]], lengths: list[int]
) -> None:
    starts = [shift + sum(lengths[:i]) for i in range(3)]
    steps = steps_of(*((i + 1, starts[i], lengths[i]) for i in range(3)))
    rows = [(ts + shift, ts + shift + dur, step, launch) for ts, dur, step, launch in work]
    got = bounds(steps, *rows)
    linked = [row for row in rows if row[3] is not None] or rows
    for i, (low, high) in enumerate(got):
        assert low <= high
        assert high >= starts[i] + lengths[i]
        assert all(high >= end for _, end, step, _ in linked if step == i + 1)
        assert i == 0 or low == max(got[i - 1][1], starts[i])


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**12))
def test_stretches_are_of_a_power_of_ten_and_at_most_a_hundred(low, length):
    edges = stretches(low, low + length, None).tolist()
    assert edges[0] == low
    assert edges[-1] == low + length
    assert len(edges) - 1 <= 100
    inner = {b - a for a, b in pairwise(edges[:-1])}
    assert len(inner) <= 1
    assert not inner or str(inner.pop()).strip("0") == "1"


def test_the_last_one_may_be_shorter():
    assert stretches(5, 30, 10).tolist() == [5, 15, 25, 30]
    assert stretches(5, 25, 10).tolist() == [5, 15, 25]


@pytest.mark.parametrize("bucket_ns", [0, -1, 1])
def test_none_and_too_many_are_refused(bucket_ns):
    with pytest.raises(StepscopeError, match="no more than 1,000,000") as caught:
        stretches(0, 2_000_000, bucket_ns)
    assert caught.value.hint == "choose --bucket-ns of at least 2"
