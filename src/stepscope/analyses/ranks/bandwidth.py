"""How fast collectives are: their size over time, and the same for what each rank has to send."""

from __future__ import annotations

import polars as pl

__all__ = ["algorithm_bandwidth", "bus_bandwidth"]

#: How much of the size each of n ranks sends, whatever the algorithm: so many times (n − 1) / n; all of it otherwise.
_TIMES = {"allreduce": 2, "reduce_scatter": 1, "allgather": 1, "alltoall": 1, "gather": 1, "scatter": 1}


def algorithm_bandwidth(size: str = "size_bytes", time: str = "transfer_ns") -> pl.Expr:
    """Size by time, in bytes/s; null where either is unknown or no time passed."""
    return pl.when((pl.col(time) > 0) & (pl.col(size) > 0)).then(pl.col(size) / pl.col(time) * 1e9)


def bus_bandwidth(size: str = "size_bytes", time: str = "transfer_ns", *, n: str = "group_size") -> pl.Expr:
    """Algorithm bandwidth times what each of n ranks has to send of the whole, by `kind`. Units: bytes/s.

    Source: NCCL's tests: 2 (n − 1) / n for all-reduce, (n − 1) / n for all-gather, reduce-scatter, all-to-all, gather
    and scatter, 1 for broadcast, reduce and messages. Null for a barrier, and for a group of one.
    """
    kind = pl.col("kind").cast(pl.String)
    times = kind.replace_strict(_TIMES, default=None, return_dtype=pl.Float64())
    share = pl.when(times.is_not_null()).then(times * (1 - 1 / pl.col(n))).when(kind != "other").then(1.0)
    return pl.when(pl.col(n) > 1).then(algorithm_bandwidth(size, time) * share)
