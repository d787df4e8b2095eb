from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from device_traces import BACKWARD, DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, Row, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.steps.idle import ANALYSIS, IDLE, _candidates, _gaps, caused_gaps, idle
from stepscope.analyses.steps.timeline import timeline
from stepscope.core.errors import MissingTable
from stepscope.core.schema import STEPS, Category
from stepscope.core.trace import Meta, Trace

US = 1_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def launch(ts_us: int, track: int = HOST) -> Row:
    return (track, ts_us * US, 5 * US, "cudaLaunchKernel", "runtime")


def host(start_us: int, end_us: int, name: str, category: str, track: int = HOST) -> Row:
    return (track, start_us * US, (end_us - start_us) * US, name, category)


def gap(*rows: Row, gap_us: int = 1_000, called: Row | None = None, work: str = "b") -> dict[str, Any]:
    """The gap from 100 µs to 100 + gap_us, before work that the call `called` queued; `work` is that work's name."""
    first = launch(0)
    calls = [first] if called is None else [first, called]
    ordered = sorted([*calls, *rows], key=lambda r: (r[0], r[1], -r[2]))
    ids = {row: i for i, row in enumerate(ordered)}
    second = None if called is None else ids[called]
    kernels = [kernel(STREAM_7, 10 * US, 90 * US, "a", ids[first])]
    kernels.append(kernel(STREAM_7, (100 + gap_us) * US, US, work, second))
    got = idle(spans_of(*ordered, *kernels), TRACKS_5, by="gap")
    assert got["dur_ns"].to_list() == [gap_us * US]
    return got.row(0, named=True)


LATE = launch(1_090)


def steps_from(*starts_us: int) -> pl.DataFrame:
    rows = {"step": range(len(starts_us)), "ts_ns": [start * US for start in starts_us], "dur_ns": 100 * US}
    return STEPS.conform(pl.DataFrame(rows).with_columns(source=pl.lit("annotation")))


def test_the_start_of_the_first_step_until_its_first_work_is_a_gap_too() -> None:
    call = launch(50)
    spans = spans_of(call, kernel(STREAM_7, 70 * US, 10 * US, "a", 0), kernel(STREAM_7, 90 * US, 10 * US, "b", None))
    got = idle(spans, TRACKS_5, steps=steps_from(20), by="gap").select("ts_ns", "dur_ns", "before", "after", "cause")
    assert got.rows() == [
        (20 * US, 50 * US, None, "a", "unrecorded"), (80 * US, 10 * US, "a", "b", "unlinked"),
    ]  # fmt: skip
    assert idle(spans, TRACKS_5, steps=steps_from(20))["total_ns"].sum() == 60 * US
    for steps in (steps_from(), steps_from(75)):  # without steps, and when the device works before the first
        assert idle(spans, TRACKS_5, steps=steps)["total_ns"].sum() == 10 * US
    assert idle(spans, TRACKS_5, steps=steps_from(20), by="stream")["total_ns"].sum() == 10 * US


def test_the_start_is_no_gap_if_nothing_says_what_queued_the_first_work() -> None:
    spans = spans_of(launch(50), kernel(STREAM_7, 70 * US, 10 * US, "a", None))
    assert idle(spans, TRACKS_5, steps=steps_from(20)).is_empty()


def test_the_longest_gaps_alone_are_as_among_all() -> None:
    calls = [launch(10 * i) for i in range(4)]
    starts = (20, 130, 160, 300)
    kernels = [kernel(STREAM_7, at * US, 10 * US, "k", i) for i, at in enumerate(starts)]
    spans = spans_of(*calls, *kernels)
    every = idle(spans, TRACKS_5, by="gap")
    assert every["dur_ns"].to_list() == [130 * US, 100 * US, 20 * US]
    assert idle(spans, TRACKS_5, by="gap", longest=2).equals(every.head(2))
    assert idle(spans, TRACKS_5, by="gap", min_gap_ns=50 * US).equals(every.head(2))


def test_work_called_for_in_time_waits_for_the_kernel_before_or_for_something_else() -> None:
    assert gap(called=launch(50), gap_us=29)["cause"] == "kernel_wait"
    assert gap(called=launch(50), gap_us=30)["cause"] == "other"


def test_work_that_waits_on_the_device_for_longer_than_the_host_was_late_has_no_cause_on_the_host() -> None:
    assert gap(called=launch(500))["cause"] == "other"
    assert gap(called=launch(600))["cause"] == "unrecorded"


def test_work_without_a_launch_record_is_unlinked() -> None:
    assert gap()["cause"] == "unlinked"


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (host(110, 1_080, "aten::add", "operator"), "operator"),
        (host(110, 1_080, "train.py(3): step", "python"), "python"),
        (host(110, 1_080, LOADER, "dataloader"), "data_loading"),
        (host(110, 1_080, "cudaMalloc", "runtime"), "allocator"),
        (host(110, 1_080, "hipHostMalloc", "runtime"), "allocator"),
        (host(110, 1_080, "hipMemcpyWithStream", "runtime"), "blocking_call"),
        (host(110, 1_080, "cuMemcpyDtoH_v2", "driver"), "blocking_call"),
        (host(110, 1_080, "cudaMemcpyAsync", "runtime"), "blocking_call"),
        (host(110, 1_080, "cudaEventRecord", "runtime"), "blocking_call"),
        (host(110, 1_080, "cuModuleLoadData", "driver"), "first_use"),
        (host(110, 1_080, "cudaStreamCreateWithFlags", "runtime"), "first_use"),
        (host(110, 1_080, "cudaDeviceSynchronize", "runtime"), "sync"),
        (host(110, 1_080, "gloo:all_reduce", "user_range"), "communication"),
        (host(110, 1_080, "_compile.compile_inner (dynamo_timed)", "user_range"), "compilation"),
        (host(110, 1_080, "triton/compiler/compiler.py(226): compile", "python"), "compilation"),
        (host(110, 1_080, "<built-in function collect>", "python"), "garbage_collection"),
        (host(110, 1_080, "Python GC", "other"), "garbage_collection"),
        (host(110, 1_080, "threading.py(655): wait", "python"), "host_idle"),
        (host(110, 1_080, "<built-in function sleep>", "python"), "host_idle"),
        (host(110, 1_080, "my range", "user_range"), "unrecorded"),
    ],
)
def test_the_cause_is_what_filled_the_gap_and_the_call_is_named(row: Row, cause: str) -> None:
    got = gap(row, called=LATE)
    assert (got["cause"], got["call"], got["call_ns"]) == (cause, row[3], 970 * US)


def test_a_launch_that_takes_long_is_first_use_for_a_new_kernel_and_else_a_slow_launch() -> None:
    slow = host(150, 1_090, "cudaLaunchKernel", "runtime")
    got = gap(slow, host(120, 1_095, "aten::conv2d", "operator"), called=slow)
    assert (got["cause"], got["call"], got["call_ns"], got["cause_ns"]) == (
        "first_use", "cudaLaunchKernel", 940 * US, 940 * US,
    )  # fmt: skip
    assert gap(slow, called=slow, work="a")["cause"] == "slow_launch"


def test_a_call_is_slow_from_a_length_on_and_a_graph_may_take_that_for_each_of_its_kernels() -> None:
    assert gap(host(100, 199, "cudaLaunchKernel", "runtime"), gap_us=102, called=launch(199))["cause"] == "runtime"
    assert gap(host(100, 200, "cudaLaunchKernel", "runtime"), gap_us=103, called=launch(200))["cause"] == "slow_launch"
    graph = host(100, 350, "cudaGraphLaunch", "runtime")
    rows = spans_of(
        launch(0), graph, kernel(STREAM_7, 10 * US, 90 * US, "a", 0), kernel(STREAM_7, 350 * US, US, "b", 1),
        kernel(STREAM_7, 351 * US, US, "c", 1), kernel(STREAM_7, 352 * US, US, "d", 1),
    )  # fmt: skip
    assert idle(rows, TRACKS_5)["cause"].to_list() == ["runtime"]


def test_a_synchronising_call_still_open_as_the_gap_begins_is_the_cause_of_as_much_as_it_lasted() -> None:
    assert gap(host(20, 110, "cudaStreamSynchronize", "runtime"), called=launch(170), gap_us=100)["cause"] == "sync"
    assert gap(host(20, 110, "cudaStreamSynchronize", "runtime"), called=LATE)["cause"] == "unrecorded"
    assert (
        gap(host(20, 30, "cudaStreamSynchronize", "runtime"), called=launch(170), gap_us=100)["cause"] == "unrecorded"
    )


def test_a_blocking_copy_that_waits_for_the_device_counts_as_a_wait_for_it() -> None:
    got = gap(host(20, 105, "cudaMemcpy", "runtime"), called=launch(170), gap_us=100)
    assert (got["cause"], got["call"], got["call_ns"]) == ("sync", "cudaMemcpy", 5 * US)


def test_what_holds_the_host_up_after_a_wait_for_the_device_is_the_cause_and_not_the_wait() -> None:
    wait = host(20, 105, "cudaStreamSynchronize", "runtime")
    assert gap(wait, host(106, 160, "cudaFree", "runtime"), called=launch(170), gap_us=100)["cause"] == "allocator"


def test_data_loading_is_the_cause_if_it_takes_at_least_half_of_the_wait() -> None:
    assert gap(host(110, 700, LOADER, "dataloader"), called=LATE)["cause"] == "data_loading"
    work = host(500, 1_085, "aten::add", "operator")
    assert gap(host(110, 400, LOADER, "dataloader"), work, called=LATE)["cause"] == "operator"


def test_another_launching_thread_counts_where_the_own_thread_is_quiet() -> None:
    backward = host(120, 1_000, "aten::mm", "operator", BACKWARD)
    assert gap(backward, called=LATE)["cause"] == "unrecorded"  # that thread launches nothing
    launches = launch(1, BACKWARD)
    rows = sorted([launch(0), LATE, launches, backward])
    ids = {row: i for i, row in enumerate(rows)}
    python = host(90, 1_090, "train.py(1): backward", "python")
    for more in ([], [python]):
        rows = sorted([launch(0), LATE, launches, backward, *more], key=lambda r: (r[0], r[1], -r[2]))
        ids = {row: i for i, row in enumerate(rows)}
        work = [
            kernel(STREAM_7, 10 * US, 45 * US, "a", ids[launch(0)]),
            kernel(STREAM_7, 55 * US, 45 * US, "a", ids[launches]),
            kernel(STREAM_7, 1_100 * US, US, "b", ids[LATE]),
        ]
        got = idle(spans_of(*rows, *work), TRACKS_5, by="gap").row(0, named=True)
        assert (got["cause"], got["call"]) == ("operator", "aten::mm")


def test_a_call_that_holds_the_device_up_is_the_cause_although_the_work_was_queued() -> None:
    copy = host(110, 1_090, "hipMemcpyWithStream", "runtime")
    assert gap(copy, called=launch(101))["cause"] == "blocking_call"
    assert gap(host(110, 1_090, "cudaStreamSynchronize", "runtime"), called=launch(101))["cause"] == "other"


def test_calls_are_looked_for_where_the_gaps_of_a_cause_are_long_enough_together() -> None:
    rows = (launch(0), host(105, 195, "cudaFree", "runtime"), launch(196), host(202, 390, "a_call", "python"))
    work = [kernel(STREAM_7, start * US, length * US, "k", 0) for start, length in ((10, 90), (200, 1), (400, 1))]
    work[1:] = [kernel(STREAM_7, 200 * US, US, "k", 2), kernel(STREAM_7, 400 * US, US, "k", 4)]
    spans = spans_of(*rows, launch(391), *work)
    tables = device_work(spans, TRACKS_5, needed_by="test"), spans, TRACKS_5, ("rank", "device_id")
    every = caused_gaps(*tables, calls_from_ns=0).sort("ts_ns")
    assert every["cause"].to_list() == ["allocator", "python"]
    assert every["call_id"].to_list() == [1, 3]
    long = caused_gaps(*tables, calls_from_ns=150 * US).sort("ts_ns")
    assert long["call_id"].to_list() == [None, 3]
    assert long.drop("call_id", "call_ns").equals(every.drop("call_id", "call_ns"))


def _brute_gaps(rows: list[tuple[int, int, int]], begin: int | None) -> list[tuple[int, int, int, int | None, int]]:
    """(track, start, length, what ended then, what comes after) of each gap."""
    found = []
    for track in sorted({row[0] for row in rows}):
        mine = sorted((start, start + length, i) for i, (of, start, length) in enumerate(rows) if of == track)
        reach, last = min(mine[0][0], mine[0][0] if begin is None else begin), None
        for start, end, i in mine:
            if start > reach:
                found.append((track, reach, start - reach, last, i))
            if end >= reach:
                reach, last = end, i
    return found


_WORK = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 9))


@given(st.lists(_WORK, max_size=9, unique_by=lambda r: r[:2]), st.sampled_from([None, 0, 5]))
def test_gaps_are_the_times_that_no_work_of_the_group_covers(
    rows: list[tuple[int, int, int]], begin: int | None
) -> None:
    tracks, starts, lengths = ([row[i] for row in rows] for i in range(3))
    work = pl.DataFrame(
        {
            "stream": pl.Series(tracks, dtype=pl.Int64),
            "ts_ns": pl.Series(starts, dtype=pl.Int64),
            "end_ns": pl.Series(np.add(starts, lengths), dtype=pl.Int64),
            "span_id": pl.Series(range(len(rows)), dtype=pl.UInt32),
        }
    ).with_columns(launch_id="span_id", op_id="span_id", step="span_id")
    found = _gaps(work, ("stream",), begin)[["stream", "ts_ns", "dur_ns", "before_id", "after_id"]]
    assert found.rows() == _brute_gaps(rows, begin)


def test_the_innermost_span_that_fills_nearly_all_is_named_and_the_operator_around_it() -> None:
    rows = (
        launch(0),
        host(102, 1_095, "aten::conv2d", "operator"),
        host(104, 1_094, "aten::cudnn_convolution", "operator"),
        host(120, 1_090, "cudaFree", "runtime"),
        host(1_091, 1_093, "cudaLaunchKernel", "runtime"),
    )
    work = (kernel(STREAM_7, 10 * US, 90 * US, "a", 0), kernel(STREAM_7, 1_100 * US, US, "b", 4))
    spans = spans_of(*rows, *work, op_id=[None, None, None, 2, 2, None, 2])
    got = idle(spans, TRACKS_5, by="gap").row(0, named=True)
    assert (got["cause"], got["call"], got["call_op"]) == ("allocator", "cudaFree", "aten::cudnn_convolution")
    calls = spans.with_columns(category=pl.col("category").cast(str).replace({"runtime": "other"}).cast(Category))
    assert idle(calls, TRACKS_5, by="gap").row(0, named=True)["call"] == "aten::cudnn_convolution"


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=8),
)
def test_of_calls_that_fill_a_gap_the_first_is_weighed_and_of_the_rest_all(calls, lengths) -> None:
    high = np.cumsum([apart + length for apart, length in lengths])
    low = high - [length for _, length in lengths]
    start, end = np.array([(s, s + d) for s, d, _ in calls], np.int64).reshape(-1, 2).T
    own = np.array([mine for *_, mine in calls], bool)
    row, at = _candidates(start, end, own, (low, high))
    wanted = set()
    for g in range(low.size):
        reached = [i for i in range(len(calls)) if start[i] < high[g] and end[i] + 1 > low[g]]
        full = [i for i in reached if start[i] <= low[g] and end[i] >= high[g]]
        wanted |= {(i, g) for i in reached if i not in full}
        wanted |= {(next(i for i in full if own[i] == mine), g) for mine in {bool(own[i]) for i in full}}
    assert sorted(zip(row.tolist(), at.tolist(), strict=True)) == sorted(wanted)


def test_a_library_that_sets_itself_up_within_an_operator_also_frees_memory_there() -> None:
    rows = (
        launch(0), host(101, 1_095, "aten::cudnn_convolution", "operator"),
        host(102, 203, "cudaStreamCreateWithFlags", "runtime"), host(210, 1_090, "cudaFree", "runtime"),
        host(1_091, 1_093, "cudaLaunchKernel", "runtime"),
    )  # fmt: skip
    work = (kernel(STREAM_7, 10 * US, 90 * US, "a", 0), kernel(STREAM_7, 1_100 * US, US, "b", 4))
    for op_of_stream, cause in ((1, "first_use"), (None, "allocator")):
        spans = spans_of(*rows, *work, op_id=[None, None, op_of_stream, 1, 1, None, 1])
        got = idle(spans, TRACKS_5, by="gap").row(0, named=True)
        assert (got["cause"], got["call"]) == (cause, "cudaFree")


TWO_STREAMS = (
    launch(0), launch(1), launch(2), launch(590),
    kernel(STREAM_7, 10 * US, 90 * US, "a", 0),
    kernel(STREAM_7, 150 * US, 50 * US, "c", 2),
    kernel(STREAM_8, 20 * US, 110 * US, "b", 1),
    kernel(STREAM_8, 600 * US, 10 * US, "d", 3),
)  # fmt: skip


def test_by_device_streams_are_merged_and_by_stream_they_are_not() -> None:
    merged = idle(spans_of(*TWO_STREAMS), TRACKS_5, DEVICES_2)
    assert merged.select("device", "cause", "n_gaps", "total_ns", "share_ratio").rows() == [
        ("cuda:0", "unrecorded", 1, 400 * US, 400 / 420),
        ("cuda:0", "kernel_wait", 1, 20 * US, 20 / 420),
    ]
    apart = idle(spans_of(*TWO_STREAMS), TRACKS_5, by="stream")
    assert apart.select("stream", "cause", "total_ns", "share_ratio").rows() == [
        (7, "other", 50 * US, 1.0),
        (8, "unrecorded", 470 * US, 1.0),
    ]


def test_each_gap_names_the_work_around_it_and_the_late_call() -> None:
    spans = spans_of(*TWO_STREAMS).with_columns(step=pl.lit(4, pl.Int32))
    got = idle(spans, TRACKS_5, by="gap")
    assert got["dur_ns"].to_list() == [400 * US, 20 * US]
    first = got.row(0, named=True)
    assert (first["before"], first["after"], first["launch"], first["op"]) == ("c", "d", "cudaLaunchKernel", None)
    assert (first["ts_ns"], first["late_ns"], first["step"]) == (200 * US, 390 * US, 4)
    assert got.row(1, named=True)["before"] == "b"  # it ended last, though it did not start last


def test_short_gaps_can_be_left_out() -> None:
    assert idle(spans_of(*TWO_STREAMS), TRACKS_5, min_gap_ns=21 * US)["n_gaps"].to_list() == [1]
    assert idle(spans_of(*TWO_STREAMS), TRACKS_5, kernel_wait_ns=20 * US)["cause"].to_list() == ["unrecorded", "other"]


def test_devices_are_judged_apart() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 30, 10), kernel(OTHER_DEVICE, 10, 20))
    assert idle(spans, TRACKS_5).select("device_id", "total_ns").rows() == [(0, 20)]


def test_missing_work_and_unknown_groupings_are_refused() -> None:
    with pytest.raises(MissingTable, match="idle needs device work"):
        idle(spans_of(launch(0)), TRACKS_5)


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": spans_of(*TWO_STREAMS), "tracks": TRACKS_5, "devices": DEVICES_2})
    for by in ("device", "stream", "gap"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: IDLE.dtypes[name] for name in got.columns}


@pytest.mark.slow
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


NAMES = {
    "data_loading": (LOADER, "dataloader"), "allocator": ("cudaMalloc", "runtime"),
    "operator": ("aten::mm", "operator"), "runtime": ("cudaEventQuery", "runtime"),
    "python": ("a.py(1): f", "python"),
}  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(NAMES)), st.integers(0, 40), st.integers(1, 30), st.sampled_from([HOST, 1])),
        max_size=8,
    )
)
def test_time_in_each_state_is_counted_ns_by_ns(made: list[tuple[str, int, int, int]]) -> None:
    """One gap from 10 to 60 ns, whose work is called for at 58 and returns at 60, against a count of each ns."""
    calls = [(HOST, 0, 1, "cudaLaunchKernel", "runtime"), (HOST, 58, 2, "cudaLaunchKernel", "runtime")]
    calls.append((BACKWARD, 0, 1, "cudaLaunchKernel", "runtime"))
    rows = [(track, start, length, *NAMES[state]) for state, start, length, track in made]
    rows = sorted([*calls, *rows], key=lambda r: (r[0], r[1], -r[2]))
    ids = {row: i for i, row in enumerate(rows)}
    work = [kernel(STREAM_7, 0, 10, "a", ids[calls[0]]), kernel(STREAM_7, 60, 5, "b", ids[calls[1]])]
    work.append(kernel(STREAM_8, 0, 5, "c", ids[calls[2]]))
    got = idle(spans_of(*rows, *work), TRACKS_5, by="gap", kernel_wait_ns=1).row(0, named=True)
    order = ("data_loading", "allocator", "operator", "runtime")
    counts: dict[str, int] = {}
    for ns in range(10, 60):
        on = {HOST: set(), BACKWARD: set()}  # type: dict[int, set[str]]
        for state, start, length, track in [*made, ("runtime", 58, 2, HOST)]:
            if start <= ns < start + length:
                on[track].add(state)
        active = [s for track in (HOST, BACKWARD) for s in order if s in on[track]]
        quiet = ["python"] if "python" in on[HOST] | on[BACKWARD] else []
        now = [*active, *quiet, "unrecorded"][0]
        counts[now] = counts.get(now, 0) + 1
    particular = [s for s in ("data_loading", "allocator") if 2 * counts.get(s, 0) >= 50]
    want = particular or [s for s in counts if counts[s] == max(counts.values())]
    assert got["cause"] in want
    assert got["cause_ns"] == counts[got["cause"]]
