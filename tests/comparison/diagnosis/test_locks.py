"""Waits for a lock that another thread of the job holds."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from faulty_jobs import Job, recorded

from stepscope.comparison.verdict import compare_runs

STEADY, SLOW = Job(), replace(Job(), gaps_ms=25.0)
WAIT = "waits: with self.lock: (cache.py)"


def run(job, seed, **functions):
    """A recording with these shares of the main thread's time; without any, no stacks were sampled."""
    rows = {"function": list(functions), "share_ratio": list(functions.values())}
    shares = pl.DataFrame(rows, schema={"function": pl.String, "share_ratio": pl.Float64})
    observed = recorded(job, seed)
    return replace(observed, python_functions=shares.with_columns(n_samples=500)) if functions else observed


def compared(base, other):
    return compare_runs([[base]], [[other]])


def test_the_line_that_waits_is_named_with_its_time():
    result = compared(run(STEADY, 0, step=1.0), run(SLOW, 1, step=0.5, **{WAIT: 0.5}))
    cause = result.causes[0]
    assert cause.category == "lock_contention"
    assert "with self.lock: (cache.py)" in cause.statement
    assert cause.explained_ns == pytest.approx(result.step_time.delta, rel=0.3)
    assert "python-stacks" in cause.advice


def test_sleep_in_a_function_is_no_wait_for_a_lock():
    result = compared(run(STEADY, 0, step=1.0), run(SLOW, 1, step=0.5, throttle=0.5))
    assert "lock_contention" not in [cause.category for cause in result.causes]


def test_a_wait_that_the_base_has_too_is_no_cause():
    result = compared(run(STEADY, 0, **{WAIT: 1.0}), run(SLOW, 1, step=0.6, **{WAIT: 0.4}))
    assert "lock_contention" not in [cause.category for cause in result.causes]


def test_without_stacks_it_is_not_judged_and_says_what_to_record():
    (row,) = [row for row in compared(run(STEADY, 0), run(SLOW, 1)).ruled_out if row.category == "lock_contention"]
    assert not row.is_judged
    assert "--stacks" in row.reason
