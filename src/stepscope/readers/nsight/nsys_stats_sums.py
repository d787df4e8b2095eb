"""Summaries by `nsys stats` as result tables: which report a table is, and its columns in ns, bytes and ratios."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.names import kernel_class, map_names
from stepscope.core.result_tables import NSYS
from stepscope.core.schema import Column, Name, Table
from stepscope.core.trace import Result
from stepscope.readers.nsight.nsys_stats_text import number, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.readers.common.issues import IssueLog
    from stepscope.readers.nsight.nsys_stats_text import Printed

_OTHER = "other_sum"
_CUDA = re.compile(r"cu(?:da)?[A-Z]")
#: Labels by the column that they become, newest first.
_TEXTS = {
    "name": ("kernel name", "name", "operation", "range", "event"), "call": ("api name",), "range": ("nvtx range",),
    "style": ("style",), "category": ("category", "source"), "grid": ("gridxyz",), "block": ("blockxyz",),
}  # fmt: skip
_COUNTS = {
    "calls": ("kern inst", "instances", "num calls", "count", "operations", "range instances"),
    "queued_calls": ("qcount",), "n_ranges": ("nvtx inst",), "n_device_ops": ("total gpu ops",), "pid": ("pid",),
    "tid": ("tid",), "device": ("devid",),
}  # fmt: skip
_TOTALS = {
    "total_ns": ("total time", "total proj time"), "total_bytes": ("total",), "range_total_ns": ("total range time",),
}  # fmt: skip
_SPREAD = {
    "mean": ("avg", "average"), "p50": ("med", "median"), "min": ("min", "minimum"), "max": ("max", "maximum"),
    "std": ("stddev",),
}  # fmt: skip
#: How the labels of the parts of a launch begin in cuda_kern_exec_sum; and those of projected ranges.
_PARTS = {"": ("", "t", "proj "), "call_": ("a",), "queue_": ("q",), "kernel_": ("k",)}
_OF_KERNELS = NSYS["cuda_gpu_kern_sum"].columns
#: What `show kernels` tells of a recording, as far as a summary of kernels has it.
_KERNELS = Table(
    "kernels",
    "what each device kernel cost, as nsys stats says",
    (_OF_KERNELS[0], Column("kernel_class", Name, "what it does, from its name"), *_OF_KERNELS[1:]),
)


def report_of(table: Printed) -> str | None:
    """Which of the summaries a table is; None if it is none, or one of a kind that has no place."""
    is_sum = table.place("total time", "total proj time", "total", "tavg") and table.place(*_COUNTS["calls"])
    if not is_sum:
        return None
    if table.report:
        return table.report if table.report in NSYS else _OTHER
    return _guessed(table)


def _guessed(table: Printed) -> str:
    """By the columns alone. Calls of CUDA and of the operating system have the same ones: names tell."""
    has = {column.label for column in table.columns}
    named = table.place(*_TEXTS["name"])
    by_cuda = named is not None and any(map(_CUDA.match, table.first(named)))
    rules = (
        ("tavg" in has, "cuda_kern_exec_sum"),
        ("nvtx range" in has, "nvtx_kern_sum"),
        ("total proj time" in has, "nvtx_gpu_proj_sum"),
        ("style" in has, "nvtx_sum"),
        ("range" in has, "nvtx_pushpop_sum"),
        ("category" in has, "cuda_api_gpu_sum" if by_cuda else "cuda_gpu_sum"),
        ("operation" in has, "cuda_gpu_mem_time_sum" if "total time" in has else "cuda_gpu_mem_size_sum"),
        ("num calls" in has, "cuda_api_sum" if by_cuda else "osrt_sum"),
        ("gridxyz" in has, "cuda_gpu_kern_gb_sum"),
        ({"instances", "name"} <= has, "cuda_gpu_kern_sum"),
    )
    return next((report for fits, report in rules if fits), _OTHER)


def summaries(tables: Sequence[tuple[str, Printed]], issues: IssueLog) -> dict[str, Result]:
    """The result tables by name; tables of the same report become one. Beside a summary of kernels also `kernels`."""
    found: dict[str, Result] = {}
    for report in dict.fromkeys(name for name, _ in tables):
        mine = [_summary(report, table, issues) for name, table in tables if name == report]
        frame = pl.concat(mine)
        if len(mine) > 1 and report != _OTHER:
            issues.add("reports_joined", "info", len(mine), f"several tables {report} are read as one")
            if "share_ratio" in frame.columns:
                whole = frame["total_ns"].sum()
                frame = frame.with_columns(share_ratio=pl.col("total_ns") / whole if whole else None)
        order = next(c for c in ("total_ns", "total_bytes", "mean_ns") if c in frame.columns)
        found[report] = Result(NSYS[report], frame.sort(order, descending=True, nulls_last=True, maintain_order=True))
    if (kernels := found.get("cuda_gpu_kern_sum")) is not None:
        classes = map_names(kernels.frame["name"], kernel_class, pl.String())
        found["kernels"] = Result(_KERNELS, _KERNELS.conform(kernels.frame.with_columns(kernel_class=classes)))
    return found


def _summary(report: str, table: Printed, issues: IssueLog) -> pl.DataFrame:
    """A table of that report, in the columns that are declared for it."""
    declared = NSYS[report]
    unit = "bytes" if "total_bytes" in declared.dtypes else "ns"
    sources = {name: at for name, at in _sources(table, unit) if name in declared.dtypes}
    columns = {name: _value(name, at, table, unit) for name, at in sources.items()}
    if "report" in declared.dtypes:
        columns["report"] = pl.lit(table.report or None, pl.String)
    others = [c.label for i, c in enumerate(table.columns) if str(i) not in sources.values()]
    if others:
        issues.add("columns_left_out", "info", len(others), f"columns of {report} that are not kept, as {others[0]}")
    table.note_units(unit, issues)
    frame = table.select(issues, **columns)
    sound = frame.filter(pl.col("calls").is_not_null())
    issues.add("rows_dropped", "warning", frame.height - sound.height, "rows without their numbers were dropped")
    return declared.conform(sound)


def _sources(table: Printed, unit: str) -> Iterator[tuple[str, str]]:
    """Which column, by its number, becomes which."""
    labels = {**_TEXTS, **_COUNTS, **_TOTALS, "share_ratio": ("time",)}
    for part, starts in _PARTS.items():
        for word, ends in _SPREAD.items():
            labels[f"{part}{word}_{unit}"] = tuple(start + end for start in starts for end in ends)
    for name, known in labels.items():
        if (at := table.place(*known)) is not None:
            yield name, at


def _value(name: str, at: str, table: Printed, unit: str) -> pl.Expr:
    """A column in the unit of what it becomes."""
    if name in ("grid", "block"):  # printed as '  64    1    1'
        return pl.col(at).str.strip_chars().str.replace_all(r"\s+", "x")
    if name in _TEXTS:
        return pl.col(at)
    if name in _COUNTS:
        return number(at).round()
    if name == "share_ratio":
        return number(at) / 100
    value = scaled(table, at, unit)
    is_whole = name in _TOTALS or name.endswith((f"min_{unit}", f"max_{unit}"))
    return value.round() if is_whole else value
