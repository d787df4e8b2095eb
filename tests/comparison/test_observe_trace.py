from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from cycle_traces import (
    BACKWARD,
    GPU,
    MAIN,
    PID,
    STREAM,
    TRACKS_4,
    samples_of,
    spans_of,
    steps_of,
    trace_of,
    training,
)  # fmt: skip

from stepscope.comparison.model import CYCLES_SEEN, FUNCTIONS, PARTS, RESOURCES, WORKLOAD
from stepscope.comparison.observe import observe
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import ISSUES, SPANS

N = 6
MARKED = [(MAIN, 1000 * i, 990, f"ProfilerStep#{i}", "step") for i in range(N)]
STEPS = steps_of(*((1000 * i, 990) for i in range(N)))
TRACE = trace_of(spans_of(*MARKED, *training(N)), steps=STEPS)
CLOCK = [(100 * i, "gpu3", "gpu_sm_frequency", 1000.0, "MHz") for i in range(60)]


def test_a_recording_becomes_tables_by_cycle():
    (seen,) = observe(TRACE)
    assert (seen.label, seen.pid, seen.anchor, seen.source) == ("", PID, "ProfilerStep", "annotation")
    assert seen.meta is TRACE.meta
    tables = (seen.cycles, seen.functions, seen.parts, seen.resources, seen.workload)
    for table, frame in zip((CYCLES_SEEN, FUNCTIONS, PARTS, RESOURCES, WORKLOAD), tables, strict=True):
        assert frame.schema == table.empty().schema
    assert seen.cycles["dur_ns"].to_list() == [1000] * 5 + [990]
    assert seen.cycles["is_complete"].all()
    calls = seen.functions.filter(pl.col("name") == "aten::linear").select("cycle", "calls", "total_ns").rows()
    assert calls == [(i, 4, 320) for i in range(N)]


def test_own_times_of_the_main_thread_sum_to_the_step():
    (seen,) = observe(TRACE)
    host = seen.functions.filter(pl.col("device") == "host", pl.col("name") != "autograd::backward")
    assert host.group_by("cycle").agg(pl.col("self_ns").sum())["self_ns"].to_list() == [990] * N


def test_parts_sum_to_each_cycle():
    (seen,) = observe(TRACE)
    sums = seen.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
    assert sums["total_ns"].to_list() == seen.cycles["dur_ns"].to_list()


def test_backward_work_counts_as_the_jobs_own():
    (seen,) = observe(trace_of(spans_of(*(row for row in [*MARKED, *training(N)] if row[0] != STREAM)), steps=STEPS))
    operators = seen.parts.filter(pl.col("part") == "operators", pl.col("cycle") == 0)["total_ns"][0]
    assert operators == 30 + 4 * 70 + 80 + 100  # copies, layers less their launches, additions, and backward


def test_counters_are_told_per_cycle_and_for_kernels():
    (seen,) = observe(TRACE.with_tables(counters=samples_of(*CLOCK)))
    assert seen.resources.select("device", "metric", "name").unique().sort("name").rows() == [
        ("gpu3", "gpu_sm_frequency", None), ("gpu3", "gpu_sm_frequency", "gemm"),
    ]  # fmt: skip
    assert set(seen.resources["mu"]) == {1000.0}
    assert seen.counters.height == 60
    assert seen.notes == ()


def test_without_counters_the_notes_say_so():
    assert [note.split(":")[0] for note in observe(TRACE)[0].notes] == ["no counters were recorded"]


def test_counters_that_could_not_be_placed_are_not_none():
    issue = ISSUES.conform(pl.DataFrame({"code": ["counters_unplaced"], "example": ["it has no clock"]}))
    (seen,) = observe(TRACE.with_tables(issues=issue))
    assert seen.notes[0].startswith("counters are not used (it has no clock)")


def test_counters_from_another_hour_are_not_used():
    away = samples_of(*((3_600 * 10**9 + row[0], *row[1:]) for row in CLOCK))
    (seen,) = observe(TRACE.with_tables(counters=away))
    assert seen.resources.is_empty()
    assert "perhaps a time zone of 1 h" in seen.notes[0]


def test_without_marked_steps_cycles_are_found_and_the_notes_say_how():
    (seen,) = observe(trace_of(spans_of(*training(N))))
    assert (seen.anchor, seen.source, seen.cycles.height) == ("optimize", "detected", N)
    assert seen.notes[0].startswith("no steps are marked; cycles are 6 calls of optimize; 100%")
    assert seen.notes[1] == "recorded in part and left out: cycle 6"


def test_cycles_are_cut_by_the_anchor_of_the_other_run():
    (seen,) = observe(trace_of(spans_of(*training(N))), anchor="load")
    assert (seen.anchor, seen.cycles.height) == ("load", N)


def test_an_anchor_that_is_not_there_gives_way_to_what_is():
    (seen,) = observe(TRACE, anchor="run_batch")
    assert seen.anchor == "ProfilerStep"
    assert seen.notes[0] == "no two calls of 'run_batch' that could mark cycles; cycles are 6 marked steps"


def test_one_cycle_only_is_observed_and_said():
    (seen,) = observe(trace_of(spans_of(*MARKED[:1], *training(1)), steps=steps_of((0, 990))))
    assert seen.cycles.height == 1
    assert "one complete cycle: how much cycles vary is not known" in seen.notes


def test_each_process_is_observed_without_the_others_counters():
    tracks = TRACKS_4.with_columns(
        pid=pl.Series([PID, 99, 0, None], dtype=pl.Int64), device_id=pl.Series([None] * 4, dtype=pl.UInt32)
    )
    rows = [row for row in training(N) if row[0] == MAIN]
    rows += [(BACKWARD, *row[1:]) for row in rows]
    counters = samples_of(
        *((100 * i, f"pid:{pid}", "load", float(pid), "%") for i in range(60) for pid in (PID, 99, 5))
    )
    trace = trace_of(spans_of(*rows), counters=counters)
    first, second = observe(replace(trace, tables={**trace.tables, "tracks": tracks}))
    assert (first.label, second.label) == (f"pid {PID}", "pid 99")
    assert first.functions.height == second.functions.height
    for seen, own in ((first, float(PID)), (second, 99.0)):
        by_device = seen.resources.group_by("device").agg(pl.col("mu").first()).sort("mu")
        assert sorted(by_device.rows()) == [("pid:5", 5.0), ("process", own)]


def test_a_recording_of_a_device_alone_is_observed():
    rows = [(STREAM, 1000 * i + 100 * k, 50, name, "kernel") for i in range(6) for k, name in enumerate("abbbc")]
    (seen,) = observe(trace_of(spans_of(*rows)))
    assert (seen.pid, seen.source) == (None, "detected")
    assert set(seen.parts["part"]) == {"computation", "idle"}


@pytest.mark.parametrize(
    ("spans", "error"),
    [
        (SPANS.empty(), "compare needs spans"),
        (spans_of((MAIN, 0, 9, "a", "operator")).with_columns(ts_ns=pl.lit(None, pl.Int64)), "start times"),
    ],
)
def test_what_a_comparison_needs_is_named(spans, error):
    with pytest.raises(MissingTable, match=error):
        observe(trace_of(spans))


def test_without_anything_that_comes_again_there_is_nothing_to_compare():
    with pytest.raises(StepscopeError, match="nothing repeats"):
        observe(trace_of(spans_of((MAIN, 0, 9, "a", "operator")), devices=GPU))
