"""What two runs of one program do differently: operator by operator, or part by part of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from stepscope import analyses
from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.span_lookup import at_or_around
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import MissingTable
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import Column, Table, integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

_WHAT = {
    "calls": ("calls", None),
    "device_self_ns": ("device work that it launched itself", "ns"),
    "device_total_ns": ("device work launched by it and all that is inside", "ns"),
    "host_self_ns": ("host time of its own", "ns"),
    "host_total_ns": ("host time with all that is inside", "ns"),
}
DIFF = Table(
    "diff",
    "what two runs do differently, per step",
    (
        Column("part", pl.String(), "part of the step, in order of time (by part)", key=True),
        Column("name", pl.String(), "operator (by operator)", key=True),
        Column(
            "delta_ns", pl.Float64(), "change of its time: on the device (an operator's own) if there, else host", "ns"
        ),
        Column("cumulative_delta_ns", pl.Float64(), "that of all rows so far", "ns"),
        *(
            Column(f"{side}_{name}", pl.Float64(), f"{text}, per step, in the {side}", unit)
            for name, (text, unit) in _WHAT.items()
            for side in ("base", "other")
        ),
        *(
            Column(f"delta_{name}", pl.Float64(), f"{text}, per step, how much more in the other", unit)
            for name, (text, unit) in _WHAT.items()
        ),
    ),
)
#: What marks a part of a step by its name; operators between such ranges go together.
_ANCHORS = ("module", "user_range")
_LOADING, _BETWEEN, _BACKWARD, _ELSEWHERE = "data loading", "operators outside ranges", "backward", "other threads"


def diff(base: Trace, other: Trace, *, by: Literal["operator", "part"] = "operator") -> pl.DataFrame:
    """One row per operator, largest change first, or per part of a step, in order of time. All numbers are per step.

    The main column is `delta_ns`; `cumulative_delta_ns` is its running sum. Parts are the ranges directly inside the
    steps: data loading, modules, optimizer and other annotations. Work of autograd's threads is the part `backward`.
    Without steps the whole recording counts as one. Operators and parts of only one run are null in the other, and
    their change is their whole time.

    Units: ns per step; calls per step.
    Source: the Diff view of the TensorBoard plugin, whose curves these are.
    Raises MissingTable (nothing recorded on the host), UnknownName (by).
    """
    side = _operators if by == "operator" else _parts
    key = "name" if by == "operator" else "part"
    left, right = side(base), side(other)
    rows = left.join(right, on=key, how="full", coalesce=True, suffix="_other", maintain_order="left_right")
    measures = [c for c in _WHAT if c in left.columns and c in right.columns]
    columns = {}
    for name in measures:
        columns[f"base_{name}"] = pl.col(name)
        columns[f"other_{name}"] = pl.col(f"{name}_other")
        columns[f"delta_{name}"] = pl.col(f"{name}_other").fill_null(0) - pl.col(name).fill_null(0)
    rows = rows.select(key, *(expr.cast(pl.Float64).alias(name) for name, expr in columns.items()))
    if by == "operator":
        own = "device_self_ns" if "device_self_ns" in measures else "host_self_ns"
        rows = rows.with_columns(delta_ns=pl.col(f"delta_{own}"))
        rows = rows.sort(pl.col("delta_ns").abs(), key, descending=[True, False], nulls_last=True)
    else:
        rows = rows.with_columns(delta_ns=_own_change(measures))
    rows = rows.with_columns(cumulative_delta_ns=pl.col("delta_ns").cum_sum())
    known = set(rows.columns)
    return DIFF.conform(rows).select(c for c in DIFF.dtypes if c in known)


def _own_change(measures: list[str]) -> pl.Expr:
    """Change of a part: on the device if it does anything there, else on the host."""
    host = pl.col("delta_host_total_ns")
    if "device_total_ns" not in measures:
        return host
    on_device = pl.max_horizontal("base_device_total_ns", "other_device_total_ns") > 0
    return pl.when(on_device).then(pl.col("delta_device_total_ns")).otherwise(host)


def _n_steps(trace: Trace) -> int:
    return max(trace.steps.height, 1)


def _operators(trace: Trace) -> pl.DataFrame:
    table = analyses.find("operators")(trace)
    measures = [c for c in _WHAT if c in table.columns and table[c].null_count() < table.height]
    return table.select(pl.col("name").cast(pl.String), *(pl.col(c) / _n_steps(trace) for c in measures))


def _parts(trace: Trace) -> pl.DataFrame:
    """Parts of a step in order of their first appearance, with host and device time."""
    spans = trace.require("spans", needed_by="diff")
    category = spans["category"].cast(pl.String).to_numpy()
    device = trace.tracks.filter(pl.col("device_id").is_not_null())["track_id"].to_numpy()
    on_host = ~np.isin(spans["track_id"].to_numpy(), device)
    parents = integers(spans["parent_id"])
    in_step = category == "step"
    is_top = on_host & ~in_step & ((parents < 0) | in_step[parents])
    if not is_top.any():
        raise MissingTable("host activity", needed_by="diff", topic="host")
    tops = np.flatnonzero(is_top)
    if trace.steps.height:  # what lies between steps belongs to none
        tops = tops[spans["step"].is_not_null().to_numpy()[tops]]
    part = _part_names(spans, category, in_step, tops)
    work = _work_of(spans, is_top)
    rows = {
        "part": part,
        "ts_ns": spans["ts_ns"].to_numpy()[tops],
        "host_total_ns": spans["dur_ns"].to_numpy()[tops],
        "device_total_ns": work[tops],
    }
    measures = ["host_total_ns", *(["device_total_ns"] if work.any() else [])]
    frame = pl.DataFrame(rows, schema_overrides={"part": pl.String}).sort("ts_ns", maintain_order=True)
    sums = {c: pl.col(c).sum() / _n_steps(trace) for c in measures}
    calls = pl.len() / _n_steps(trace)
    return frame.group_by("part", maintain_order=True).agg(calls=calls, **sums)


def _part_names(
    spans: pl.DataFrame, category: NDArray[Any], in_step: NDArray[np.bool_], tops: NDArray[np.intp]
) -> list[str]:
    names = spans["name"].gather(tops).cast(pl.String).to_list()
    tracks = spans["track_id"].to_numpy()
    main = distinct_values(tracks[in_step]) if in_step.any() else distinct_values(tracks[tops][:1])
    is_main = np.isin(tracks[tops], main).tolist()
    of_top = category[tops].tolist()
    return [_part_name(*top) for top in zip(names, of_top, is_main, strict=True)]


def _part_name(name: str, category: str, is_main: bool) -> str:  # noqa: FBT001  a fact of the row, not a switch
    if category == "dataloader":
        return _LOADING
    if category in _ANCHORS:
        return name
    if name.startswith("autograd::") or "Backward" in name:
        return _BACKWARD
    return _BETWEEN if is_main else _ELSEWHERE


def _work_of(spans: pl.DataFrame, is_top: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Per top-level span the device work that was launched inside it."""
    launched = spans.filter(pl.col("category").is_in(DEVICE_WORK) & pl.col("launch_id").is_not_null())
    top = at_or_around(spans, is_top, launched["launch_id"].to_numpy())
    inside = top >= 0
    work = np.zeros(is_top.size)
    np.add.at(work, top[inside], launched["dur_ns"].to_numpy()[inside])
    return work


ANALYSIS = analysis_of(diff, DIFF, "What two runs of one program do differently, operator by operator.", scope="pair")
