"""How fast collectives are: their size over time, and the same for what each rank has to send."""

from __future__ import annotations

import polars as pl

from stepscope.core.collectives import bus_factor

__all__ = ["algorithm_bandwidth", "bus_bandwidth"]


def algorithm_bandwidth(size: str = "size_bytes", time: str = "transfer_ns") -> pl.Expr:
    """Size by time, in bytes/s; null where either is unknown or no time passed."""
    return pl.when((pl.col(time) > 0) & (pl.col(size) > 0)).then(pl.col(size) / pl.col(time) * 1e9)


def bus_bandwidth(size: str = "size_bytes", time: str = "transfer_ns", *, n: str = "group_size") -> pl.Expr:
    """Algorithm bandwidth times what each of n ranks has to send of the whole, by `kind`. Units: bytes/s.

    Source: nccl-tests (see `bus_factor`). Null for a barrier, and for a group of one.
    """
    return algorithm_bandwidth(size, time) * bus_factor(pl.col("kind").cast(pl.String), pl.col(n))
