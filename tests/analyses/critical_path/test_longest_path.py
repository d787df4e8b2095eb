from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from path_traces import (
    MAIN,
    NO_ARROWS,
    NO_OPS,
    PATH_TRACKS,
    STREAM_8,
    US,
    Row,
    call,
    kernel,
    op,
    parts_of,
    queued,
    spans_of,
    steps_of,
)
from random_paths import UNIT, case_of, events, longest

from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.longest_path import KINDS, divided, joins, kinds_of, paths, pieces, spent
from stepscope.analyses.critical_path.threads import LONG_AGO, host_threads
from stepscope.analyses.critical_path.waits import handoffs, waits
from stepscope.analyses.critical_path.windows import path_windows
from stepscope.core.schema import EVENT_WAITS

NAMES = list(KINDS)


def kinds(spans, *, has_device=True):
    return [NAMES[code] for code in kinds_of(spans, np.arange(-1, spans.height), has_device=has_device)]


def test_host_time_is_of_the_kind_of_the_span_open():
    spans = spans_of(
        Row(MAIN, 0, 9, "ProfilerStep#1", "step"), op(1, 1), call(2, 1), call(3, 1, "cudaDeviceSynchronize"),
        Row(MAIN, 4, 1, "enumerate(DataLoader)#next", "dataloader"), Row(MAIN, 5, 1, "train.py(1): f", "python"),
        Row(MAIN, 6, 1, "forward", "user_range"), Row(MAIN, 7, 1, "gloo:all_reduce", "user_range"),
        Row(MAIN, 8, 1, "profiler", "overhead"),
    )  # fmt: skip
    assert kinds(spans) == [
        "other_host", "other_host", "operator", "runtime", "sync", "dataloader", "other_host", "other_host",
        "communication", "other_host",
    ]  # fmt: skip


def test_operators_that_exchange_data_are_communication_only_where_no_device_does_it():
    spans = spans_of(op(0, 5, "c10d::allreduce_"), Row(MAIN, 6, 2, "nccl:all_reduce", "user_range"))
    assert kinds(spans)[1:] == ["operator", "other_host"]
    assert kinds(spans, has_device=False)[1:] == ["communication", "communication"]


def test_a_stay_is_divided_among_the_spans_innermost_then():
    spans = spans_of(op(0, 10), op(2, 3), op(12, 4))
    stays = np.array([1, 11]) * US, np.array([8, 20]) * US
    which, row, start, end = divided(host_threads(spans, PATH_TRACKS), 0, stays)
    assert list(zip(which.tolist(), row.tolist(), (start // US).tolist(), (end // US).tolist(), strict=True)) == [
        (0, 0, 1, 2), (0, 1, 2, 5), (0, 0, 5, 8), (1, -1, 11, 12), (1, 2, 12, 16), (1, -1, 16, 20)
    ]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_pieces_add_up_to_each_window_and_are_those_of_the_span_open(drawn, border):
    case = case_of(drawn, border)
    on_path = paths(case.work, case.held, case.joined, case.windows)
    result = pieces(case.spans, case.threads, case.work, case.held, on_path, case.windows)
    sums = dict(result.group_by("window").agg(pl.col("dur_ns").sum()).rows())
    lengths = case.windows.high - case.windows.low
    assert sums == {i: n for i, n in enumerate(lengths.tolist()) if n}
    start, length = case.spans["ts_ns"].to_numpy(), case.spans["dur_ns"].to_numpy()
    spanned = result.filter((pl.col("row") >= 0) & (pl.col("kind") < NAMES.index("launch_delay")))
    for row, ts, dur in spanned.select("row", "ts_ns", "dur_ns").rows():
        assert start[row] <= ts
        assert ts + dur <= start[row] + length[row]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (queued(10, 5, 18, 5), "launch_delay"),
        ([*queued(0, 5, 6, 30, "a"), *queued(10, 5, 38, 5)], "kernel_wait"),
        ([*queued(0, 5, 6, 30, "a"), *queued(10, 5, 90, 5)], "unexplained"),
    ],
)
def test_the_gap_before_work_has_its_kind(rows, expected):
    spans = spans_of(Row(MAIN, 0, 20, "ProfilerStep#0", "step", step=0), *rows)
    case = parts(spans, 0, int((spans["ts_ns"] + spans["dur_ns"]).max() // US))
    last = spans.height - 1
    gap = case.filter((pl.col("row") == last) & (pl.col("kind") >= NAMES.index("launch_delay")))
    assert [NAMES[code] for code in gap["kind"]] == [expected]


def parts(spans, low, high):
    threads, work, held = parts_of(spans)
    windows, _ = path_windows(
        spans, PATH_TRACKS, steps_of((low, high)), recorded_work(spans, PATH_TRACKS), threads, within=None, step=None
    )
    passed = handoffs(spans, NO_OPS, NO_ARROWS, threads)
    joined = joins(waits(spans, PATH_TRACKS, threads, work, EVENT_WAITS.empty()), work, passed, passed)
    return pieces(spans, threads, work, held, paths(work, held, joined, windows), windows)


def test_sorts_of_device_work_are_kinds():
    spans = spans_of(
        Row(MAIN, 0, 3, "ProfilerStep#0", "step", step=0), kernel(0, 1, None, "ncclDevKernel_AllReduce", STREAM_8),
        Row(STREAM_8, 1, 1, "Memcpy HtoD", "memcpy"), Row(STREAM_8, 2, 1, "Memset", "memset"), op(0, 1),
    )  # fmt: skip
    result = parts(spans, 0, 3).sort("ts_ns")
    assert [NAMES[code] for code in result["kind"]] == ["communication", "memcpy", "computation"]


def test_all_time_of_a_window_is_told_whether_on_the_path_or_not():
    case = case_of([(0, 4, 0, "kernel", 3, 1, 5), (0, 2, 1, "op", 3, 0, 0), (3, 2, 0, "op", 3, 0, 0)], 4)
    got = spent(case.spans, case.threads, case.work, case.windows)
    named = got.with_columns(kind=pl.col("kind").replace_strict(dict(enumerate(NAMES)), return_dtype=pl.String))
    result = named.sort("window", "kind", "total_ns").select("window", "kind", pl.col("total_ns") // UNIT).rows()
    assert case.windows.high.tolist() == [6 * UNIT, 10 * UNIT]
    assert result == [(0, "computation", 5), (0, "operator", 2), (0, "runtime", 4), (1, "operator", 2)]


def pieces_by_window(case):
    """Per window the pieces (start, end, what) of the path, in order of time, gaps before work included."""
    got = paths(case.work, case.held, case.joined, case.windows)
    result = {window: [] for window in range(case.windows.low.size)}
    for window, k, entered in zip(got.work_window, got.work, got.entered, strict=True):
        low = case.windows.low[window]
        start, end = max(case.work.start[k], low), min(entered, case.work.end[k])
        result[window].append((start, end, "work", int(k)))
        result[window].append((max(case.held.at[k], low), start, "gap", int(k)))
    for window, thread, low, high in zip(got.stay_window, got.thread, got.low, got.high, strict=True):
        result[window].append((low, high, "thread", int(thread)))
    return {window: sorted(piece for piece in some if piece[1] > piece[0]) for window, some in result.items()}


@pytest.mark.slow
@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_the_path_covers_each_window_without_gap_or_overlap(drawn, border):
    case = case_of(drawn, border)
    for window, some in pieces_by_window(case).items():
        edges = [int(case.windows.low[window]), *(int(end) for _, end, _, _ in some)]
        assert [int(start) for start, _, _, _ in some] == edges[:-1]
        assert edges[-1] == case.windows.high[window]


@pytest.mark.slow
@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_no_path_is_longer_than_the_window_and_one_is_as_long(drawn, border):
    case = case_of(drawn, border)
    for window in range(case.windows.low.size):
        assert longest(case, window) == case.windows.high[window] - case.windows.low[window]


def follows(case, before, after, at):
    """Whether something that happened at a time let another go on at once, perhaps by way of others at that time."""
    work, held = case.work, case.held
    hops = {("gap", k): {("work", k)} for k in np.flatnonzero(work.start == at).tolist()}
    for thread, when, k, source in zip(*(column.tolist() for column in vars_of(case.joined)), strict=True):
        if when == at:
            hops.setdefault(("thread", source) if k < 0 else ("work", k), set()).add(("thread", thread))
    for k in np.flatnonzero(held.at == at).tolist():
        to = ("gap", k) if work.start[k] > at else ("work", k)
        for other in (work.before[k], held.across[k]):
            hops.setdefault(("work", int(other)), set()).add(to)
        hops.setdefault(("thread", int(work.thread[k])), set()).add(to)
    reached, todo = set(), [before]
    while todo:
        new = hops.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return after in reached


def vars_of(joined):
    return joined.thread, joined.at, joined.work, joined.source


@pytest.mark.slow
@settings(max_examples=50)
@given(events, st.integers(0, 20))
def test_the_path_follows_dependencies_only(drawn, border):
    case = case_of(drawn, border)
    for some in pieces_by_window(case).values():
        for (_, at, *before), (_, _, *after) in pairwise(some):
            assert follows(case, tuple(before), tuple(after), at)


def test_a_thread_first_active_in_a_step_is_started_by_its_main_thread():
    # An operator on a thread that nothing links to the main one, and a kernel that it queues.
    case = case_of([(0, 2, 0, "op", 3, 0, 0), (2, 2, 2, "kernel", 3, 1, 9)], 0)
    assert case.first.thread.tolist() == [1]
    assert case.first.at.tolist() == [2 * UNIT]
    assert case.first.since.tolist() == [LONG_AGO]
    (some,) = pieces_by_window(case).values()
    assert [(int(s) // UNIT, int(e) // UNIT, what) for s, e, what, _ in some] == [
        (0, 2, "thread"), (2, 3, "thread"), (3, 12, "work")
    ]  # fmt: skip


def test_windows_without_length_have_no_path():
    case = case_of([(0, 2, 0, "op", 3, 0, 0)], 0)
    windows = case.windows.only(np.array([0]))
    empty = type(windows)(windows.step, windows.rank, windows.low, windows.low, *(
        getattr(windows, name) for name in ("main", "begin", "end", "queued")
    ))  # fmt: skip
    got = paths(case.work, case.held, case.joined, empty)
    assert got.work.size == got.thread.size == 0
