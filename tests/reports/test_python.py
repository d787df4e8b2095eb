from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import polars as pl

import stepscope
from stepscope.core.schema import STACK_SAMPLES, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._python import TITLE, python_block

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
    assert block.title == TITLE
    assert block.frame.rows() == [("load (t.py)", 3, 0.75), ("step (t.py)", 1, 0.25)]


def test_with_steps_what_came_before_them_is_left_out():
    trace = Trace(Meta("x", "kineto"), seen((0, 0, 3), (100, 1, 1)))
    (block,) = python_block(trace, SimpleNamespace(numbers=(5, 6), low=50))
    assert block.title == f"{TITLE}, from step 5 on"
    assert block.frame["function"].to_list() == ["step (t.py)"]
    (block,) = python_block(trace, SimpleNamespace(numbers=(5, 6), low=500))
    assert block.title == TITLE


def test_without_stacks_there_is_no_table():
    assert python_block(Trace(Meta("x", "counters"), {})) == []


def test_a_report_shows_them(examples):
    trace = next(iter(stepscope.load_run(examples / "demo-cpu-decode")))
    report = stepscope.report(replace(trace, tables={**trace.tables, **seen((0, 0, 3))}))
    assert [block.command for block in report.tables if block.title.startswith(TITLE)] == [
        "show python-stacks --by function"
    ]
    assert TITLE in report.to_html(report)
