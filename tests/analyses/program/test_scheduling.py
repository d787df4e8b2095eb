from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.program.scheduling import scheduling
from stepscope.core.errors import MissingTable
from stepscope.core.schema import SCHED, SPANS, STEPS, TRACKS

TRACK_ROWS = [
    {"track_id": 0, "pid": 1, "tid": 1, "kind": "thread", "process": "train", "label": "main"},
    {"track_id": 1, "pid": 1, "tid": 1, "kind": "other", "process": "train", "label": "main 1 · cores"},
    {"track_id": 2, "pid": 1, "tid": 7, "kind": "other", "process": "train", "label": "io 7 · cores"},
]
#: track, start, duration, waits, core, reason, other, whether that is of the job
ROWS = [
    (0, 0, 99, None, None, None, None, None),
    (1, 0, 10, False, 0, "preempted", "greedy", False),
    (1, 10, 30, True, 1, "preempted", "greedy", False),
    (1, 40, 20, False, 1, "sleeps", "io", True),
    (1, 80, 5, True, 1, "woken", "io", True),
    (1, 85, 15, False, 1, "blocked", None, None),
    (2, 60, 10, True, None, "woken", None, None),
    (2, 70, 20, False, 0, "ended", None, None),
]


def tables():
    columns = ["track_id", "ts_ns", "dur_ns", "waits", "core", "reason", "other", "other_is_own"]
    frame = pl.DataFrame(ROWS, schema=columns, orient="row").with_row_index("span_id")
    kind = pl.when(pl.col("waits")).then(pl.lit("sched_runq")).otherwise(pl.lit("sched_oncpu"))
    frame = frame.with_columns(category=pl.when(pl.col("waits").is_null()).then(pl.lit("operator")).otherwise(kind))
    sched = frame.filter(pl.col("waits").is_not_null())
    return SPANS.conform(frame), TRACKS.conform(pl.DataFrame(TRACK_ROWS)), SCHED.conform(sched)


def steps(*rows):
    frame = pl.DataFrame(rows, schema=["step", "ts_ns", "dur_ns"], orient="row")
    return STEPS.conform(frame.with_columns(source=pl.lit("annotation")))


def test_time_on_cores_and_waits_for_them_by_thread():
    first, second = scheduling(*tables()).iter_rows(named=True)
    assert first == {
        "process": "train", "pid": 1, "tid": 1, "thread": "main", "oncpu_ns": 45, "runq_ns": 35, "waiting_ratio": 0.35,
        "behind": "greedy", "behind_is_own": False, "behind_ns": 30, "waits": 2, "longest_wait_ns": 30, "preempted": 1,
        "sleeps": 2, "migrations": 1, "seen_ns": 100, "asleep_ns": 20, "running_ratio": 0.45,
    }  # fmt: skip
    assert (second["tid"], second["runq_ns"], second["behind"], second["behind_ns"]) == (7, 10, None, None)
    assert (second["sleeps"], second["preempted"], second["migrations"]) == (0, 0, 0)


def test_a_process_has_the_sums_of_its_threads():
    (row,) = scheduling(*tables(), by="process").iter_rows(named=True)
    assert (row["oncpu_ns"], row["runq_ns"], row["seen_ns"], row["asleep_ns"]) == (65, 45, 130, 20)
    assert (row["behind"], row["longest_wait_ns"]) == ("greedy", 30)
    assert "tid" not in row


def test_by_step_spans_are_cut_at_its_bounds():
    found = scheduling(*tables(), steps((3, 5, 20), (4, 25, 40), (6, 90, 100)), by="step")
    columns = ["step", "tid", "oncpu_ns", "runq_ns", "seen_ns", "asleep_ns", "waits", "preempted", "behind_ns"]
    assert found.select(columns).rows() == [
        (3, 1, 5, 15, 20, 0, 1, 0, 15),
        (4, 1, 20, 15, 40, 5, 0, 0, 15),
        (4, 7, 0, 5, 5, 0, 1, 0, None),
        (6, 1, 10, 0, 10, 0, 0, 0, None),
    ]
    assert found["waiting_ratio"].to_list() == [15 / 20, 15 / 40, 1.0, 0.0]


def test_by_step_needs_steps():
    with pytest.raises(MissingTable, match="steps"):
        scheduling(*tables(), by="step")
