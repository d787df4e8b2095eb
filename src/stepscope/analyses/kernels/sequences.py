"""Which sequences of kernels an operator launches again and again: candidates for fusing."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import enclosing
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import Column, Name, Table

SEQUENCES = Table(
    "sequences",
    "frequent sequences of device work of an operator",
    (
        Column("name", Name, "operator", key=True),
        Column("pattern", pl.String(), "its kernels, copies and fills in order of start, separated by ' | '", key=True),
        Column("count", pl.Int64(), "calls of the operator that launched just these"),
        Column("n_kernels", pl.Int64(), "kernels, copies and fills in one call"),
        Column("device_ns", pl.Int64(), "summed duration of that work in all these calls", "ns"),
        Column("host_ns", pl.Int64(), "summed host time of these calls", "ns"),
    ),
)


def sequences(spans: pl.DataFrame, *, operator: str = "aten::", min_kernels: int = 3) -> pl.DataFrame:
    """One row per operator and pattern of device work that its calls launch, most frequent first.

    Operators are those whose name contains `operator`. Only outermost matching calls count, and of these only calls
    with at least `min_kernels` pieces of device work, launched by themselves or by operators inside them.

    Units: ns.
    Source: HTA's frequent CUDA kernel sequences. HTA takes matches at one call depth of the whole trace, that of its
    outermost match, and so misses deeper ones; ours takes the outermost match of each place.
    Raises MissingTable if no matching operator launched that much; StepscopeError if min_kernels < 1.
    """
    if min_kernels < 1:
        raise StepscopeError(f"min_kernels is {min_kernels}, a pattern has at least 1 kernel")
    distinct = spans["name"].unique().cast(pl.String)
    matching = distinct.filter(distinct.str.contains(operator, literal=True).fill_null(value=False))
    is_match = (spans["category"] == "operator") & spans["name"].is_in(matching.cast(spans["name"].dtype).implode())
    calls = spans.filter(is_match)
    starts = calls["ts_ns"].to_numpy()
    ends = starts + calls["dur_ns"].to_numpy()
    roots = calls.filter(enclosing(starts, ends, calls["track_id"].cast(pl.Int64).to_numpy()) < 0)
    work = spans.filter(spans["category"].is_in(DEVICE_WORK) & spans["op_id"].is_not_null())
    work = work.select("ts_ns", "name", "dur_ns", root=pl.Series(_roots(spans, roots, work["op_id"].to_numpy())))
    patterns = (
        work.filter(pl.col("root") >= 0)
        .sort("root", "ts_ns", maintain_order=True)
        .group_by("root", maintain_order=True)
        .agg(pattern=pl.col("name").to_physical(), device_ns=pl.col("dur_ns").sum(), n_kernels=pl.len().cast(pl.Int64))
        .filter(pl.col("n_kernels") >= min_kernels)
    )
    if patterns.is_empty():
        what = f"operator with {operator!r} in its name and at least {min_kernels} kernels"
        raise MissingTable(what, needed_by="sequences", hint="other names and lengths: operator=…, min_kernels=…")
    by_call = roots.select("name", "dur_ns")[patterns["root"]]
    grouped = (
        patterns.hstack(by_call)
        .group_by("name", "pattern", "n_kernels")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("device_ns").sum(), host_ns=pl.col("dur_ns").sum())
    )
    grouped = grouped.with_columns(_as_text(grouped["pattern"], spans["name"]))
    return SEQUENCES.conform(grouped).sort(
        "count", "device_ns", "name", "pattern", descending=[True, True, False, False]
    )


def _roots(spans: pl.DataFrame, roots: pl.DataFrame, op_ids: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> pl.Series:
    """Index of the root call that each operator is, or is inside of; -1 for none."""
    if roots.is_empty():
        return pl.Series(np.full(op_ids.size, -1))
    # Roots of a track are disjoint, so that only the last one before an operator can hold it.
    last = np.searchsorted(roots["span_id"].to_numpy(), op_ids, side="right") - 1
    ends = (roots["ts_ns"] + roots["dur_ns"]).to_numpy()
    starts, tracks = spans["ts_ns"].to_numpy()[op_ids], spans["track_id"].to_numpy()[op_ids]
    inside = (starts < ends[last]) | (roots["span_id"].to_numpy()[last] == op_ids)
    return pl.Series(np.where((last >= 0) & inside & (roots["track_id"].to_numpy()[last] == tracks), last, -1))


def _as_text(patterns: pl.Series, names: pl.Series) -> pl.Series:
    """Patterns of codes as text: the names are looked up once for each distinct code."""
    codes = patterns.explode().unique()
    rows = pl.DataFrame({"code": names.to_physical(), "name": names}).unique("code")
    named = codes.to_frame("code").join(rows, on="code", how="left")
    text = dict(zip(named["code"], named["name"].cast(pl.String), strict=True))
    return pl.Series("pattern", [" | ".join(text[code] or "?" for code in pattern) for pattern in patterns.to_list()])


ANALYSIS = analysis_of(sequences, SEQUENCES, "Frequent sequences of device work of an operator.")
