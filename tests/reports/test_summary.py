from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.core.schema import STEP_TIMES
from stepscope.core.trace import Meta, Trace
from stepscope.reports._device import work_of
from stepscope.reports._summary import Scope, Summary, of_whole_run, scope_of, slowed_by_profiler


def test_with_steps_the_scope_is_their_windows(rows) -> None:
    rows.step(1, 0, 90)
    rows.step(2, 100, 50)
    rows.kernel(500, 10)
    scope = scope_of(rows.trace())
    assert (scope.lows.tolist(), scope.highs.tolist(), scope.numbers) == ([0, 100], [100, 150], (1, 2))
    assert (scope.n, scope.whole_ns, scope.low, scope.high, scope.late_ns) == (2, 150, 0, 150, 0)


def test_a_lone_step_lasts_until_its_device_work_is_done(rows) -> None:
    rows.step(6, 0, 100)
    launch = rows.launch(10)
    rows.kernel(90, 60, launch=launch)
    rows.kernel(400, 60)
    scope = scope_of(rows.trace())
    assert (scope.highs.tolist(), scope.late_ns) == ([150], 50)
    known = scope_of(rows.trace(), work_of(rows.trace()))
    assert (known.highs.tolist(), known.late_ns) == ([150], 50)


def test_windows_of_damaged_traces_do_not_overlap(rows) -> None:
    rows.step(1, 0, 200)
    rows.step(3, 100, 50)
    scope = scope_of(rows.trace())
    assert (scope.lows.tolist(), scope.highs.tolist()) == ([0, 100], [100, 150])


def test_without_steps_it_is_everything_that_was_recorded(rows) -> None:
    rows.op(0, 1000)
    assert (scope_of(rows.trace()).low, scope_of(rows.trace()).high) == (0, 1000)
    rows.kernel(300, 750)
    scope = scope_of(rows.trace())
    assert (scope.low, scope.high, scope.n, scope.numbers) == (0, 1050, 1, ())


@pytest.mark.parametrize(
    ("n_steps", "n_devices", "n", "text"),
    [
        (10, 1, 20, "2 gaps a step, mean 100 ns"), (0, 1, 3, "3 gaps, mean 100 ns"), (0, 1, 0, "0 gaps"),
        (5, 1, 5, "1 gap a step, mean 100 ns"), (1, 1, 1, "1 gap a step, 100 ns"),
        (5, 1, 4, "4 gaps in 5 steps, mean 100 ns"), (0, 2, 1, "1 gap on 2 devices, 100 ns"),
        (5, 2, 8, "8 gaps in 5 steps on 2 devices, mean 100 ns"),
        (5, 2, 15, "1.5 gaps a step and device, mean 100 ns"), (0, 2, 4, "2 gaps a device, mean 100 ns"),
    ],
)  # fmt: skip
def test_amounts_are_for_a_step_and_device_unless_there_is_less_than_one(n_steps, n_devices, n, text) -> None:
    scope = Scope(np.array([0]), np.array([1]), tuple(range(n_steps)), n_devices)
    assert scope.amount(n, "gap", ns=100 * n) == text


def test_a_summary_is_called_by_its_rank_or_else_its_file() -> None:
    assert Summary(Meta("run/x.json", "kineto", rank=3), 0).label == "rank 3"
    assert Summary(Meta("run/x.json", "kineto"), 0, name="x").label == "x"


def run_of(added_ms) -> Trace:
    dur = ((20.0 + np.asarray(added_ms)) * 1_000_000).astype(np.int64)
    frame = pl.DataFrame({"ts_ns": np.cumsum(dur) - dur, "dur_ns": dur}).with_columns(
        pid=pl.lit(1), n_steps=pl.lit(1), source=pl.lit("optimizer steps"), is_profiled=pl.lit(value=False)
    )
    return Trace(Meta("x", "kineto"), {"step_times": STEP_TIMES.conform(frame)})


def whole_run(added_ms) -> str:
    return of_whole_run(run_of(added_ms))


@pytest.mark.parametrize(
    ("profiled_ms", "busy", "text"),
    [
        (34.0, (0.45,), "slows the host; in a typical step the device idles for about 24 %"),
        (34.0, (0.9,), "take 1.7 times as long: the profiler, or the run's start, slows the host"),
        (34.0, (0.4, 0.5), "take 1.7 times as long: the profiler, or the run's start, slows the host"),
        (34.0, (), "take 1.7 times as long: the profiler, or the run's start, slows the host"),
    ],
    ids=["a device that waits", "work that is slower too", "two devices", "no device"],
)
def test_profiled_steps_that_are_slower_than_the_others_are_said_to_be(profiled_ms, busy, text) -> None:
    windows = np.full(10, int(profiled_ms * 1e6))
    assert slowed_by_profiler(run_of(np.zeros(400)), windows, busy).endswith(text)


def test_profiled_steps_that_are_like_the_others_say_nothing() -> None:
    assert slowed_by_profiler(run_of(np.zeros(400)), np.full(10, 21_000_000), (0.5,)) == ""
    assert slowed_by_profiler(run_of(np.zeros(30)), np.full(10, 34_000_000), (0.5,)) == ""
    assert slowed_by_profiler(run_of(np.zeros(400)), np.empty(0, np.int64), (0.5,)) == ""


@pytest.mark.parametrize(
    ("added_ms", "text"),
    [
        (np.zeros(400), "380 steps of the whole run: 20 ms on average, 20 ms typically"),
        (np.where(np.arange(400) % 20 == 0, 80.0, 0), "; every 20 steps one takes 80 ms more"),
        (np.linspace(0, 16, 400), "; they grow by 11.4 ms from the first quarter to the last"),
    ],
    ids=["even", "periodic", "growing"],
)
def test_steps_of_the_whole_run_are_summed_up(added_ms, text) -> None:
    assert whole_run(added_ms).endswith(text)


def test_few_steps_or_none_say_nothing() -> None:
    assert whole_run(np.zeros(30)) == ""
    assert of_whole_run(Trace(Meta("x", "kineto"), {})) == ""
