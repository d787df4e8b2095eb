"""Every comparison of two traces by name. A module is imported when its comparison is asked for.

To add one: a file here with `COMPARISON`, a line in `_MODULES`, a test, a docs line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stepscope.analyses.pairs.pair_analysis import Comparison
from stepscope.core.errors import UnknownName

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Comparison", "find", "names"]

_MODULES = {"diff": "stepscope.analyses.pairs.diff"}


def names() -> list[str]:
    """Names of all comparisons."""
    return list(_MODULES)


def find(name: str) -> Comparison:
    """The comparison of that name. Raises UnknownName."""
    if name not in _MODULES:
        raise UnknownName("comparison", name, _MODULES)
    module: Any = importlib.import_module(_MODULES[name])
    found: Comparison = module.COMPARISON
    return found
