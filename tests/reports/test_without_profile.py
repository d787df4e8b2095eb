from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import polars as pl

import stepscope
from stepscope.core.schema import COUNTERS, STACK_SAMPLES, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._without_profile import PYTHON_TITLE, python_block, summary_of_counters
from stepscope.reports.overview import overview


def trace(*rows) -> Trace:
    frame = pl.DataFrame(rows, schema=["ts_ns", "device", "metric", "unit", "value"], orient="row")
    return Trace(Meta("counters.csv", "counters"), {"counters": COUNTERS.conform(frame)} if rows else {})


def test_resources_that_were_used_are_shown_and_idle_ones_are_not():
    found = trace(
        (0, "host", "host_cpu_usage", "%", 10.0), (2000, "host", "host_cpu_usage", "%", 30.0), (0, "lo", "n", "", 0.0)
    )
    summary = summary_of_counters(found)
    assert summary.recorded_ns == 2000
    assert summary.tables[0].frame.rows() == [("host", "host_cpu_usage", "%", 10.0, 29.0, 30.0)]
    report = overview(found)
    assert [block.frame.height for block in report.tables] == [1]
    assert "Only counters were recorded" in report.quality[0]


def test_a_process_that_waits_for_cores_is_the_first_finding():
    rows = [
        (second * 10**9, "pid:7", metric, "ns/s", value)
        for second in range(11)
        for metric, value in (("process_runq_time", 6e8), ("process_oncpu_time", 3e8))
    ]
    rows += [(second * 10**9, "host", "host_cpu_usage", "%", 52.0) for second in range(11)]
    report = overview(trace(*rows))
    (finding,) = report.findings
    assert finding.title == "The CPU is starved: threads are ready to run and wait for a core"
    assert (finding.value_ns, finding.share_ratio) == (6e9, 0.6)
    assert finding.details[0] == (
        "pid:7: 600 ms of each second (95th percentile 600 ms); it runs for 300 ms of each; "
        "the host's cores are busy 52 % of the time"
    )
    assert report.bars == ()


def test_a_quota_that_stops_a_container_is_a_finding_and_short_waits_are_none():
    rows = [(second * 10**9, "pid:7", "cgroup_cpu_throttled_time", "ns/s", 5e8) for second in range(3)]
    assert "quota" in overview(trace(*rows)).findings[0].title
    short = [(second * 10**9, "pid:7", "process_runq_time", "ns/s", 9e7) for second in range(3)]
    assert overview(trace(*short)).findings == ()
    many = [(second * 10**9, "pid:7", "process_runq_time", "ns/s", 4e9) for second in range(3)]
    assert overview(trace(*many)).findings[0].share_ratio == 1.0


def test_nothing_at_all_is_said_to_be_nothing():
    assert overview(trace()).quality == ("The trace holds no spans with times: there is nothing to report.",)


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
