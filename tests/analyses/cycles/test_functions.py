from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from cycle_traces import BACKWARD, GPU, LANE, MAIN, STREAM, TRACKS_4, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.cycles.functions import exposed_time, functions_of, own_of
from stepscope.core.intervals import total, union

TREES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=12)
#: Pieces of device work, and whether each computes (0), communicates (1) or copies (2).
SORTS = {("gemm", "kernel"): 0, ("fill", "memset"): 0, ("ncclAllReduce", "kernel"): 1, ("copy", "memcpy"): 2}
WORK = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from(sorted(SORTS))), min_size=1, max_size=10
)


def nested(pairs):
    """Spans that nest on one thread: each is cut to the one that is open when it begins."""
    result, open_ends = [], []
    for start, length in sorted(pairs, key=lambda p: (p[0], -p[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        end = min([start + length, *open_ends[-1:]])
        result.append((MAIN, start, end - start, "f", "operator"))
        open_ends.append(end)
    return result


@given(TREES)
def test_own_times_of_a_thread_sum_to_the_time_it_was_busy(pairs):
    spans = spans_of(*nested(pairs))
    starts = spans["ts_ns"].to_numpy()
    assert own_of(spans, TRACKS_4, GPU).self_ns.sum() == total(union(starts, starts + spans["dur_ns"].to_numpy()))


def test_a_child_that_outlasts_its_parent_counts_for_as_long_as_it_lies_within():
    spans = spans_of((MAIN, 0, 10, "a", "operator"), (MAIN, 6, 10, "b", "operator"))
    assert own_of(spans, TRACKS_4, GPU).self_ns.tolist() == [6, 10]


def test_what_several_children_of_a_damaged_trace_cover_counts_once():
    spans = spans_of((MAIN, 0, 20, "a", "operator"), (MAIN, 5, 10, "b", "operator"), (MAIN, 10, 8, "c", "operator"))
    spans = spans.with_columns(parent_id=pl.Series([None, 0, 0], dtype=spans.schema["parent_id"]))
    assert own_of(spans, TRACKS_4, GPU).self_ns.tolist() == [7, 10, 8]


@pytest.mark.slow
@given(WORK)
def test_exposed_times_of_a_device_sum_to_the_time_it_was_busy(work):
    spans = spans_of(*((STREAM, ts, dur, name, category) for ts, dur, (name, category) in work))
    exposed = exposed_time(spans, TRACKS_4)
    starts, ends = spans["ts_ns"].to_numpy(), (spans["ts_ns"] + spans["dur_ns"]).to_numpy()
    assert exposed.sum() == total(union(starts, ends))
    order = np.array([SORTS[row] for row in spans.select("name", "category").rows()])
    for sort in range(3):
        first = union(starts[order <= sort], ends[order <= sort])
        assert exposed[order <= sort].sum() == total(first)


def test_without_device_work_nothing_is_exposed():
    assert exposed_time(spans_of((MAIN, 0, 9, "a", "operator")), TRACKS_4).tolist() == [0]


def test_communication_is_exposed_where_nothing_computes():
    spans = spans_of((STREAM, 0, 100, "ncclAllReduce", "kernel"), (STREAM, 20, 30, "gemm", "kernel"))
    assert exposed_time(spans, TRACKS_4).tolist() == [70, 30]


def functions(spans, lows, highs):
    result = functions_of(spans, own_of(spans, TRACKS_4, GPU), np.array(lows), np.array(highs))
    return result, result.frame.sort("row", pl.col("device", "name").cast(pl.String))


def test_functions_of_each_cycle_with_calls_and_times():
    spans = spans_of(
        (MAIN, 0, 60, "ProfilerStep#1", "step"), (MAIN, 5, 40, "aten::mm", "operator"),
        (MAIN, 10, 5, "launch", "runtime"), (STREAM, 70, 30, "gemm", "kernel", "launch"),
        (MAIN, 100, 50, "ProfilerStep#2", "step"), (BACKWARD, 110, 20, "aten::mm", "operator"),
        (MAIN, 105, 9, "aten::mm", "operator"), (LANE, 0, 60, "range", "other"), (STREAM, 1, 2, "x", "device_range"),
    )  # fmt: skip
    result, frame = functions(spans, [0, 100], [100, 150])
    columns = ("row", "device", "name", "category", "calls", "total_ns", "self_ns", "exposed_ns")
    assert frame.select(columns).rows() == [
        (0, "gpu3", "gemm", "kernel", 1, 30, None, 30),  # ran in no cycle's first half: it is the first one's work
        (0, "host", "ProfilerStep", "step", 1, 60, 20, None),
        (0, "host", "aten::mm", "operator", 1, 40, 35, None),
        (0, "host", "launch", "runtime", 1, 5, 5, None),
        (1, "host", "ProfilerStep", "step", 1, 50, 41, None),
        (1, "host", "aten::mm", "operator", 2, 29, 29, None),
    ]
    names = result.frame["name"].gather(result.group).to_list()
    assert [spans["name"][int(i)].split("#")[0] for i in result.events] == names


def test_what_lies_in_no_cycle_is_no_ones():
    spans = spans_of((MAIN, 0, 5, "a", "operator"), (MAIN, 50, 5, "b", "operator"))
    _, frame = functions(spans, [40], [60])
    assert frame["name"].to_list() == ["b"]
    _, frame = functions(spans, [90], [95])
    assert frame.is_empty()


def test_a_span_without_a_name_counts_too():
    spans = spans_of((MAIN, 0, 5, None, "operator"), (MAIN, 9, 5, "b", "operator"))
    _, frame = functions(spans, [0], [60])
    assert frame.sort("name").select("name", "calls").rows() == [(None, 1), ("b", 1)]
