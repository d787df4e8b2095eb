from __future__ import annotations

import pickle

import numpy as np
import pytest
from device_traces import BACKWARD, HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st
from jobs import part

from stepscope import load
from stepscope.analyses.ranks.calls import CALLS, awaited, first_calls, own_base, rank_calls
from stepscope.core.errors import MissingTable
from stepscope.core.trace import Meta, Trace

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def calls(*rows):
    return rank_calls(Trace(Meta("x", "kineto", rank=1), {"tracks": TRACKS_5, "spans": spans_of(*rows)})).calls


def test_a_call_tells_what_was_done_before_it():
    found = calls(
        kernel(STREAM_8, 0, 10, REDUCE),
        kernel(STREAM_7, 20, 30),
        (HOST, 40, 35, "enumerate(DataLoader)#x", "dataloader"),
        kernel(STREAM_8, 100, 10, REDUCE),
    )
    assert found.columns == list(CALLS.dtypes)
    row = found.row(1, named=True)
    assert (row["start_ns"], row["end_ns"], row["kind"], row["measured"]) == (100, 110, "allreduce", "device")
    assert (row["work_ns"], row["compute_ns"], row["data_ns"], row["backward_ns"]) == (90, 30, 25, None)
    assert found["work_ns"].to_list()[0] is None


def test_an_exchange_beside_which_work_goes_on_is_not_waited_for():
    found = calls(kernel(STREAM_8, 0, 100, REDUCE), kernel(STREAM_7, 0, 200), kernel(STREAM_8, 300, 10, REDUCE))
    assert found["blocks"].to_list() == [False, True]
    assert found["work_ns"].to_list()[1] == 300  # since the start of the first


def test_phases_are_told_on_the_device():
    found = calls(
        (BACKWARD, 0, 50, "autograd::engine::evaluate_function: X", "operator"),
        (BACKWARD, 5, 5, "cudaLaunchKernel", "runtime"),
        kernel(STREAM_8, 100, 10, REDUCE),
        kernel(STREAM_7, 120, 30, launch=1),
        kernel(STREAM_8, 200, 10, REDUCE),
    )
    assert found.row(1, named=True)["backward_ns"] == 30


def test_several_kernels_of_one_call_are_one():
    launched = [(HOST, 0, 50, "nccl:all_reduce", "operator"), (HOST, 5, 5, "cudaLaunchKernel", "runtime")]
    rows = [*launched, kernel(STREAM_8, 100, 10, REDUCE, 1), kernel(STREAM_8, 120, 10, REDUCE, 1)]
    spans = spans_of(*rows, parent_id=[None, 0, None, None])
    found = rank_calls(Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans})).calls
    assert found.select("start_ns", "end_ns").rows() == [(100, 130)]


def test_a_trace_without_exchanges_or_with_queued_ones_only_is_refused():
    with pytest.raises(MissingTable, match="exchanges with other ranks"):
        calls(kernel(STREAM_7, 0, 5))
    with pytest.raises(MissingTable, match="only when they were queued"):
        calls((HOST, 0, 5, "c10d::allreduce_", "operator"))
    with pytest.raises(MissingTable, match="spans"):
        rank_calls(Trace(Meta("x", "kineto"), {}))


def test_a_recorded_rank_is_small_and_can_be_sent(examples):
    trace = load(examples / "demo-cpu-2ranks" / "rank1.pt.trace.json.gz")
    found = rank_calls(trace)
    again = pickle.loads(pickle.dumps(found))
    assert len(pickle.dumps(found)) < 50_000
    assert again.calls.equals(found.calls)
    assert (found.rank, found.world_size, found.calls.height) == (1, 2, 8)
    assert found.calls["measured"].unique().to_list() == ["host"]
    assert found.work["total_ns"].sum() > 0


spans_st = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15), st.booleans()), max_size=25)


@given(spans_st)
def test_what_a_call_follows_is_the_last_end_waited_for_or_start_before_it(rows):
    rows = sorted((r, s, s + d, b) for r, s, d, b in rows)
    rank, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    blocks = np.array([row[3] for row in rows], bool)
    found = own_base(start, end, blocks, rank)
    for i in range(len(rows)):
        own = [j for j in range(len(rows)) if rank[j] == rank[i] and j != i]
        before = [j for j in own if j < i]
        if not before:
            assert found[i] == -1
            continue
        ends = [end[j] for j in own if blocks[j] and end[j] <= start[i]]
        when = end[found[i] >> 1] if found[i] % 2 == 0 else start[found[i] >> 1]
        assert when == max([*ends, start[i - 1]])


def test_the_last_part_of_an_exchange_tells_whether_it_was_waited_for():
    busy = np.array([0, 500]), np.array([95, 900])
    got = awaited(np.array([0, 10, 480]), np.array([100, 90, 800]), busy)
    assert got.tolist() == [False, False, False]
    assert awaited(np.array([100]), np.array([400]), busy).tolist() == [True]


def test_the_first_exchanges_are_those_of_whole_steps():
    rows = [(10 * i, 10 * i + 5) for i in range(6)]
    whole = part(0, *rows, step=[1, 1, 2, 2, 3, 3])
    assert first_calls(whole, 6) is whole
    assert first_calls(whole, 5).calls["step"].to_list() == [1, 1, 2, 2]
    assert first_calls(whole, 4).calls["step"].to_list() == [1, 1, 2, 2]
    assert first_calls(whole, 1).calls.height == 1  # the only step: better a part of it than nothing
    assert first_calls(part(0, *rows), 5).calls.height == 5
