"""Functions whose time is in compiled code: slower ones, and ones that the base does not have."""

from __future__ import annotations

import polars as pl
import pytest
from faulty_jobs import MS, Job, loop, recorded, sampled_functions
from msgspec.structs import replace

from stepscope.comparison.diagnosis import Case, views
from stepscope.comparison.diagnosis.case import Suspect
from stepscope.comparison.diagnosis.change import Change
from stepscope.comparison.diagnosis.compiled import added
from stepscope.comparison.diagnosis.operators import slow_operator
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Pair
from stepscope.comparison.verdict import compare_runs

TIMES = {"solve (a.py)": 30.0, "reduce (a.py)": 20.0, "write (a.py)": 8.0}


def first_cause(base, other):
    return next(iter(compare_runs([[base]], [[other]]).causes), None)


def test_a_function_in_compiled_code_that_takes_longer_is_a_slow_operator():
    cause = first_cause(loop(60.0, 58.0, TIMES), loop(75.0, 73.0, {**TIMES, "solve (a.py)": 45.0}, seed=1))
    assert cause.category == "slow_operator"
    assert "solve (a.py) takes longer, from 30" in cause.statement
    assert cause.explained_ns == pytest.approx(15 * MS, rel=0.2)


def test_a_function_in_python_that_takes_longer_is_overhead_if_it_doubles():
    held = {"write (a.py)": 0.9}
    base = loop(60.0, 58.0, TIMES, on_lock=held)
    cause = first_cause(base, loop(75.0, 73.0, {**TIMES, "write (a.py)": 23.0}, seed=1, on_lock=held))
    assert (cause.category, "write (a.py)" in cause.statement) == ("host_overhead", True)


@pytest.mark.parametrize(("held", "category"), [(0.0, "slow_operator"), (0.2, "host_overhead"), (0.4, "host_overhead")])
def test_a_new_function_computes_in_compiled_code_if_it_holds_the_lock_less_than_small_calls_do(held, category):
    other = loop(75.0, 73.0, {**TIMES, "audit (a.py)": 15.0}, seed=1, on_lock={"audit (a.py)": held})
    cause = first_cause(loop(60.0, 58.0, TIMES), other)
    assert (cause.category, "audit (a.py)" in cause.statement) == (category, True)
    assert cause.explained_ns == pytest.approx(15 * MS, rel=0.05)


def test_a_new_function_that_waits_for_a_devices_value_computes_nothing():
    read = "ArrayImpl._value (jax/_src/array.py)"
    cause = first_cause(loop(60.0, 58.0, TIMES), loop(75.0, 73.0, {**TIMES, read: 15.0}, seed=1))
    assert cause.category == "host_overhead"


def test_a_new_function_that_sleeps_is_no_slow_operator_though_others_use_as_much_processor_time():
    times = {**TIMES, "solve (a.py)": 39.0, "pause (a.py)": 10.0}
    causes = compare_runs([[loop(60.0, 58.0, TIMES)]], [[loop(79.0, 67.0, times, seed=1)]]).causes
    assert "pause (a.py)" not in {
        row.name for cause in causes if cause.category == "slow_operator" for row in cause.evidence
    }


def test_a_new_function_is_not_in_compiled_code_if_it_waits_for_a_core():
    """A thread that waits for a core is found without Python's lock, whatever it does."""
    base, other = loop(60.0, 58.0, TIMES), loop(75.0, 73.0, {**TIMES, "audit (a.py)": 15.0}, seed=1)
    (view,) = views(Case((both := Pair("", (base,), (other,), "only process"),), effects((both,))))
    assert added(view)["function"].to_list() == ["audit (a.py)"]
    busy = {**view.resources, ("host", "host_cpu_usage"): Change(50.0, 99.0, is_real=True)}
    assert added(replace(view, resources=busy)).is_empty()


def test_a_function_that_sleeps_longer_is_no_slow_operator():
    other = loop(75.0, 58.0, {**TIMES, "write (a.py)": 23.0}, seed=1)
    assert first_cause(loop(60.0, 58.0, TIMES), other).category == "host_overhead"


@pytest.mark.parametrize(("own_ms", "names"), [(58.0, ["host_overhead"]), (73.0, [])])
def test_a_function_that_computes_may_sleep_as_well(own_ms, names):
    """A loop that calls compiled code from one function, and now pauses in it; or the code takes longer."""
    base, other = (loop(60.0, 58.0, {"main (a.py)": 58.0}), loop(75.0, own_ms, {"main (a.py)": 73.0}, seed=1))
    causes = compare_runs([[base]], [[other]]).causes
    assert [cause.category for cause in causes if cause.category == "host_overhead"] == names
    assert all("main (a.py), asleep or waiting" in cause.statement for cause in causes if names)


@pytest.mark.parametrize(("slowdown", "gaps_ms", "is_named"), [(1.0, 20.0, True), (1.4, 2.0, False)])
def test_beside_a_profile_a_new_function_counts_where_no_operator_has_its_time(slowdown, gaps_ms, is_named):
    """A function of NumPy, or one that calls operators of the framework, which the profile has."""
    functions = {"forward (a.py)": 1.0}, {"forward (a.py)": 0.83, "filter (a.py)": 0.17}
    jobs = Job(gaps_ms=2.0), Job(gaps_ms=gaps_ms, typical_slowdown=slowdown).levels(process_oncpu_time=1.1e9)
    base, other = (
        replace(recorded(job, seed), python_functions=sampled_functions(functions[seed], 2000, on_lock={}))
        for seed, job in enumerate(jobs)
    )
    (view,) = views(Case((both := Pair("", (base,), (other,), "only process"),), effects((both,))))
    assert added(view)["function"].to_list() == ["filter (a.py)"]
    assert isinstance(slow_operator(view), Suspect) is is_named


def test_hours_of_samples_of_the_lock_are_judged_like_minutes_of_them():
    base, other = loop(60.0, 58.0, TIMES), loop(75.0, 73.0, {**TIMES, "audit (a.py)": 15.0}, seed=1)
    many = other.python_functions.with_columns(n_expected=pl.col("n_expected") * 500)
    assert first_cause(base, replace(other, python_functions=many)).category == "slow_operator"
