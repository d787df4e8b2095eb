from __future__ import annotations

import pytest
from faulty_jobs import (
    MS,
    Job,
    Op,
    case_of,
    categories,
    diagnosed,
    first,
    gpu_job,
    hogged,
    not_judged,
    recorded,
    sampled_functions,
)
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import Suspect, views
from stepscope.comparison.diagnosis.change import Change
from stepscope.comparison.diagnosis.cores import (
    core_clock,
    outside_cores,
    ran,
    waited,
)
from stepscope.comparison.diagnosis.cpu import cpu_contention
from stepscope.comparison.verdict import compare_runs

HEALTHY = Job()


def contended(job, hogs=2):
    """Busy loops on the only core: the process gets its share of it, and its work takes as much longer."""
    share = 1 / (1 + hogs)
    return replace(job, typical_slowdown=job.typical_slowdown / share, loading_ms=job.loading_ms / share).levels(
        process_oncpu_time=1e9 * share, process_cpu_usage=100 * share, process_runq_time=1e9 * (1 - share),
        process_involuntary_ctx_switches=80.0,
    )  # fmt: skip


@pytest.mark.slow
def test_busy_loops_on_the_only_core_are_contention():
    cause = first(HEALTHY, contended(HEALTHY))
    assert cause.category == "cpu_contention"
    assert cause.certainty == "certain"
    assert "waited for a core" in cause.statement
    assert cause.explained_ns > 100 * MS


def test_contention_is_the_only_cause_of_what_it_slows():
    assert categories(diagnosed(HEALTHY, contended(HEALTHY))) == ["cpu_contention"]


def test_a_milder_neighbour_is_found_too():
    assert categories(diagnosed(HEALTHY, contended(HEALTHY, hogs=0.3))) == ["cpu_contention"]


@pytest.mark.parametrize(("part", "is_named"), [(0.8, True), (0.2, False)])
def test_waits_for_cores_of_a_busy_machine_count_if_steps_seem_longer_by_half_of_them(part, is_named):
    busy = contended(HEALTHY.at("host", "host_cpu_usage", 60.0), hogs=0.3).at("host", "host_cpu_usage", 100.0)
    (view,) = views(case_of(HEALTHY.at("host", "host_cpu_usage", 60.0), busy))
    step = view.step
    unproven = replace(view, step=Change(step.base, step.base + part * step.delta, is_real=False, unit="ns"))
    assert isinstance(cpu_contention(unproven), Suspect) is is_named


def test_a_busy_neighbour_on_another_core_is_no_cause():
    other = HEALTHY.at("cpu0", "host_cpu_usage", 100.0).at("host", "host_cpu_usage", 100.0)
    assert not diagnosed(HEALTHY, other.levels(process_involuntary_ctx_switches=125.0)).causes


def test_a_neighbour_that_shares_cores_is_seen_in_stretched_calls():
    base = gpu_job()
    noisy = replace(base, typical_slowdown=2.2).levels(cpu_frequency=2400.0)
    noisy = noisy.at("host", "host_cpu_usage", 98.0).at("cpu0", "host_cpu_usage", 98.0)
    view = ("process_runq_time", "process_oncpu_time", "process_voluntary_ctx_switches")
    cause = first(base.without(*view), noisy.without(*view))
    assert cause.category == "cpu_contention"
    assert "as long at equal clock" in cause.statement
    assert any("core clock" in row.text for row in cause.consequences)


def test_threads_of_its_own_are_not_contention_from_outside():
    diagnosis = diagnosed(HEALTHY, hogged(HEALTHY))
    assert categories(diagnosis)[0] == "gil_contention"
    assert "cpu_contention" not in categories(diagnosis)
    reason = next(row.reason for row in diagnosis.ruled_out if row.category == "cpu_contention")
    assert "this process" in reason


def test_ranks_that_wait_for_cores_in_both_runs_alike_are_healthy():
    base = HEALTHY.levels(process_runq_time=6e8, process_oncpu_time=4e8)
    assert not diagnosed(base, base).causes


def test_contention_needs_counters_and_says_which():
    bare = HEALTHY.without("process_runq_time", "host_cpu_usage")
    diagnosis = diagnosed(bare, contended(HEALTHY).without("process_runq_time", "host_cpu_usage"))
    assert "cpu_contention" not in categories(diagnosis)
    assert "process_runq_time" in not_judged(diagnosis)["cpu_contention"]


def test_a_low_clock_slows_all_work_on_the_host():
    low = replace(HEALTHY, typical_slowdown=3.0, gaps_ms=1.9).levels(cpu_frequency=900.0)
    cause = first(HEALTHY, low)
    assert cause.category == "cpu_frequency"
    assert "2,700 to 900 MHz" in cause.statement
    assert cause.magnitude is not None
    assert cause.magnitude < 0.4


def test_a_low_clock_is_seen_though_cycles_are_of_different_kinds():
    base = gpu_job()
    low = replace(gpu_job(), typical_slowdown=3.6, anchor="layer", gaps_ms=30.0).levels(cpu_frequency=800.0)
    assert categories(diagnosed(base, low))[:1] == ["cpu_frequency"]


def test_a_clock_that_vector_licences_lower_is_no_cause():
    assert not diagnosed(HEALTHY, HEALTHY.levels(cpu_frequency=2400.0)).causes


def test_a_low_clock_of_an_idle_core_is_no_cause():
    diagnosis = diagnosed(HEALTHY, HEALTHY.levels(cpu_frequency=900.0))
    assert not diagnosis.causes
    assert any(
        "is not slower: calls take" in row.reason for row in diagnosis.ruled_out if row.category == "cpu_frequency"
    )


def test_a_clock_that_falls_because_the_machine_is_busy_is_not_the_cause():
    busy = contended(HEALTHY).levels(cpu_frequency=1900.0).at("host", "host_cpu_usage", 100.0)
    assert categories(diagnosed(HEALTHY, busy))[0] == "cpu_contention"


def view_between(base, other):
    from faulty_jobs import case_of

    return views(case_of(base, other))[0]


def test_the_clock_is_that_of_the_busiest_core():
    view = view_between(HEALTHY, HEALTHY.at("cpu0", "cpu_frequency", 900.0))
    assert core_clock(view).ratio is not None
    assert abs(core_clock(view).ratio - 1) < 0.05


def test_cores_of_others_are_those_of_the_machine_less_the_own():
    view = view_between(HEALTHY, HEALTHY.at("host", "host_cpu_usage", 95.0))
    assert 0.7 < outside_cores(view) < 1.1
    assert outside_cores(view_between(HEALTHY.without("host_cpu_usage"), HEALTHY.without("host_cpu_usage"))) is None


def test_waits_that_take_as_much_of_a_longer_cycle_as_before_are_no_contention():
    base = HEALTHY.levels(process_runq_time=7.4e7)
    longer = replace(base, typical_slowdown=4 * base.typical_slowdown, loading_ms=4 * base.loading_ms)
    assert "cpu_contention" not in categories(diagnosed(base, longer.levels(process_runq_time=7.6e7)))
    assert "cpu_contention" in categories(diagnosed(base, longer.levels(process_runq_time=3.6e8)))


def test_the_scheduler_s_events_stand_in_for_its_counters():
    base = gpu_job().without("process_runq_time")
    queued = tuple(Op("runq", 1000, each, None, None, "sched_runq") for each in (4e4, 3e5))
    runs = [replace(base, operators=(*base.operators, op)) for op in queued]
    wait = waited(view_between(*runs))
    assert wait.rose(times=5)
    assert wait.delta == pytest.approx(260 * MS, rel=0.1)


@pytest.mark.slow
def test_the_process_use_of_cores_stands_in_for_its_time_on_them():
    bare = HEALTHY.without("process_oncpu_time")
    own = ran(view_between(bare, bare))
    assert own.base == pytest.approx(bare_cycle_ns(bare), rel=0.05)
    nothing = bare.without("process_cpu_usage")
    assert not ran(view_between(nothing, nothing)).is_known


def bare_cycle_ns(job):
    return view_between(job, job).step.base


def test_what_a_busy_machine_did_not_slow_has_no_contention():
    base = gpu_job().without("process_runq_time", "process_oncpu_time")
    busy = base.at("host", "host_cpu_usage", 98.0)
    diagnosis = diagnosed(base, busy)
    assert not diagnosis.causes
    assert any("use of all processors" in row.reason for row in diagnosis.ruled_out if row.category == "cpu_contention")


def test_slower_calls_that_slow_no_cycle_have_no_cause():
    base = replace(gpu_job(), gaps_ms=600.0).without("process_runq_time", "process_oncpu_time")
    ops = tuple(replace(op, each_ns=1.5 * op.each_ns) for op in base.operators)
    busy = replace(base, operators=ops).at("host", "host_cpu_usage", 98.0)
    diagnosis = diagnosed(base, busy)
    assert "cpu_contention" not in categories(diagnosis)
    assert any("cycles do not take longer" in row.reason for row in diagnosis.ruled_out)


@pytest.mark.slow
def test_a_low_clock_of_a_host_whose_work_nobody_recorded_needs_slower_cycles():
    base = replace(gpu_job(), operators=())
    low = base.levels(cpu_frequency=900.0)
    assert not diagnosed(base, low).causes
    cause = first(base, replace(low, typical_slowdown=2.5))
    assert cause.category == "cpu_frequency"
    assert cause.certainty == "likely"


def waits_for(job, **shares):
    """With scheduling recorded: the share of time for which threads waited behind each other program."""
    known = {(f"behind {name}", "process_runq_time"): ("ns/s", 1e9 * share) for name, share in shares.items()}
    return replace(job, resources={**job.resources, **known})


def test_recorded_scheduling_names_who_had_the_core():
    cause = first(
        waits_for(HEALTHY, kworker=0.001), waits_for(contended(HEALTHY), kworker=0.001, greedy=0.4, other=0.1)
    )
    assert cause.category == "cpu_contention"
    assert cause.statement.endswith("other processes take its cores, greedy first of all.")
    (named,) = [one for one in cause.evidence if one.device == "behind greedy"]
    assert named.metric == "process_runq_time"
    assert "of which while greedy had the core" in named.text


def test_one_of_many_that_had_the_core_is_shown_and_not_named():
    cause = first(HEALTHY, waits_for(contended(HEALTHY), a=0.12, b=0.1, c=0.1))
    assert cause.statement.endswith("other processes take its cores.")
    assert [one.device for one in cause.evidence if (one.device or "").startswith("behind")] == ["behind a"]


def test_a_program_behind_which_it_does_not_wait_longer_is_no_evidence():
    cause = first(waits_for(HEALTHY, a=0.5), waits_for(contended(HEALTHY), a=0.1))
    assert not [one for one in cause.evidence if (one.device or "").startswith("behind")]


def test_workers_of_the_job_that_compute_more_are_no_neighbours():
    of_workers = {("workers", "process_oncpu_time"): ("ns/s", 7e7)}
    base = replace(HEALTHY, resources={**HEALTHY.resources, **of_workers})
    # Its loader's worker keeps a whole core busy, and both wait for cores now and then.
    slower = replace(base, loading_ms=40.0).levels(host_cpu_usage=93.0, process_runq_time=8e7)
    busy = slower.at("workers", "process_oncpu_time", 9e8)
    assert categories(diagnosed(base, busy))[0] == "data_loading"
    (view,) = views(case_of(base, busy))
    assert abs(outside_cores(view)) < 0.1
    assert outside_cores(views(case_of(base, slower))[0]) > 0.5


def test_more_work_on_a_machine_as_busy_as_before_is_no_contention():
    busy = HEALTHY.levels(process_runq_time=5e8, process_oncpu_time=5e8)
    assert "cpu_contention" not in categories(diagnosed(busy, replace(busy, typical_slowdown=3.0)))


@pytest.mark.parametrize(("waits_ms", "is_named"), [(0.0, True), (60.0, False)])
def test_processes_of_the_job_that_take_its_cores_are_neighbours_unless_it_waits_for_what_they_do(waits_ms, is_named):
    workers = {("workers", "process_oncpu_time"): ("ns/s", 3e8), ("workers", "process_runq_time"): ("ns/s", 1e8)}
    base = replace(HEALTHY, operators=(), gaps_ms=100.0, resources={**HEALTHY.resources, **workers})
    busy = replace(base, gaps_ms=160.0).levels(host_cpu_usage=98.0)
    busy = busy.at("process", "process_oncpu_time", 6.4e8).at("process", "process_runq_time", 3.4e8)
    busy = busy.at("workers", "process_oncpu_time", 1e9).at("workers", "process_runq_time", 9e8)
    times = {"solve (a.py)": 160.0 - waits_ms, "waits for an item: main (a.py)": waits_ms}
    runs = [
        replace(
            recorded(job, seed),
            python_functions=sampled_functions({k: v / sum(f.values()) for k, v in f.items()}, 2000),
        )
        for seed, (job, f) in enumerate(((base, {"solve (a.py)": 100.0}), (busy, times)))
    ]
    (cause, *_) = compare_runs([[runs[0]]], [[runs[1]]]).causes
    assert (cause.category == "cpu_contention") == is_named
    assert ("other processes of the job take its cores" in cause.statement) == is_named
