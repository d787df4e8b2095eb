from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from faulty_jobs import HOST, MODEL, Job, Op, bigger, categories, diagnosed, not_judged, recorded
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.diagnosis.memory import growth_of, slope
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Pair

BASE = Job()


def test_memory_that_grows_every_step_is_found_though_steps_are_not_slower():
    diagnosis = diagnosed(BASE, replace(BASE, growth_bytes=20e6))
    assert categories(diagnosis) == ["memory_growth"]
    assert "grows by 1" in diagnosis.causes[0].statement
    assert "every cycle" in diagnosis.causes[0].statement


def test_what_fills_the_new_memory_is_its_consequence():
    other = replace(BASE.with_ops(Op("aten::fill_", 1, 15e6, "[[5000000],[]]")), growth_bytes=20e6)
    diagnosis = diagnosed(BASE, other.levels(process_minor_faults=300e3))
    assert categories(diagnosis) == ["memory_growth"]
    assert any("slow_operator" in row.text for row in diagnosis.causes[0].consequences)


def test_a_recorder_that_keeps_its_events_is_no_growth():
    assert not diagnosed(BASE, replace(BASE, growth_bytes=1.6e6)).causes


def test_events_of_added_calls_are_the_recorder_s_memory():
    other = replace(BASE.with_ops(Op("aten::item", 4017, 0.002e6, "[[]]")), growth_bytes=3.5e6)
    assert "memory_growth" not in categories(diagnosed(BASE, other))


def test_growth_beside_a_heap_that_grows_anyway_is_found():
    """A profiler's small records between large blocks fragment the heap: healthy runs grow too."""
    base = replace(BASE, growth_bytes=33e6)
    assert categories(diagnosed(base, replace(base, growth_bytes=49e6))) == ["memory_growth"]
    assert not diagnosed(base, replace(base, growth_bytes=36e6)).causes


def test_a_heap_that_grows_in_proportion_to_a_larger_batch_is_no_growth():
    base = replace(BASE, growth_bytes=33e6)
    other = replace(bigger(base, 1.5), growth_bytes=49e6)
    assert categories(diagnosed(base, other)) == ["workload_change"]
    assert not any("memory_growth" in row.text for row in diagnosed(base, other).causes[0].consequences)


def test_memory_that_goes_back_to_the_driver_in_each_cycle_is_pressure():
    calls = (
        Op("cudaFree", 32, 0.11e6, "[]", category="runtime"),
        Op("cudaMalloc", 32, 0.12e6, "[]", category="runtime"),
    )
    cause, *_ = diagnosed(BASE, BASE.with_ops(*calls)).causes
    assert cause.category == "memory_pressure"
    assert "32 calls of cudaMalloc and 32 calls of cudaFree per cycle" in cause.statement
    assert not diagnosed(BASE.with_ops(*calls), BASE.with_ops(*calls)).causes


def test_memory_that_was_taken_once_is_no_growth():
    assert not diagnosed(BASE, BASE.levels(process_mem_rss=450e6)).causes


def test_growth_that_ends_is_start_up():
    values = np.concatenate([np.linspace(0, 1e9, 12), np.full(13, 1e9)])
    grown = growth_of(values)
    assert grown is not None
    assert grown.late < 0.5 * max(grown.per_cycle, 1.0)


def test_growth_of_what_tensors_hold_is_found_before_that_of_the_process():
    levels = {**HOST, ("process", "process_mem_allocated"): ("bytes", 300e6)}
    base = replace(BASE, resources=levels)
    other = replace(base, growth_bytes=20e6)
    assert diagnosed(base, other).causes[0].evidence[0].metric == "process_mem_allocated"
    assert not diagnosed(base, base).causes


def test_a_heap_that_grows_while_tensors_do_not_must_grow_thrice_as_fast_as_before():
    """A profiler fragments it by more in one healthy run than in the next."""
    base = replace(BASE, resources={**HOST, ("process", "process_mem_allocated"): ("bytes", 300e6)}, heap_bytes=11e6)
    assert not diagnosed(base, replace(base, heap_bytes=30e6)).causes
    diagnosis = diagnosed(base, replace(base, heap_bytes=45e6))
    assert categories(diagnosis) == ["memory_growth"]
    assert diagnosis.causes[0].evidence[0].metric == "process_mem_rss"


def test_a_heap_that_grows_as_another_rank_s_did_is_no_growth():
    calm, wild = replace(BASE, growth_bytes=11e6), replace(BASE, growth_bytes=30e6)
    swapped = Case(
        tuple(Pair(f"rank {i}", (recorded(base, i),), (recorded(other, 50 + i),), "rank")
              for i, (base, other) in enumerate([(calm, wild), (wild, calm)])),
        pl.DataFrame(),
    )  # fmt: skip
    case = replace(swapped, effects=effects(swapped.pairs))
    assert not diagnose(case).causes
    unscaled = replace(case, pairs=case.pairs[:1])
    assert categories(diagnose(unscaled)) == ["memory_growth"]


def test_levels_in_other_units_are_not_looked_at():
    levels = {**BASE.without("process_mem_rss").resources, ("process", "process_mem_rss"): ("ratio", 0.5)}
    base = replace(BASE, resources=levels)
    assert not diagnosed(base, base).causes


def test_memory_nobody_recorded_is_asked_for():
    bare = BASE.without("process_mem_rss")
    assert "process_mem_rss" in not_judged(diagnosed(bare, bare))["memory_growth"]


def test_pages_fetched_again_while_memory_is_short_are_pressure():
    other = replace(BASE, typical_slowdown=1.5).levels(
        process_major_faults=400.0, host_mem_available=1e9, process_oncpu_time=7e8
    )
    diagnosis = diagnosed(BASE, other)
    assert "memory_pressure" in categories(diagnosis)
    cause = next(cause for cause in diagnosis.causes if cause.category == "memory_pressure")
    assert "memory available fell" in cause.statement


def test_first_reads_of_files_are_no_pressure():
    assert not diagnosed(BASE, BASE.levels(process_major_faults=400.0)).causes


def test_swap_is_pressure():
    base = replace(BASE, resources={**BASE.resources, ("process", "process_mem_swap"): ("bytes", 0.0)})
    assert categories(diagnosed(base, base.levels(process_mem_swap=5e8))) == ["memory_pressure"]


def test_retries_of_the_allocator_are_pressure():
    base = replace(BASE, resources={**BASE.resources, ("gpu0", "alloc_retries"): ("count", 0.0)})
    diagnosis = diagnosed(base, base.levels(alloc_retries=6.0))
    assert categories(diagnosis) == ["memory_pressure"]
    assert diagnosis.causes[0].device == "gpu0"


@pytest.mark.parametrize(
    ("pages", "growth_bytes", "named"),
    [
        (6000, 1e6, True),
        (1500, 1e6, False),  # at 1 µs each too little of a cycle of 78 ms
        (6000, 6000 * 4096, False),  # memory that grows, whose pages are new once
    ],
)
def test_pages_that_are_new_in_each_cycle_are_pressure(pages, growth_bytes, named):
    ms = 4 * pages / 1000
    other = replace(BASE, typical_slowdown=1 + ms / 78, growth_bytes=growth_bytes)
    per_s = pages / (0.078 + ms / 1000)
    before = BASE.levels(process_minor_faults=75.0)
    found = diagnosed(before, replace(other, resources=before.levels(process_minor_faults=per_s).resources))
    assert ("memory_pressure" in categories(found)) is named


def test_pressure_nobody_recorded_is_asked_for():
    bare = BASE.without("process_major_faults", "host_mem_available")
    assert "memory_pressure" in not_judged(diagnosed(bare, bare))


def test_few_cycles_have_no_trend():
    assert growth_of(np.arange(7.0)) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30), st.floats(-1e6, 1e6))
def test_the_slope_follows_what_is_added_per_cycle(values, extra):
    start = np.array(values)
    added = start + extra * np.arange(start.size)
    assert slope(added) == pytest.approx(slope(start) + extra, abs=1e-3 + 1e-6 * abs(extra))


def test_the_slope_of_a_long_run_is_that_of_a_sample():
    assert slope(3.0 * np.arange(5000)) == pytest.approx(3.0)


def test_one_wild_cycle_does_not_tilt_the_slope():
    values = np.arange(25.0)
    values[20] = 1e9
    assert slope(values) == pytest.approx(1.0)


#: A job whose operators move memory, and compute.
MODEL_JOB = Job(operators=MODEL)


def slowed(moves, computes):
    """The job beside a neighbour that keeps the other core busy."""
    factors = {"aten::mm": computes, "aten::addmm": computes}
    rows = (replace(op, each_ns=op.each_ns * factors.get(op.name, moves)) for op in MODEL)
    return replace(MODEL_JOB, operators=tuple(rows)).at("host", "host_cpu_usage", 99.0)


def first_cause(base, other):
    causes = diagnosed(base, other).causes
    return causes[0].category if causes else None


def test_work_that_moves_memory_is_slowed_more_than_products():
    assert first_cause(MODEL_JOB, slowed(2.0, 1.3)) == "memory_bandwidth"


@pytest.mark.parametrize(("moves", "computes"), [(1.5, 1.5), (1.3, 1.6)])
def test_a_neighbour_that_slows_products_as_much_shares_cores(moves, computes):
    assert first_cause(MODEL_JOB, slowed(moves, computes)) == "cpu_contention"


def test_operators_that_are_slow_on_a_machine_that_is_not_busier_have_other_reasons():
    other = slowed(2.0, 1.3).at("host", "host_cpu_usage", 50.0)
    assert first_cause(MODEL_JOB, other) != "memory_bandwidth"


def test_without_operators_of_both_kinds_it_is_not_judged():
    only = tuple(op for op in MODEL if op.name in ("aten::mm", "aten::addmm"))
    base = replace(MODEL_JOB, operators=only)
    other = replace(base, operators=tuple(replace(op, each_ns=2 * op.each_ns) for op in only))
    assert "memory_bandwidth" in not_judged(diagnosed(base, other.at("host", "host_cpu_usage", 99.0)))


@pytest.mark.parametrize(("growth_bytes", "first"), [(60e6, "memory_growth"), (5e6, "layout_copies")])
def test_copies_that_are_made_to_be_kept_follow_from_the_memory_that_grows(growth_bytes, first):
    copies = replace(BASE.op("aten::copy_"), calls=29, each_ns=0.9e6)
    other = replace(BASE.with_ops(Op("aten::clone", 6, 0.004e6, "[[8,72,320]]"), copies), growth_bytes=growth_bytes)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis)[0] == first
    texts = [row.text for row in diagnosis.causes[0].consequences]
    assert any(text.startswith("layout_copies") for text in texts) == (first == "memory_growth")
