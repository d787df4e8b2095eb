"""How much of the device kernels used: tensor cores, memory, multiprocessors, weighted by time."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.kernels.kernel_launches import (
    RATIOS,
    kernel_launches,
    ranked,
    time_share,
    weighted,
    with_ratios,
)
from stepscope.core.errors import StepscopeError
from stepscope.core.table import Column, Name, Table

By = Literal["all", "class", "name", "curve", "time"]
KEYS = {"all": (), "class": ("kernel_class",), "name": ("name",)}
_SHARES = (50, 60, 70, 80, 90)
_SHORT_NS = {"10us": 10_000, "20us": 20_000}
_LOW = "tensor cores and memory both used less than `low`"
_THIRD = 1 / 3
#: From these shares of its peak on a unit is busy, or as good as full: the bounds of Nsight Compute's own rules.
_BUSY, _FULL = 0.6, 0.8
_MOST_STRETCHES = 1_000_000
_BOTH = ("tensor_ratio", "dram_ratio")

UTILISATION = Table(
    "utilisation",
    "how much of the device kernels used, as shares of its peak weighted by time",
    (
        Column(
            "from_ns", pl.Int64(), "start of the stretch, as time of kernels laid end to end (by time)", "ns", key=True
        ),
        Column("kernel_class", Name, "what the kernels do; by time: what took most of the stretch", key=True),
        Column("name", Name, "kernel (by name)", key=True),
        Column("up_to_ratio", pl.Float64(), "largest utilisation of a launch (by curve)", "ratio", key=True),
        Column("calls", pl.Int64(), "launches"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "its part of all; by curve: launches that use no more", "ratio"),
        Column("tensor_ratio", pl.Float64(), "tensor cores busy", "ratio"),
        Column("dram_ratio", pl.Float64(), "memory bandwidth used", "ratio"),
        Column("sm_ratio", pl.Float64(), "multiprocessors busy", "ratio"),
        Column("max_ratio", pl.Float64(), "the largest of the three, launch by launch", "ratio"),
        Column("low_ratio", pl.Float64(), f"share of time with {_LOW}", "ratio"),
        Column("low_calls", pl.Int64(), f"launches with {_LOW}"),
        *(
            Column(f"max_{q}_ratio", pl.Float64(), f"utilisation that {q} % of the time stays at or below", "ratio")
            for q in _SHARES
        ),
        Column("tensor_half_ratio", pl.Float64(), "share of time with tensor cores half busy or more", "ratio"),
        Column("dram_half_ratio", pl.Float64(), "share of time with half the bandwidth used or more", "ratio"),
        Column("both_half_calls", pl.Int64(), "launches for which both is true"),
        Column("thirds_low_ratio", pl.Float64(), "share of time with tensor cores and memory under a third", "ratio"),
        Column("thirds_dram_low_ratio", pl.Float64(), "share of time with only memory under a third", "ratio"),
        Column("thirds_tensor_low_ratio", pl.Float64(), "share of time with only tensor cores under a third", "ratio"),
        Column("thirds_high_ratio", pl.Float64(), "share of time with neither under a third", "ratio"),
        Column("plain_tensor_ratio", pl.Float64(), "mean over launches, not weighted by time", "ratio"),
        Column("plain_dram_ratio", pl.Float64(), "mean over launches, not weighted by time", "ratio"),
        Column("plain_sm_ratio", pl.Float64(), "mean over launches, not weighted by time", "ratio"),
        Column("n_names", pl.Int64(), "distinct names"),
        Column("mean_ns", pl.Float64(), "mean duration", "ns"),
        Column("min_ns", pl.Int64(), "shortest", "ns"),
        Column("p10_ns", pl.Int64(), "duration of the launch that a tenth of the others are shorter than", "ns"),
        Column("p50_ns", pl.Float64(), "median", "ns"),
        Column("p90_ns", pl.Int64(), "duration of the launch that nine tenths of the others are shorter than", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        *(
            column
            for name in _SHORT_NS
            for column in (
                Column(f"under_{name}_calls", pl.Int64(), f"launches shorter than {name.removesuffix('us')} µs"),
                Column(f"under_{name}_ratio", pl.Float64(), "their share of time", "ratio"),
            )
        ),
    ),
)


def utilisation(
    spans: pl.DataFrame, kernel_metrics: pl.DataFrame, *, by: By = "all", low: float = 0.1, stretches: int = 200
) -> pl.DataFrame:
    """One row for all kernels, per class, name, level of utilisation (by curve) or stretch of time: how much they used.

    The main columns are `tensor_ratio`, `dram_ratio`, `sm_ratio` and `low_ratio`, the share of time in which neither
    tensor cores nor memory were busy. Means are weighted by time. The unweighted ones beside them (`plain_…`) let a
    thousand short kernels outvote the few long ones that matter. By curve, a row per whole percent has the share of
    time of launches whose largest utilisation is at most that. By time, kernels are laid end to end in order of launch
    (of start, with a clock) and cut into `stretches` of equal length. The limit of a third is that of Kitsune's
    characterisation. `metrics` is the table `kernel_metrics`.

    Units: ns; ratios 0..1 of the hardware's peak over the whole launch.
    Source: casio's scripts (max-utilisation curve, ASPLOS 2024); percentiles p10 and p90 are those of launches, not
    interpolated.
    Raises MissingTable (no kernels, durations, counters), UnknownName (by), StepscopeError (low, stretches).
    """
    if not 0 <= low <= 1:
        raise StepscopeError(f"low is {low}, a ratio is from 0 to 1")
    launches = with_ratios(kernel_launches(spans, needed_by="utilisation"), kernel_metrics, needed_by="utilisation")
    if by == "curve":
        return _curve(launches)
    if by == "time":
        return _over_time(launches, stretches)
    keys = KEYS[by]
    measures = _measures(low)
    result = launches.group_by(keys, maintain_order=True).agg(**measures) if keys else launches.select(**measures)
    result = ranked(result, *keys)
    return result.select(pl.col(k).cast(t) for k, t in UTILISATION.dtypes.items() if k in result.columns)


def with_limits(launches: pl.DataFrame) -> pl.DataFrame:
    """The rows with `limit`, what limits their kernels: `memory`, `compute` or `latency`; null if it was not measured.

    `near_limit` says if a unit is near its peak. The rows have the columns `tensor_ratio`, `dram_ratio`, `sm_ratio`.
    Source: the speed-of-light rule of Nsight Compute.
    """
    dram, compute = pl.col("dram_ratio"), pl.max_horizontal("tensor_ratio", "sm_ratio")
    most, known = pl.max_horizontal(dram, compute), dram.is_not_null() & compute.is_not_null()
    by_unit = pl.when(dram >= compute).then(pl.lit("memory")).otherwise(pl.lit("compute"))
    limit = pl.when(most < _BUSY).then(pl.lit("latency")).otherwise(by_unit)
    return launches.with_columns(limit=pl.when(known).then(limit), near_limit=known & (most >= _FULL))


def _measures(low: float) -> dict[str, pl.Expr]:
    tensor, dram, time = pl.col("tensor_ratio"), pl.col("dram_ratio"), pl.col("dur_ns")
    is_low = (tensor < low) & (dram < low)
    is_known = pl.all_horizontal(pl.col(name).count() > 0 for name in _BOTH)
    thirds = {
        "low": (tensor < _THIRD) & (dram < _THIRD),
        "dram_low": (tensor >= _THIRD) & (dram < _THIRD),
        "tensor_low": (tensor < _THIRD) & (dram >= _THIRD),
        "high": (tensor >= _THIRD) & (dram >= _THIRD),
    }
    by_use = time.sort_by("max_ratio", nulls_last=True).filter(pl.col("max_ratio").sort(nulls_last=True).is_not_null())
    so_far = by_use.cum_sum() / by_use.sum()
    sorted_use = pl.col("max_ratio").drop_nulls().sort()
    return {
        "calls": pl.len(),
        "total_ns": time.sum(),
        **{name: weighted(name) for name in ("tensor_ratio", "dram_ratio", "sm_ratio", "max_ratio")},
        "low_ratio": time_share(is_low, _BOTH),
        "low_calls": pl.when(is_known).then(is_low.sum()),
        **{f"max_{q}_ratio": sorted_use.filter(so_far >= q / 100).first() for q in _SHARES},
        "tensor_half_ratio": time_share(tensor >= 0.5, ("tensor_ratio",)),
        "dram_half_ratio": time_share(dram >= 0.5, ("dram_ratio",)),
        "both_half_calls": pl.when(is_known).then(((tensor >= 0.5) & (dram >= 0.5)).sum()),
        **{f"thirds_{name}_ratio": time_share(condition, _BOTH) for name, condition in thirds.items()},
        **{f"plain_{name}_ratio": pl.col(f"{name}_ratio").mean() for name in ("tensor", "dram", "sm")},
        "n_names": pl.col("name").n_unique(),
        "mean_ns": time.mean(),
        "min_ns": time.min(),
        "p10_ns": _launch_at(0.1),
        "p50_ns": time.median(),
        "p90_ns": _launch_at(0.9),
        "max_ns": time.max(),
        **{f"under_{name}_calls": (time < limit).sum() for name, limit in _SHORT_NS.items()},
        **{f"under_{name}_ratio": time_share(time < limit) for name, limit in _SHORT_NS.items()},
    }


def _launch_at(share: float) -> pl.Expr:
    """The duration of the launch at this share of all launches, rounded down, in order of duration."""
    known = pl.col("dur_ns").drop_nulls().sort()
    return known.get((known.len() * share).floor().cast(pl.Int64), null_on_oob=True)


def _curve(launches: pl.DataFrame) -> pl.DataFrame:
    known = launches.drop_nulls(["max_ratio", "dur_ns"]).sort("max_ratio")
    # A whole percent as it was printed, and not what is left of it after a division.
    used = known.select(pl.col("max_ratio"), so_far=pl.col("dur_ns").cum_sum(), n=pl.int_range(1, pl.len() + 1))
    steps = pl.DataFrame({"up_to_ratio": [percent / 100 for percent in range(101)]})
    steps = steps.with_columns(limit=pl.col("up_to_ratio") + 1e-9)
    curve = steps.join_asof(used, left_on="limit", right_on="max_ratio", strategy="backward")
    whole = used["so_far"].max()
    return curve.select(
        "up_to_ratio",
        calls=pl.col("n").fill_null(0).cast(pl.Int64),
        total_ns=pl.col("so_far").fill_null(0),
        share_ratio=pl.col("so_far").fill_null(0) / pl.lit(whole or None, dtype=pl.Float64),
    )


def _over_time(launches: pl.DataFrame, n: int) -> pl.DataFrame:
    """Means over each of `n` stretches of kernels laid end to end, and the class that took most of it."""
    if not 1 <= n <= _MOST_STRETCHES:
        raise StepscopeError(f"stretches is {n}, and must be from 1 to {_MOST_STRETCHES:,}")
    launches = launches.drop_nulls("dur_ns").filter(pl.col("dur_ns") > 0)
    durations = launches["dur_ns"].to_numpy()
    ends = np.concatenate(([0], np.cumsum(durations)))
    edges = np.linspace(0, ends[-1], min(n, int(ends[-1])) + 1).round().astype(np.int64)

    def within(weights: pl.Series) -> NDArray[np.float64]:
        """Of each stretch the time, weighted."""
        so_far = np.concatenate(([0.0], np.cumsum(weights.cast(pl.Float64).fill_null(0.0).to_numpy() * durations)))
        return np.diff(np.interp(edges, ends, so_far))

    columns = {"from_ns": pl.Series(edges[:-1]), "total_ns": pl.Series(np.diff(edges))}
    begun = np.searchsorted(ends[:-1], edges)
    columns["calls"] = pl.Series(np.diff(begun))
    for name in (*RATIOS, "max_ratio"):
        known = within(launches[name].is_not_null())
        mean = np.divide(within(launches[name]), known, out=np.full(known.size, np.nan), where=known > 0)
        columns[name] = pl.Series(mean).fill_nan(None)
    classes = launches["kernel_class"].unique(maintain_order=True)
    parts = np.array([within(launches["kernel_class"] == name) for name in classes])
    if len(classes):
        columns["kernel_class"] = classes.gather(pl.Series(parts.argmax(axis=0)))
    frame = pl.DataFrame(columns)
    return frame.select(pl.col(k).cast(t) for k, t in UTILISATION.dtypes.items() if k in frame.columns)


ANALYSIS = analysis_of(
    utilisation,
    UTILISATION,
    "How busy kernels kept tensor cores, memory and multiprocessors, weighted by time.",
    needs_clock=False,
)
