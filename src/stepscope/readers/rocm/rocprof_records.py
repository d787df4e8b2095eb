"""What AMD's recorders write, in any format: five tables, made from CSV, JSON and databases.

Units as recorded: times in ns of one clock, grids in work-items (not in work-groups, as NVIDIA counts blocks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INT, _TEXT = pl.Int64(), pl.String()
AXES = ("x", "y", "z")

DISPATCHES = Table(
    "dispatches",
    "a kernel launch",
    (
        Column("start", _INT, "start; null where only the order is known", "ns"),
        Column("end", _INT, "end", "ns"),
        Column("name", _TEXT, "kernel"),
        Column("agent", _TEXT, "device, as the recorder names it"),
        Column("queue", _INT, "hardware queue"),
        Column("stream", _INT, "stream of the program"),
        Column("pid", _INT, "process"),
        Column("correlation", _INT, "shared with the call that launched it"),
        Column("dispatch", _INT, "number of the launch, which its counters name"),
        *(Column(f"group_{a}", _INT, "work-items of a work-group") for a in AXES),
        *(Column(f"grid_{a}", _INT, "work-items of the launch") for a in AXES),
        Column("registers", _INT, "vector registers of a work-item"),
        Column("shared_bytes", _INT, "local memory of a work-group", "bytes"),
    ),
)
CALLS = Table(
    "calls",
    "a call on the host",
    (
        Column("start", _INT, "start", "ns"),
        Column("end", _INT, "end", "ns"),
        Column("name", _TEXT, "function, or the text of a range"),
        Column("domain", _TEXT, "which interface, in the recorder's word"),
        Column("pid", _INT, "process"),
        Column("tid", _INT, "thread"),
        Column("correlation", _INT, "shared with what it launched"),
        Column("shapes", _TEXT, "shapes of an operator's inputs, as compact JSON"),
    ),
)
COPIES = Table(
    "copies",
    "a copy or a fill",
    (
        Column("start", _INT, "start", "ns"),
        Column("end", _INT, "end", "ns"),
        Column("kind", _TEXT, "direction, in any words"),
        Column("bytes", _INT, "how much", "bytes"),
        Column("agent", _TEXT, "device that it is counted as work of"),
        Column("stream", _INT, "stream of the program"),
        Column("queue", _INT, "hardware queue"),
        Column("pid", _INT, "process"),
        Column("correlation", _INT, "shared with the call that asked for it"),
    ),
)
METRICS = Table(
    "metrics",
    "a counter of one launch",
    (
        Column("dispatch", _INT, "number of the launch"),
        Column("metric", _TEXT, "the counter's name"),
        Column("value", pl.Float64(), "its value"),
    ),
)
AGENTS = Table(
    "agents",
    "an accelerator",
    (
        Column("agent", _TEXT, "as the other tables name it"),
        Column("index", _INT, "its number among the accelerators"),
        Column("name", _TEXT, "product"),
        Column("arch", _TEXT, "architecture, as in gfx942"),
        Column("cu_count", _INT, "compute units"),
        Column("memory_bytes", _INT, "memory", "bytes"),
    ),
)


class Records(msgspec.Struct, frozen=True):
    """The five tables (some empty), and facts on the machine and the recorder."""

    dispatches: pl.DataFrame = msgspec.field(default_factory=DISPATCHES.empty)
    calls: pl.DataFrame = msgspec.field(default_factory=CALLS.empty)
    copies: pl.DataFrame = msgspec.field(default_factory=COPIES.empty)
    metrics: pl.DataFrame = msgspec.field(default_factory=METRICS.empty)
    agents: pl.DataFrame = msgspec.field(default_factory=AGENTS.empty)
    host: str | None = None
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)


def stacked(table: Table, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of several frames as one table."""
    return pl.concat([table.empty(), *(table.conform(frame) for frame in frames)])
