from __future__ import annotations

from types import SimpleNamespace

import polars as pl
from msgspec.structs import replace

import stepscope
from stepscope.core.schema import COUNTERS, SCHED, SPANS, STACK_SAMPLES, STACKS, TRACKS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._summary import only_scheduled
from stepscope.reports._threads import PYTHON_TITLE, python_block, scheduling_blocks
from stepscope.reports.overview import overview


def trace(*, n_threads=1, waits=True, operators=False, counters=False) -> Trace:
    rows = [(i, 10 * i, 5 + i, "sched_runq" if waits else "sched_oncpu") for i in range(n_threads)]
    frame = pl.DataFrame(rows, schema=["track_id", "ts_ns", "dur_ns", "category"], orient="row")
    frame = frame.with_columns(name=pl.lit("waits behind greedy"))
    tracks = [
        {"track_id": i, "pid": 1, "tid": i, "process": "job", "label": f"t{i} {i} · cores"} for i in range(n_threads)
    ]
    sched = frame.with_row_index("span_id").with_columns(reason=pl.lit("woken"), other=pl.lit("greedy"))
    if operators:
        more = pl.DataFrame({"track_id": [0], "ts_ns": [0], "dur_ns": [99], "category": ["operator"], "name": ["mm"]})
        frame = pl.concat([frame, more], how="diagonal")
    tables = {
        "spans": SPANS.conform(frame.with_row_index("span_id")), "tracks": TRACKS.conform(pl.DataFrame(tracks)),
        "sched": SCHED.conform(sched),
    }  # fmt: skip
    if counters:
        sample = {"ts_ns": [0], "device": ["host"], "metric": ["host_cpu_usage"], "unit": ["%"], "value": [7.0]}
        tables["counters"] = COUNTERS.conform(pl.DataFrame(sample))
    return Trace(Meta("counters.csv", "counters"), tables)


def titles(report) -> list[str]:
    return [block.title for block in report.tables]


def test_threads_that_waited_are_shown_longest_first():
    (block,) = scheduling_blocks(trace(n_threads=9))
    assert block.title == "Threads and cores, longest waits of 9"
    assert block.frame["runq_ns"].to_list() == [13, 12, 11, 10, 9]
    assert block.frame["behind"].to_list() == ["greedy"] * 5


def test_where_no_thread_waited_or_nothing_was_recorded_nothing_is_shown():
    assert scheduling_blocks(trace(waits=False)) == []
    assert scheduling_blocks(Trace(Meta("t", "kineto"), {})) == []


def test_beside_counters_alone_the_report_says_what_is_known():
    found = trace(counters=True)
    assert only_scheduled(found)
    report = overview(found)
    assert titles(report) == ["Threads and cores, longest waits of 1", "Resources that were used"]
    assert "when threads ran, not what they did" in report.quality[0]
    assert titles(overview(trace())) == ["Threads and cores, longest waits of 1"]


def test_beside_a_profile_it_is_one_table_more():
    found = trace(operators=True)
    assert not only_scheduled(found)
    assert "Threads and cores, longest waits of 1" in titles(overview(found))


FRAMES = [["main (t.py:1)", "load (t.py:2)"], ["main (t.py:1)", "step (t.py:5)"]]


def seen(*rows: tuple[int, int, int], pid: int = 7) -> dict[str, pl.DataFrame]:
    """Tables of stacks: rows are time, stack, number of looks."""
    samples = [
        {"ts_ns": ts, "dur_ns": 10 * n, "pid": pid, "tid": pid, "stack_id": i, "n_samples": n, "on_gil": False}
        for ts, i, n in rows
    ]
    return {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame(samples)),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": range(2), "frames": FRAMES})),
    }


def test_the_functions_seen_most():
    trace = Trace(Meta("x", "counters"), seen((0, 0, 3), (100, 1, 1)))
    (block,) = python_block(trace)
    assert block.title == PYTHON_TITLE
    assert block.frame.rows() == [("load (t.py)", 3, 0.75), ("step (t.py)", 1, 0.25)]


def test_with_steps_what_came_before_them_is_left_out():
    trace = Trace(Meta("x", "kineto"), seen((0, 0, 3), (100, 1, 1)))
    (block,) = python_block(trace, SimpleNamespace(numbers=(5, 6), low=50))
    assert block.title == f"{PYTHON_TITLE}, from step 5 on"
    assert block.frame["function"].to_list() == ["step (t.py)"]
    (block,) = python_block(trace, SimpleNamespace(numbers=(5, 6), low=500))
    assert block.title == PYTHON_TITLE


def test_without_stacks_there_is_no_table():
    assert python_block(Trace(Meta("x", "counters"), {})) == []


def test_a_report_shows_them(examples):
    trace = next(iter(stepscope.load_run(examples / "demo-cpu-decode")))
    report = stepscope.report(replace(trace, tables={**trace.tables, **seen((0, 0, 3))}))
    assert [block.command for block in report.tables if block.title.startswith(PYTHON_TITLE)] == [
        "show python-stacks --by function"
    ]
    assert PYTHON_TITLE in report.to_html(report)
