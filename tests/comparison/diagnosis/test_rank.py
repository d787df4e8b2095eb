from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_jobs import Job, case_of, categories, found, gpu_job

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.diagnosis.rank import FOLLOWS, RULES
from stepscope.comparison.model import CATEGORIES

BASE = Job()


@pytest.mark.parametrize("seed", range(30))
def test_healthy_runs_of_a_training_have_no_cause(seed):
    assert not diagnose(case_of(BASE, BASE, seed=1000 * seed)).causes


@pytest.mark.parametrize("seed", range(30))
def test_healthy_runs_of_a_serving_job_have_no_cause(seed):
    few = replace(gpu_job(), cycles=4 + seed % 12)
    assert not diagnose(case_of(few, few, seed=1000 * seed)).causes


def test_repeats_of_the_base_are_used():
    other = replace(BASE, loading_ms=20.0)
    assert categories(found(BASE, other, repeats=3)) == ["data_loading"]


def test_two_faults_are_both_named_the_larger_first():
    other = replace(BASE, loading_ms=60.0).levels(process_python_gc_time=1.2e8)
    other = replace(other, gaps_ms=16.0)
    assert categories(found(BASE, other))[:2] == ["data_loading", "python_gc"]


def test_what_was_ruled_out_is_told_once_with_its_reason():
    diagnosis = found(BASE, replace(BASE, loading_ms=20.0))
    told = [row.category for row in diagnosis.ruled_out]
    assert len(told) == len(set(told))
    assert "data_loading" not in told
    assert all(row.reason for row in diagnosis.ruled_out)


def test_a_slowdown_that_nothing_accounts_for_is_said_to_be_one():
    bare = replace(BASE, resources={})
    diagnosis = found(bare, replace(bare, stretch=1.5))
    assert not diagnosis.causes
    assert "nothing that was recorded accounts for it" in diagnosis.notes[0]


def test_a_job_without_counters_is_asked_for_them():
    bare = replace(BASE, resources={})
    text = " ".join(found(bare, bare).notes)
    for counter in ("process_runq_time", "cpu_frequency", "process_python_gc_time", "process_mem_rss"):
        assert counter in text


def test_without_pairs_there_is_nothing_to_say():
    diagnosis = diagnose(Case((), case_of(BASE, BASE).effects))
    assert diagnosis.causes == ()


def test_every_category_has_a_rule_and_only_they():
    assert {rule.category for rule in RULES} | {"straggler_rank", "none"} == set(CATEGORIES)
    assert set(FOLLOWS) | {c for found in FOLLOWS.values() for c in found} <= set(CATEGORIES)


def test_one_cycle_on_a_side_names_nothing():
    assert not found(replace(BASE, cycles=1), replace(BASE, cycles=1, loading_ms=90.0)).causes


def test_a_fault_that_is_gone_is_told_as_a_note():
    diagnosis = found(replace(BASE, loading_ms=30.0), BASE)
    assert not diagnosis.causes
    assert any("the base is the slower run" in note and "data_loading" in note for note in diagnosis.notes)


def test_what_explains_next_to_nothing_is_no_answer():
    other = replace(BASE, stretch=1.6, loading_ms=4.0).without("process_runq_time", "host_cpu_usage")
    base = BASE.without("process_runq_time", "host_cpu_usage")
    diagnosis = found(base, other)
    assert "data_loading" not in categories(diagnosis)
    assert any("of the difference" in row.reason for row in diagnosis.ruled_out if row.category == "data_loading")
