"""Every analysis of the ranks of a job together, by name. A module is imported when its analysis is asked for.

To add one: a file here with `ANALYSIS`, a line in `_MODULES`, a test, a docs line.
"""

from __future__ import annotations

import importlib
from typing import Any

from stepscope.analyses.ranks.rank_analysis import RankAnalysis
from stepscope.core.errors import UnknownName

__all__ = ["RankAnalysis", "find", "names"]

_MODULES = {
    "collectives": "stepscope.analyses.ranks.collectives",
    "message-sizes": "stepscope.analyses.ranks.message_sizes",
    "parallel-groups": "stepscope.analyses.ranks.parallel_groups",
    "clock-offsets": "stepscope.analyses.ranks.clocks",
    "stragglers": "stepscope.analyses.ranks.stragglers",
    "pipeline-bubbles": "stepscope.analyses.ranks.bubbles",
}


def names() -> list[str]:
    """Names of all analyses of ranks."""
    return list(_MODULES)


def find(name: str) -> RankAnalysis:
    """The analysis of that name. Raises UnknownName."""
    if name not in _MODULES:
        raise UnknownName("analysis of ranks", name, _MODULES)
    module: Any = importlib.import_module(_MODULES[name])
    found: RankAnalysis = module.ANALYSIS
    return found
