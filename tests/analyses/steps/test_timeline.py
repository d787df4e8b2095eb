from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.timeline import ANALYSIS, TIMELINE, timeline
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import STEPS
from stepscope.core.trace import Meta, Trace

MEASURES = (
    "computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "busy_ns", "idle_ns", "total_ns",
    "communication_ns", "memcpy_ns",
)  # fmt: skip
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ONE_DEVICE = (
    kernel(STREAM_7, 10, 20),  # 10 to 30
    (STREAM_7, 50, 10, "Memset (Device)", "memset"),
    kernel(STREAM_8, 20, 20, NCCL),  # 20 to 40: 10 of it exposed
    (STREAM_8, 35, 10, "Memcpy DtoH (Device -> Pinned)", "memcpy"),  # 35 to 45: 5 of it exposed
    (STREAM_8, 90, 10, "Context Sync", "sync"),
)


def values(frame: pl.DataFrame, row: int = 0) -> dict[str, int]:
    return frame.select(MEASURES).row(row, named=True)


def test_each_class_is_the_union_over_all_streams() -> None:
    got = timeline(spans_of(*ONE_DEVICE), TRACKS_5)
    assert got.columns == ["rank", *(m for m in TIMELINE.dtypes if m in MEASURES), "n_devices", "n_events"]
    assert got["rank"].to_list() == [3]
    assert values(got) == {
        "computation_ns": 30, "exposed_communication_ns": 10, "exposed_memcpy_ns": 5, "busy_ns": 45, "idle_ns": 5,
        "total_ns": 50, "communication_ns": 20, "memcpy_ns": 10,
    }  # fmt: skip


def test_by_device_all_have_the_window_of_their_rank_and_by_rank_their_mean() -> None:
    spans = spans_of(*ONE_DEVICE, kernel(OTHER_DEVICE, 0, 100))
    got = timeline(spans, TRACKS_5, DEVICES_2, by="device")
    assert got.select("device_id", "device", "busy_ns", "total_ns", "n_events").rows() == [
        (0, "cuda:0", 45, 100, 4),
        (1, "cuda:1", 100, 100, 1),
    ]
    mean = timeline(spans, TRACKS_5).select("busy_ns", "idle_ns", "exposed_communication_ns", "n_devices")
    assert mean.row(0) == (72, 28, 5, 2)


def test_a_step_is_its_window_of_steps_and_work_counts_where_it_runs() -> None:
    steps = STEPS.conform(
        pl.DataFrame({"step": [0, 1, 5], "rank": [3, 3, 3], "ts_ns": [0, 25, 70], "dur_ns": [20, 20, 10]})
    )
    spans = spans_of(*ONE_DEVICE).with_columns(step=pl.Series([0, 1, 0, 0, None], dtype=pl.Int32))
    got = timeline(spans, TRACKS_5, steps=steps, by="step")
    assert got["step"].to_list() == [0, 1, 5]
    # The first step's work runs into the second, whose number is followed by none: it ends by itself.
    assert got["total_ns"].to_list() == [45, 15, 10]
    assert got["busy_ns"].to_list() == [35, 10, 0]
    assert got["computation_ns"].to_list() == [20, 10, 0]
    assert got["idle_ns"].to_list() == [10, 5, 10]
    assert got["n_events"].to_list() == [3, 1, 0]


def test_by_step_says_that_there_are_no_steps() -> None:
    with pytest.raises(MissingTable, match="timeline by step needs steps"):
        timeline(spans_of(*ONE_DEVICE), TRACKS_5, by="step")
    with pytest.raises(MissingTable, match="timeline by step needs steps"):
        timeline(spans_of(*ONE_DEVICE), TRACKS_5, by="step")


def test_linked_only_leaves_out_work_without_a_launch() -> None:
    spans = spans_of(
        (HOST, 0, 1, "cudaLaunchKernel", "runtime"), kernel(STREAM_7, 5, 5, "a", 0), kernel(STREAM_7, 50, 5)
    )
    got = timeline(spans, TRACKS_5, linked_only=True)
    assert got.select("busy_ns", "total_ns", "n_events").row(0) == (5, 5, 1)


def test_what_counts_as_communication_can_be_given() -> None:
    got = timeline(spans_of(*ONE_DEVICE), TRACKS_5, communication="^gemm$")
    assert got.select("communication_ns", "computation_ns").row(0) == (20, 30)


def test_unknown_grouping_and_host_only_traces_are_refused() -> None:
    host_only = Trace(
        Meta("x", "kineto"), {"spans": spans_of((HOST, 0, 1, "aten::mm", "operator")), "tracks": TRACKS_5}
    )
    with pytest.raises(MissingTable, match="timeline needs device work"):
        ANALYSIS(host_only)


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": spans_of(*ONE_DEVICE), "tracks": TRACKS_5, "devices": DEVICES_2})
    got = ANALYSIS(trace, by="device")
    assert dict(got.schema) == {name: TIMELINE.dtypes[name] for name in got.columns}
    assert set(ANALYSIS.options()) == {"by", "linked_only", "communication", "bucket_ns"}


def test_by_stream_each_is_taken_by_itself() -> None:
    got = timeline(spans_of(*ONE_DEVICE, kernel(OTHER_DEVICE, 0, 100)), TRACKS_5, DEVICES_2, by="stream")
    assert got.select("device", "stream", "busy_ns", "total_ns", "n_events").rows() == [
        ("cuda:0", 7, 30, 50, 2), ("cuda:0", 8, 25, 25, 2), ("cuda:1", 7, 100, 100, 1),
    ]  # fmt: skip


def test_by_time_every_device_has_the_same_stretches() -> None:
    spans = spans_of(*ONE_DEVICE, kernel(OTHER_DEVICE, 0, 90))
    got = timeline(spans, TRACKS_5, DEVICES_2, by="time", bucket_ns=40)
    assert got.columns == ["rank", "device_id", "device", "ts_ns", *MEASURES, "n_events"]
    columns = ("device", "ts_ns", "computation_ns", "exposed_communication_ns", "busy_ns", "total_ns", "n_events")
    assert got.select(columns).rows() == [
        ("cuda:0", 0, 20, 10, 30, 40, 3), ("cuda:0", 40, 10, 0, 15, 40, 1), ("cuda:0", 80, 0, 0, 0, 10, 0),
        ("cuda:1", 0, 40, 0, 40, 40, 1), ("cuda:1", 40, 40, 0, 40, 40, 0), ("cuda:1", 80, 10, 0, 10, 10, 0),
    ]  # fmt: skip
    streams = timeline(spans, TRACKS_5, DEVICES_2, by="stream-time", bucket_ns=40)
    assert streams.filter(pl.col("stream") == 8).select("ts_ns", "busy_ns").rows() == [(0, 20), (40, 5), (80, 0)]
    assert dict(streams.schema) == {name: TIMELINE.dtypes[name] for name in streams.columns}


def test_what_begins_at_the_very_end_is_counted() -> None:
    got = timeline(spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 10, 0)), TRACKS_5, by="time", bucket_ns=5)
    assert got["n_events"].to_list() == [1, 1]


def test_too_many_stretches_are_refused() -> None:
    with pytest.raises(StepscopeError, match="no more than 1,000,000 stretches"):
        timeline(spans_of(kernel(STREAM_7, 0, 10_000_000)), TRACKS_5, by="time", bucket_ns=1)


WORK = st.lists(
    st.tuples(
        st.sampled_from([STREAM_7, STREAM_8]),
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from([("gemm", "kernel"), (NCCL, "kernel"), ("Memcpy DtoD", "memcpy"), ("Memset", "memset")]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(WORK, st.lists(st.integers(0, 50), min_size=2, max_size=4, unique=True).map(sorted))
def test_times_equal_a_count_of_nanoseconds_and_steps_sum_to_the_whole(
    work: list[tuple[int, int, int, tuple[str, str]]], bounds: list[int]
) -> None:
    rows = sorted((track, ts, dur, name, category) for track, ts, dur, (name, category) in work)
    spans = spans_of(*rows)
    got = values(timeline(spans, TRACKS_5))
    on = {kind: np.zeros(60, bool) for kind in ("comp", "comm", "copy")}
    for _, ts, dur, name, category in rows:
        on["copy" if category == "memcpy" else "comm" if name == NCCL else "comp"][ts : ts + dur] = True
    comp, comm, copy = on["comp"], on["comm"], on["copy"]
    assert got["computation_ns"] == comp.sum()
    assert got["exposed_communication_ns"] == (comm & ~comp).sum()
    assert got["exposed_memcpy_ns"] == (copy & ~comp & ~comm).sum()
    assert got["busy_ns"] == (comp | comm | copy).sum()
    assert (got["communication_ns"], got["memcpy_ns"]) == (comm.sum(), copy.sum())
    assert got["total_ns"] == max(r[1] + r[2] for r in rows) - min(r[1] for r in rows)
    assert got["idle_ns"] == got["total_ns"] - got["busy_ns"]

    windows = pl.DataFrame({"ts_ns": bounds[:-1], "dur_ns": np.diff(bounds)}).with_row_index("step")
    steps = STEPS.conform(windows.with_columns(rank=pl.lit(3)))
    by_step = timeline(spans, TRACKS_5, steps=steps, by="step")
    inside = slice(bounds[0], bounds[-1])
    assert by_step["busy_ns"].sum() == (comp | comm | copy)[inside].sum()
    assert by_step["exposed_communication_ns"].sum() == (comm & ~comp)[inside].sum()
    assert by_step["total_ns"].sum() == bounds[-1] - bounds[0]

    by_time = timeline(spans, TRACKS_5, by="time", bucket_ns=7)
    for measure in MEASURES:
        assert by_time[measure].sum() == got[measure]
    assert by_time["n_events"].sum() == len(rows)
