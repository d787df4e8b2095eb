"""Device analyses against numbers that HolisticTraceAnalysis (HTA) gave for the same traces, at their printed digits.

`hta_conventions` cuts a trace to the rows and rounded times that HTA works on; our analyses then run on those. What
differs on purpose is named where it is tested:

- HTA drops the last step. Here it is dropped by the view; we keep it.
- HTA rounds each row to whole µs, start up and end down, so that rows below 1 µs may last −1 µs, and it merges such
  rows as if they were intervals. We keep ns and have no negative time.
- HTA tells kernels apart by its own patterns: whatever begins with "hip" communicates, and a multimem_all_reduce does
  not. Here they are handed to us as options or as categories of the view.
- HTA takes synchronisation records on a stream for busy time. We do not.
- Where work overlaps on one stream HTA subtracts that from idle time. We have no negative gaps.
- HTA's queue length and bandwidth are averaged over change points. Ours are averaged over time and bytes.
- HTA takes a host operator of Triton, which names the stream it launches to, for device work.
- HTA takes the first row of the file for the launch call of a kernel whose call is not in the trace. We say unlinked.
- On traces without device work HTA fails or gives an empty table. We say what is missing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hta_conventions import COMMUNICATION, as_spans, hta_view, kernel_type

from stepscope.analyses.idle import ANALYSIS as IDLE
from stepscope.analyses.idle import idle
from stepscope.analyses.kernels import kernels
from stepscope.analyses.launches import ANALYSIS as LAUNCHES
from stepscope.analyses.launches import launches, queue_lengths
from stepscope.analyses.overlap import ANALYSIS as OVERLAP
from stepscope.analyses.overlap import overlap
from stepscope.analyses.timeline import ANALYSIS as TIMELINE
from stepscope.analyses.timeline import timeline
from stepscope.analyses.transfers import ANALYSIS as TRANSFERS
from stepscope.errors import MissingTable
from stepscope.intervals import Intervals, difference, intersection, total, union
from stepscope.readers import expand, open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.trace import Trace

#: Reference file, rank in it. Those of traces without device work are in HOST_ONLY.
RANKS = (
    ("amd_trace", 0),
    ("critical_path_alexnet", 0),
    ("critical_path_cuda_event_sync", 0),
    ("mtia_inference_trace", 0),
    ("nccl_parser_config", 0),
    ("tl_b200_eager_trace", 0),
    ("tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005", 0),
    ("trace_diff_control", 3),
    ("trace_diff_test", 1),
    ("trace_filter", 0),
    ("trace_filter", 1),
    ("triton_example", 0),
)
HOST_ONLY = ("cpu_only", "cupti_profiler", "rank_non_gpu")
#: In these, rounding makes some device rows last −1 µs.
ROUNDED_BELOW_ZERO = {"mtia_inference_trace": 207, "tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005": 22}
#: Calls whose device work HTA counts in queues and launch statistics.
QUEUE_CALLS = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync",
    "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemsetAsync", "hipMemcpyAsync", "hipMemcpyWithStream",
    "runFunction - job_prep_and_submit_for_execution",
)  # fmt: skip
LAUNCH_CALLS = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
)  # fmt: skip

each_rank = pytest.mark.parametrize(("name", "rank"), RANKS, ids=[f"{n}-{r}" for n, r in RANKS])


@lru_cache(2)
def golden(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "golden/hta" / f"{name}.json").read_text(encoding="utf-8"))


@lru_cache(2)
def traces(shared: Path, name: str) -> dict[int, Trace]:
    found = [open_trace(path) for path in expand([str(shared / golden(shared, name)["input"])])]
    return {trace.rank or 0: trace for trace in found}


@lru_cache(2)
def seen(shared: Path, name: str, rank: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What HTA sees of a trace: as its rows, and as spans for our analyses."""
    trace = traces(shared, name)[rank]
    view = hta_view(trace)
    return view, as_spans(view, trace)


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]


def answer(shared: Path, name: str, analysis: str) -> Any:
    return golden(shared, name)["analyses"][analysis]["result"]


def near(expected: dict[str, Any]) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-9, nan_ok=True)


def merged_us(view: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Rows merged where they touch, as HTA does it: rows of −1 µs take part, and alone they stay reversed."""
    ordered = view.sort("ts", maintain_order=True)
    ts, end = ordered["ts"].to_numpy(), ordered["end"].to_numpy()
    heads = np.flatnonzero(np.concatenate(([True], ts[1:] > np.maximum.accumulate(end)[:-1])))
    return ts[heads], np.maximum.reduceat(end, heads)


@each_rank
def test_rows_after_filtering(shared: Path, name: str, rank: int) -> None:
    assert seen(shared, name, rank)[0].height == golden(shared, name)["n_events_after_filter"][str(rank)]


@each_rank
def test_temporal_breakdown(shared: Path, name: str, rank: int) -> None:
    view, spans = seen(shared, name, rank)
    device = view.filter(pl.col("stream") != -1)
    assert (device["dur"] < 0).sum() == ROUNDED_BELOW_ZERO.get(name, 0)
    tracks = traces(shared, name)[rank].tracks
    got = timeline(spans, tracks, communication=COMMUNICATION.pattern).row(0, named=True)
    ours = {
        "idle_time(us)": got["idle_ns"] / 1000,
        "compute_time(us)": got["computation_ns"] / 1000,
        "non_compute_time(us)": (got["busy_ns"] - got["computation_ns"]) / 1000,
        "kernel_time(us)": got["total_ns"] / 1000,
    }
    starts, ends = merged_us(device)
    compute_starts, compute_ends = merged_us(device.filter(pl.col("kernel_type") == "COMPUTATION"))
    busy, compute = int((ends - starts).sum()), int((compute_ends - compute_starts).sum())
    theirs = {
        "idle_time(us)": ours["kernel_time(us)"] - busy,
        "compute_time(us)": compute,
        "non_compute_time(us)": busy - compute,
        "kernel_time(us)": ours["kernel_time(us)"],
    }
    if name not in ROUNDED_BELOW_ZERO:
        assert ours == theirs
    assert max(abs(ours[c] - theirs[c]) for c in ours) <= 2 * ROUNDED_BELOW_ZERO.get(name, 0)
    recorded = golden(shared, name)["analyses"]["temporal_breakdown"]
    if name == "tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005":
        # Its rounding makes busy time less than computation, on which it gives up. Ours, unrounded, adds up.
        assert recorded["error"].startswith("AssertionError")
        assert theirs["non_compute_time(us)"] < 0
        exact = TIMELINE(traces(shared, name)[rank]).row(0, named=True)
        assert 0 < exact["exposed_memcpy_ns"] == exact["busy_ns"] - exact["computation_ns"]
        return
    expected = next(r for r in rows(recorded["result"]) if r["rank"] == rank)
    shares = {
        f"{column.removesuffix('(us)')}_pctg": round(100 * value / theirs["kernel_time(us)"], 2)
        for column, value in theirs.items()
        if column != "kernel_time(us)"
    }
    assert {"rank": rank, **theirs, **shares} == near(expected)


@each_rank
def test_comm_comp_overlap(shared: Path, name: str, rank: int) -> None:
    _, spans = seen(shared, name, rank)
    ratio = overlap(spans, traces(shared, name)[rank].tracks, communication=COMMUNICATION.pattern)["overlap_ratio"][0]
    expected = next(r for r in rows(answer(shared, name, "comm_comp_overlap")) if r["rank"] == rank)
    assert (None if ratio is None else round(100 * ratio, 2)) == expected["comp_comm_overlap_pctg"]


def by_type(spans: pl.DataFrame, with_memory: bool) -> dict[str, int]:
    """Time in µs in which exactly these types of kernels run."""
    work = spans.filter(pl.col("category").is_in(("kernel", "memcpy")))
    types = work["name"].cast(pl.String).map_elements(kernel_type, return_dtype=pl.String)
    sets: dict[str, Intervals] = {}
    for kind in ("COMPUTATION", "COMMUNICATION", "MEMORY")[: 3 if with_memory else 2]:
        own = work.filter(types == kind)
        starts = own["ts_ns"].to_numpy()
        sets[kind] = union(starts, starts + own["dur_ns"].to_numpy())
    lengths = {}
    for mask in range(1, 1 << len(sets)):
        inside = [iv for i, iv in enumerate(sets.values()) if mask >> i & 1]
        outside = [iv for i, iv in enumerate(sets.values()) if not mask >> i & 1]
        rest = inside[0]
        for iv in inside[1:]:
            rest = intersection(rest, iv)
        for iv in outside:
            rest = difference(rest, iv)
        label = " overlapping ".join(kind for i, kind in enumerate(sets) if mask >> i & 1)
        lengths[label] = total(rest) // 1000
    return {label: length for label, length in lengths.items() if length}


@pytest.mark.parametrize("with_memory", [False, True])
@pytest.mark.parametrize("name", sorted({n for n, _ in RANKS} - {"mtia_inference_trace"}))
def test_time_by_kernel_type(shared: Path, name: str, with_memory: bool) -> None:
    sums: dict[str, int] = {}
    for n, rank in RANKS:
        if n == name:
            for label, length in by_type(seen(shared, name, rank)[1], with_memory).items():
                sums[label] = sums.get(label, 0) + length
    whole = sum(sums.values())
    found = {label: (length, round(100 * length / whole, 1)) for label, length in sums.items()}
    suffix = "_with_memory" if with_memory else ""
    expected = rows(answer(shared, name, f"gpu_kernel_breakdown{suffix}")["kernel_type"])
    assert found == {r["kernel_type"]: (r["sum"], r["percentage"]) for r in expected if r["sum"]}


def test_time_by_kernel_type_of_reversed_rows_differs(shared: Path) -> None:
    """Rows of −1 µs confuse HTA's sweep: it finds computation overlapping communication where none communicates."""
    expected = rows(answer(shared, "mtia_inference_trace", "gpu_kernel_breakdown_with_memory")["kernel_type"])
    theirs = {r["kernel_type"]: r["sum"] for r in expected}
    ours = by_type(seen(shared, "mtia_inference_trace", 0)[1], with_memory=True)
    assert theirs.pop("COMPUTATION overlapping COMMUNICATION") == 1
    assert ours.keys() == theirs.keys()
    for label, length in theirs.items():
        assert abs(ours[label] - length) <= ROUNDED_BELOW_ZERO["mtia_inference_trace"]


@pytest.mark.parametrize("with_memory", [False, True])
@each_rank
def test_kernels_by_type(shared: Path, name: str, rank: int, with_memory: bool) -> None:
    _, spans = seen(shared, name, rank)
    ours = kernels(spans, traces(shared, name)[rank].tracks, include="device")
    types = ours["name"].cast(pl.String).map_elements(kernel_type, return_dtype=pl.String)
    suffix = "_with_memory" if with_memory else ""
    expected = rows(answer(shared, name, f"gpu_kernel_breakdown{suffix}")["kernel"])
    found = []
    for kind in ("COMMUNICATION", "COMPUTATION", *(["MEMORY"] if with_memory else [])):
        found += [{**row, "kernel_type": kind, "rank": rank} for row in folded(ours.filter(types == kind))]
    key = lambda r: (r["kernel_type"], r["name"])  # noqa: E731
    for got, want in zip(sorted(found, key=key), sorted((r for r in expected if r["rank"] == rank), key=key), strict=True):
        assert got == near(want)


def folded(ours: pl.DataFrame) -> list[dict[str, Any]]:
    """HTA's table of one type: beyond ten kernels it folds the small ones and describes sums instead of durations."""
    us = {
        "sum (us)": pl.col("total_ns") / 1000,
        "max (us)": pl.col("max_ns") / 1000,
        "min (us)": pl.col("min_ns") / 1000,
        "stddev": pl.col("std_ns").fill_null(0) / 1000,
        "mean (us)": pl.col("mean_ns") / 1000,
    }
    table = ours.select(pl.col("name").cast(pl.String), **us)
    if table.height > 10:
        summed = table["sum (us)"].cum_sum()
        small = (summed > summed.quantile(0.8, "linear")) | (pl.Series(range(table.height)) >= 10)
        value = pl.col("sum (us)")
        table = (
            table.with_columns(name=pl.when(small).then(pl.lit("others")).otherwise("name"))
            .group_by("name")
            .agg(
                value.sum(),
                value.max().alias("max (us)"),
                value.min().alias("min (us)"),
                value.std().fill_null(0).alias("stddev"),
                value.mean().alias("mean (us)"),
            )
        )
    return table.to_dicts()
