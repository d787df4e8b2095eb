"""Every real trace has a report: its parts make a whole, its costs are in order, and it fits on one screen."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.readers import open_trace
from stepscope.renderers import Screen, find
from stepscope.reports.overview import overview

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.report import Finding

pytestmark = pytest.mark.exhaustive

FOLDERS = (
    "traces/hta", "traces/kineto", "traces/tracelens", "traces/more/ascend", "traces/more/ibm-spyre",
    "traces/more/kineto-cudagraph", "traces/more/kineto-multirank", "traces/more/kineto-recent", "traces/more/rocm-rpd",
    "traces/more/tpu-jax-trace", "faultlab/ddp_straggler",
)  # fmt: skip


def check_gain(finding: Finding, busy: float, path: Path) -> None:
    """Mending saves no more than the cost and what it slows down, makes no step longer, lies within its interval.

    Launches as graphs also take away what the host does between them, so there the device's busy time is the limit.
    """
    gain, cost_ns = finding.gain, finding.value_ns
    if gain is None or cost_ns is None:
        return
    at_most = cost_ns * (0.5 if gain.question.endswith("2x") else 1)
    assert gain.low_ns <= gain.predicted_ns <= min(gain.high_ns, gain.step_ns), (path, finding.title)
    if gain.question == "launch: graphs":
        assert gain.predicted_ns >= 0.9 * busy * gain.step_ns, (path, finding.title)
        return
    at_most += gain.slowdown_ns
    assert gain.step_ns - gain.predicted_ns <= 1.15 * at_most + 0.01 * gain.step_ns, (path, finding.title)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_trace_has_a_report(shared: Path, folder: str) -> None:
    n_reports = 0
    for path in sorted((shared / folder).rglob("*.json.gz")):
        try:
            trace = open_trace(str(path))
        except StepscopeError:  # not a trace: other JSON lies among them
            continue
        report = overview(trace)
        n_reports += 1
        for bar in report.bars:
            assert sum(part.ratio for part in bar.parts) == pytest.approx(1), path
        timed = [finding for finding in report.findings if finding.value_ns is not None]
        gains = [f.gain.gain_ratio if f.gain else f.share_ratio or 0.0 for f in timed]
        assert all(later <= gain + 0.001 for gain, later in pairwise(gains)), path
        idle = [part.ratio for part in report.bars[0].parts if part.name == "idle"] if report.bars else []
        for finding in timed:
            check_gain(finding, 1 - sum(idle), path)
        costs = [part.ratio for bar in report.bars for part in bar.parts if part.name.startswith("exposed comm")]
        assert sum(costs) < 0.4 or any(
            "ommunication" in f.title or "makes the others wait" in f.title for f in timed
        ), path
        assert report.tables, path
        assert all(block.frame.height <= 6 for block in report.tables), path
        render = find("terminal").report
        assert render is not None
        assert len(render(report, Screen(width=120)).splitlines()) < 50, path
    assert n_reports


def test_the_rank_that_comes_late_is_the_one_that_others_wait_for(shared: Path) -> None:
    """Rank 2 was given extra work: `labels.json` of the case says so."""
    from stepscope.api.verbs import load_run

    report = overview(load_run(shared / "faultlab" / "ddp_straggler" / "abnormal"))
    assert [finding.title for finding in report.findings if "makes" in finding.title] == [
        "Rank 2 makes the others wait"
    ]


def test_a_slow_loader_and_a_wide_type_are_told(shared: Path) -> None:
    loader = overview(open_trace(str(shared / "faultlab/slow_dataloader/abnormal/trace.json.gz")))
    assert any("data loader" in finding.title for finding in loader.findings)
    wide = overview(open_trace(str(shared / "faultlab/slow_op/abnormal/trace.json.gz")))
    assert any("float64" in detail for detail in wide.findings[0].details)
