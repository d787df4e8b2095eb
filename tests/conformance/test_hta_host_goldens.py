"""Host-side analyses against numbers that HolisticTraceAnalysis (HTA) gave for the same traces, to all their digits.

Rows and rounded times are HTA's (`hta_conventions`); our analyses run on them. What differs on purpose:

- HTA drops the last step. We keep it; here it is left out of the list, and of the view.
- HTA leaves out ranges of hardware counters, as ours does here: `user_ranges` counts them as ranges of the device.
- HTA lists marks of steps and waits for data loaders among user annotations. We have `steps` and `dataloader_ns` for
  them; here they are counted in, by giving those rows the category of ranges.
- HTA's standard deviation of a single run is 0. Ours is unknown (null).
- HTA's rounding makes ranges below 1 µs last −1 µs. We keep ns and have no negative time; here it is kept.
- HTA's frequent kernel sequences look at one call depth only, the least at which any matching operator of the trace
  stands. If matches at that depth launch fewer than 3 kernels it finds nothing, or it stops with an error of its own
  call graph. We take the outermost match wherever it stands, and so find patterns where it has none.
- HTA compares traces by name over every sort of row, and counts recursive operators each time. Our `operators` counts
  their time once in totals; here it is remade from calls and their mean.
- HTA's short names follow its own rule; ours are for reading only. Full names are compared.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hta_conventions import as_spans, hta_view

from stepscope.analyses.kernels.kernels import kernels
from stepscope.analyses.kernels.sequences import sequences
from stepscope.analyses.program.operators import operators
from stepscope.analyses.program.user_ranges import user_ranges
from stepscope.core.errors import MissingTable
from stepscope.core.schema import OPS, SPANS, STACKS
from stepscope.readers import expand, open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

GOLDENS = (
    "amd_trace", "cpu_only", "critical_path_alexnet", "critical_path_cuda_event_sync", "cupti_profiler",
    "mtia_inference_trace", "nccl_parser_config", "rank_non_gpu", "tl_b200_eager_trace",
    "tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005", "trace_diff_control", "trace_diff_test", "trace_filter",
    "triton_example",
)  # fmt: skip
#: What our sequences find in each, in rows, where HTA finds nothing or fails.
PATTERNS = {
    "amd_trace": 0, "cpu_only": 0, "critical_path_alexnet": 5, "critical_path_cuda_event_sync": 0, "cupti_profiler": 0,
    "mtia_inference_trace": 0, "nccl_parser_config": 26, "rank_non_gpu": 0, "tl_b200_eager_trace": 0,
    "tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005": 0, "trace_filter": 8, "triton_example": 0,
}  # fmt: skip


@lru_cache(maxsize=4)
def _trace(shared: Path, name: str, rank: int | None) -> Trace:
    source = shared / json.loads((shared / "golden" / "hta" / f"{name}.json").read_text())["input"]
    traces = [open_trace(path) for path in expand([str(source)])]
    return next(trace for trace in traces if len(traces) == 1 or trace.rank == rank)


def _analyses(shared: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "golden" / "hta" / f"{name}.json").read_text())
    return found


def _ranges(trace: Trace) -> pl.DataFrame:
    """Our `user_ranges` of the rows that HTA keeps, where steps and loaders are annotations too."""
    view = hta_view(trace)
    annotation = pl.col("category").is_in(["step", "dataloader", "user_range"]) & (pl.col("stream") == -1)
    # What a recorder wrote as an operator is one, whatever it is called.
    recorded = pl.col("recorded_category").cast(pl.String).str.to_lowercase()
    operators = trace.spans.filter(recorded.is_in(["cpu_op", "operator"]))["span_id"]
    annotation &= ~pl.col("span_id").is_in(operators.implode())
    category = pl.when(annotation).then(pl.lit("user_range")).otherwise(pl.col("category").cast(pl.String))
    rows = view.with_columns(ts_ns=pl.col("ts") * 1000, dur_ns=pl.col("dur") * 1000, category=category)
    # Ranges of hardware counters are none of the program's.
    counted = trace.kernel_metrics["span_id"].implode()
    wanted = pl.col("category").is_in(["user_range", "device_range"]) & ~pl.col("span_id").is_in(counted)
    rows = rows.filter(wanted).sort("track_id", "ts_ns")
    return user_ranges(SPANS.conform(rows), trace.tracks)


@pytest.mark.parametrize("name", GOLDENS)
def test_steps_are_those_of_hta_but_for_the_last(shared: Path, name: str) -> None:
    golden = _analyses(shared, name)
    steps = _trace(shared, name, golden["ranks"][0]).steps["step"].unique().sort().to_list()
    assert steps[: -1 if len(steps) > 1 else None] == golden["analyses"]["profiler_steps"]["result"]


@pytest.mark.parametrize("side", ["host", "device"])
@pytest.mark.parametrize("name", GOLDENS)
def test_user_annotations(shared: Path, name: str, side: str) -> None:
    golden = _analyses(shared, name)
    key = {"host": "user_annotation_breakdown_cpu", "device": "gpu_user_annotation_breakdown"}[side]
    rows = (golden["analyses"][key]["result"] or {"rows": []})["rows"]
    for rank in golden["ranks"]:
        expected = {row[0]: row[1:6] for row in rows if row[6] == rank}
        try:
            found = _ranges(_trace(shared, name, rank)).filter(pl.col("side") == side)
        except MissingTable:
            found = pl.DataFrame()
        got = {
            str(row["name"]): [row["total_ns"], row["max_ns"], row["min_ns"], row["std_ns"] or 0.0, row["mean_ns"]]
            for row in found.iter_rows(named=True)
        }
        assert sorted(got) == sorted(expected)
        for range_name, values in expected.items():
            assert [value / 1000 for value in got[range_name]] == pytest.approx(values, rel=1e-12, abs=1e-9), range_name


def _at_the_least_depth(trace: Trace, operator: str) -> pl.DataFrame:
    """The trace's spans, where matching operators deeper than the shallowest of them go by another name."""
    spans = trace.spans
    match = (
        (spans["category"] == "operator") & spans["name"].cast(pl.String).str.contains(operator, literal=True)
    ).to_numpy()
    parents = spans["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    depth = np.zeros(spans.height, np.int64)
    above = parents.copy()
    while (open_ := above >= 0).any():
        depth += open_
        above = np.where(open_, parents[above], -1)
    deeper = match & (depth > depth[match].min(initial=2**62))
    renamed = pl.when(pl.Series(deeper)).then(pl.lit("deeper")).otherwise(pl.col("name").cast(pl.String))
    return SPANS.conform(spans.with_columns(name=renamed))


@pytest.mark.parametrize("name", PATTERNS)
def test_kernel_sequences(shared: Path, name: str) -> None:
    golden = _analyses(shared, name)["analyses"]["frequent_cuda_kernel_sequences"]
    trace = _trace(shared, name, _analyses(shared, name)["ranks"][0])
    assert golden.get("result", {"n_rows": 0})["n_rows"] == 0
    try:
        found = sequences(trace.spans)
    except MissingTable:
        found = pl.DataFrame()
    assert found.height == PATTERNS[name]
    if "result" in golden:
        with pytest.raises(MissingTable):
            sequences(_at_the_least_depth(trace, "aten::"))


@lru_cache(maxsize=2)
def _first_step(shared: Path, name: str, rank: int) -> pl.DataFrame:
    """HTA's rows of the first step: of the host what starts in it, of the device what that launched."""
    trace = _trace(shared, name, rank)
    view = hta_view(trace)
    step = view.join(trace.spans.select("span_id", "step"), on="span_id", how="left", maintain_order="left")
    return step.filter(pl.col("step") == trace.steps["step"].min())


def _both(shared: Path) -> list[tuple[Trace, pl.DataFrame]]:
    sides = (("trace_diff_control", 3), ("trace_diff_test", 1))
    return [(_trace(shared, name, rank), _first_step(shared, name, rank)) for name, rank in sides]


def _expected(shared: Path, side: str) -> dict[str, list[float]]:
    golden = json.loads((shared / "golden" / "hta" / "trace_diff_control_vs_test.json").read_text())
    return {row[0]: row[1:5] for row in golden[f"compare_{side}_full"]["rows"]}


def _beside(control: dict[str, tuple[float, float]], test: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    names = dict.fromkeys((*control, *test))
    return {name: [float(v) for of_one in (control, test) for v in of_one.get(name, (0, 0))] for name in names}


@pytest.mark.parametrize("side", ["CPU", "GPU", "ALL"])
def test_trace_diff_counts_and_durations_by_name(shared: Path, side: str) -> None:
    of_side = {"CPU": pl.col("stream") == -1, "GPU": pl.col("stream") >= 0, "ALL": pl.lit(value=True)}[side]
    sums = [rows.filter(of_side).group_by("name").agg(pl.len(), pl.col("dur").sum()) for _, rows in _both(shared)]
    got = _beside(*({str(name): (n, us) for name, n, us in frame.iter_rows()} for frame in sums))
    assert got == _expected(shared, side)


def test_trace_diff_by_our_kernels(shared: Path) -> None:
    sides = []
    for trace, rows in _both(shared):
        found = kernels(as_spans(rows), trace.tracks, include="device")
        sides.append(
            {str(n): (calls, ns / 1000) for n, calls, ns in found.select("name", "calls", "total_ns").iter_rows()}
        )
    assert _beside(*sides) == _expected(shared, "GPU")


def test_trace_diff_by_our_operators(shared: Path) -> None:
    sides = []
    for _, rows in _both(shared):
        found = operators(as_spans(rows), OPS.empty(), STACKS.empty())
        summed = found.select("name", "calls", us=pl.col("calls") * pl.col("host_mean_ns") / 1000)
        sides.append({str(name): (calls, round(us, 6)) for name, calls, us in summed.iter_rows()})
    got, expected = _beside(*sides), _expected(shared, "CPU")
    assert len(got) > 150
    assert got == {name: values for name, values in expected.items() if name in got}
