from __future__ import annotations

import polars as pl
import pytest
from literal_traces import Rows
from recordings import MS, recording

from stepscope.comparison import compare_runs, observe
from stepscope.comparison.model import WINDOWS
from stepscope.core.errors import MissingTable
from stepscope.core.trace import Trace


def test_steps_that_were_timed_are_cycles_without_a_profile():
    (base,), (other,) = observe(recording(step_ms=50)), observe(recording(step_ms=60, seed=1))
    assert base.anchor == "steps"
    result = compare_runs([[base]], [[other]])
    assert (result.verdict, result.reason) == ("different", "slower")
    assert result.whole_run is not None
    assert result.whole_run.ratio == pytest.approx(1.2, rel=0.02)


def test_without_steps_starvation_is_named_by_rates():
    (base,), (other,) = observe(recording()), observe(recording(waiting=0.6, running=0.35, seed=1))
    assert base.anchor == WINDOWS
    assert base.pid == 5
    result = compare_runs([[base]], [[other]])
    assert [cause.category for cause in result.causes] == ["cpu_contention"]
    assert (result.verdict, result.step_time) == ("different", None)
    assert result.parts.is_empty()


def test_without_steps_healthy_runs_have_no_cause_and_nothing_is_claimed():
    (base,), (other,) = observe(recording()), observe(recording(seed=1))
    result = compare_runs([[base]], [[other]])
    assert (result.verdict, result.causes) == ("inconclusive", ())


def test_an_instant_is_no_recording():
    trace = recording()
    counters = trace.counters.filter(pl.col("ts_ns") < 2_000 * MS)
    with pytest.raises(MissingTable, match="counters of some seconds"):
        observe(Trace(trace.meta, {"counters": counters}))


def test_a_recording_with_a_profile_can_be_observed_without_it():
    rows, timed = Rows(), recording(step_ms=50)
    for i in range(10):
        rows.step(i, 100 * i, 90)
        rows.op(100 * i + 5, 20)
    trace = rows.trace().with_tables(counters=timed.counters, step_times=timed.step_times)
    (observed,) = observe(trace, profile=False)
    assert (observed.anchor, observed.cycles.height, observed.functions.height) == ("steps", 570, 0)
    assert observed.remarks == ("another recording has no profile: times of steps and counters are compared",)
    assert observe(trace)[0].functions.height
