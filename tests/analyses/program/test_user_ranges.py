from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.program.user_ranges import ANALYSIS, USER_RANGES, user_ranges
from stepscope.core.errors import MissingTable
from stepscope.core.schema import SPANS, TRACKS
from stepscope.core.trace import Meta, Trace

TRACKS_OF_ALL = TRACKS.conform(
    pl.DataFrame({"track_id": [0, 1, 2, 3], "device_id": [None, None, 1, 1], "stream": [None, None, 7, 8]})
)


def spans_of(*rows: tuple[int, int, int, str, str, int | None]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category, launch_id), already sorted."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category", "launch_id")
    return SPANS.conform(pl.DataFrame(rows, schema=columns, orient="row").with_row_index("span_id"))


TWO_FORWARDS = spans_of(
    (0, 0, 30, "forward", "user_range", None),
    (0, 5, 10, "inner", "user_range", None),
    (0, 6, 2, "cudaLaunchKernel", "runtime", None),
    (0, 20, 2, "cudaLaunchKernel", "runtime", None),
    (0, 100, 40, "forward", "user_range", None),
    (1, 10, 2, "cudaLaunchKernel", "runtime", None),
    (2, 50, 20, "k", "kernel", 2),
    (2, 80, 9, "k", "kernel", 5),
    (3, 60, 30, "k", "kernel", 3),
)


def row(frame: pl.DataFrame, name: str) -> dict[str, object]:
    return frame.row(by_predicate=pl.col("name") == name, named=True)


def test_ranges_of_a_name_are_put_together() -> None:
    forward = row(user_ranges(TWO_FORWARDS, TRACKS_OF_ALL), "forward")
    assert {k: forward[k] for k in ("side", "count", "total_ns", "mean_ns", "min_ns", "max_ns")} == {
        "side": "host", "count": 2, "total_ns": 70, "mean_ns": 35.0, "min_ns": 30, "max_ns": 40,
    }  # fmt: skip
    assert forward["std_ns"] == pytest.approx(50**0.5)
    assert forward["share_ratio"] == 0.5


def test_device_time_is_of_work_launched_within_on_the_same_thread_and_overlaps_count_once() -> None:
    got = user_ranges(TWO_FORWARDS, TRACKS_OF_ALL)
    assert row(got, "forward")["device_ns"] == 40
    assert row(got, "inner")["device_ns"] == 20


def test_a_single_run_has_no_deviation() -> None:
    assert row(user_ranges(TWO_FORWARDS, TRACKS_OF_ALL), "inner")["std_ns"] is None


def test_device_ranges_hold_what_ran_on_their_stream() -> None:
    spans = spans_of(
        (2, 0, 100, "forward", "device_range", None), (2, 10, 20, "k", "kernel", None), (3, 10, 70, "k", "kernel", None)
    )
    got = row(user_ranges(spans, TRACKS_OF_ALL), "forward")
    assert (got["side"], got["device_ns"]) == ("device", 20)


def test_without_device_work_its_time_is_unknown() -> None:
    got = user_ranges(TWO_FORWARDS.filter(pl.col("category") != "kernel"), TRACKS_OF_ALL)
    assert got["device_ns"].null_count() == got.height
    assert dict(got.schema) == dict(USER_RANGES.dtypes)


def test_no_ranges_says_how_to_name_some() -> None:
    trace = Trace(
        Meta("x", "kineto"), {"spans": TWO_FORWARDS.filter(pl.col("category") == "kernel"), "tracks": TRACKS_OF_ALL}
    )
    with pytest.raises(MissingTable) as caught:
        ANALYSIS(trace)
    assert "record_function" in caught.value.hint
