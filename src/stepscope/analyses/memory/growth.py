"""What holds more memory in one memory snapshot than in another: of two runs, or of two ranks of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.memory.snapshots import CATEGORIES, memory_holders
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

MEMORY_GROWTH = Table(
    "memory-growth",
    "what holds more or less at the peak of one memory snapshot than at that of another; a device's rows add up",
    (
        Column("device", pl.String(), "device, as the framework calls it", key=True),
        Column("category", pl.Enum(CATEGORIES), "what it is, by its stack and how long it lived", key=True),
        Column("line", Name, "innermost line of the user's code; null: allocated before recording", key=True),
        Column("stack", pl.String(), "frames, outermost first; null: not recorded", key=True),
        Column("base_bytes", pl.Int64(), "held at the peak of the base", "bytes"),
        Column("other_bytes", pl.Int64(), "held at the peak of the other", "bytes"),
        Column("delta_bytes", pl.Int64(), "how much more the other holds", "bytes"),
        Column("base_blocks", pl.Int64(), "blocks that held it in the base; null: unknown"),
        Column("other_blocks", pl.Int64(), "blocks that held it in the other; null: unknown"),
    ),
)
_BY = {"stack": ["category", "line", "stack"], "line": ["category", "line"], "category": ["category"]}


def memory_growth(base: Trace, other: Trace, *, by: Literal["stack", "line", "category"] = "line") -> pl.DataFrame:
    """What holds more memory at the peak of the other snapshot than at that of the base, the largest change first.

    Stacks that only one of the two has are compared without folders and numbers of lines, which differ where the code
    lies elsewhere or was edited above the line. If each snapshot is of one device, those two are compared.

    Units: bytes.
    Source: the holders of both peaks (`memory-holders`), joined by stack.
    Raises MissingTable (no memory snapshot), UnknownName (by).
    """
    left, right = holders_of(base), holders_of(other)
    devices = [frame["device"].unique().to_list() for frame in (left, right)]
    if all(len(one) == 1 for one in devices):
        left = left.with_columns(device=pl.lit(devices[1][0]))
    return grown(left, right, by=by)


def holders_of(trace: Trace) -> pl.DataFrame:
    """The rows of `memory-holders` of a snapshot. Raises MissingTable."""
    tables = trace.memory_events, trace.memory_segments, trace.memory_blocks, trace.stacks, trace.devices
    return memory_holders(*tables)


def grown(
    base: pl.DataFrame, other: pl.DataFrame, *, by: Literal["stack", "line", "category"] = "line"
) -> pl.DataFrame:
    """MEMORY_GROWTH of rows of `memory-holders`, of which all but device, line, stack, category and bytes may lack."""
    columns = ["device", "category", "line", "stack", "bytes", "n_blocks"]
    frames = [
        frame.select(columns).with_columns(pl.col("category", "line").cast(pl.String), at=pl.lit(i))
        for i, frame in enumerate((base, other))
    ]
    rows = pl.concat(frames)
    is_shared = pl.col("at").n_unique().over("device", "stack") > 1
    plain = pl.col("stack").str.replace_all(r"\((?:[^()>]*/)?([^()/>]*?)(?::\d+)?\)", "($1)")
    rows = rows.with_columns(is_shared=is_shared, plain=plain)
    # A stack of one side only may be the same code elsewhere: then what its frames are called decides.
    is_alike = pl.col("at").n_unique().over("device", "plain", "is_shared") > 1
    rows = rows.with_columns(same=pl.when(~pl.col("is_shared") & is_alike).then("plain").otherwise("stack"))
    # The other side is the one at hand: its names stand for both.
    for name in ("stack", "line", "category"):
        latest = pl.col(name).sort_by("at", "bytes").last()
        rows = rows.with_columns(latest.over("device", "same").alias(name))
    sums = {
        f"{side}_{name}": pl.col(column).filter(pl.col("at") == i).sum()
        for i, side in enumerate(("base", "other"))
        for name, column in (("bytes", "bytes"), ("blocks", "n_blocks"))
    }
    keys = ["device", *_BY[by]]
    rows = rows.group_by(keys).agg(**sums).with_columns(delta_bytes=pl.col("other_bytes") - pl.col("base_bytes"))
    order = [pl.col("delta_bytes").abs(), pl.col("other_bytes")]
    rows = rows.sort(*order, *keys, descending=[True, True, *[False] * len(keys)], nulls_last=True)
    left_out = set(_BY["stack"]) - set(_BY[by])
    return MEMORY_GROWTH.conform(rows).drop(left_out)


ANALYSIS = analysis_of(
    memory_growth,
    MEMORY_GROWTH,
    "What holds more memory in one memory snapshot than in another, by line.",
    scope="pair",
)
