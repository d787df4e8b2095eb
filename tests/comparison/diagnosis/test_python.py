from __future__ import annotations

import polars as pl
import pytest
from faulty_jobs import MS, Job, Op, case_of, categories, diagnosed, not_judged, recorded, sampled_functions
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import views
from stepscope.comparison.diagnosis.python import small_calls
from stepscope.comparison.model import RESOURCES
from stepscope.comparison.verdict import compare_runs

BASE = Job()
TINY = (Op("aten::abs", 2000, 0.006 * MS), Op("aten::item", 2017, 0.003 * MS, "[[]]"))


def test_collections_of_garbage_are_found():
    other = replace(BASE, gaps_ms=27.0).levels(process_python_gc_time=2.75e8, process_python_gc_collections=9.0)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["python_gc"]
    cause = diagnosis.causes[0]
    assert "collects garbage for 2" in cause.statement
    assert "ms per cycle (was 0)" in cause.statement
    assert cause.explained_ns > 20 * MS


def test_collections_every_few_steps_are_found():
    other = replace(BASE, every=5, rare_ms=120.0).levels(process_python_gc_time=6e8)
    assert categories(diagnosed(BASE, other)) == ["python_gc"]


def test_many_collections_that_take_no_time_are_no_cause():
    assert not diagnosed(BASE, BASE.levels(process_python_gc_collections=400.0, process_python_gc_time=8e5)).causes


def test_a_collector_nobody_watched_is_asked_for():
    bare = BASE.without("process_python_gc_time")
    assert "process_python_gc_time" in not_judged(diagnosed(bare, bare))["python_gc"]


def test_what_collections_do_not_explain_is_overhead_of_its_own():
    other = replace(BASE, gaps_ms=62.0).levels(process_python_gc_time=2.0e8)
    assert set(categories(diagnosed(BASE, other))) == {"host_overhead", "python_gc"}


def test_many_small_calls_and_reads_of_values_are_host_overhead():
    diagnosis = diagnosed(BASE, replace(BASE.with_ops(*TINY), gaps_ms=4.0))
    assert categories(diagnosis) == ["host_overhead"]
    assert "small calls more per cycle" in diagnosis.causes[0].statement
    assert "2,000 of which wait for a value" in diagnosis.causes[0].statement


def test_printing_between_operators_is_host_overhead():
    diagnosis = diagnosed(BASE, replace(BASE, gaps_ms=25.0))
    assert categories(diagnosis) == ["host_overhead"]
    assert "Time between operators" in diagnosis.causes[0].statement
    assert "Python at work" in diagnosis.causes[0].statement


def test_python_that_is_as_much_slower_as_operators_is_no_overhead():
    """On a slower machine all calls take half as long again, and so does Python between them."""
    base = replace(BASE, gaps_ms=20.0)
    assert "host_overhead" not in categories(diagnosed(base, replace(base, typical_slowdown=1.5)))
    assert "host_overhead" in categories(diagnosed(base, replace(base, gaps_ms=60.0, typical_slowdown=1.1)))


def test_a_sleeping_program_is_told_from_a_busy_one():
    other = replace(BASE, gaps_ms=25.0).levels(process_oncpu_time=7.7e8)
    assert "asleep or waiting" in diagnosed(BASE, other).causes[0].statement


def test_small_calls_that_replace_an_operator_are_not_overhead():
    ops = tuple(op for op in BASE.operators if op.name != "aten::_log_softmax")
    other = replace(BASE, operators=(*ops, Op("aten::exp", 200, 0.02 * MS), Op("aten::div", 200, 0.02 * MS)))
    assert "host_overhead" not in categories(diagnosed(BASE, other))


def test_small_calls_are_counted_with_what_they_cost():
    small = small_calls(views(case_of(BASE, BASE.with_ops(*TINY)))[0])
    assert small.calls == 4000
    assert 15 * MS < small.cost_ns < 20 * MS
    assert small.names[0] == "aten::abs"
    assert not small.replaces


def test_a_graph_that_is_launched_piece_by_piece_now_is_told():
    few = tuple(replace(op, each_ns=op.each_ns / 50) for op in BASE.operators)
    base = replace(BASE, operators=(*few, Op("cudaGraphLaunch", 1, 20e3, None, None, "runtime")), gaps_ms=0.5)
    other = replace(base, operators=(*few, Op("cudaLaunchKernel", 300, 8e3, None, None, "runtime")), gaps_ms=2.0)
    cause = diagnosed(base, other).causes[0]
    assert cause.category == "host_overhead"
    assert "launched as a graph before" in cause.statement


def test_launches_and_synchronisations_that_take_longer_are_host_overhead():
    cause = diagnosed(BASE, replace(BASE, launch_ms=20.0)).causes[0]
    assert cause.category == "host_overhead"
    assert "Launches and synchronisations" in cause.statement


def test_values_that_are_read_count_with_what_makes_them():
    heavy = BASE.with_ops(Op("aten::norm", 300, 0.1 * MS), Op("aten::item", 317, 0.003 * MS, "[[]]"))
    assert categories(diagnosed(BASE, heavy)) == ["host_overhead"]


def test_a_pause_for_collections_is_told_with_how_often_it_comes():
    other = replace(BASE, every=5, rare_ms=120.0).levels(process_python_gc_time=6e8, process_python_gc_collections=2.0)
    assert "every" in diagnosed(BASE, other).causes[0].statement


WAIT = "waits: with self.lock: (cache.py)"
SLOW = replace(BASE, gaps_ms=25.0)


def sampled(job, seed, **functions):
    """A recording with these shares of the main thread's time; without any, no stacks were sampled."""
    observed = recorded(job, seed)
    return replace(observed, python_functions=sampled_functions(functions, 500)) if functions else observed


def compared(base, other):
    return compare_runs([[base]], [[other]])


def test_the_line_that_waits_is_named_with_its_time():
    result = compared(sampled(BASE, 0, step=1.0), sampled(SLOW, 1, step=0.5, **{WAIT: 0.5}))
    cause = result.causes[0]
    assert cause.category == "lock_contention"
    assert "with self.lock: (cache.py)" in cause.statement
    assert cause.explained_ns == pytest.approx(result.step_time.delta, rel=0.3)
    assert "python-stacks" in cause.advice


def test_sleep_in_a_function_is_no_wait_for_a_lock():
    result = compared(sampled(BASE, 0, step=1.0), sampled(SLOW, 1, step=0.5, throttle=0.5))
    assert "lock_contention" not in [cause.category for cause in result.causes]


def test_a_wait_that_the_base_has_too_is_no_cause():
    result = compared(sampled(BASE, 0, **{WAIT: 1.0}), sampled(SLOW, 1, step=0.6, **{WAIT: 0.4}))
    assert "lock_contention" not in [cause.category for cause in result.causes]


def test_without_stacks_it_is_not_judged_and_says_what_to_record():
    (row,) = [
        row for row in compared(sampled(BASE, 0), sampled(SLOW, 1)).ruled_out if row.category == "lock_contention"
    ]
    assert not row.is_judged
    assert "--stacks" in row.reason


def plain_loop(ms, **shares):
    """A job whose steps were timed and whose main thread's stack was sampled, without a profile."""
    functions = sampled_functions(shares, 400)
    functions = functions.with_columns(pl.col("function").replace({"waits": "Condition.wait (threading.py)"}))
    run = recorded(replace(BASE, operators=(), gaps_ms=ms, loading_ms=0.0))
    return replace(run, parts=run.parts.clear(), python_functions=functions)


def causes_of(base, other):
    return [cause.category for cause in compare_runs([[base]], [[other]]).causes]


def test_without_a_profile_the_stack_shows_where_the_main_thread_is_more():
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, waits=0.7, report=0.3)
    assert causes_of(base, other) == ["host_overhead"]


def test_functions_in_which_a_pool_works_while_the_main_thread_waits_are_those_of_workers():
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, waits=0.7, report=0.3)
    functions = other.python_functions.with_columns(worker_ratio=pl.lit(0.9))
    (cause,) = compare_runs([[base]], [[replace(other, python_functions=functions)]]).causes
    assert cause.statement.startswith("Workers of the job spend from 0 to ")
    assert cause.evidence[0].text == "time of workers of the job in report, per cycle"


def test_a_function_that_writes_waits_for_the_disk_also_while_it_uses_its_core():
    """Of 12 MiB a step much is processor time of the kernel, which copies them."""
    base, other = plain_loop(20.0, waits=1.0), plain_loop(48.0, waits=0.4, save=0.6)
    writes = {"process_write_bytes_rate": 250e6, "host_pressure_io_some": 1e8}
    assert causes_of(with_rates(base, dict.fromkeys(writes, 0.0)), with_rates(other, writes))[0] == "disk_io"
    assert causes_of(base, other) == ["host_overhead"]


def with_rates(run, rates):
    devices = {"process_write_bytes_rate": ("process", "bytes/s"), "host_pressure_io_some": ("host", "ns/s")}
    rows = [(cycle, devices[metric][0], metric, devices[metric][1], value, 1) for metric, value in rates.items()
            for cycle in run.cycles["cycle"]]  # fmt: skip
    columns = ("cycle", "device", "metric", "unit", "mu", "n_samples")
    added = RESOURCES.conform(pl.DataFrame(rows, schema=columns, orient="row"))
    known = run.resources.filter(~pl.col("metric").cast(pl.String).is_in(list(rates)))
    return replace(run, resources=pl.concat([known, added]))


@pytest.mark.parametrize(
    ("function", "category"),
    [
        ("fetch_batch (train.py)", "data_loading"), ("Loader.__next__ (data.py)", "data_loading"),
        ("TextDataset.tokens (data.py)", "data_loading"), ("_load (data.py)", "data_loading"),
        ("reader (log.py)", "host_overhead"), ("download (sync.py)", "host_overhead"),
        ("overload.check (rules.py)", "host_overhead"), ("print_loader (train.py)", "host_overhead"),
    ],
)  # fmt: skip
def test_a_function_that_gets_data_by_its_name_is_data_loading(function, category):
    base, other = plain_loop(20.0, step=1.0), plain_loop(28.0, **{"step": 0.7, function: 0.3})
    (cause,) = compare_runs([[base]], [[other]]).causes
    assert cause.category == category
    assert function in cause.statement


def test_a_compiler_in_samples_of_the_stack_is_compilation_and_not_where_time_goes():
    compiler = "backend_compile_and_load (jax/_src/compiler.py)"
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, **{"waits": 0.7, compiler: 0.3})
    (cause,) = compare_runs([[base]], [[other]]).causes
    assert cause.category == "compilation"
    assert compiler in [row.name for row in cause.evidence]
    assert f"first of all in {compiler}" in cause.statement
    assert not cause.consequences


def test_what_a_compiler_does_in_several_functions_is_one_time():
    """JAX traces, lowers and compiles; samples are of one of these at a time."""
    parts = {
        "backend_compile_and_load (jax/_src/compiler.py)": 0.2,
        "lower_jaxpr_to_module (jax/_src/interpreters/mlir.py)": 0.1,
    }
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, **{"waits": 0.7, **parts})
    (cause,) = compare_runs([[base]], [[other]]).causes
    assert cause.category == "compilation"
    assert cause.explained_ns == pytest.approx(8 * MS, rel=0.1)  # of 8.4, at most what is longer


def test_a_function_is_shown_as_evidence_once():
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, waits=0.7, report=0.3)
    (cause,) = compare_runs([[base]], [[other]]).causes
    names = [row.name for row in cause.evidence]
    assert names.count("report") == 1


def visits(run, n):
    """The same with samples of so many visits."""
    share = pl.col("share_ratio")
    counts = {"n_independent": float(n), "n_visits": (share * n).cast(pl.Int64), "n_all_visits": n}
    return replace(run, python_functions=run.python_functions.with_columns(**counts))


def test_many_visits_of_a_function_that_the_base_does_not_have_say_more_than_their_uncertain_share():
    base, other = sampled(BASE, 0, step=1.0), sampled(SLOW, 1, step=0.8, **{WAIT: 0.2})
    few, uncertain = visits(other, 16), other.python_functions.with_columns(n_independent=16.0)
    assert "lock_contention" not in causes_of(visits(base, 50), few)
    assert "lock_contention" in causes_of(visits(base, 50), replace(other, python_functions=uncertain))


def test_a_single_long_visit_of_a_function_is_no_overhead():
    base, other = plain_loop(20.0, waits=1.0), plain_loop(28.0, waits=0.7, report=0.3)
    assert causes_of(visits(base, 4), visits(other, 4)) == []


def test_a_function_whose_share_differs_as_much_among_repeats_is_no_overhead():
    repeats = [[plain_loop(20.0, waits=1.0)], [plain_loop(20.0, waits=0.7, report=0.3)], [plain_loop(20.0, waits=1.0)]]
    other = plain_loop(28.0, waits=0.7, report=0.3)
    assert [cause.category for cause in compare_runs(repeats, [[other]]).causes] == []


def test_without_a_profile_longer_waits_for_other_processes_are_no_overhead():
    assert "host_overhead" not in causes_of(plain_loop(20.0, waits=1.0), plain_loop(28.0, waits=1.0))


TAKES = "waits for an item: batches (train.py)"


@pytest.mark.parametrize("base", [BASE, replace(BASE, loading_ms=0.0)], ids=["with a loader", "without one"])
def test_waits_for_a_queue_that_another_thread_fills_are_data_loading(base):
    other = replace(base, gaps_ms=25.0)
    found = causes_of(sampled(base, 0, step=1.0), sampled(other, 1, step=0.7, **{TAKES: 0.3}))
    assert found[0] == ("host_overhead" if base.loading_ms else "data_loading")
