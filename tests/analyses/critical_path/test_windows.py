from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from path_traces import (
    AUTOGRAD,
    MAIN,
    NO_STEPS,
    PATH_TRACKS,
    STREAM_8,
    US,
    Row,
    call,
    kernel,
    op,
    queued,
    spans_of,
    steps_of,
)

from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.threads import host_threads
from stepscope.analyses.critical_path.windows import path_windows
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName


def windows(spans, steps=NO_STEPS, within=None, step=None):
    work, threads = recorded_work(spans, PATH_TRACKS), host_threads(spans, PATH_TRACKS)
    return path_windows(spans, PATH_TRACKS, steps, work, threads, within=within, step=step)


def bounds(*args, **options):
    got, chosen = windows(*args, **options)
    rows = zip(got.step, (got.low // US).tolist(), (got.high // US).tolist(), got.main.tolist(), strict=True)
    return [list(rows)[i] for i in chosen] if len(chosen) < got.low.size else list(rows)


def step_mark(number, ts, dur, track=MAIN):
    return Row(track, ts, dur, f"ProfilerStep#{number}", "step", step=number)


TWO = spans_of(
    step_mark(0, 0, 50, AUTOGRAD),
    step_mark(1, 50, 50, AUTOGRAD),
    op(1, 1),
    op(3, 90),
    call(10, 5, key="a", track=AUTOGRAD),
    kernel(20, 50, "a", step=0),
    call(60, 5, key="b", track=AUTOGRAD),
    kernel(80, 10, "b", step=1),
)
TWO_STEPS = steps_of((0, 50), (50, 100))


def test_a_step_ends_with_its_last_work_and_belongs_to_the_thread_of_its_mark():
    assert bounds(TWO, TWO_STEPS) == [(0, 0, 70, 1), (1, 70, 100, 1)]


def test_one_step_may_be_picked():
    got, chosen = windows(TWO, TWO_STEPS, step=1)
    assert chosen.tolist() == [1]
    assert got.only(chosen).step.to_list() == [1]
    assert got.only(chosen).low.tolist() == [70 * US]
    with pytest.raises(UnknownName, match="step named '7'"):
        windows(TWO, TWO_STEPS, step=7)


def test_bounds_on_the_host_and_what_each_step_queued_are_told():
    got, _ = windows(TWO, TWO_STEPS)
    assert (got.begin // US).tolist() == [0, 50]
    assert (got.end // US).tolist() == [50, 100]
    assert got.queued.tolist() == [0, 1]


def test_steps_without_a_mark_belong_to_the_busiest_thread():
    spans = TWO.filter(pl.col("category") != "step")
    assert bounds(spans, TWO_STEPS)[0][3] == 0


def test_without_steps_nothing_can_be_said_but_a_way_out():
    with pytest.raises(MissingTable, match="needs steps") as error:
        windows(TWO)
    assert "--within recording" in error.value.hint


def test_the_recording_reaches_from_the_first_to_the_last_operator_or_work():
    assert bounds(TWO, within="recording") == [(None, 1, 93, 0)]
    got, _ = windows(TWO, within="recording")
    assert got.queued.tolist() == [0, 0]
    assert got.end.tolist() == [93 * US]


def test_a_recording_that_ends_on_the_device_belongs_to_the_busiest_thread():
    spans = spans_of(op(0, 5), op(1, 1, track=AUTOGRAD), op(3, 2, track=AUTOGRAD), *queued(1, 2, 10, 30))
    got, _ = windows(spans, within="recording")
    assert got.high.tolist() == [40 * US]
    assert got.main.tolist() == [0]
    assert got.end.tolist() == [5 * US]


def named(ts, dur, name="forward", track=MAIN):
    return Row(track, ts, dur, name, "user_range")


RANGES = spans_of(
    named(0, 40), named(5, 10, "inner forward"), named(50, 20), named(80, 5, "backward"),
    call(6, 2, key="a"), kernel(20, 35, "a"), call(55, 2, key="b"), kernel(60, 5, "b"), call(90, 2, key="c"),
    kernel(95, 5, "c", track=STREAM_8), kernel(96, 5, None, "loose", STREAM_8),
)  # fmt: skip


def test_ranges_of_a_name_stand_for_steps_numbered_by_their_start():
    assert bounds(RANGES, within="^forward") == [(0, 0, 55, 0), (1, 55, 70, 0)]
    got, _ = windows(RANGES, within="^forward")
    assert got.queued.tolist() == [0, 1, -1, -1]


def test_a_range_within_another_is_there_only_if_picked():
    assert bounds(RANGES, within="forward") == [(0, 0, 55, 0), (2, 55, 70, 0)]
    assert bounds(RANGES, within="forward", step=1) == [(1, 5, 55, 0)]
    with pytest.raises(UnknownName, match="range named '3'"):
        windows(RANGES, within="forward", step=3)


def test_ranges_that_are_not_there_are_missing_and_those_that_are_are_named():
    with pytest.raises(MissingTable, match="ranges named 'optimizer'") as error:
        windows(RANGES, within="optimizer")
    assert "the trace has backward, forward, inner forward" in error.value.hint
    with pytest.raises(MissingTable) as error:
        windows(spans_of(op(0, 5)), within="x")
    assert "the trace has none" in error.value.hint


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(StepscopeError, match="not a regular expression"):
        windows(RANGES, within="(")


def test_only_the_chosen_are_kept():
    got, _ = windows(TWO, TWO_STEPS)
    assert got.only(np.array([], np.int64)).low.size == 0
