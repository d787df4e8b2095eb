from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_traces import AUTOGRAD, PATH_TRACKS, STREAM_7, STREAM_8, US, Row, call, kernel, op, parts_of, queued, spans_of

from stepscope.analyses.critical_path.path_waits import waits


def found(*rows, tracks=PATH_TRACKS, unit=US):
    """Calls that wait: name of the call, of the work it waited for, of the work it might have waited for."""
    spans = spans_of(*rows, unit=unit)
    threads, work, _ = parts_of(spans)
    got = waits(spans, tracks, threads, work)
    name = spans["name"].cast(pl.String).to_list()
    of_work = [name[row] for row in work.row] + [None]
    rows = zip(got.row, got.work, got.queued, strict=True)
    return [(name[row], of_work[awaited], of_work[queued_]) for row, awaited, queued_ in rows]


def sync(ts, dur, name="cudaDeviceSynchronize", **more):
    return call(ts, dur, name, **more)


def test_a_synchronising_call_waits_for_the_last_work_that_ends_in_it():
    work = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 14, 10, "b")]
    assert found(*work, sync(7, 20)) == [("cudaDeviceSynchronize", "b", None)]


def test_a_call_that_finds_all_done_waited_for_nothing_but_might_have_for_what_its_thread_queued_last():
    work = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 14, 1, "b")]
    assert found(*work, sync(20, 2)) == [("cudaDeviceSynchronize", None, "b")]
    assert found(*work, sync(20, 2, track=AUTOGRAD)) == [("cudaDeviceSynchronize", None, None)]


def test_work_that_still_runs_as_the_call_returns_is_not_waited_for():
    rows = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 6, 40, "b", STREAM_8), sync(7, 8, "cudaStreamSynchronize")]
    assert found(*rows) == [("cudaStreamSynchronize", "a", None)]
    assert found(*rows[2:]) == [("cudaStreamSynchronize", None, None)]


def test_work_queued_while_the_call_was_open_is_not_waited_for():
    other = [call(10, 2, track=AUTOGRAD, key="other"), kernel(13, 10, "other", "late", STREAM_8)]
    assert found(*queued(0, 2, 3, 17, "a"), *other, sync(7, 20)) == [("cudaDeviceSynchronize", "a", None)]


def test_where_the_recorder_tells_the_stream_only_that_one_counts():
    rows = [*queued(0, 2, 3, 10, "a"), *queued(4, 2, 6, 15, "b", STREAM_8), sync(7, 20, key="sync")]
    assert found(*rows, Row(STREAM_7, 7, 20, "Stream Sync", "sync", launch="sync"))[0][1] == "a"
    assert found(*rows, Row(STREAM_7, 7, 20, "Context Sync", "sync", launch="sync"))[0][1] == "b"


def test_another_process_is_not_waited_for():
    tracks = PATH_TRACKS.with_columns(pid=pl.when(pl.col("track_id") == AUTOGRAD).then(2).otherwise(1))
    rows = [*queued(0, 2, 3, 10, "a"), call(1, 2, track=AUTOGRAD, key="b"), kernel(4, 14, "b", "b", STREAM_8)]
    assert found(*rows, sync(7, 20))[0][1] == "b"
    assert found(*rows, sync(7, 20), tracks=tracks)[0][1] == "a"
    loose = kernel(5, 14, None, "loose", STREAM_8)
    assert found(*rows, sync(7, 20), loose)[0][1] == "loose"
    assert found(*rows, sync(7, 20), loose, tracks=tracks)[0][1] == "a"


def test_a_call_that_copies_waits_for_its_copy_if_that_ends_in_it():
    copy = Row(STREAM_7, 5, 5, "Memcpy DtoH", "memcpy", launch="copy")
    assert found(call(3, 10, "cudaMemcpyAsync", key="copy"), copy) == [("cudaMemcpyAsync", "Memcpy DtoH", None)]
    assert found(call(3, 4, "cudaMemcpyAsync", key="copy"), copy) == []


def test_a_call_that_queued_several_copies_waits_for_the_last():
    rows = [Row(STREAM_7, 5 + 3 * i, 2, f"Memcpy {i}", "memcpy", launch="copy") for i in range(3)]
    assert found(call(3, 20, "cudaMemcpy", key="copy"), *rows) == [("cudaMemcpy", "Memcpy 2", None)]


@pytest.mark.parametrize("name", ["aten::item", "cudaLaunchKernel"])
def test_other_calls_do_not_wait(name):
    assert found(*queued(0, 2, 3, 10, "a"), call(5, 10, name)) == []


def test_what_is_recorded_on_no_thread_is_left_out():
    assert found(op(0, 1), sync(5, 3, track=STREAM_8)) == []


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
    ((_, awaited, _),) = found(*rows, sync(start, length))
    assert (awaited is None) == (expected is None)
    if awaited is not None:
        at, delay, lasts, _ = drawn[int(awaited)]
        assert at + delay + lasts == expected
