"""What the summaries of `nsys stats` have to say in a report: what kernels, copies, calls and ranges cost by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.report import Block
from stepscope.core.result_tables import NSYS
from stepscope.core.schema import Column, Table
from stepscope.reports._clockless import parts_by_class
from stepscope.reports._quality import told_issues
from stepscope.reports._summary import Lack, Summary

if TYPE_CHECKING:
    from stepscope.core.trace import Results

_NO_CLOCK = Lack("sums", "These are sums by name: when things ran, and what waited for what, cannot be told.")
#: Which summaries are shown and what they are called, the most telling first.
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
_ROWS = 30  # of each file, so that what is large in all of them is not lost


def summarise_sums(results: Results) -> Summary:
    """What a report needs of one file of summaries."""
    tables = [_block(results, name, title) for name, title in _SHOWN.items() if name in results.results]
    if "cuda_gpu_mem_size_sum" in results.results:
        tables.append(_sizes(results.result("cuda_gpu_mem_size_sum")))
    quality = (_NO_CLOCK, *told_issues(results.issues))
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
