from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faulty_jobs import MS, Job, Op, bigger, case_of, categories, diagnosed, gpu_job, not_judged, sampled_functions
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.diagnosis.causes import RULES, STATES
from stepscope.comparison.diagnosis.ordering import FOLLOWS
from stepscope.comparison.model import CATEGORIES

if TYPE_CHECKING:
    import polars as pl

BASE = Job()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_healthy_runs_of_a_training_have_no_cause(seed):
    assert not diagnose(case_of(BASE, BASE, seed=1000 * seed)).causes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_healthy_runs_of_a_serving_job_have_no_cause(seed):
    few = replace(gpu_job(), cycles=4 + seed % 12)
    assert not diagnose(case_of(few, few, seed=1000 * seed)).causes


def test_repeats_of_the_base_are_used():
    other = replace(BASE, loading_ms=20.0)
    assert categories(diagnosed(BASE, other, repeats=3)) == ["data_loading"]


def test_two_faults_are_both_named_the_larger_first():
    other = replace(BASE, loading_ms=60.0).levels(process_python_gc_time=1.2e8)
    other = replace(other, gaps_ms=16.0)
    assert categories(diagnosed(BASE, other))[:2] == ["data_loading", "python_gc"]


def test_what_was_ruled_out_is_told_once_with_its_reason():
    diagnosis = diagnosed(BASE, replace(BASE, loading_ms=20.0))
    names = [row.category for row in diagnosis.ruled_out]
    assert len(names) == len(set(names))
    assert "data_loading" not in names
    assert all(row.reason for row in diagnosis.ruled_out)


def test_a_slowdown_that_nothing_accounts_for_is_said_to_be_one():
    bare = replace(BASE, resources={})
    diagnosis = diagnosed(bare, replace(bare, typical_slowdown=1.5))
    assert not diagnosis.causes
    assert "no cause has its necessary evidence" in diagnosis.remarks[0]
    assert "hardware" not in diagnosis.remarks[0]


def test_a_slowdown_without_a_cause_names_the_part_that_grew_most_and_other_hardware():
    bare = replace(BASE, resources={}, computing_ms=50.0)
    case = case_of(bare, replace(bare, computing_ms=100.0))
    remark = diagnose(replace(case, machines="A100 → V100")).remarks[0]
    assert "; computation by 5" in remark
    assert remark.endswith("The hardware is another (A100 → V100), which may be the reason")


def test_longer_cycles_that_are_not_proven_rule_out_no_cause_of_time():
    slower = replace(BASE, cycles=1, loading_ms=40.0)
    open_ = not_judged(diagnosed(replace(BASE, cycles=1), slower))
    assert {"data_loading", "slow_operator", "host_overhead", "memory_growth"} <= set(open_)
    assert "not proven" in open_["data_loading"]
    assert "not proven" in open_["slow_operator"]


@pytest.mark.slow
def test_shorter_cycles_do_not_rule_out_what_made_them_shorter():
    open_ = not_judged(diagnosed(replace(BASE, loading_ms=40.0), BASE))
    assert "cycles become shorter by it" in open_["data_loading"]
    assert open_["slow_operator"] == "cycles are not slower"


def test_causes_of_one_process_that_talks_to_others_are_open():
    talking = replace(BASE, talk_ms=5.0)
    assert "straggler_rank" in not_judged(diagnosed(talking, talking))
    assert "straggler_rank" not in not_judged(diagnosed(BASE, BASE))


def test_a_job_without_counters_is_asked_for_them():
    bare = replace(BASE, resources={})
    text = " ".join(not_judged(diagnosed(bare, bare)).values())
    for counter in ("process_runq_time", "cpu_frequency", "process_python_gc_time", "process_mem_rss"):
        assert counter in text


def test_without_pairs_there_is_nothing_to_say():
    diagnosis = diagnose(Case((), case_of(BASE, BASE).effects))
    assert diagnosis.causes == ()


def test_every_category_has_a_rule_and_only_they():
    assert {rule.category for rule in RULES} | {"straggler_rank", "none"} == set(CATEGORIES)
    assert set(FOLLOWS) | {c for diagnosed in FOLLOWS.values() for c in diagnosed} <= set(CATEGORIES)


def test_one_cycle_on_a_side_names_nothing():
    assert not diagnosed(replace(BASE, cycles=1), replace(BASE, cycles=1, loading_ms=90.0)).causes


def test_a_fault_that_is_gone_is_told_as_a_note():
    diagnosis = diagnosed(replace(BASE, loading_ms=30.0), BASE)
    assert not diagnosis.causes
    assert any("The base is the slower run" in remark and "data_loading" in remark for remark in diagnosis.remarks)


def test_what_explains_next_to_nothing_is_no_answer():
    other = replace(BASE, typical_slowdown=1.6, loading_ms=4.0).without("process_runq_time", "host_cpu_usage")
    base = BASE.without("process_runq_time", "host_cpu_usage")
    diagnosis = diagnosed(base, other)
    assert "data_loading" not in categories(diagnosis)
    assert any("of the difference" in row.reason for row in diagnosis.ruled_out if row.category == "data_loading")


STEADY, SLOW = Job(), replace(Job(), gaps_ms=25.0)


def shares(n_samples: int = 500, **functions: float) -> pl.DataFrame:
    """Shares of functions, as an observation has them."""
    return sampled_functions(functions, n_samples)


def python_evidence(base: pl.DataFrame | None, other: pl.DataFrame | None) -> list[tuple[str, float, float]]:
    """What the cause says of functions."""
    case = case_of(STEADY, SLOW)
    pair = case.pairs[0]
    pair = replace(
        pair,
        base=tuple(replace(each, python_functions=base) for each in pair.base),
        other=tuple(replace(each, python_functions=other) for each in pair.other),
    )
    (cause,) = diagnose(Case((pair,), case.effects)).causes
    assert cause.category == "host_overhead"
    return [(row.name, row.base, row.other) for row in cause.evidence if "main thread" in row.text]


def test_functions_that_grew_are_python_evidencewith_their_time_per_cycle():
    ((name, base, other),) = python_evidence(shares(load=0.1, step=0.9), shares(load=0.1, step=0.5, augment=0.4))
    assert name == "augment"
    assert base == 0.0
    assert other == pytest.approx(0.4 * slow_ns(), rel=0.1)


def slow_ns() -> float:
    """What a cycle of the slow job takes."""
    return case_of(STEADY, SLOW).pairs[0].other[0].cycles["dur_ns"].mean()


def test_only_the_two_that_grew_most_are_told():
    other = shares(step=0.3, a=0.3, b=0.2, c=0.2)
    assert [name for name, *_ in python_evidence(shares(step=1.0), other)] == ["a", "b"]


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (None, shares(augment=1.0)),
        (shares(step=1.0), None),
        (shares(n_samples=20, step=1.0), shares(augment=1.0)),
        (shares(step=0.5, load=0.5), shares(n_samples=31, step=0.45, load=0.45, augment=0.1)),
        (shares(), shares()),
    ],
    ids=["no base", "no other", "few looks", "by chance", "no function"],
)
def test_too_few_looks_say_nothing(base, other):
    assert python_evidence(base, other) == []


def test_other_causes_are_as_they_were():
    other = replace(STEADY, gaps_ms=27.0).levels(process_python_gc_time=2.75e8, process_python_gc_collections=9.0)
    assert not [row for cause in diagnosed(STEADY, other).causes for row in cause.evidence if "main thread" in row.text]


FAULTS = {
    "loading": lambda job, size: replace(job, loading_ms=0.45 + 60 * size),
    "gaps": lambda job, size: replace(job, gaps_ms=1.9 + 60 * size),
    "slower": lambda job, size: replace(job, typical_slowdown=1 + size),
    "more work": lambda job, size: bigger(job, 1 + size),
    "less work": lambda job, size: bigger(job, 1 / (1 + size)),
    "collections": lambda job, size: job.levels(process_python_gc_time=2e8 * size),
}


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.dictionaries(st.sampled_from(sorted(FAULTS)), st.floats(0.02, 2.0), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_cause_has_the_sign_of_the_change_and_at_least_a_tenth_or_much_of_what_others_leave(faults, is_back, seed):
    other = BASE
    for name, size in faults.items():
        other = FAULTS[name](other, size)
    case = case_of(*((other, BASE) if is_back else (BASE, other)), seed=seed)
    causes = diagnose(case).causes
    for cause in causes:
        assert abs(cause.explained_ns) <= abs(case.step_time.delta) * 1.001
        if case.step_verdict != "different":
            continue
        share = cause.explained_ns / case.step_time.delta
        larger = sum(each.explained_ns for each in causes if each.explained_ns > cause.explained_ns)
        is_much_of_rest = share >= 0.25 * (1 - larger / case.step_time.delta)
        assert share >= 0.1 or (share == 0 and cause.category in STATES) or is_much_of_rest
        assert cause.certainty != "certain" or share >= 0.5


def test_a_cause_of_little_of_the_change_is_a_note():
    other = replace(BASE, loading_ms=60.0).levels(process_python_gc_time=3.5e7)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["data_loading"]


def test_a_small_cause_beside_a_large_one_is_named_if_it_fills_what_that_leaves():
    """A loader takes 60 ms more, small calls 5.5 ms, less than a tenth of all but much of the other 13.5 ms."""
    of_loader = replace(BASE, loading_ms=BASE.loading_ms + 60.0)

    def said(small_ms, rest_ms):
        calls = Op("aten::tiny", 1000, small_ms / 1000 * MS, "[[]]")
        return categories(diagnosed(BASE, replace(of_loader, launch_ms=rest_ms).with_ops(calls)))

    assert said(5.5, 8.0) == ["data_loading", "host_overhead"]
    assert said(1.0, 8.0) == ["data_loading"]


def test_on_another_machine_slower_calls_are_no_fault():
    case = case_of(BASE, replace(BASE, gaps_ms=40.0))
    assert categories(diagnose(case)) == ["host_overhead"]
    diagnosis = diagnose(replace(case, machines="A100 → V100"))
    assert categories(diagnosis) == []
    assert any("other hardware (A100 → V100)" in row.reason for row in diagnosis.ruled_out)


def loading(job):
    return replace(job, loading_ms=job.loading_ms + 30)


def collecting(job):
    """25 ms of collections in a cycle of some 120 ms."""
    longer = replace(job, gaps_ms=job.gaps_ms + 25)
    return longer.levels(process_python_gc_time=25e9 / 120, process_python_gc_collections=15.0)


def reading(job):
    return job.with_ops(Op("aten::item", 917, 0.02 * MS, "[[]]"))


def in_double(job):
    mm = job.op("aten::mm")
    return job.with_ops(replace(mm, each_ns=2 * mm.each_ns, types='["double","double"]'))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((loading, "data_loading", 30), (collecting, "python_gc", 25)),
        ((reading, "host_overhead", 18), (collecting, "python_gc", 25)),
        ((reading, "host_overhead", 18), (loading, "data_loading", 30)),
        ((in_double, "slow_operator", 44), (loading, "data_loading", 30)),
        ((in_double, "slow_operator", 44), (collecting, "python_gc", 25)),
    ],
)
def test_of_two_faults_at_once_both_are_named_with_their_parts(one, two):
    parts = {cause.category: cause.explained_ns for cause in diagnosed(Job(), two[0](one[0](Job()))).causes}
    assert set(parts) == {one[1], two[1]}
    assert parts[one[1]] / MS == pytest.approx(one[2], rel=1 / 3)
    assert parts[two[1]] / MS == pytest.approx(two[2], rel=1 / 3)
