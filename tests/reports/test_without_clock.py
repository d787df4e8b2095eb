from __future__ import annotations

import polars as pl
from bar_notes import texts

from stepscope.core.schema import DEVICES, ISSUES, KERNEL_METRICS, SPANS, TRACKS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.reports.overview import overview

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
