from __future__ import annotations

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.launches import ANALYSIS, LAUNCHES, launches, queue_lengths
from stepscope.core.errors import MissingTable
from stepscope.core.trace import Meta, Trace

ROWS = (
    (HOST, 0, 100, "aten::mm", "operator"),
    (HOST, 10, 10, "cudaLaunchKernel", "runtime"),  # 1
    (HOST, 30, 10, "cudaLaunchKernel", "runtime"),  # 2
    (HOST, 50, 200, "cudaMemcpyAsync", "runtime"),  # 3
    (HOST, 300, 10, "cudaGraphLaunch", "runtime"),  # 4
    (HOST, 400, 10, "cudaLaunchKernel", "runtime"),  # 5: no work of it in the trace
    (HOST, 500, 10, "cudaStreamSynchronize", "runtime"),  # 6
    kernel(STREAM_7, 25, 20, "a", 1),
    kernel(STREAM_7, 50, 5, "b", 2),
    kernel(STREAM_7, 320, 5, "g1", 4),
    kernel(STREAM_7, 330, 5, "g2", 4),
    (STREAM_8, 240, 30, "Memcpy HtoD", "memcpy", 3),
    kernel(STREAM_8, 340, 5, "g3", 4),
)
OPS = [None, 0, 0, 0, None, None, None, 0, 0, None, None, 0, None]


def row(frame: pl.DataFrame, name: str) -> dict[str, object]:
    return frame.row(by_predicate=pl.col("name") == name, named=True)


def test_calls_are_summed_by_name_with_the_delay_of_their_work() -> None:
    got = launches(spans_of(*ROWS, op_id=OPS), TRACKS_5)
    assert got["name"].to_list() == ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaGraphLaunch"]
    plain = row(got, "cudaLaunchKernel")
    assert (plain["calls"], plain["n_unlinked"], plain["n_work"]) == (2, 1, 2)
    assert (plain["host_total_ns"], plain["device_total_ns"]) == (20, 25)
    assert (plain["delay_total_ns"], plain["delay_mean_ns"], plain["delay_max_ns"]) == (5 + 10, 7.5, 10)
    assert plain["n_short"] == 1  # b: 5 ns of work for a call of 10
    assert row(got, "cudaMemcpyAsync")["delay_total_ns"] == 0  # the copy starts before the call returns


def test_a_graph_launch_is_one_call_with_much_work() -> None:
    graph = row(launches(spans_of(*ROWS), TRACKS_5), "cudaGraphLaunch")
    assert (graph["calls"], graph["n_work"], graph["device_total_ns"], graph["delay_total_ns"]) == (1, 3, 15, 10)


def test_latency_leaves_out_waiting_behind_earlier_work() -> None:
    spans = spans_of(
        (HOST, 0, 10, "hipLaunchKernel", "runtime"),
        (HOST, 10, 10, "hipLaunchKernel", "runtime"),
        kernel(STREAM_7, 14, 86, "a", 0),
        kernel(STREAM_7, 103, 5, "b", 1),
    )
    got = launches(spans, TRACKS_5).row(0, named=True)
    assert (got["delay_max_ns"], got["delay_p50_ns"], got["latency_p50_ns"]) == (83, 43.5, 3.5)


def test_thresholds_name_slow_and_late_calls() -> None:
    got = launches(spans_of(*ROWS), TRACKS_5, slow_call_ns=100, late_ns=7)
    assert row(got, "cudaMemcpyAsync")["n_slow"] == 1
    assert row(got, "cudaMemcpyAsync")["n_short"] == 0
    assert row(got, "cudaLaunchKernel")["n_late"] == 1


def test_by_operator() -> None:
    got = launches(spans_of(*ROWS, op_id=OPS), TRACKS_5, by="op")
    assert got.select("op", "calls", "host_total_ns").rows() == [("aten::mm", 3, 220), (None, 1, 10)]


def test_a_runtime_call_and_the_driver_call_inside_it_are_one_launch() -> None:
    spans = spans_of(
        (HOST, 0, 10, "cudaLaunchKernelExC", "runtime"),
        (HOST, 1, 8, "cuLaunchKernelEx", "driver"),
        kernel(STREAM_7, 14, 86, "a", 1),
        correlation=[5, 5, 5],
    )
    assert launches(spans, TRACKS_5).select("name", "calls", "n_unlinked").rows() == [("cuLaunchKernelEx", 1, 0)]


def test_a_call_waits_in_the_queue_until_its_first_work_starts() -> None:
    got = queue_lengths(spans_of(*ROWS), TRACKS_5)
    assert got.filter(pl.col("stream") == 7).select("ts_ns", "queue_length").rows() == [
        (10, 1), (25, 0), (30, 1), (50, 0), (300, 1), (320, 0),
    ]  # fmt: skip


def test_queue_statistics_are_over_time() -> None:
    got = launches(spans_of(*ROWS), TRACKS_5, DEVICES_2, by="queue", full_queue=1)
    assert got.select("device", "stream", "calls", "queue_max", "full_ns").rows() == [
        ("cuda:0", 7, 3, 1, 55),
        ("cuda:0", 8, 2, 1, 230),
    ]
    assert got["queue_mean"].to_list() == pytest.approx([55 / 310, 230 / 290])
    assert got["full_ratio"].to_list() == pytest.approx([55 / 310, 230 / 290])
    assert got["empty_ratio"].to_list() == pytest.approx([1 - 55 / 310, 1 - 230 / 290])


def test_work_without_launches_is_said() -> None:
    with pytest.raises(MissingTable, match="host calls that queued the device work"):
        launches(spans_of(kernel(STREAM_7, 0, 5)), TRACKS_5)


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": spans_of(*ROWS), "tracks": TRACKS_5, "devices": DEVICES_2})
    for by in ("name", "op", "queue"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: LAUNCHES.dtypes[name] for name in got.columns}


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 30)), min_size=1, max_size=15))
def test_the_queue_holds_what_was_called_and_has_not_started(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pairs)
    calls = [(HOST, ts, 1, "cudaLaunchKernel", "runtime") for ts, _ in pairs]
    work = [kernel(STREAM_7, max(ts + wait, 0), 1, "k", i) for i, (ts, wait) in enumerate(pairs)]
    got = queue_lengths(spans_of(*calls, *sorted(work, key=lambda r: r[1])), TRACKS_5)
    for ts, length in got.select("ts_ns", "queue_length").rows():
        assert length == sum(min(c, s) <= ts < s for (c, _), (_, s, *_) in zip(pairs, work, strict=True))
    assert got["queue_length"][-1] == 0
