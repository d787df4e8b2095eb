from __future__ import annotations

import polars as pl
import pytest
from path_traces import AUTOGRAD, MAIN, NO_ARROWS, NO_OPS, OTHER, PATH_TRACKS, US, Row, op, spans_of

from stepscope.analyses.critical_path.path_handoffs import handoffs
from stepscope.analyses.critical_path.path_order import LONG_AGO
from stepscope.analyses.critical_path.path_threads import host_threads
from stepscope.core.schema import ARROWS, OPS

ARROW = ARROWS.conform(
    pl.DataFrame({"from_track_id": [MAIN], "from_ts_ns": [0], "to_track_id": [AUTOGRAD], "to_ts_ns": [0]})
)


def found(spans, ops=NO_OPS, arrows=NO_ARROWS):
    """Handoffs as (to thread, at, from thread), in µs."""
    got = handoffs(spans, ops, arrows, host_threads(spans, PATH_TRACKS))
    return list(zip(got.thread.tolist(), (got.at // US).tolist(), got.source.tolist(), strict=True))


BACKWARD = spans_of(op(0, 10, "forward"), op(15, 10, "a", AUTOGRAD), op(27, 13, "b", AUTOGRAD), op(45, 5, "step"))


@pytest.mark.parametrize("arrows", [ARROW, pl.concat([ARROW, ARROW])])
def test_backward_begins_when_its_caller_falls_quiet_and_the_caller_goes_on_when_it_ends(arrows):
    assert found(BACKWARD, arrows=arrows) == [(0, 40, 1), (1, 15, 0)]


def test_sequence_numbers_tell_the_threads_of_autograd_as_arrows_do():
    ops = OPS.conform(pl.DataFrame({"span_id": [0, 2], "sequence": [7, 7], "forward_thread": [None, 1]}))
    assert found(BACKWARD, ops=ops) == [(0, 40, 1), (1, 15, 0)]


def test_threads_that_nothing_links_do_not_wait_for_each_other():
    assert found(BACKWARD) == []


def test_of_arrows_both_ways_the_more_frequent_tells_who_called():
    back = ARROW.rename({"from_track_id": "to_track_id", "to_track_id": "from_track_id"}).select(ARROW.columns)
    assert found(BACKWARD, arrows=pl.concat([ARROW, ARROW, back])) == found(BACKWARD, arrows=ARROW)


def test_a_caller_at_work_waits_for_nothing():
    spans = spans_of(op(0, 50), op(15, 10, track=AUTOGRAD), op(60, 5))
    assert found(spans, arrows=ARROW) == []


def test_a_helper_at_work_before_the_caller_fell_quiet_is_not_waited_for():
    spans = spans_of(op(0, 10), op(5, 25, track=AUTOGRAD), op(40, 5))
    assert found(spans, arrows=ARROW) == []


def test_a_caller_waits_for_backward_also_where_it_does_nothing_after():
    assert found(spans_of(op(0, 10), op(15, 10, track=AUTOGRAD)), arrows=ARROW) == [(0, 25, 1), (1, 15, 0)]


def test_what_a_thread_had_last_done_itself_is_told():
    got = handoffs(BACKWARD, NO_OPS, ARROW, host_threads(BACKWARD, PATH_TRACKS))
    assert got.since.tolist() == [10 * US, LONG_AGO]


def exchange(ts, dur, track=OTHER):
    return Row(track, ts, dur, "gloo:all_reduce", "user_range")


def test_a_thread_long_quiet_waits_for_the_exchange_that_it_called_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), op(12, 8), exchange(5, 60), op(70, 5))
    assert found(spans) == [(0, 65, 1), (1, 5, 0)]


def test_of_exchanges_on_several_threads_the_last_is_waited_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), exchange(5, 40), exchange(5, 60, AUTOGRAD), op(70, 5))
    assert found(spans) == [(0, 65, 1), (1, 5, 0), (2, 5, 0)]


def test_an_exchange_that_ends_in_a_short_pause_is_not_waited_for():
    spans = spans_of(op(0, 10, "c10d::allreduce_"), exchange(5, 34), op(40, 5))
    assert found(spans) == [(1, 5, 0)]


def test_an_exchange_called_for_while_the_one_before_ran_follows_that():
    spans = spans_of(op(0, 4, "c10d::allreduce_"), op(6, 4, "c10d::allreduce_"), exchange(5, 10), exchange(16, 10))
    assert found(spans) == [(1, 5, 0)]
