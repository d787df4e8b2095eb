"""Two runs or many, from traces to what is said of them: read one at a time, observed, compared or grouped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.trace import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.comparison.model import Outcome
    from stepscope.core.errors import StepscopeError
    from stepscope.core.report import Block, Report

__all__ = ["compare_sides", "compare_table", "group", "split_case"]


def split_case(run: Run) -> tuple[Run, Run] | None:
    """The normal and the abnormal runs of a case; None if a side is missing.

    Raises StepscopeError if the files are those of several cases.
    """
    from stepscope.comparison.cases import split

    found = split(run.paths)
    if found is None:
        return None
    return Run(tuple(found[0]), run.open_trace), Run(tuple(found[1]), run.open_trace)


def compare_sides(base: Run, other: Run, *, anchor: str | None = None) -> Outcome:
    """The comparison of two runs. Traces are read one at a time. Raises StepscopeError, MissingTable."""
    from stepscope.comparison.observe import observe
    from stepscope.comparison.repeats import as_repeats
    from stepscope.comparison.run import compare_runs

    left = [observe(trace, anchor=anchor or "auto") for trace in base]
    first = left[0][0]
    if anchor is None and first.source == "detected":
        anchor = first.anchor  # the other run is cut into cycles of the same kind, if it has any
    right = [observe(trace, anchor=anchor or "auto") for trace in other]
    found = compare_runs(as_repeats(left), as_repeats(right))
    facts = {"base": ", ".join(base.paths), "other": ", ".join(other.paths)}
    return replace(found, facts=facts)


def compare_table(base: Run, other: Run, name: str, *, on_missing: Callable[[str, StepscopeError], None]) -> Block:
    """Any result table of two runs side by side, by its schema's keys; several traces rank by rank.

    Traces that lack it are told to `on_missing`. Raises UnknownName, MissingTable, StepscopeError.
    """
    from stepscope.comparison.side_by_side import side_by_side
    from stepscope.core.report import Block
    from stepscope.query import tables

    question = tables.find(name)
    (left, table), (right, _) = (tables.collect(side, question, on_missing=on_missing) for side in (base, other))
    frame, schema = side_by_side(left, right, table)
    return Block(name, schema, frame)


def group(run: Run) -> Report:
    """Which processes of many do the same, and what sets the others apart. Raises StepscopeError, MissingTable."""
    from stepscope.comparison.observe import observe
    from stepscope.comparison.roles import roles
    from stepscope.reports.roles import roles_report

    processes = [process for trace in run for process in observe(trace)]
    return roles_report(roles(processes))
