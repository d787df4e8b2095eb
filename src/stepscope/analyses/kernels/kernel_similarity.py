"""Which few launches represent all others, by how they use the parts of a multiprocessor and the memory."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.kernels.kernel_launches import kernel_launches
from stepscope.core.counter_roles import HARDWARE_VECTOR, measured
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.table import Column, Name, Table

Method = Literal["fixed", "casio"]
_LEAST_COUNTERS = 3
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

KERNEL_SIMILARITY = Table(
    "kernel-similarity",
    "launches that stand for others like them",
    (
        Column("representative_id", pl.UInt32(), "span_id of the launch that stands for the others", key=True),
        Column("name", Name, "its name"),
        Column("calls", pl.Int64(), "launches that it stands for, itself included"),
        Column("n_names", pl.Int64(), "distinct names among them"),
        Column("total_ns", pl.Int64(), "their summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
        Column("cumulative_ratio", pl.Float64(), "part of all that this row and those above it stand for", "ratio"),
        Column("mean_distance", pl.Float64(), "mean cosine distance to it"),
        Column("max_distance", pl.Float64(), "cosine distance of the launch least like it"),
        Column("n_counters", pl.Int64(), "counters compared, of 17"),
    ),
)


def kernel_similarity(
    spans: pl.DataFrame, kernel_metrics: pl.DataFrame, *, method: Method = "fixed", distance: float = 0.05
) -> pl.DataFrame:
    """One row per representative launch, longest in total first: every launch is within `distance` of one of them.

    Distance is the angle between hardware vectors. A vector holds up to 17 counters in percent of their peak: those
    that the trace has, where absent values count as 0. Launches are visited one by one; each that is not represented
    yet becomes the representative of all unrepresented launches near it. `fixed` visits the longest first, and launches
    that use nothing are alike. `casio` does as its scripts do: it visits launches in order and makes one a
    representative only if some unrepresented launch is far from it. So the last group has no representative, a single
    group has none at all, and launches that use nothing are never absorbed.

    Units: cosine distance (0 alike, 1 nothing in common); ns; ratio.
    Source: casio's scripts (ASPLOS 2024).
    Raises MissingTable (kernels, or fewer than 3 of the counters), UnknownName (method), StepscopeError (distance).
    """
    if not 0 <= distance < 1:
        raise StepscopeError(f"distance is {distance}, and must be from 0 to less than 1")
    launches = kernel_launches(spans, needed_by="kernel-similarity")
    whole_ns = launches["dur_ns"].sum()
    launches, vectors = _vectors(launches, kernel_metrics)
    fixed = method == "fixed"
    time = launches["dur_ns"].fill_null(0).to_numpy()
    order = np.argsort(-time, kind="stable") if fixed else np.arange(launches.height)
    representative, away = _absorbed(vectors, order, distance, fixed=fixed)
    grouped = launches.with_columns(representative=pl.Series(representative), distance=pl.Series(away))
    grouped = grouped.filter(pl.col("representative") >= 0)
    groups = grouped.group_by("representative", maintain_order=True).agg(
        calls=pl.len(),
        n_names=pl.col("name").n_unique(),
        total_ns=pl.col("dur_ns").sum(),
        mean_distance=pl.col("distance").mean(),
        max_distance=pl.col("distance").max(),
    )
    chosen = launches[groups["representative"]]
    share = pl.col("total_ns") / pl.lit(whole_ns or None, dtype=pl.Float64)
    groups = groups.with_columns(
        representative_id=chosen["span_id"], name=chosen["name"], share_ratio=share, n_counters=vectors.shape[1]
    )
    groups = groups.sort("total_ns", "representative_id", descending=[True, False])
    return KERNEL_SIMILARITY.conform(groups.with_columns(cumulative_ratio=pl.col("share_ratio").cum_sum()))


def _vectors(launches: pl.DataFrame, metrics: pl.DataFrame) -> tuple[pl.DataFrame, Floats]:
    """The launches that have any of the counters, and the vector of each."""
    columns = {}
    for part in HARDWARE_VECTOR:
        values = measured(metrics, f"vector_{part}")
        if not values.is_empty():
            columns[part] = launches.join(values, on="span_id", how="left", maintain_order="left")["value"]
    if len(columns) < _LEAST_COUNTERS:
        what = f"at least {_LEAST_COUNTERS} of the {len(HARDWARE_VECTOR)} counters of a hardware vector"
        hint = f"profile with ncu --page raw --set full; it compares {', '.join(HARDWARE_VECTOR)}"
        raise MissingTable(what, needed_by="kernel-similarity", hint=hint)
    frame = pl.DataFrame(columns)
    has_any = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
    return launches.filter(has_any), frame.filter(has_any).fill_null(0.0).to_numpy()


def _absorbed(vectors: Floats, order: Rows, distance: float, *, fixed: bool) -> tuple[Rows, Floats]:
    """For each launch the row of its representative (−1: none) and its distance, in one pass per representative."""
    length = np.linalg.norm(vectors, axis=1)
    representative, away = np.full(length.size, -1), np.zeros(length.size)
    unused = order[length[order] == 0]
    if fixed and unused.size:
        representative[unused] = unused[0]
    left = order[length[order] > 0]
    unit = vectors[left] / length[left, None]
    while left.size:
        apart = np.maximum(1 - unit @ unit[0], 0)
        apart[0] = 0  # rounding may leave a distance to itself
        near = apart <= distance
        if fixed or not near.all():
            representative[left[near]] = left[0]
            away[left[near]] = apart[near]
        left, unit = left[~near], unit[~near]
    return representative, away


ANALYSIS = analysis_of(
    kernel_similarity,
    KERNEL_SIMILARITY,
    "Which few launches stand for all others, by how they use the hardware.",
    needs_clock=False,
)
