from __future__ import annotations

import pytest
from faulty_jobs import Job, case_of, categories, diagnosed, first, hogged, recorded, sampled_functions
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import Suspect, view_of, views
from stepscope.comparison.diagnosis.change import Change
from stepscope.comparison.diagnosis.cores import held_by_threads, holder
from stepscope.comparison.diagnosis.threads import gil_contention, thread_oversubscription
from stepscope.comparison.effects import effects
from stepscope.comparison.model import LockHeld
from stepscope.comparison.verdict import compare_runs

HEALTHY = Job()


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


def test_threads_that_push_each_other_off_the_cores_are_too_many():
    slower = replace(HEALTHY, typical_slowdown=1.6)
    crowded = slower.levels(num_threads=34.0, process_runq_time=5e9, process_involuntary_ctx_switches=900.0)
    diagnosis = diagnosed(HEALTHY, crowded)
    assert categories(diagnosis) == ["thread_oversubscription"]
    assert "34 threads (was 2)" in diagnosis.causes[0].statement


@pytest.mark.parametrize(("works", "names"), [(1.6e9, ["thread_oversubscription"]), (1.1e9, [])])
def test_one_thread_more_is_too_many_if_it_works_beside_the_others(works, names):
    """A library that computes with two threads, whose waits use the processor, beside a worker on two cores."""
    slower = replace(HEALTHY, typical_slowdown=1.25)
    crowded = slower.levels(
        num_threads=3.0, process_oncpu_time=works, process_runq_time=2.6e9 - works, process_involuntary_ctx_switches=9e2
    )
    assert [name for name in categories(diagnosed(HEALTHY, crowded)) if name == "thread_oversubscription"] == names


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


@pytest.mark.parametrize(("turns", "names"), [(9000.0, ["thread_oversubscription"]), (300.0, ["gil_contention"])])
def test_threads_that_compute_together_for_a_part_of_the_time_wait_for_each_other_far_more_often(turns, names):
    """Four threads for some operators on two cores: on average fewer are ready than there are cores."""
    base = replace(HEALTHY, gaps_ms=20.0).levels(process_oncpu_time=9e8, process_runq_time=5e6, num_threads=3.0)
    crowded = replace(base, typical_slowdown=1.1, gaps_ms=28.0).levels(
        process_oncpu_time=1.15e9, process_runq_time=7e8, num_threads=7.0, process_involuntary_ctx_switches=900.0,
        process_voluntary_ctx_switches=turns,
    )  # fmt: skip
    assert categories(diagnosed(base, crowded)) == names


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
    assert held_by_threads(view).is_real
    assert holder(view) == "the thread new"


def test_samples_of_who_holds_the_lock_are_enough_by_themselves_and_rule_it_out():
    base, slower = HEALTHY, replace(HEALTHY, typical_slowdown=1.5)
    main = {"MainThread": LockHeld(0.3, 20)}
    known = {**main, "metrics": LockHeld(0.02, 2)}
    assert causes_of(base, slower, known, {**main, "metrics": LockHeld(0.3, 20)}) == ["gil_contention"]
    # As rarely as in the base, or by the main thread alone.
    assert "gil_contention" not in causes_of(base, slower, known, {**main, "metrics": LockHeld(0.03, 3)})
    hog = hogged(HEALTHY)
    assert causes_of(base, hog)[0] == "gil_contention"
    assert causes_of(base, hog, main, {**main, "metrics": LockHeld(0.3, 20)})[0] == "gil_contention"
    assert "gil_contention" not in causes_of(base, hog, main, main)


def test_threads_of_a_pool_that_do_what_the_main_thread_waits_for_do_not_keep_the_lock_from_it():
    base, hog = locked(HEALTHY, {"MainThread": LockHeld(0.3, 6)}), {"encoder_#": LockHeld(0.3, 6, is_in_pool=True)}
    for of_pool, is_named in ((0.0, True), (0.9, False)):
        works = sampled_functions({"encode (a.py)": 1.0}, 2000).with_columns(worker_ratio=of_pool)
        other = replace(locked(hogged(HEALTHY), hog), python_functions=works)
        causes = [cause.category for cause in compare_runs([[base]], [[other]]).causes]
        assert ("gil_contention" in causes) == is_named


@pytest.mark.parametrize(("part", "is_named"), [(1.0, True), (0.05, False)])
def test_what_is_proven_of_threads_names_them_where_steps_only_seem_to_take_longer(part, is_named):
    crowded = replace(HEALTHY, typical_slowdown=1.6).levels(
        num_threads=34.0, process_runq_time=5e8, process_involuntary_ctx_switches=900.0
    )
    for other, rule in ((hogged(HEALTHY), gil_contention), (crowded, thread_oversubscription)):
        (view,) = views(case_of(HEALTHY, other))
        other_ns = view.base_ns + part * view.delta_ns
        seems = replace(view, step=Change(view.base_ns, other_ns, is_real=False, unit="ns"))
        assert isinstance(rule(view), Suspect)
        assert isinstance(rule(seems), Suspect) == is_named


def test_threads_wait_for_cores_at_once_so_a_cycle_takes_longer_by_what_one_of_them_waits():
    crowded = replace(HEALTHY, typical_slowdown=1.6).levels(
        num_threads=34.0, process_runq_time=9e9, process_involuntary_ctx_switches=900.0
    )
    (view,) = views(case_of(HEALTHY, crowded))
    seems = replace(view, step=Change(view.base_ns, view.base_ns * 1.3, is_real=False, unit="ns"))
    assert isinstance(thread_oversubscription(seems), Suspect)


def test_while_no_thread_runs_none_holds_the_lock():
    asleep = replace(hogged(HEALTHY), gaps_ms=120.0).levels(process_oncpu_time=7e8, process_runq_time=0.0)
    assert "gil_contention" not in categories(diagnosed(HEALTHY, asleep))


def causes_of(base, other, base_held=None, other_held=None):
    runs = locked(base, base_held), locked(other, other_held)
    return [cause.category for cause in compare_runs([[runs[0]]], [[runs[1]]]).causes]


def locked(job, held):
    return replace(recorded(job), lock_held=held)
