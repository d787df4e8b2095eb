"""Ranks of small jobs, as literals, for the tests of analyses of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from stepscope.analyses.ranks.calls import CALLS, RankCalls, own_base
from stepscope.analyses.ranks.groups import Comm

WORLD = Comm("0", "default_pg", 2, (0, 1))


def calls(*rows: tuple[Any, ...], **columns: list[Any]) -> pl.DataFrame:
    """A CALLS table of (start, end) or (start, end, kind), all-reduces of 8 bytes if nothing else is said."""
    frame = pl.DataFrame({
        "start_ns": [row[0] for row in rows],
        "end_ns": [row[1] for row in rows],
        "kind": [row[2] if len(row) > 2 else "allreduce" for row in rows],
        "comm": [0] * len(rows),
        "in_bytes": [8] * len(rows),
        "out_bytes": [8] * len(rows),
        "dtype": ["Float"] * len(rows),
        "measured": ["device"] * len(rows),
        "blocks": [True] * len(rows),
    } | columns, strict=False)  # fmt: skip
    frame = frame.with_columns(collective="kind")
    start, end = (frame[c].cast(pl.Int64).to_numpy() for c in ("start_ns", "end_ns"))
    base = own_base(start, end, frame["blocks"].to_numpy())
    at = np.maximum(base, 0) >> 1
    since = np.where(base & 1 == 0, end[at], start[at])
    work = pl.Series("work_ns", start - since)
    return CALLS.conform(frame.with_columns(pl.when(pl.Series(base >= 0)).then(work).alias("work_ns")))


def part(rank: int | None, *rows: tuple[Any, ...], comms: tuple[Comm, ...] = (WORLD,), **more: Any) -> RankCalls:
    """One rank; `more` are fields of RankCalls, all else columns of its calls."""
    fields = {k: more.pop(k) for k in tuple(more) if k in RankCalls.__struct_fields__}
    fields.setdefault("origin_unix_ns", 0)
    return RankCalls(rank, fields.pop("label", f"rank{rank}"), calls(*rows, **more), comms, **fields)
