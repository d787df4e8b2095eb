"""The published comparison of two processes: each function with each metric on each device, most suspicious first.

It repeats the published arithmetic with its defects: missing values count as zero, a spread of zero gives no z-score, β
depends on the metric's row, and rows without a metric do not count.

The two tests, Welch's t and Mann and Whitney's U with correction for ties and continuity, are calculated for all pairs
of groups at once, which scipy.stats does not do.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy import special

from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

KEYS = ("function", "metric", "device")
_COLUMNS = ("name", "metric", "device")
_LEAST_SPREAD = 1e-9

COMPARED = Table(
    "compared",
    "what the published tool computes of two groups of cycles",
    (
        Column("function", pl.String(), "function as recorded", key=True),
        Column("metric", pl.String(), "resource", key=True),
        Column("device", pl.String(), "Host or GPU N", key=True),
        Column("score", pl.Float64(), "suspicion: |Δβ| (|z of β| + |z of log μ|)"),
        Column("beta_1", pl.Float64(), "mean of 100 β in the first group, over the cycles with this metric"),
        Column("beta_2", pl.Float64(), "the same in the second"),
        Column("beta_delta", pl.Float64(), "the second less the first"),
        Column("beta_z", pl.Float64(), "that over the first group's standard deviation"),
        Column("beta_p", pl.Float64(), "p of Welch's test"),
        Column("beta_u", pl.Float64(), "p of the U test"),
        Column("mu_1", pl.Float64(), "mean of 100 μ in the first group"),
        Column("mu_2", pl.Float64(), "the same in the second"),
        Column("mu_delta", pl.Float64(), "the second less the first"),
        Column("mu_z", pl.Float64(), "that over the first group's standard deviation"),
        Column("log_mu_z", pl.Float64(), "the same of ln(1 + 100 μ)"),
        Column("mu_p", pl.Float64(), "p of Welch's test"),
        Column("mu_u", pl.Float64(), "p of the U test"),
    ),
)


def compared(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Two groups of rows of `attribution` as COMPARED, most suspicious first; equal ones in order of their names.

    If a group lacks a key, its means and spreads are 0 and p is 1. Welch's test uses the number of distinct cycles, the
    U test the number of rows. Source: LatencyPrism's comparison of a pair.
    """
    both = pl.concat([_prepared(first, 1), _prepared(second, 2)])
    # Names may have thousands of characters, so they are processed once for each key and not in each row.
    keys = both.select(_COLUMNS).unique().with_row_index("key")
    both = both.join(keys, on=_COLUMNS, nulls_equal=True).drop(_COLUMNS)
    keys = _named(keys)
    moments = [_moments(both.filter(pl.col("side") == side), keys.height) for side in (1, 2)]
    columns: dict[str, NDArray[np.float64]] = {}
    for name in ("beta", "mu"):
        groups = [(side[name], side[f"{name}_sd"], side["n"].astype(np.int64)) for side in moments]
        delta = moments[1][name] - moments[0][name]
        columns |= {f"{name}_1": moments[0][name], f"{name}_2": moments[1][name], f"{name}_delta": delta}
        columns[f"{name}_z"] = _z(delta, moments[0][f"{name}_sd"])
        columns[f"{name}_p"] = welch(*groups)
        columns[f"{name}_u"] = _u_test(both, name, moments)
    columns["log_mu_z"] = _z(moments[1]["log_mu"] - moments[0]["log_mu"], moments[0]["log_mu_sd"])
    columns["score"] = np.abs(columns["beta_delta"]) * (np.abs(columns["beta_z"]) + np.abs(columns["log_mu_z"]))
    rows = keys.with_columns(**{name: pl.Series(values) for name, values in columns.items()})
    return COMPARED.conform(rows.sort("score", *KEYS, descending=[True, False, False, False], maintain_order=True))


def _named(keys: pl.DataFrame) -> pl.DataFrame:
    """The keys under their published names."""
    device = pl.col("device").cast(pl.String).str.replace("^host$", "Host").str.replace(r"^gpu(\d)", "GPU $1")
    return keys.select(
        "key",
        function=pl.col("name").cast(pl.String),
        metric=pl.col("metric").cast(pl.String),
        device=device.fill_null("N/A"),
    )


def _prepared(rows: pl.DataFrame, side: int) -> pl.DataFrame:
    """Rows that have a function and a metric."""
    return rows.drop_nulls(["name", "metric"]).select(
        "cycle",
        *_COLUMNS,
        side=pl.lit(side),
        beta=pl.col("recorded_beta"),
        mu=pl.col("recorded_mu").fill_null(0.0),
        log_mu=pl.col("recorded_mu").fill_null(0.0).log1p(),
    )


def _moments(rows: pl.DataFrame, n_keys: int) -> dict[str, NDArray[np.float64]]:
    """Per key the mean and standard deviation of each measure, rows and distinct cycles; 0 where there are none."""
    measures = ("beta", "mu", "log_mu")
    # For equal values the mean is exactly that value and the spread exactly 0, which rounding would not give.
    is_one = {name: pl.col(name).min() == pl.col(name).max() for name in measures}
    means = {name: pl.when(is_one[name]).then(pl.col(name).first()).otherwise(pl.col(name).mean()) for name in measures}
    spreads = {f"{name}_sd": pl.when(is_one[name]).then(0.0).otherwise(pl.col(name).std()) for name in measures}
    aggregates = rows.group_by("key").agg(
        n=pl.col("cycle").n_unique().cast(pl.Float64), rows=pl.len().cast(pl.Float64), **means, **spreads
    )
    at = aggregates["key"].to_numpy()
    columns = {name: np.zeros(n_keys) for name in aggregates.columns if name != "key"}
    for name, values in columns.items():
        values[at] = aggregates[name].fill_null(0.0).to_numpy()
    return columns


def _z(delta: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    known = spread > _LEAST_SPREAD
    return np.where(known, delta / np.where(known, spread, 1.0), 0.0)


def _u_test(both: pl.DataFrame, name: str, moments: list[dict[str, NDArray[np.float64]]]) -> NDArray[np.float64]:
    n_1, n_2 = (side["rows"] for side in moments)
    n_alike = both.group_by("key", name).len().with_columns(pl.col("len").cast(pl.Float64))
    ranks = both.select("key", "side", rank=pl.col(name).rank("average").over("key"))
    rank_sums = _per_key(ranks.filter(pl.col("side") == 1), pl.col("rank").sum(), n_1.size)
    ties = _per_key(n_alike, (pl.col("len") ** 3 - pl.col("len")).sum(), n_1.size)
    return mann_whitney(rank_sums - n_1 * (n_1 + 1) / 2, n_1.astype(np.int64), n_2.astype(np.int64), ties)


def _per_key(rows: pl.DataFrame, measure: pl.Expr, n_keys: int) -> NDArray[np.float64]:
    aggregates = rows.group_by("key").agg(value=measure)
    column = np.zeros(n_keys)
    column[aggregates["key"].to_numpy()] = aggregates["value"].to_numpy()
    return column


#: U is compared with its exact distribution if the smaller group is no larger and no value comes twice.
_MOST_EXACT = 8


def welch(first: tuple[Floats, Floats, Ints], second: tuple[Floats, Floats, Ints]) -> Floats:
    """Two-sided p of equal means, from mean, standard deviation (ddof 1) and size of both groups; all of length n.

    1 where a group has fewer than two members. Without any spread: not a number if the means are equal, else 0.
    """
    several = (first[2] > 1) & (second[2] > 1)
    (mean_1, sd_1, n_1), (mean_2, sd_2, n_2) = ([column[several] for column in group] for group in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        error_1, error_2 = sd_1**2 / n_1, sd_2**2 / n_2
        freedom = (error_1 + error_2) ** 2 / (error_1**2 / (n_1 - 1) + error_2**2 / (n_2 - 1))
        t = (mean_1 - mean_2) / np.sqrt(error_1 + error_2)
    p = np.ones(several.size)
    p[several] = student_tails(t, np.where(np.isnan(freedom), 1.0, freedom))
    return p


def student_tails(t: Floats, freedom: Floats) -> Floats:
    """Probability that Student's t with these degrees of freedom is further from 0 than `t`; NaN where t is NaN."""
    return np.asarray(2 * special.stdtr(freedom, -np.abs(t)))


def mann_whitney(u: Floats, n_1: Ints, n_2: Ints, ties: Floats) -> Floats:
    """Two-sided p that neither group tends to the larger values, from U of one of them.

    `ties` is the sum of t³ − t over the values that come t times in both groups together: 0 if none comes twice. p is 1
    where a group has fewer than two members.
    """
    u = np.maximum(u, n_1 * n_2 - u)
    p = np.ones_like(u)
    several = (n_1 > 1) & (n_2 > 1)
    exact = several & (ties == 0) & (np.minimum(n_1, n_2) <= _MOST_EXACT)
    for size_1, size_2 in np.unique(np.column_stack([n_1[exact], n_2[exact]]), axis=0).tolist():
        alike = exact & (n_1 == size_1) & (n_2 == size_2)
        p[alike] = 2 * exact_tails(min(size_1, size_2), max(size_1, size_2))[u[alike].astype(np.int64)]
    rest = several & ~exact
    p[rest] = _normal_tails(u[rest], n_1[rest], n_2[rest], ties[rest])
    return np.minimum(p, 1.0)


def _normal_tails(u: Floats, n_1: Ints, n_2: Ints, ties: Floats) -> Floats:
    n = n_1 + n_2
    spread = np.sqrt(n_1 * n_2 / 12 * ((n + 1) - ties / (n * (n - 1))))
    with np.errstate(divide="ignore"):
        z = (u - n_1 * n_2 / 2 - 0.5) / spread
    return np.asarray(special.erfc(z / math.sqrt(2)))


@cache
def exact_tails(n_1: int, n_2: int) -> Floats:
    """Probability that U is k or more, for k from 0 to n₁·n₂, if no value comes twice.

    The number of orders with each U is a coefficient of the Gaussian binomial, the product over i from 1 to n₁ of
    (1 − q^(n₂+i)) / (1 − q^i). Whole numbers are used, because these exceed what a double holds.
    """
    counts: NDArray[Any] = np.zeros(n_1 * n_2 + 1, dtype=object)
    counts[0] = 1
    for i in range(1, n_1 + 1):
        counts[n_2 + i :] -= counts[: max(counts.size - n_2 - i, 0)].copy()
        for start in range(min(i, counts.size)):
            counts[start::i] = np.cumsum(counts[start::i])
    tails = np.cumsum(counts[::-1])[::-1]
    return np.asarray(tails / tails[0], dtype=np.float64)
