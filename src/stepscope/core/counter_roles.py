"""The roles of hardware counters, by their names: what analyses ask for, whatever the counter is called.

Names are those of Nsight Compute, both the counters' own (`sm__throughput.avg…`) and the labels of its details page,
those of kernel tables, and those of Ascend's profilers: cubes are its tensor cores, AI and vector cores its
multiprocessors. Each role has patterns in order of preference; the first is exact.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

import polars as pl

_PCT = r"\.avg\.pct_of_peak_sustained_"
_ELAPSED, _ACTIVE = _PCT + "elapsed", _PCT + "active"


def _percent_of_peak(counter: str) -> tuple[str, ...]:
    """Over the whole launch, or else over the time in which the unit was active."""
    return counter + _ELAPSED, counter + _ACTIVE


#: Seventeen counters, each in percent of its unit's peak, that together tell how a kernel uses a multiprocessor and
#: the memory behind it: the vector in which casio's scripts compare kernels.
HARDWARE_VECTOR = {
    "sm": ("sm__throughput",),
    "compute_memory": ("gpu__compute_memory_throughput",),
    "l1": ("l1tex__throughput",),
    "l2": ("lts__throughput",),
    "dram": ("gpu__dram_throughput",),
    "issue": ("sm__issue_active", "sm__inst_issued"),
    "executed": ("sm__inst_executed",),
    "alu": ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"),
    "fma": ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma"),
    "lsu": ("sm__inst_executed_pipe_lsu",),
    "adu": ("sm__inst_executed_pipe_adu",),
    "writeback": ("sm__mio2rf_writeback_active",),
    "fp16": ("sm__inst_executed_pipe_fp16", "sm__pipe_fp16_cycles_active"),
    "xu": ("sm__inst_executed_pipe_xu",),
    "fp64": ("sm__pipe_fp64_cycles_active", "sm__inst_executed_pipe_fp64"),
    "shared": ("sm__pipe_shared_cycles_active",),
    "tensor": ("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor"),
}
_ROLES: dict[str, tuple[str, ...]] = {
    "tensor": (
        *_percent_of_peak("sm__pipe_tensor_cycles_active"),
        *_percent_of_peak("sm__inst_executed_pipe_tensor"),
        # Where pipes are counted by element type, the busiest counts.
        *_percent_of_peak(r"sm__pipe_tensor_(?:op|type)_\w+_cycles_active"),
        *_percent_of_peak(r"sm__inst_executed_pipe_tensor_op_\w+"),
        "Tensor",
        "aic_mac_ratio",
    ),
    "dram": (*_percent_of_peak("(?:gpu__dram|dram_)_throughput"), "DRAM Throughput", "DRAM"),
    "sm": (*_percent_of_peak("sm__throughput"), r"Compute \(SM\) Throughput", r"SM \[%\]|SOL SM", "ai(?:core|v)_ratio"),
    "occupancy": ("sm__warps_active" + _ACTIVE, "Achieved Occupancy"),
    "duration": (r"gpu__time_duration\.sum", r"gpu__time_duration\.(?:avg|max)", "Duration"),
} | {f"vector_{k}": tuple(p for c in v for p in _percent_of_peak(c)) for k, v in HARDWARE_VECTOR.items()}

#: Roles whose values are shares of the hardware's peak, 0 to 1.
RATIO_ROLES = tuple(role for role in _ROLES if role != "duration")


@lru_cache(1 << 16)
def preference(metric: str, role: str) -> int | None:
    """How well a counter of that name fills a role: 0 is best; None if it does not.

    >>> preference("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram"), preference("Duration", "dram")
    (0, None)
    """
    return next((i for i, pattern in enumerate(_compiled(role)) if pattern.fullmatch(metric)), None)


@cache
def _compiled(role: str) -> tuple[re.Pattern[str], ...]:
    """Compiled when it is asked for: few traces have counters, and every report imports this."""
    return tuple(re.compile(pattern) for pattern in _ROLES[role])


def measured(metrics: pl.DataFrame, role: str) -> pl.DataFrame:
    """`span_id` and `value` of every launch that has a known value in a role, from the best counter for it.

    Of several equally good counters the largest value counts. Percentages become ratios, 0 to 1; a time stays in ns.
    `metrics` is the table `kernel_metrics`.
    """
    distinct = metrics.select("metric", "unit").unique()
    ranked = distinct.with_columns(
        rank=pl.Series([preference(name or "", role) for name in distinct["metric"].cast(pl.String)], dtype=pl.Int32),
        per=_per_unit(distinct["unit"], role),
    ).drop_nulls(["rank", "per"])
    if ranked.is_empty():
        return pl.DataFrame(schema={"span_id": pl.UInt32, "value": pl.Float64})
    known = metrics.lazy().select("span_id", "metric", "unit", "value").filter(pl.col("value").is_not_null())
    if ranked.height == 1:  # the usual case, in which nothing needs to be chosen
        only = ranked.row(0, named=True)
        is_it = (pl.col("metric") == only["metric"]) & pl.col("unit").eq_missing(pl.lit(only["unit"], pl.String))
        values = known.filter(is_it).select("span_id", value=pl.col("value") / only["per"]).collect()
        if not values["span_id"].is_duplicated().any():
            return values
    keys = ["metric", "unit"]
    rows = known.join(ranked.lazy(), on=keys, how="inner", nulls_equal=True).collect()
    best = rows.filter(pl.col("rank") == pl.col("rank").min().over("span_id"))
    return best.group_by("span_id", maintain_order=True).agg(value=(pl.col("value") / pl.col("per")).max())


def _per_unit(units: pl.Series, role: str) -> pl.Series:
    """What a value is divided by, from its unit; null for a unit that does not fit the role."""
    known = {"ns": 1.0} if role == "duration" else {"%": 100.0, "ratio": 1.0}
    return pl.Series([known.get(unit or "") for unit in units.cast(pl.String)], dtype=pl.Float64)
