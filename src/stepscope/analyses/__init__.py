"""Every analysis by name. A module is imported when its analysis is asked for.

To add one: a file here with `ANALYSIS`, a line in `_MODULES`, a test, a docs line. Other packages offer theirs in the
entry-point group `stepscope.analyses`, each entry loading to an `Analysis`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stepscope.analyses._record import Analysis
from stepscope.errors import UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Analysis", "find", "names"]

_GROUP = "stepscope.analyses"
_MODULES = {
    "steps": "stepscope.analyses.steps",
    "cycles": "stepscope.analyses.cycles",
    "attribution": "stepscope.analyses.attribution",
    "step-breakdown": "stepscope.analyses.step_breakdown",
    "timeline": "stepscope.analyses.timeline",
    "operators": "stepscope.analyses.operators",
    "modules": "stepscope.analyses.modules",
    "kernels": "stepscope.analyses.kernels",
    "device-utilisation": "stepscope.analyses.device_utilisation",
    "kernel-classes": "stepscope.analyses.kernel_classes",
    "kernel-mix": "stepscope.analyses.kernel_mix",
    "amdahl": "stepscope.analyses.amdahl",
    "utilisation": "stepscope.analyses.utilisation",
    "kernel-bins": "stepscope.analyses.kernel_bins",
    "kernel-runs": "stepscope.analyses.kernel_runs",
    "kernel-similarity": "stepscope.analyses.kernel_similarity",
    "fusion": "stepscope.analyses.fusion",
    "roofline": "stepscope.analyses.roofline",
    "mfu": "stepscope.analyses.mfu",
    "idle": "stepscope.analyses.idle",
    "critical-path": "stepscope.analyses.critical_path",
    "launches": "stepscope.analyses.launches",
    "transfers": "stepscope.analyses.transfers",
    "overlap": "stepscope.analyses.overlap",
    "communication": "stepscope.analyses.communication",
    "memory": "stepscope.analyses.memory",
    "sequences": "stepscope.analyses.sequences",
    "user-ranges": "stepscope.analyses.user_ranges",
    "scheduling": "stepscope.analyses.scheduling",
    "counters": "stepscope.analyses.counters",
    "python-stacks": "stepscope.analyses.python_stacks",
    "python-functions": "stepscope.analyses.python_functions",
    "recommendations": "stepscope.analyses.recommendations",
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
