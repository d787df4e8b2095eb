from __future__ import annotations

import pytest
from faulty_jobs import MS, Job, Op, case_of, categories, diagnosed, gpu_job, not_judged, recorded
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import Suspect, view_of, views
from stepscope.comparison.diagnosis.change import Change
from stepscope.comparison.diagnosis.cores import (
    core_clock,
    held_by_new_threads,
    new_threads,
    outside_cores,
    ran,
    waited,
)
from stepscope.comparison.diagnosis.cpu import cpu_contention
from stepscope.comparison.effects import effects
from stepscope.comparison.model import LockHeld
from stepscope.comparison.verdict import compare_runs

HEALTHY = Job()


def contended(job, hogs=2):
    """Busy loops on the only core: the process gets its share of it, and its work takes as much longer."""
    share = 1 / (1 + hogs)
    return replace(job, typical_slowdown=job.typical_slowdown / share, loading_ms=job.loading_ms / share).levels(
        process_oncpu_time=1e9 * share, process_cpu_usage=100 * share, process_runq_time=1e9 * (1 - share),
        process_involuntary_ctx_switches=80.0,
    )  # fmt: skip


def hogged(job):
    """A Python thread that never rests: the process keeps the core, and its threads wait for one another."""
    slower = replace(job, typical_slowdown=1.6, gaps_ms=50.0)
    return slower.levels(process_runq_time=7.5e8, process_voluntary_ctx_switches=190.0, num_threads=3.0,
                         process_involuntary_ctx_switches=300.0)  # fmt: skip


def first(base, other):
    diagnosis = diagnosed(base, other)
    assert diagnosis.causes, diagnosis.ruled_out
    return diagnosis.causes[0]


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


def test_a_thread_that_holds_the_interpreter_is_found():
    cause = first(HEALTHY, hogged(HEALTHY))
    assert cause.category == "gil_contention"
    assert "3 threads (was 2)" in cause.statement


@pytest.mark.parametrize(("turns", "named"), [(400.0, "gil_contention"), (60.0, "host_overhead")])
def test_a_thread_that_was_there_before_is_seen_by_the_turns_that_threads_take(turns, named):
    waits = replace(HEALTHY, gaps_ms=50.0).levels(process_voluntary_ctx_switches=turns)
    assert categories(diagnosed(HEALTHY, waits))[0] == named


def test_a_loop_in_the_main_thread_holds_no_lock():
    assert categories(diagnosed(HEALTHY, replace(HEALTHY, gaps_ms=30.0))) == ["host_overhead"]


def test_a_loader_that_works_hard_holds_no_lock():
    busy = replace(HEALTHY, loading_ms=40.0).levels(process_voluntary_ctx_switches=60.0)
    assert categories(diagnosed(HEALTHY, busy)) == ["data_loading"]


def test_switches_of_a_program_that_waits_for_files_are_no_lock():
    writes = replace(HEALTHY, gaps_ms=30.0).levels(
        process_voluntary_ctx_switches=200.0, process_write_bytes_rate=5e6, process_oncpu_time=7.5e8
    )
    assert "gil_contention" not in categories(diagnosed(HEALTHY, writes))


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


def test_threads_that_push_each_other_off_the_cores_are_too_many():
    slower = replace(HEALTHY, typical_slowdown=1.6)
    crowded = slower.levels(num_threads=34.0, process_runq_time=5e9, process_involuntary_ctx_switches=900.0)
    diagnosis = diagnosed(HEALTHY, crowded)
    assert categories(diagnosis) == ["thread_oversubscription"]
    assert "34 threads (was 2)" in diagnosis.causes[0].statement


def test_more_work_on_a_machine_as_busy_as_before_is_no_contention():
    busy = HEALTHY.levels(process_runq_time=5e8, process_oncpu_time=5e8)
    assert "cpu_contention" not in categories(diagnosed(busy, replace(busy, typical_slowdown=3.0)))


def test_threads_that_wait_for_the_interpreters_lock_are_not_too_many_for_the_cores():
    """On a busy machine: two threads that count, of a parent that otherwise only waits for its workers."""
    base = replace(HEALTHY, operators=(), gaps_ms=40.0).levels(
        process_oncpu_time=1e8, process_runq_time=2.5e8, process_voluntary_ctx_switches=500.0, num_threads=4.0
    )
    hogs = replace(base, gaps_ms=160.0).levels(
        process_oncpu_time=8e8, process_runq_time=6e8, process_voluntary_ctx_switches=1000.0, num_threads=6.0,
        process_involuntary_ctx_switches=400.0,
    )  # fmt: skip
    diagnosis = diagnosed(base, hogs)
    assert categories(diagnosis) == ["gil_contention"]
    reason = next(row.reason for row in diagnosis.ruled_out if row.category == "thread_oversubscription")
    assert reason == "1.4 of its threads were ready at a time, and there are 2 cores"


def test_new_threads_that_hold_pythons_lock_contend_for_it_and_not_for_cores():
    """Operators are what takes longer, as with too many threads; samples of who holds the lock tell them apart."""
    base = HEALTHY.levels(
        process_oncpu_time=9e8, process_runq_time=5e7, process_voluntary_ctx_switches=50.0, num_threads=4.0
    )
    slower = replace(base, typical_slowdown=3.0).levels(
        process_oncpu_time=1.5e9, process_runq_time=1.8e9, process_voluntary_ctx_switches=900.0, num_threads=7.0,
        process_involuntary_ctx_switches=900.0,
    )  # fmt: skip
    held = {"Thread-# (count)": LockHeld(0.9, 20)}
    assert causes_of(base, slower) == ["thread_oversubscription"]
    assert causes_of(base, slower, {"QueueFeederThread": LockHeld(0.0, 0)}, held) == ["gil_contention"]
    # Threads that the base has as well are the job's own, and a few looks may be chance.
    assert causes_of(base, slower, held, held) == ["thread_oversubscription"]
    few = {"new": LockHeld(0.9, 3)}
    assert causes_of(base, slower, {}, few) == ["thread_oversubscription"]
    # Other ranks run the same program: a few looks at each of them are enough together.
    before, after = (compare_runs([[locked(base, {})]], [[locked(slower, few)]]).pairs[0] for _ in range(2))
    view = view_of(before, effects((before,)), (after,))
    assert held_by_new_threads(view).is_real
    assert new_threads(view) == "the new thread new"


def causes_of(base, other, base_held=None, other_held=None):
    runs = locked(base, base_held), locked(other, other_held)
    return [cause.category for cause in compare_runs([[runs[0]]], [[runs[1]]]).causes]


def locked(job, held):
    return replace(recorded(job), lock_held=held)
