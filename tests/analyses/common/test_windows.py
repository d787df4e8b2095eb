from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from cycle_traces import GPU, LANE, MAIN, STREAM, TRACKS_4, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.windows import (
    NOWHERE,
    counted_at,
    cycle_of,
    device_of_tracks,
    device_steps,
    host_windows,
    recorded,
    step_windows,
    stretches,
    whole,
    windows_of,
)
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import DEVICES, SPANS, STEPS, TRACKS


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


def test_without_steps_the_window_is_the_recording() -> None:
    rows = {"span_id": range(4), "track_id": [0, 0, 0, 1], "ts_ns": [0, 10, 20, 30], "dur_ns": [99, 5, 5, 20],
            "name": list("abcd"), "category": ["python", "operator", "runtime", "kernel"]}  # fmt: skip
    spans = SPANS.conform(pl.DataFrame(rows))
    assert whole(spans) == (10, 50)
    assert whole(spans.filter(pl.col("category") == "python")) == (0, 99)
    tracks = TRACKS.conform(pl.DataFrame({"track_id": [0, 1], "rank": [None, 5]}))
    got = windows_of(spans, tracks, STEPS.empty(), work_of())
    assert got.rows() == [(None, 5, 0, 99)]
    assert windows_of(spans, TRACKS.empty(), STEPS.empty(), work_of())["rank"].to_list() == [None]
    assert windows_of(spans, tracks, steps_of((1, 0, 50)), work_of())["step"].to_list() == [1]


def test_what_the_recorder_does_itself_and_the_scheduler_are_no_part_of_the_recording() -> None:
    rows = {"span_id": range(4), "track_id": [0, 0, 0, 1], "ts_ns": [0, 10, 20, 30], "dur_ns": [99, 5, 5, 20],
            "name": list("abcd"), "category": ["overhead", "runtime", "sched_oncpu", "kernel"]}  # fmt: skip
    spans = SPANS.conform(pl.DataFrame(rows))
    assert recorded(spans) == (10, 50)
    assert recorded(spans.head(1)) == (0, 99)


def windows(steps: pl.DataFrame, *work: tuple[int, int, int | None, int | None]) -> list[tuple[int, int]]:
    return step_windows(steps, work_of(*work)).select("ts_ns", "end_ns").rows()


def test_a_host_that_waits_for_the_device_gives_windows_from_start_to_start() -> None:
    steps = steps_of((1, 0, 40), (2, 50, 40), (3, 100, 40))
    work = (10, 35, 1, 0), (60, 90, 2, 1), (110, 130, 3, 2)
    assert windows(steps, *work) == [(0, 50), (50, 100), (100, 140)] == windows(steps)
    assert host_windows(steps)["host_window_ns"].to_list() == [50, 50, 40]


def test_a_host_that_runs_ahead_gives_the_cadence_of_the_device() -> None:
    steps = steps_of((1, 0, 9), (2, 10, 9), (3, 20, 9))
    work = (5, 80, 1, 0), (80, 160, 2, 1), (160, 240, 3, 2)
    assert windows(steps, *work) == [(0, 80), (80, 160), (160, 240)]
    got = step_windows(steps, work_of(*work))
    assert got.select("window_ns", "host_ts_ns", "host_ns", "host_window_ns", "late_ns").rows() == [
        (80, 0, 9, 10, 71), (80, 10, 9, 10, 141), (80, 20, 9, 9, 211),
    ]  # fmt: skip


def test_a_step_ends_itself_where_the_next_number_is_missing() -> None:
    steps = steps_of((1, 0, 40), (5, 100, 40))
    assert windows(steps, (10, 60, 1, 0), (110, 120, 5, 1)) == [(0, 60), (100, 140)]


def test_where_steps_overtake_one_another_on_the_device_the_windows_are_those_of_the_host() -> None:
    steps = steps_of((1, 0, 10), (2, 10, 10), (3, 20, 10))
    assert windows(steps, (5, 40, 1, 0)) == [(0, 10), (10, 20), (20, 30)]


def test_each_rank_has_its_own_device() -> None:
    both = pl.concat(
        [steps_of((1, 0, 9), (2, 10, 9)), steps_of((1, 0, 9), (2, 10, 9)).with_columns(rank=pl.lit(4, pl.Int32))]
    )
    work = pl.concat([
        work_of((0, 50, 1, 0), (50, 100, 2, 1)).with_columns(rank=pl.lit(3, pl.Int32)),
        work_of((0, 5, 1, 2), (10, 15, 2, 3)).with_columns(rank=pl.lit(4, pl.Int32)),
    ])  # fmt: skip
    got = step_windows(both, work).sort("rank", "step").select("rank", "step", "window_ns").rows()
    assert got == [(3, 1, 50), (3, 2, 50), (4, 1, 10), (4, 2, 9)]


def test_no_steps_have_no_windows() -> None:
    assert step_windows(STEPS.empty(), work_of()).is_empty()


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


def test_an_accelerator_is_a_gpu_and_lanes_are_nowhere():
    assert device_of_tracks(TRACKS_4, GPU).to_list() == ["host", "host", "gpu3", None]


def test_a_device_that_is_not_described_is_a_gpu_all_the_same():
    assert device_of_tracks(TRACKS_4, DEVICES.empty()).to_list() == ["host", "host", "gpu", None]


def test_tracks_of_unknown_kind_count():
    tracks = TRACKS_4.with_columns(kind=pl.lit(None, TRACKS_4.schema["kind"]))
    assert device_of_tracks(tracks, GPU).to_list() == ["host", "host", "gpu3", "host"]


def test_device_work_counts_when_it_was_queued():
    late = (STREAM, 90, 5, "late", "kernel", "launch")
    spans = spans_of((MAIN, 5, 2, "launch", "runtime"), (STREAM, 1, 2, "early", "kernel"), late)
    assert counted_at(spans).tolist() == [5, NOWHERE, 5]


def test_device_work_without_any_launch_record_counts_when_it_ran():
    spans = spans_of((MAIN, 5, 2, "op", "operator"), (STREAM, 90, 5, "k", "kernel"))
    assert counted_at(spans).tolist() == [5, 90]


def test_host_work_counts_when_it_begins():
    spans = spans_of((MAIN, 5, 2, "op", "operator"), (LANE, 6, 2, "x", "other"))
    assert counted_at(spans).tolist() == [5, 6]


def test_each_time_is_in_one_cycle_or_in_none():
    lows, highs = np.array([0, 10, 30]), np.array([10, 20, 40])
    at = np.array([-1, 0, 9, 10, 19, 20, 29, 30, 40, NOWHERE])
    assert cycle_of(at, lows, highs).tolist() == [-1, 0, 0, 1, 1, -1, -1, 2, -1, -1]
    assert cycle_of(at, lows[:0], highs[:0]).tolist() == [-1] * 10
