from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
from bar_notes import texts

import stepscope
from stepscope.core.schema import COUNTERS, DEVICES, ISSUES, KERNEL_METRICS, SPANS, STACK_SAMPLES, STACKS, TRACKS
from stepscope.core.trace import Meta, Run, Trace
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


MEASURED = {
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 60.0,
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 20.0,
}


def trace_of(*launches: tuple[str, int | None], counters: bool = True, **more: pl.DataFrame) -> Trace:
    spans = pl.DataFrame({
        "span_id": range(len(launches)), "track_id": 0, "name": [name for name, _ in launches],
        "dur_ns": pl.Series([ns for _, ns in launches], dtype=pl.Int64), "category": "kernel",
    })  # fmt: skip
    rows = [(i, name, "%", value) for i in range(len(launches) * counters) for name, value in MEASURED.items()]
    schema = {"span_id": pl.UInt32, "metric": pl.String, "unit": pl.String, "value": pl.Float64}
    tables = {
        "spans": SPANS.conform(spans),
        "tracks": TRACKS.conform(pl.DataFrame({"track_id": [0], "device_id": [0], "kind": ["stream"]})),
        "devices": DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "name": ["NVIDIA A100"]})),
        "kernel_metrics": KERNEL_METRICS.conform(pl.DataFrame(rows, schema=schema, orient="row")),
    }
    return Trace(Meta("a.csv", "ncu-csv", n_events=len(launches)), tables | more)


def test_the_time_of_kernels_by_class_and_what_they_used():
    report = overview(trace_of(("sgemm", 60_000), ("relu_elementwise", 30_000), ("Kernel", 10_000)))
    assert report.headline == "Nsight Compute · NVIDIA A100 · 100 µs in kernels · 3 launches read"
    (bar,) = report.bars
    assert (bar.label, bar.value) == ("Kernels", "100 µs")
    assert {part.name: part.ratio for part in bar.parts} == {"gemm": 0.7, "elementwise": 0.3}
    assert texts(bar) == (
        "tensor cores busy 60 %", "memory bandwidth used 20 %",
    )  # fmt: skip
    assert [block.title for block in report.tables] == ["Classes of kernels", "Kernels"]
    assert [finding.title for finding in report.findings] == [
        "sgemm: compute-bound", "relu_elementwise: compute-bound", "Kernel: compute-bound",
    ]  # fmt: skip
    no_clock, vague = report.quality
    assert "not when" in no_clock
    assert vague == "1 launch with a name cut short, as Kernel, counted as matrix products."


def test_a_lone_kernel_that_uses_nearly_all_bandwidth_gets_its_verdict(monkeypatch):
    monkeypatch.setitem(MEASURED, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 30.0)
    monkeypatch.setitem(MEASURED, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 90.0)
    (finding,) = overview(trace_of(("silu", 60_000))).findings
    assert finding.title == "silu: memory-bound, near its limit"
    assert finding.details[0] == "tensor cores busy 30 %, memory bandwidth used 90 %"
    assert "less traffic" in finding.details[1]
    both = overview(trace_of(("silu", 60_000), ("gelu", 50_000))).findings
    assert [len(finding.details) for finding in both] == [2, 1]  # the same advice once
    assert overview(trace_of(("silu", 60_000), counters=False)).findings == ()


def test_runs_that_could_be_one_kernel_are_priced(monkeypatch):
    monkeypatch.setitem(MEASURED, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 30.0)
    (bar,) = overview(trace_of(("sgemm", 60_000), ("relu_elementwise", 20_000), ("add_elementwise", 20_000))).bars
    assert texts(bar)[-1] == "fusing runs of memory-bound kernels would save 10 % to 20 %"
    (bar,) = overview(trace_of(("sgemm", 6_000_000), ("relu_elementwise", 20_000), ("add_elementwise", 20_000))).bars
    assert "fusing" not in texts(bar)[-1]  # next to nothing


def test_small_classes_are_one_part():
    names = ("sgemm", "relu", "softmax", "layer_norm", "dropout", "reduce", "sort", "embedding_bag", "whatever")
    (bar,) = overview(trace_of(*[(name, 100 - i) for i, name in enumerate(names)])).bars
    assert [part.name for part in bar.parts][-1] == "other"
    assert len(bar.parts) == 7
    assert sum(part.ratio for part in bar.parts) == 1


def test_without_counters_or_durations_the_rest_stands():
    bare = overview(trace_of(("sgemm", 10), counters=False))
    assert texts(bare.bars[0]) == ()
    issues = pl.DataFrame({"code": ["no_duration"], "severity": ["warning"], "count": [2], "example": ["no durations"]})
    untimed = overview(trace_of(("sgemm", None), ("relu", None), issues=ISSUES.conform(issues)))
    assert untimed.headline == "Nsight Compute · NVIDIA A100 · 2 launches read"
    assert untimed.bars == untimed.tables == ()
    assert untimed.quality[1] == "No durations (2 ×)."


def test_several_files_stand_side_by_side():
    one = trace_of(("sgemm", 60_000))
    report = overview(Run(("a", "b"), lambda _: one))
    assert "120 µs in kernels · 2 launches read" in report.headline
    assert report.tables[0].frame["total_ns"].to_list() == [120_000]
