"""The report of groups of processes: which do the same, and how each group differs from the largest."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.comparison.effects import FUNCTION_DELTAS, function_deltas
from stepscope.core import units
from stepscope.core.report import Block, Report
from stepscope.core.table import Column, Table
from stepscope.reports.comparison import RESOURCES_SHOWN, resources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison import Observation
    from stepscope.comparison.roles import Role

SCHEMA = "stepscope.roles/1"
ROLES = Table(
    "roles",
    "groups of processes that spend a cycle alike",
    (
        Column("group", pl.Int64(), "number of the group, the largest first", key=True),
        Column("n_processes", pl.Int64(), "processes in it"),
        Column("step_ns", pl.Float64(), "their mean cycle", "ns"),
        Column("processes", pl.String(), "their names"),
    ),
)
_ROWS = 5


def roles_report(roles: Sequence[Role]) -> Report:
    """The groups, and for each but the largest the functions and resources that differ from it."""
    rows = [
        (k, len(role.members), role.step_ns, ", ".join(names))
        for k, (role, names) in enumerate(zip(roles, _labels(roles), strict=True), 1)
    ]
    groups = pl.DataFrame(rows, schema=ROLES.dtypes, orient="row")
    n = sum(len(role.members) for role in roles)
    kinds = "all do the same" if len(roles) == 1 else f"in {len(roles)} groups that do not do the same"
    blocks = [Block("Groups", ROLES, groups)]
    for k, role in enumerate(roles, 1):
        blocks += _apart(k, role)
    return Report(
        headline=f"{units.count(n)} processes, {kinds}",
        tables=tuple(blocks),
        title="compare",
        document=_document(roles, groups),
    )


def _apart(number: int, role: Role) -> list[Block]:
    if role.apart.is_empty():
        return []
    against = f"group {number} against group 1"
    functions = function_deltas(role.apart).filter("is_different").head(_ROWS)
    moved = resources(role.apart).filter("is_different").head(_ROWS)
    blocks = []
    if functions.height:
        keep = ["device", "name", "base_calls", "other_calls", "base_ns", "other_ns", "delta_ns"]
        blocks.append(Block(f"Functions, {against}, own time per cycle", FUNCTION_DELTAS, functions.select(keep)))
    if moved.height:
        keep = ["device", "metric", "unit", "base", "other", "ratio"]
        blocks.append(Block(f"Resources, {against}", RESOURCES_SHOWN, moved.select(keep)))
    return blocks


def _labels(roles: Sequence[Role]) -> list[list[str]]:
    """A name for each process of each group: its rank or id, and the part of its path that differs."""
    paths = [run.meta.path for role in roles for run in role.members]
    root = os.path.commonpath([PurePath(path).parent for path in paths])
    return [[_label(run, root) for run in role.members] for role in roles]


def _label(run: Observation, root: str) -> str:
    who = f"rank {run.rank}" if run.rank is not None else f"pid {run.pid}" if run.pid is not None else ""
    place = str(PurePath(run.meta.path).relative_to(root)) if root else run.meta.path
    place = str(PurePath(place).parent) if "/" in place else place
    return f"{who} of {place}" if who else place


def _document(roles: Sequence[Role], groups: pl.DataFrame) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "groups": [
            row
            | {
                "processes": [{"path": run.meta.path, "rank": run.rank, "pid": run.pid} for run in role.members],
                "attribution": function_deltas(role.apart).filter("is_different").to_dicts(),
                "resources": resources(role.apart).filter("is_different").to_dicts(),
            }
            for row, role in zip(groups.to_dicts(), roles, strict=True)
        ],
    }
