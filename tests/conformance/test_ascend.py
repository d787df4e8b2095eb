"""Ascend's own sums: step_trace_time.csv beside the traces of torch_npu, and the lanes `Overlap Analysis` in a trace.

Ascend's step (stage) lasts from the first computing or communicating task to the last one. Copies count as free time.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import polars as pl
import pytest

import stepscope
from stepscope.analyses.steps.timeline import ANALYSIS as TIMELINE
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

RUNS = [f"ascend/text/level{level}/rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT" for level in (0, 1) for rank in (0, 1)]
MINDSPORE = "traces/more/ascend/mindspore-PROF-2device"


def stage(trace: Trace) -> dict[str, float]:
    """What `timeline` says, in µs, without copies: so they are free time, and the whole is Ascend's."""
    kernels = trace.with_tables(spans=trace.spans.filter(pl.col("category").is_in(("kernel", "memset"))))
    row = TIMELINE(kernels).row(0, named=True)
    return {name: ns / 1000 for name, ns in row.items() if name.endswith("_ns")}


def own_sums(path: Path) -> dict[str, float]:
    (row,) = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {name: float(value) for name, value in row.items()}


@pytest.mark.parametrize("run", RUNS)
def test_the_timeline_is_that_of_step_trace_time(shared: Path, run: str) -> None:
    theirs = own_sums(shared / run / "step_trace_time.csv")
    ours = stage(open_trace(str(shared / run / "trace_view.json")))
    assert ours["computation_ns"] == pytest.approx(theirs["Computing"], rel=1e-4)
    assert ours["communication_ns"] == pytest.approx(theirs["Communication"], rel=1e-4)
    assert ours["exposed_communication_ns"] == pytest.approx(theirs["Communication(Not Overlapped)"], rel=1e-4)
    assert ours["idle_ns"] == pytest.approx(theirs["Free"], rel=1e-4)
    assert ours["total_ns"] == pytest.approx(theirs["Stage"], rel=1e-4)


@pytest.mark.parametrize("run", RUNS)
def test_steps_and_the_bar_of_the_report_have_the_same_work(shared: Path, run: str) -> None:
    theirs = own_sums(shared / run / "step_trace_time.csv")
    trace = stepscope.load(shared / run / "trace_view.json")
    step = trace.show("steps").row(0, named=True)
    assert step["computation_ns"] / 1000 == pytest.approx(theirs["Computing"], rel=1e-4)
    assert step["exposed_communication_ns"] / 1000 == pytest.approx(theirs["Communication(Not Overlapped)"], rel=1e-4)
    parts = {part.name: part.ratio for bar in trace.report().bars for part in bar.parts}
    of_computation = parts["exposed communication"] / parts["computation"]
    assert of_computation == pytest.approx(theirs["Communication(Not Overlapped)"] / theirs["Computing"], rel=1e-3)


@pytest.mark.parametrize("device", [0, 1])
def test_msprof_s_own_analysis_of_overlap_is_ours(shared: Path, device: int) -> None:
    paths = sorted((shared / MINDSPORE).rglob(f"msprof_{device}_*.json.gz"))
    assert len(paths) == 6
    for path in paths:
        trace = open_trace(str(path))
        lanes = trace.tracks.filter(pl.col("process") == "Overlap Analysis").select("track_id", "label")
        sums = trace.spans.join(lanes, on="track_id").group_by("label").agg(us=pl.col("dur_ns").sum() / 1000)
        theirs = dict(sums.rows())
        ours = stage(trace)
        assert ours["computation_ns"] == pytest.approx(theirs["Computing"], rel=1e-3)
        assert ours["communication_ns"] == pytest.approx(theirs["Communication"], rel=1e-3)
        assert ours["exposed_communication_ns"] == pytest.approx(theirs["Communication(Not Overlapped)"], rel=1e-3)
