from __future__ import annotations

import polars as pl
import pytest
from device_traces import BACKWARD, DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.idle import ANALYSIS, IDLE, idle
from stepscope.analyses.steps.timeline import timeline
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.trace import Meta, Trace

US = 1_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def launch(ts_us: int, track: int = HOST) -> tuple[int, int, int, str, str]:
    return (track, ts_us * US, 5 * US, "cudaLaunchKernel", "runtime")


def gap_cause(*host: tuple[int, int, int, str, str], gap_us: int = 1_000, called_us: int | None = 500) -> str:
    """Cause of the gap from 100 µs to 100 + gap_us, when the work after it was called for called_us after 0."""
    first = launch(0)
    calls = [first] if called_us is None else [first, launch(called_us)]
    rows = sorted([*calls, *host], key=lambda r: (r[0], r[1]))
    ids = {row: i for i, row in enumerate(rows)}
    second = None if called_us is None else ids[calls[1]]
    work = [kernel(STREAM_7, 10 * US, 90 * US, "a", ids[first]), kernel(STREAM_7, (100 + gap_us) * US, US, "b", second)]
    got = idle(spans_of(*rows, *work), TRACKS_5)
    assert got.select("n_gaps", "total_ns").rows() == [(1, gap_us * US)]
    return str(got["cause"][0])


def test_work_that_was_called_for_in_the_gap_came_late_from_the_host() -> None:
    assert gap_cause() == "host_late"


def test_work_called_for_in_time_waits_for_the_kernel_before_or_for_something_else() -> None:
    assert gap_cause(called_us=50, gap_us=29) == "kernel_wait"
    assert gap_cause(called_us=50, gap_us=30) == "other"


def test_work_without_a_launch_record_is_unlinked() -> None:
    assert gap_cause(called_us=None) == "unlinked"


def test_a_synchronising_call_still_open_as_the_gap_begins_is_the_cause() -> None:
    assert gap_cause((HOST, 20 * US, 90 * US, "cudaStreamSynchronize", "runtime")) == "sync"


def test_a_synchronising_call_that_returned_before_the_gap_is_not() -> None:
    assert gap_cause((HOST, 20 * US, 30 * US, "cudaStreamSynchronize", "runtime")) == "host_late"


def test_a_synchronising_call_of_a_thread_that_launches_nothing_is_not() -> None:
    assert gap_cause((BACKWARD, 20 * US, 90 * US, "cudaStreamSynchronize", "runtime")) == "host_late"


def test_data_loading_is_the_cause_if_it_takes_at_least_half_of_the_wait() -> None:
    sync = (HOST, 20 * US, 90 * US, "cudaStreamSynchronize", "runtime")
    assert gap_cause(sync, (HOST, 120 * US, 200 * US, LOADER, "dataloader")) == "data_loading"
    assert gap_cause(sync, (HOST, 120 * US, 199 * US, LOADER, "dataloader")) == "sync"


TWO_STREAMS = (
    launch(0), launch(1), launch(2), launch(500),
    kernel(STREAM_7, 10 * US, 90 * US, "a", 0),
    kernel(STREAM_7, 150 * US, 50 * US, "c", 2),
    kernel(STREAM_8, 20 * US, 110 * US, "b", 1),
    kernel(STREAM_8, 600 * US, 10 * US, "d", 3),
)  # fmt: skip


def test_by_device_streams_are_merged_and_by_stream_they_are_not() -> None:
    merged = idle(spans_of(*TWO_STREAMS), TRACKS_5, DEVICES_2)
    assert merged.select("device", "cause", "n_gaps", "total_ns", "share_ratio").rows() == [
        ("cuda:0", "host_late", 1, 400 * US, 400 / 420),
        ("cuda:0", "kernel_wait", 1, 20 * US, 20 / 420),
    ]
    apart = idle(spans_of(*TWO_STREAMS), TRACKS_5, by="stream")
    assert apart.select("stream", "cause", "total_ns", "share_ratio").rows() == [
        (7, "other", 50 * US, 1.0),
        (8, "host_late", 470 * US, 1.0),
    ]


def test_each_gap_names_the_work_around_it_and_the_late_call() -> None:
    spans = spans_of(*TWO_STREAMS).with_columns(step=pl.lit(4, pl.Int32))
    got = idle(spans, TRACKS_5, by="gap")
    assert got["dur_ns"].to_list() == [400 * US, 20 * US]
    first = got.row(0, named=True)
    assert (first["before"], first["after"], first["launch"], first["op"]) == ("c", "d", "cudaLaunchKernel", None)
    assert (first["ts_ns"], first["late_ns"], first["step"]) == (200 * US, 300 * US, 4)
    assert got.row(1, named=True)["before"] == "b"  # it ended last, though it did not start last


def test_short_gaps_can_be_left_out() -> None:
    assert idle(spans_of(*TWO_STREAMS), TRACKS_5, min_gap_ns=21 * US)["n_gaps"].to_list() == [1]
    assert idle(spans_of(*TWO_STREAMS), TRACKS_5, kernel_wait_ns=20 * US)["cause"].to_list() == ["host_late", "other"]


def test_devices_are_judged_apart() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 30, 10), kernel(OTHER_DEVICE, 10, 20))
    assert idle(spans, TRACKS_5).select("device_id", "total_ns").rows() == [(0, 20)]


def test_missing_work_and_unknown_groupings_are_refused() -> None:
    with pytest.raises(MissingTable, match="idle needs device work"):
        idle(spans_of(launch(0)), TRACKS_5)
    with pytest.raises(UnknownName, match="cause"):
        idle(spans_of(*TWO_STREAMS), TRACKS_5, by="cause")  # type: ignore[arg-type]


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": spans_of(*TWO_STREAMS), "tracks": TRACKS_5, "devices": DEVICES_2})
    for by in ("device", "stream", "gap"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: IDLE.dtypes[name] for name in got.columns}


@given(
    st.lists(
        st.tuples(st.sampled_from([STREAM_7, STREAM_8]), st.integers(0, 60), st.integers(0, 15)),
        min_size=1,
        max_size=15,
    )
)
def test_gaps_sum_to_the_idle_time_of_the_timeline(work: list[tuple[int, int, int]]) -> None:
    spans = spans_of(*(kernel(*row) for row in sorted(work)))
    gaps = idle(spans, TRACKS_5, by="gap")
    assert gaps["dur_ns"].sum() == timeline(spans, TRACKS_5)["idle_ns"][0]
    assert gaps["dur_ns"].min() is None or gaps["dur_ns"].min() > 0
