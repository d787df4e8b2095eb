"""Summaries of files of results: the costliest functions of cycles, the sums of `nsys stats` or Ascend's profilers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.report import Block
from stepscope.core.result_tables import ASCEND, ATTRIBUTION, NSYS
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import Column, Table
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._summary import Lack, Summary
from stepscope.reports._tables import ROWS
from stepscope.reports._without_clock import parts_by_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Results


_NO_CLOCK = Lack("sums", "These are sums by name: when things ran, and what waited for what, is unknown.")
#: Tables that are shown and their titles, the most useful first.
_SHOWN = {
    "cuda_gpu_kern_sum": "Kernels",
    "cuda_gpu_mem_time_sum": "Copies and fills",
    "cuda_gpu_sum": "Work of the device",
    "cuda_api_sum": "Calls of CUDA",
    "cuda_api_gpu_sum": "Calls of CUDA and work of the device",
    "nvtx_sum": "NVTX ranges",
    "nvtx_pushpop_sum": "NVTX ranges of threads",
    "nvtx_gpu_proj_sum": "Work of the device by NVTX range",
    "osrt_sum": "Calls of the operating system",
    "other_sum": "Others",
}
_MOVED = Table(
    "moved",
    "how much copies and fills moved",
    (
        *(NSYS["cuda_gpu_mem_size_sum"].column(name) for name in ("name", "calls", "total_bytes")),
        Column("share_ratio", pl.Float64(), "its part of all", "ratio"),
    ),
)
#: Tables of Ascend's profilers that are shown, their titles and columns.
_OF_ASCEND = {
    "step_trace_time": (
        "Steps", ("step", "stage_ns", "computation_ns", "exposed_communication_ns", "overlapped_ns", "idle_ns"),
    ),
    "op_statistic": ("Operators on the device", ("name", "core", "calls", "total_ns", "share_ratio", "mean_ns")),
    "communication_time": ("Collectives", ("name", "elapse_ns", "transit_ns", "wait_ns", "idle_ns")),
    "api_statistic": ("Calls of Ascend's libraries", ("level", "name", "calls", "total_ns", "mean_ns")),
}  # fmt: skip
_NO_RECORDING = Lack(
    "results",
    "This is what the profiler computed, without the recording: open trace_view.json or ascend_pytorch_profiler_N.db "
    "of the run, or its folder.",
)
_ROWS = 30  # of each file: enough that names that are large in all files remain
_NO_TIMELINE = Lack(
    "results", "This is what another program computed, not a recording: there is no timeline to explain."
)
_SUMS = tuple(ATTRIBUTION.column(name) for name in ("name", "calls", "total_ns"))
ON_DEVICES = Table(
    "functions",
    "what kernels, copies and fills took of all cycles",
    (*_SUMS, Column("share_ratio", pl.Float64(), "that over the cycles' duration, on the mean device", "ratio")),
)
ON_HOST = Table(
    "threads",
    "how long the threads of the processes were in a state or a call, over all cycles",
    (*_SUMS, Column("mean_threads", pl.Float64(), "threads that were in it at a time, on average")),
)
#: Tables of the functions of cycles: title, categories. Times of different kinds do not add up to a whole.
_KINDS = (
    ("Kernels, copies and fills, by their part of the cycles", ON_DEVICES, tuple(DEVICE_WORK)),
    ("Threads that ran or waited for a core, at a time", ON_HOST, ("sched_oncpu", "sched_runq")),
    ("Threads in other calls and functions, at a time", ON_HOST, ()),
)


def summarise_sums(results: Results) -> Summary:
    """The summary of one file of sums by name."""
    tables = [_block(results, name, title) for name, title in _SHOWN.items() if name in results.results]
    if "cuda_gpu_mem_size_sum" in results.results:
        tables.append(_sizes(results.result("cuda_gpu_mem_size_sum")))
    quality = (_NO_CLOCK, *lacks_of_issues(results.issues))
    if "kernels" not in results.results:
        return Summary(results.meta, recorded_ns=0, tables=tuple(tables), quality=quality, issues=results.issues)
    kernels = results.result("kernels")
    classes = kernels.group_by("kernel_class", maintain_order=True).agg(pl.col("total_ns").sum())
    whole = int(kernels["total_ns"].sum())
    return Summary(
        results.meta,
        recorded_ns=whole,
        windows_ns=(whole,),
        parts=parts_by_class(classes.sort("total_ns", descending=True)),
        tables=tuple(tables),
        quality=quality,
        issues=results.issues,
        n_launches=int(kernels["calls"].sum()),
    )


def _block(results: Results, name: str, title: str) -> Block:
    frame = results.result(name).select("name", "calls", "total_ns", "share_ratio", "mean_ns")
    return Block(title, NSYS[name], frame.head(_ROWS), f"show {name}")


def _sizes(sizes: pl.DataFrame) -> Block:
    whole = sizes["total_bytes"].sum()
    share = (pl.col("total_bytes") / whole) if whole else pl.lit(None, pl.Float64)
    frame = sizes.select("name", "calls", "total_bytes", share_ratio=share)
    return Block("Copies and fills, by size", _MOVED, frame.head(_ROWS), "show cuda_gpu_mem_size_sum")


def summarise_results(results: Results) -> Summary:
    """The summary of one file of results."""
    if results.results.keys() & NSYS.keys():
        return summarise_sums(results)
    if results.results.keys() & ASCEND.keys():
        tables = tuple(
            Block(title, ASCEND[name], results.result(name).select(columns).head(ROWS), f"show {name}")
            for name, (title, columns) in _OF_ASCEND.items()
            if name in results.results
        )
        quality = (_NO_RECORDING, *lacks_of_issues(results.issues))
        return Summary(results.meta, recorded_ns=0, tables=tables, quality=quality, issues=results.issues)
    if not {"cycles", "attribution"} <= set(results.results):
        return Summary(results.meta, recorded_ns=0, quality=(_NO_TIMELINE,), issues=results.issues)
    cycles, attribution = results.result("cycles"), results.result("attribution")
    lengths = cycles["dur_ns"].drop_nulls()
    # A function has a row for each of its metrics.
    per_cycle = attribution.unique(["cycle", "host", "pid", "device", "name"], maintain_order=True)
    whole = int(lengths.sum())
    blocks = (
        Block(title, table, _functions(per_cycle, categories, table, whole), "show attribution")
        for title, table, categories in _KINDS
    )
    return Summary(
        meta=results.meta,
        recorded_ns=_extent_ns(cycles),
        tables=tuple(block for block in blocks if block.frame.height),
        quality=(_NO_TIMELINE,),
        issues=results.issues,
    )


def _functions(per_cycle: pl.DataFrame, categories: Sequence[str], table: Table, whole: int) -> pl.DataFrame:
    """The functions of these categories (without any: of those in no other table) as sums over the cycles.

    `whole` is the summed duration of the cycles. Each process has cycles of its own.
    """
    category = pl.col("category").cast(pl.String)
    named = [name for _, _, chosen in _KINDS for name in chosen]
    rows = per_cycle.filter(category.is_in(categories) if categories else ~category.is_in(named) | category.is_null())
    n_processes = max(per_cycle.select("host", "pid").n_unique(), 1)
    over = whole / n_processes
    if table is ON_DEVICES:
        over = whole * max(rows.select("host", "device").n_unique() / n_processes, 1.0)
    part = pl.col("total_ns") / over if over else pl.lit(None, pl.Float64)
    frame = rows.group_by("name", maintain_order=True).agg(pl.col("calls", "total_ns").sum())
    frame = frame.with_columns(part.alias(table.columns[-1].name))
    return table.conform(frame.sort("total_ns", descending=True, maintain_order=True))


def _extent_ns(cycles: pl.DataFrame) -> int:
    """From the first start to the last end; without known starts, the summed length of cycles."""
    known = cycles.drop_nulls(["ts_ns", "dur_ns"])
    if known.is_empty():
        return int(cycles["dur_ns"].sum())
    first, last = known.select(pl.col("ts_ns").min(), end=(pl.col("ts_ns") + pl.col("dur_ns")).max()).row(0)
    return int(last - first)
