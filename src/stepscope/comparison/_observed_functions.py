"""What Python's main thread was seen in from outside, by function: evidence where operators do not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.program.python_stacks import python_stacks
from stepscope.core.errors import MissingTable

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = ["functions_seen"]


def functions_seen(trace: Trace, pid: int | None, low_ns: int) -> pl.DataFrame | None:
    """Own share of each function in the time of the process' main thread, from `low_ns` on; None without stacks.

    Columns: function, share_ratio (0..1), n_looks (at all functions).
    """
    if pid is None:
        return None
    samples = trace.stack_samples
    mine = samples.filter((pl.col("tid") == pl.col("pid")) & (pl.col("pid") == pid) & (pl.col("ts_ns") >= low_ns))
    try:
        found = python_stacks(mine, trace.stacks, by="function")
    except MissingTable:
        return None
    n_looks = mine.filter(~pl.col("on_gil"))["n_samples"].sum()
    return found.filter(pl.col("share_ratio") > 0).select("function", "share_ratio", n_looks=pl.lit(n_looks))
