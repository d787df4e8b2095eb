from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_traces import (
    AUTOGRAD,
    MAIN,
    NO_ARROWS,
    NO_OPS,
    OTHER,
    PATH_TRACKS,
    STREAM_7,
    STREAM_8,
    US,
    Row,
    call,
    kernel,
    op,
    parts_of,
    queued,
    spans_of,
)

from stepscope.analyses.critical_path.threads import LONG_AGO, host_threads
from stepscope.analyses.critical_path.waits import handoffs, waits
from stepscope.core.schema import ARROWS, EVENT_WAITS, OPS


def waits_in(*rows, tracks=PATH_TRACKS, unit=US):
    """Calls that wait: name of the call, of the work it waited for, of the work it might have waited for."""
    spans = spans_of(*rows, unit=unit)
    threads, work, _ = parts_of(spans)
    got = waits(spans, tracks, threads, work, EVENT_WAITS.empty())
    name = spans["name"].cast(pl.String).to_list()
    of_work = [name[row] for row in work.row] + [None]
    rows = zip(got.row, got.work, got.queued, strict=True)
    return [(name[row], of_work[awaited], of_work[queued_]) for row, awaited, queued_ in rows]


def sync(ts, dur, name="cudaDeviceSynchronize", **more):
    return call(ts, dur, name, **more)


def test_a_synchronising_call_waits_for_the_last_work_that_ends_in_it():
    work = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 14, 10, "b")]
    assert waits_in(*work, sync(7, 20)) == [("cudaDeviceSynchronize", "b", None)]


def test_a_call_that_finds_all_done_waited_for_nothing_but_might_have_for_what_its_thread_queued_last():
    work = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 14, 1, "b")]
    assert waits_in(*work, sync(20, 2)) == [("cudaDeviceSynchronize", None, "b")]
    assert waits_in(*work, sync(20, 2, track=AUTOGRAD)) == [("cudaDeviceSynchronize", None, None)]


def test_work_that_still_runs_as_the_call_returns_is_not_waited_for():
    rows = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 6, 40, "b", STREAM_8), sync(7, 8, "cudaStreamSynchronize")]
    assert waits_in(*rows) == [("cudaStreamSynchronize", "a", None)]
    assert waits_in(*rows[2:]) == [("cudaStreamSynchronize", None, None)]


def test_work_queued_while_the_call_was_open_is_not_waited_for():
    other = [call(10, 2, track=AUTOGRAD, key="other"), kernel(13, 10, "other", "late", STREAM_8)]
    assert waits_in(*queued(0, 2, 3, 17, "a"), *other, sync(7, 20)) == [("cudaDeviceSynchronize", "a", None)]


def test_where_the_recorder_tells_the_stream_only_that_one_counts():
    rows = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 6, 15, "b", STREAM_8), sync(7, 20, key="sync")]
    assert waits_in(*rows, Row(STREAM_7, 7, 20, "Stream Sync", "sync", launch="sync"))[0][1] == "a"
    assert waits_in(*rows, Row(STREAM_7, 7, 20, "Context Sync", "sync", launch="sync"))[0][1] == "b"


def test_another_process_is_not_waited_for():
    tracks = PATH_TRACKS.with_columns(pid=pl.when(pl.col("track_id") == AUTOGRAD).then(2).otherwise(1))
    rows = [*queued(0, 2, 3, 10, "a"), call(1, 2, track=AUTOGRAD, key="b"), kernel(4, 14, "b", "b", STREAM_8)]
    assert waits_in(*rows, sync(7, 20))[0][1] == "b"
    assert waits_in(*rows, sync(7, 20), tracks=tracks)[0][1] == "a"
    loose = kernel(5, 14, None, "loose", STREAM_8)
    assert waits_in(*rows, sync(7, 20), loose)[0][1] == "loose"
    assert waits_in(*rows, sync(7, 20), loose, tracks=tracks)[0][1] == "a"


def test_a_call_that_copies_waits_for_its_copy_if_that_ends_in_it():
    copy = Row(STREAM_7, 5, 5, "Memcpy DtoH", "memcpy", launch="copy")
    assert waits_in(call(3, 10, "cudaMemcpyAsync", key="copy"), copy) == [("cudaMemcpyAsync", "Memcpy DtoH", None)]
    assert waits_in(call(3, 4, "cudaMemcpyAsync", key="copy"), copy) == []


def test_a_call_that_queued_several_copies_waits_for_the_last():
    rows = [Row(STREAM_7, 5 + 3 * i, 2, f"Memcpy {i}", "memcpy", launch="copy") for i in range(3)]
    assert waits_in(call(3, 20, "cudaMemcpy", key="copy"), *rows) == [("cudaMemcpy", "Memcpy 2", None)]


@pytest.mark.parametrize("name", ["aten::item", "cudaLaunchKernel"])
def test_other_calls_do_not_wait(name):
    assert waits_in(*queued(0, 2, 3, 10, "a"), call(5, 10, name)) == []


def test_what_is_recorded_on_no_thread_is_left_out():
    assert waits_in(op(0, 1), sync(5, 3, track=STREAM_8)) == []


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 8), st.sampled_from([7, 8])), max_size=8),
    st.integers(0, 40),
    st.integers(0, 20),
)
def test_what_is_waited_for_is_found_among_all_work(drawn, start, length):
    rows = []
    for i, (at, delay, lasts, stream) in enumerate(drawn):
        rows += queued(at, 1, at + delay, lasts, f"{i}", {7: STREAM_7, 8: STREAM_8}[stream])
        rows[-2] = call(at, 1, key=f"k{i}")
        rows[-1] = kernel(at + delay, lasts, f"k{i}", f"{i}", {7: STREAM_7, 8: STREAM_8}[stream])
    ends = [at + delay + lasts for at, delay, lasts, _ in drawn if lasts and at <= start]
    expected = max((end for end in ends if start < end <= start + length), default=None)
    ((_, awaited, _),) = waits_in(*rows, sync(start, length))
    assert (awaited is None) == (expected is None)
    if awaited is not None:
        at, delay, lasts, _ = drawn[int(awaited)]
        assert at + delay + lasts == expected


ARROW = ARROWS.conform(
    pl.DataFrame({"from_track_id": [MAIN], "from_ts_ns": [0], "to_track_id": [AUTOGRAD], "to_ts_ns": [0]})
)


def handoffs_in(spans, ops=NO_OPS, arrows=NO_ARROWS):
    """Handoffs as (to thread, at, from thread), in µs."""
    got = handoffs(spans, ops, arrows, host_threads(spans, PATH_TRACKS))
    return list(zip(got.thread.tolist(), (got.at // US).tolist(), got.source.tolist(), strict=True))


BACKWARD = spans_of(op(0, 10, "forward"), op(15, 10, "a", AUTOGRAD), op(27, 13, "b", AUTOGRAD), op(45, 5, "step"))


@pytest.mark.parametrize("arrows", [ARROW, pl.concat([ARROW, ARROW])])
def test_backward_begins_when_its_caller_falls_quiet_and_the_caller_goes_on_when_it_ends(arrows):
    assert handoffs_in(BACKWARD, arrows=arrows) == [(0, 40, 1), (1, 15, 0)]


def test_sequence_numbers_tell_the_threads_of_autograd_as_arrows_do():
    ops = OPS.conform(pl.DataFrame({"span_id": [0, 2], "sequence": [7, 7], "forward_thread": [None, 1]}))
    assert handoffs_in(BACKWARD, ops=ops) == [(0, 40, 1), (1, 15, 0)]


def test_threads_that_nothing_links_do_not_wait_for_each_other():
    assert handoffs_in(BACKWARD) == []


def test_of_arrows_both_ways_the_more_frequent_tells_who_called():
    back = ARROW.rename({"from_track_id": "to_track_id", "to_track_id": "from_track_id"}).select(ARROW.columns)
    assert handoffs_in(BACKWARD, arrows=pl.concat([ARROW, ARROW, back])) == handoffs_in(BACKWARD, arrows=ARROW)


def test_a_caller_at_work_waits_for_nothing():
    spans = spans_of(op(0, 50), op(15, 10, track=AUTOGRAD), op(60, 5))
    assert handoffs_in(spans, arrows=ARROW) == []


def test_a_helper_at_work_before_the_caller_fell_quiet_is_not_waited_for():
    spans = spans_of(op(0, 10), op(5, 25, track=AUTOGRAD), op(40, 5))
    assert handoffs_in(spans, arrows=ARROW) == []


def test_a_caller_waits_for_backward_also_where_it_does_nothing_after():
    assert handoffs_in(spans_of(op(0, 10), op(15, 10, track=AUTOGRAD)), arrows=ARROW) == [(0, 25, 1), (1, 15, 0)]


def test_what_a_thread_had_last_done_itself_is_told():
    got = handoffs(BACKWARD, NO_OPS, ARROW, host_threads(BACKWARD, PATH_TRACKS))
    assert got.since.tolist() == [10 * US, LONG_AGO]


def exchange(ts, dur, track=OTHER):
    return Row(track, ts, dur, "gloo:all_reduce", "user_range")


def test_a_thread_long_quiet_waits_for_the_collective_that_it_called_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), op(12, 8), exchange(5, 60), op(70, 5))
    assert handoffs_in(spans) == [(0, 65, 1), (1, 5, 0)]


def test_of_collectives_on_several_threads_the_last_is_waited_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), exchange(5, 40), exchange(5, 60, AUTOGRAD), op(70, 5))
    assert handoffs_in(spans) == [(0, 65, 1), (1, 5, 0), (2, 5, 0)]


def test_a_collective_that_ends_in_a_short_pause_is_not_waited_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), exchange(5, 34), op(40, 5))
    assert handoffs_in(spans) == [(1, 5, 0)]


def test_a_collective_called_for_while_the_one_before_ran_follows_that():
    spans = spans_of(op(0, 4, "c10d::allreduce_"), op(6, 4, "c10d::allreduce_"), exchange(5, 10), exchange(16, 10))
    assert handoffs_in(spans) == [(1, 5, 0)]
