"""Every analysis by name. A module is imported when its analysis is asked for.

To add one: a file here with `ANALYSIS`, a line in `_MODULES`, a test, a docs line. Other packages offer theirs in the
entry-point group `stepscope.analyses`, each entry loading to an `Analysis`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stepscope.analyses.common.analysis import Analysis
from stepscope.core.errors import UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Analysis", "find", "names"]

_GROUP = "stepscope.analyses"
_MODULES = {
    "steps": "stepscope.analyses.steps.steps",
    "cycles": "stepscope.analyses.cycles.cycles",
    "attribution": "stepscope.analyses.cycles.attribution",
    "step-breakdown": "stepscope.analyses.steps.step_breakdown",
    "timeline": "stepscope.analyses.steps.timeline",
    "operators": "stepscope.analyses.program.operators",
    "modules": "stepscope.analyses.program.modules",
    "kernels": "stepscope.analyses.kernels.kernels",
    "device-utilisation": "stepscope.analyses.steps.device_utilisation",
    "kernel-classes": "stepscope.analyses.kernels.kernel_classes",
    "kernel-mix": "stepscope.analyses.kernels.kernel_mix",
    "amdahl": "stepscope.analyses.kernels.amdahl",
    "utilisation": "stepscope.analyses.kernels.utilisation",
    "kernel-bins": "stepscope.analyses.kernels.kernel_bins",
    "kernel-runs": "stepscope.analyses.kernels.kernel_runs",
    "kernel-similarity": "stepscope.analyses.kernels.kernel_similarity",
    "fusion": "stepscope.analyses.costs.fusion",
    "roofline": "stepscope.analyses.costs.roofline",
    "mfu": "stepscope.analyses.costs.mfu",
    "idle": "stepscope.analyses.steps.idle",
    "critical-path": "stepscope.analyses.critical_path.critical_path",
    "launches": "stepscope.analyses.steps.launches",
    "transfers": "stepscope.analyses.steps.transfers",
    "overlap": "stepscope.analyses.steps.overlap",
    "communication": "stepscope.analyses.communication.communication",
    "memory": "stepscope.analyses.resources.memory",
    "sequences": "stepscope.analyses.kernels.sequences",
    "user-ranges": "stepscope.analyses.program.user_ranges",
    "scheduling": "stepscope.analyses.program.scheduling",
    "counters": "stepscope.analyses.resources.counters",
    "python-stacks": "stepscope.analyses.program.python_stacks",
    "python-functions": "stepscope.analyses.program.python_functions",
    "recommendations": "stepscope.analyses.advice.recommendations",
}


def names() -> list[str]:
    """Names of all analyses: our own in the order of the docs, then those of other packages."""
    return [*_MODULES, *sorted(set(_others()) - set(_MODULES))]


def find(name: str) -> Analysis:
    """The analysis of that name. Raises UnknownName."""
    if name in _MODULES:
        found = importlib.import_module(_MODULES[name]).ANALYSIS
    else:
        others = _others()
        if name not in others:
            raise UnknownName("analysis", name, names())
        found = others[name].load()
    if not isinstance(found, Analysis):
        msg = f"{name}: the entry point gives {type(found).__name__}, not an Analysis"
        raise TypeError(msg)
    return found


def _others() -> dict[str, EntryPoint]:
    # Scanning the installed packages takes some 20 ms, so it waits until a name is not one of ours.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=_GROUP)}
