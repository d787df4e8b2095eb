"""Compares two runs: whether they differ, by how much, where the time went, and what caused it.

`observe` reduces a recording to one `Observation` per process, `compare_runs` turns the observations of two runs into a
`Comparison`. In between, processes are matched, differences are tested (`effects`, `statistics`, `verdict`) and
explained (`diagnosis`).
"""

from __future__ import annotations

from stepscope.comparison.model import (
    Cause,
    Comparison,
    Effect,
    Evidence,
    Observation,
    Pair,
    RuledOut,
)
from stepscope.comparison.observe import observe
from stepscope.comparison.verdict import compare_runs

__all__ = [
    "Cause",
    "Comparison",
    "Effect",
    "Evidence",
    "Observation",
    "Pair",
    "RuledOut",
    "compare_runs",
    "observe",
]
