from __future__ import annotations

import pickle

import numpy as np
import polars as pl
import pytest
from device_traces import BACKWARD, HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st
from jobs import part

from stepscope import load
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.ranks.calls import (
    CALLS,
    MOST_NAMES,
    awaited,
    first_calls,
    own_base,
    phase_intervals,
    rank_calls,
    resources_of,
    work_of,
)
from stepscope.core.errors import MissingTable
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def calls(*rows):
    return rank_calls(Trace(Meta("x", "kineto", rank=1), {"tracks": TRACKS_5, "spans": spans_of(*rows)})).calls


def test_calls_are_the_same_from_device_work_that_is_known_already():
    made = trace(kernel(STREAM_8, 0, 10, REDUCE), kernel(STREAM_7, 5, 20), kernel(STREAM_8, 50, 10, REDUCE))
    known = rank_calls(made, device_work(made.spans, made.tracks, needed_by=None))
    assert known.calls.equals(rank_calls(made).calls)
    assert known.work.equals(rank_calls(made).work)


def test_a_call_tells_what_was_done_before_it():
    result = calls(
        kernel(STREAM_8, 0, 10, REDUCE),
        kernel(STREAM_7, 20, 30),
        (HOST, 40, 35, "enumerate(DataLoader)#x", "dataloader"),
        kernel(STREAM_8, 100, 10, REDUCE),
    )
    assert result.columns == list(CALLS.dtypes)
    row = result.row(1, named=True)
    assert (row["start_ns"], row["end_ns"], row["kind"], row["measured"]) == (100, 110, "allreduce", "device")
    assert (row["work_ns"], row["compute_ns"], row["data_ns"], row["backward_ns"]) == (90, 30, 25, None)
    assert result["work_ns"].to_list()[0] is None


def test_a_collective_beside_which_work_goes_on_is_not_waited_for():
    result = calls(kernel(STREAM_8, 0, 100, REDUCE), kernel(STREAM_7, 0, 200), kernel(STREAM_8, 300, 10, REDUCE))
    assert result["blocks"].to_list() == [False, True]
    assert result["work_ns"].to_list()[1] == 300  # since the start of the first


def test_phases_are_told_on_the_device():
    result = calls(
        (BACKWARD, 0, 50, "autograd::engine::evaluate_function: X", "operator"),
        (BACKWARD, 5, 5, "cudaLaunchKernel", "runtime"),
        kernel(STREAM_8, 100, 10, REDUCE),
        kernel(STREAM_7, 120, 30, launch=1),
        kernel(STREAM_8, 200, 10, REDUCE),
    )
    assert result.row(1, named=True)["backward_ns"] == 30


def test_several_kernels_of_one_call_are_one():
    launched = [(HOST, 0, 50, "nccl:all_reduce", "operator"), (HOST, 5, 5, "cudaLaunchKernel", "runtime")]
    rows = [*launched, kernel(STREAM_8, 100, 10, REDUCE, 1), kernel(STREAM_8, 120, 10, REDUCE, 1)]
    spans = spans_of(*rows, parent_id=[None, 0, None, None])
    result = rank_calls(Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans})).calls
    assert result.select("start_ns", "end_ns").rows() == [(100, 130)]


def test_a_trace_without_collectives_or_with_queued_ones_only_is_refused():
    with pytest.raises(MissingTable, match="collectives"):
        calls(kernel(STREAM_7, 0, 5))
    with pytest.raises(MissingTable, match="only when they were queued"):
        calls((HOST, 0, 5, "c10d::allreduce_", "operator"))
    with pytest.raises(MissingTable, match="spans"):
        rank_calls(Trace(Meta("x", "kineto"), {}))


def test_a_recorded_rank_is_small_and_can_be_sent(examples):
    trace = load(examples / "demo-cpu-2ranks" / "rank1.pt.trace.json.gz")
    result = rank_calls(trace)
    again = pickle.loads(pickle.dumps(result))
    assert len(pickle.dumps(result)) < 50_000
    assert again.calls.equals(result.calls)
    assert (result.rank, result.world_size, result.calls.height) == (1, 2, 8)
    assert result.calls["measured"].unique().to_list() == ["host"]
    assert result.work["total_ns"].sum() > 0


spans_st = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15), st.booleans()), max_size=25)


@given(spans_st)
def test_what_a_call_follows_is_the_last_end_waited_for_or_start_before_it(rows):
    rows = sorted((r, s, s + d, b) for r, s, d, b in rows)
    rank, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    blocks = np.array([row[3] for row in rows], bool)
    result = own_base(start, end, blocks, rank)
    for i in range(len(rows)):
        own = [j for j in range(len(rows)) if rank[j] == rank[i] and j != i]
        before = [j for j in own if j < i]
        if not before:
            assert result[i] == -1
            continue
        ends = [end[j] for j in own if blocks[j] and end[j] <= start[i]]
        when = end[result[i] >> 1] if result[i] % 2 == 0 else start[result[i] >> 1]
        assert when == max([*ends, start[i - 1]])


def test_the_last_part_of_a_collective_tells_whether_it_was_waited_for():
    busy = np.array([0, 500]), np.array([95, 900])
    got = awaited(np.array([0, 10, 480]), np.array([100, 90, 800]), busy)
    assert got.tolist() == [False, False, False]
    assert awaited(np.array([100]), np.array([400]), busy).tolist() == [True]


def test_the_first_collectives_are_those_of_whole_steps():
    rows = [(10 * i, 10 * i + 5) for i in range(6)]
    whole = part(0, *rows, step=[1, 1, 2, 2, 3, 3])
    assert first_calls(whole, 6) is whole
    assert first_calls(whole, 5).calls["step"].to_list() == [1, 1, 2, 2]
    assert first_calls(whole, 4).calls["step"].to_list() == [1, 1, 2, 2]
    assert first_calls(whole, 1).calls.height == 1  # the only step: better a part of it than nothing
    assert first_calls(part(0, *rows), 5).calls.height == 5


def trace(*rows, **tables: pl.DataFrame) -> Trace:
    return Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans_of(*rows)} | tables)


def of_kernels(made: Trace) -> pl.DataFrame:
    return work_of(made, device_work(made.spans, made.tracks, needed_by=None))


def test_kernels_that_compute_are_summed_by_name():
    rows = kernel(STREAM_7, 0, 10), kernel(STREAM_7, 20, 30), kernel(STREAM_7, 60, 5, "ncclDevKernel_AllReduce")
    result = of_kernels(trace(*rows))
    assert result.rows() == [("gemm", 2, 40)]


def test_operators_count_without_those_inside_and_without_collectives():
    rows = [
        (HOST, 0, 100, "aten::linear", "operator"),
        (HOST, 10, 50, "aten::mm", "operator"),
        (HOST, 200, 40, "gloo:all_reduce", "operator"),
        (HOST, 300, 9, "record_param_comms", "operator"),
    ]
    spans = spans_of(*rows, parent_id=pl.Series([None, 0, None, None], dtype=pl.UInt32))
    result = work_of(Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans}), None)
    assert sorted(result.rows()) == [("aten::linear", 1, 50), ("aten::mm", 1, 50)]


def test_names_beyond_the_most_are_one_row():
    result = of_kernels(trace(*[kernel(STREAM_7, 10 * i, 5, f"k{i}") for i in range(MOST_NAMES + 9)]))
    assert result.height == MOST_NAMES + 1
    assert result.row(-1) == (None, 9, 45)


def test_a_trace_without_operators_computed_nothing():
    assert work_of(trace((HOST, 0, 5, "gloo:barrier", "operator")), None).is_empty()


def test_resources_are_means_within_the_window_of_this_process_and_the_machine():
    samples = COUNTERS.conform(pl.DataFrame({
        "ts_ns": [0, 10, 20, 99, 10],
        "device": ["pid:7", "pid:7", "host", "host", "pid:8"],
        "pid": [7, 7, None, None, 8],
        "metric": ["rss", "rss", "load", "load", "rss"],
        "unit": ["bytes", "bytes", "%", "%", "bytes"],
        "value": [1.0, 3.0, 5.0, 100.0, 1000.0],
    }))  # fmt: skip
    tracks = TRACKS_5.with_columns(pid=pl.lit(7, pl.Int64))
    result = resources_of(trace((HOST, 0, 5, "x", "operator"), counters=samples, tracks=tracks), (0, 50))
    assert result.rows() == [("host", "load", "%", 5.0), ("process", "rss", "bytes", 2.0)]


US = 1000
ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def phases(*rows, on_device: bool = False) -> dict[str, list[tuple[int, int]]]:
    trace = Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans_of(*rows)})
    result = phase_intervals(trace, device_work(trace.spans, trace.tracks, needed_by=None) if on_device else None)
    return {name: list(zip(*(a.tolist() for a in iv), strict=True)) for name, iv in result.items()}


def test_phases_are_told_by_the_names_of_pytorchs_engine_and_optimizer():
    result = phases(
        (HOST, 0, 5, "enumerate(DataLoader)", "dataloader"),
        (HOST, 500 * US, 10 * US, "Optimizer.step#AdamW.step", "user_range"),
        (BACKWARD, 100 * US, 10 * US, ENGINE, "operator"),
        (BACKWARD, 120 * US, 10 * US, ENGINE, "operator"),
        (BACKWARD, 9000 * US, 10 * US, ENGINE, "operator"),
    )
    assert result["data loading"] == [(0, 5)]
    assert result["backward"] == [(100 * US, 130 * US), (9000 * US, 9010 * US)]
    assert result["optimizer"] == [(500 * US, 510 * US)]


def test_on_a_device_work_belongs_to_the_phase_that_queued_it():
    result = phases(
        (BACKWARD, 100, 50, ENGINE, "operator"),
        (BACKWARD, 110, 5, "cudaLaunchKernel", "runtime"),
        (BACKWARD, 400, 5, "cudaLaunchKernel", "runtime"),
        kernel(STREAM_7, 900, 20, launch=1),
        kernel(STREAM_7, 950, 20, launch=2),
        kernel(STREAM_7, 980, 20),
        on_device=True,
    )
    assert result["backward"] == [(900, 920)]
    assert result["optimizer"] == []


def test_other_programs_have_no_phases():
    assert phases((HOST, 0, 5, "aten::mm", "operator")) == {"data loading": []}
