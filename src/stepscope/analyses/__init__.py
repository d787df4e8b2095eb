"""Every analysis by name, whether of one trace, of a pair of traces, or of all ranks of a job.

To add one: a file in one of the folders here with `ANALYSIS`, a line below, a test. Other packages offer theirs in the
entry-point group `stepscope.analyses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analyses.common.analysis import Analysis
from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from stepscope.analyses.common.analysis import Scope

__all__ = ["ANALYSES", "Analysis", "find", "names"]

_OF_TRACES = {
    "steps": "stepscope.analyses.steps.steps",
    "cycles": "stepscope.analyses.cycles.cycles",
    "attribution": "stepscope.analyses.cycles.attribution",
    "step-breakdown": "stepscope.analyses.steps.step_breakdown",
    "timeline": "stepscope.analyses.steps.timeline",
    "operators": "stepscope.analyses.program.operators",
    "modules": "stepscope.analyses.program.modules",
    "call-stacks": "stepscope.analyses.program.call_stacks",
    "kernels": "stepscope.analyses.kernels.kernels",
    "device-utilisation": "stepscope.analyses.steps.device_utilisation",
    "kernel-classes": "stepscope.analyses.kernels.kernel_classes",
    "kernel-mix": "stepscope.analyses.kernels.kernel_mix",
    "amdahl": "stepscope.analyses.kernels.kernel_mix:AMDAHL_ANALYSIS",
    "utilisation": "stepscope.analyses.kernels.utilisation",
    "kernel-bins": "stepscope.analyses.kernels.kernel_bins",
    "kernel-runs": "stepscope.analyses.kernels.kernel_bins:KERNEL_RUNS_ANALYSIS",
    "kernel-similarity": "stepscope.analyses.kernels.kernel_similarity",
    "fusion": "stepscope.analyses.costs.fusion",
    "roofline": "stepscope.analyses.costs.roofline",
    "mfu": "stepscope.analyses.costs.mfu",
    "batches": "stepscope.analyses.steps.batches",
    "requests": "stepscope.analyses.steps.requests",
    "expert-load": "stepscope.analyses.ranks.expert_load",
    "idle": "stepscope.analyses.steps.idle",
    "critical-path": "stepscope.analyses.critical_path.critical_path",
    "predictions": "stepscope.analyses.critical_path.predictions",
    "launches": "stepscope.analyses.steps.launches",
    "transfers": "stepscope.analyses.steps.transfers",
    "overlap": "stepscope.analyses.steps.overlap",
    "communication": "stepscope.analyses.communication.communication",
    "memory": "stepscope.analyses.resources.memory",
    "memory-peak": "stepscope.analyses.memory.snapshots",
    "memory-holders": "stepscope.analyses.memory.snapshots:HOLDERS",
    "memory-leaks": "stepscope.analyses.memory.snapshots:LEAKS",
    "memory-fragmentation": "stepscope.analyses.memory.snapshots:FRAGMENTATION",
    "memory-timeline": "stepscope.analyses.memory.snapshots:TIMELINE",
    "memory-oom": "stepscope.analyses.memory.oom",
    "memory-savings": "stepscope.analyses.memory.oom:SAVINGS",
    "sequences": "stepscope.analyses.kernels.sequences",
    "user-ranges": "stepscope.analyses.program.user_ranges",
    "scheduling": "stepscope.analyses.program.scheduling",
    "counters": "stepscope.analyses.resources.counters",
    "python-stacks": "stepscope.analyses.program.python_stacks",
    "python-functions": "stepscope.analyses.program.python_stacks:PYTHON_FUNCTIONS_ANALYSIS",
    "recommendations": "stepscope.analyses.advice.recommendations",
    "hang": "stepscope.analyses.communication.hang",
    "hang-matrix": "stepscope.analyses.communication.hang:HANG_MATRIX_ANALYSIS",
    "hang-graph": "stepscope.analyses.communication.hang:HANG_GRAPH_ANALYSIS",
}
_OF_RANKS = {
    "collectives": "stepscope.analyses.ranks.collectives",
    "message-sizes": "stepscope.analyses.ranks.message_sizes",
    "experts": "stepscope.analyses.ranks.experts",
    "parallel-groups": "stepscope.analyses.ranks.parallel_groups",
    "clock-offsets": "stepscope.analyses.ranks.clocks",
    "stragglers": "stepscope.analyses.ranks.stragglers",
    "pipeline-bubbles": "stepscope.analyses.ranks.bubbles",
}
_OF_PAIRS = {
    "diff": "stepscope.analyses.pairs.diff",
    "memory-growth": "stepscope.analyses.memory.growth",
}
ANALYSES = Registry("analysis", Analysis, "ANALYSIS", "stepscope.analyses", {**_OF_TRACES, **_OF_RANKS, **_OF_PAIRS})


def names(scope: Scope | None = None) -> list[str]:
    """Names of all analyses, or of those of one scope: our own in the order of the docs, then other packages'."""
    known = ANALYSES.names()
    if scope is None:
        return known
    own = {"trace": _OF_TRACES, "ranks": _OF_RANKS, "pair": _OF_PAIRS}[scope]
    return [*own, *(name for name in known if name not in ANALYSES.modules and find(name).scope == scope)]


def find(name: str) -> Analysis:
    """The analysis of that name. Raises UnknownName."""
    return ANALYSES.find(name)
