"""What samples of stacks alone say of a job without a profile: which functions take longer, and how."""

from __future__ import annotations

import polars as pl
import pytest
from faulty_jobs import Job, loop, recorded, sampled_functions
from msgspec.structs import replace

from stepscope.comparison.diagnosis import Case, views
from stepscope.comparison.diagnosis.case import Suspect
from stepscope.comparison.diagnosis.python import host_overhead
from stepscope.comparison.diagnosis.workload import workload_change
from stepscope.comparison.effects import effects
from stepscope.comparison.model import WINDOWS, Pair, Waits
from stepscope.comparison.verdict import compare_runs

BASE = Job()


def first_cause(base, other):
    return next(iter(compare_runs([[base]], [[other]]).causes), None)


TIMES = {"solve (a.py)": 30.0, "reduce (a.py)": 20.0, "write (a.py)": 8.0}


def test_functions_that_all_take_longer_alike_have_more_to_do():
    other = loop(75.0, 72.5, {name: time * 1.25 for name, time in TIMES.items()}, seed=1)
    cause = first_cause(loop(60.0, 58.0, TIMES), other)
    assert cause.category == "workload_change"
    assert "Functions take longer alike: from 58" in cause.statement


def test_functions_that_all_take_longer_alike_may_be_on_slower_cores_if_the_mean_step_proves_nothing():
    other = loop(75.0, 72.5, {name: time * 1.25 for name, time in TIMES.items()}, seed=1)
    both = Pair("", (loop(60.0, 58.0, TIMES),), (other,), "only process")
    (view,) = views(Case((both,), effects((both,))))
    assert workload_change(view).cause.category == "workload_change"
    assert not isinstance(workload_change(replace(view, is_sure=False)), Suspect)


def test_windows_of_time_are_as_long_as_the_run_makes_them_and_say_nothing_of_the_work():
    other = loop(75.0, 72.5, {name: time * 1.25 for name, time in TIMES.items()}, seed=1)
    base, other = (replace(run, anchor=WINDOWS) for run in (loop(60.0, 58.0, TIMES), other))
    assert "workload_change" not in [cause.category for cause in compare_runs([[base]], [[other]]).causes]


def test_functions_that_wait_for_cores_alike_have_no_more_to_do():
    stretched = {name: time * 1.25 for name, time in TIMES.items()}
    for levels in ({"process_runq_time": 2e8}, {}):  # waits for cores; or no added processor time
        other = loop(75.0, 58.0, stretched, seed=1, **levels)
        cause = first_cause(loop(60.0, 58.0, TIMES), other)
        assert cause is None or cause.category != "workload_change"


def test_something_else_that_uses_the_processor_is_no_added_work_of_functions():
    other = loop(75.0, 130.0, {name: time * 1.25 for name, time in TIMES.items()}, seed=1)
    cause = first_cause(loop(60.0, 58.0, TIMES), other)
    assert cause is None or cause.category != "workload_change"


@pytest.mark.parametrize(("stalled", "category"), [(2e8, "disk_io"), (0.0, "host_overhead")])
def test_waits_for_a_disk_that_others_use_are_disk_io_though_the_process_writes_as_before(stalled, category):
    times, wrote = {**TIMES, "write (a.py)": 23.0}, {"process_write_bytes_rate": 1e7}
    base = loop(60.0, 58.0, TIMES, host_pressure_io_some=0.0, **wrote)
    cause = first_cause(base, loop(75.0, 58.0, times, seed=1, host_pressure_io_some=stalled, **wrote))
    assert cause.category == category


def test_functions_that_a_neighbour_stretches_are_cpu_contention():
    other = loop(75.0, 72.5, {name: time * 1.25 for name, time in TIMES.items()}, seed=1, host_cpu_usage=95.0)
    cause = first_cause(loop(60.0, 58.0, TIMES, host_cpu_usage=55.0), other)
    assert cause.category == "cpu_contention"


@pytest.mark.parametrize(("each_ms", "names"), [(1.4, ["host_overhead"]), (0.3, [])])
def test_time_that_a_library_spreads_over_many_functions_counts_together(each_ms, names):
    functions = ("Logger.debug", "Logger.makeRecord", "Logger.handle", "StreamHandler.flush", "StreamHandler.emit")
    more = {f"{name} (logging/__init__.py)": each_ms for name in functions}
    other = loop(60.0 + 5 * each_ms, 58.0 + 5 * each_ms, {**TIMES, **more}, seed=1)
    causes = compare_runs([[loop(60.0, 58.0, TIMES)]], [[other]]).causes
    assert [cause.category for cause in causes] == names
    assert all("in logging/__init__.py" in cause.statement for cause in causes)


def in_batches(recording):
    """The same where `augment` is called by a function that makes batches."""
    of_batches = pl.when(pl.col("function") == "augment (a.py)").then(1.0).otherwise(0.0)
    functions = recording.python_functions.with_columns(fetch_ratio=of_batches)
    return replace(recording, python_functions=functions)


def test_what_functions_that_make_batches_call_is_data_loading():
    base, other = loop(60.0, 58.0, TIMES), loop(75.0, 73.0, {**TIMES, "augment (a.py)": 15.0}, seed=1)
    assert first_cause(base, other).category == "slow_operator"
    cause = first_cause(base, in_batches(other))
    assert (cause.category, "augment (a.py)" in cause.statement) == ("data_loading", True)


def test_a_profile_shows_data_loading_by_time_outside_operators():
    functions = [
        sampled_functions(f, 2000) for f in ({"solve (a.py)": 1.0}, {"solve (a.py)": 0.8, "augment (a.py)": 0.2})
    ]
    base, other = (replace(recorded(replace(BASE, gaps_ms=ms, loading_ms=0.0), seed), python_functions=functions[seed])
                   for seed, ms in enumerate((2.0, 22.0)))  # fmt: skip
    assert first_cause(base, other).category == "host_overhead"
    assert first_cause(base, in_batches(other)).category == "data_loading"


def test_samples_show_waits_for_batches_that_a_few_profiled_steps_had_ready():
    """With a loader whose ranges the profile has, as long as in the base."""
    functions = [
        sampled_functions(f, 2000) for f in ({"solve (a.py)": 1.0}, {"solve (a.py)": 0.8, "augment (a.py)": 0.2})
    ]
    base, other = (replace(recorded(BASE, seed), python_functions=functions[seed]) for seed in (0, 1))
    longer = replace(other, cycles=other.cycles.with_columns((pl.col("dur_ns") * 1.3).cast(pl.Int64)))
    for run, names in ((longer, []), (in_batches(longer), ["data_loading"])):
        causes = [cause.category for cause in compare_runs([[base]], [[run]]).causes]
        assert [name for name in causes if name == "data_loading"] == names


def answers(run):
    """The run as that of a server which waits for requests for half of the time."""
    waits = Waits(n_requests=500.0, waiting_ratio=0.5, step_ns=run.complete_cycles["dur_ns"].mean())
    return run, waits


def test_what_a_servers_threads_do_besides_the_model_counts_though_its_calls_take_no_longer():
    (base, waits), (other, _) = (
        answers(loop(60.0, 30.0, TIMES)),
        answers(loop(59.0, 45.0, {**TIMES, "log (a.py)": 15.0}, seed=1, on_lock={"log (a.py)": 0.9})),
    )
    both = Pair("", (base,), (other,), "only process", waits=(waits, waits))
    (view,) = views(Case((both,), effects((both,))))
    assert host_overhead(view).cause.category == "host_overhead"
    alone = replace(both, waits=None)
    (view,) = views(Case((alone,), effects((alone,))))
    assert not isinstance(host_overhead(view), Suspect)


def test_threads_that_answer_slow_each_other_down_by_a_function_that_one_of_them_has_more():
    stretched = {name: time * 1.25 for name, time in TIMES.items()}
    for more, is_named in (({}, True), ({"audit (a.py)": 9.0}, False)):
        base, waits = answers(loop(60.0, 58.0, TIMES))
        other, _ = answers(loop(75.0 + sum(more.values()), 72.5 + sum(more.values()), {**stretched, **more}, seed=1))
        both = Pair("", (base,), (other,), "only process", waits=(waits, waits))
        (view,) = views(Case((both,), effects((both,))))
        assert isinstance(workload_change(view), Suspect) is is_named
