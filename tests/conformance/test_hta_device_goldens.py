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
- HTA leaves the order of what happens within one µs to chance (queue length, bandwidth). There the test gives bounds.
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

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.kernels.kernels import ANALYSIS as KERNELS
from stepscope.analyses.kernels.kernels import kernels
from stepscope.analyses.steps.idle import ANALYSIS as IDLE
from stepscope.analyses.steps.idle import caused_gaps
from stepscope.analyses.steps.launches import ANALYSIS as LAUNCHES
from stepscope.analyses.steps.launches import launches
from stepscope.analyses.steps.overlap import ANALYSIS as OVERLAP
from stepscope.analyses.steps.overlap import overlap
from stepscope.analyses.steps.timeline import ANALYSIS as TIMELINE
from stepscope.analyses.steps.timeline import timeline
from stepscope.analyses.steps.transfers import ANALYSIS as TRANSFERS
from stepscope.analyses.steps.transfers import transfers
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, difference, intersection, total, union
from stepscope.readers import expand, open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

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
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync",
    "cudaMemsetAsync", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemsetAsync", "hipMemcpyAsync",
    "hipMemcpyWithStream", "runFunction - job_prep_and_submit_for_execution",
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
    return view, as_spans(view)


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]


def answer(shared: Path, name: str, analysis: str) -> Any:
    return golden(shared, name)["analyses"][analysis]["result"]


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    """The same keys, texts and nulls; numbers to twelve digits."""
    numbers = {k: v for k, v in want.items() if isinstance(v, int | float)}
    assert {k: v for k, v in got.items() if k not in numbers} == {k: v for k, v in want.items() if k not in numbers}
    assert {k: got[k] for k in numbers} == pytest.approx(numbers, rel=1e-12, abs=1e-9), want


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
    assert_same({"rank": rank, **theirs, **shares}, expected)


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
    wanted = {(r["kernel_type"], r["name"]): r for r in expected if r["rank"] == rank}
    assert {(r["kernel_type"], r["name"]) for r in found} == wanted.keys()
    for row in found:
        assert_same(row, wanted[row["kernel_type"], row["name"]])


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


#: The first row of the file: what HTA takes for the launch call of kernels whose call is not in the trace.
FIRST_ROW = {"tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005": "ProfilerStep#6"}


def their_gaps(view: pl.DataFrame, first_row: str | None) -> pl.DataFrame:
    """Device work with the gap before each row on its stream (null: none before), its cause, and if it is linked."""
    calls = view.filter(~pl.col("is_gpu") & (pl.col("correlation") != -1))
    called = calls.unique("correlation", keep="last", maintain_order=True).select("correlation", called="ts")
    work = counted(view).join(called, on="correlation", how="left", maintain_order="left")
    work = work.sort("stream", "ts", maintain_order=True).with_columns(linked=pl.col("called").is_not_null())
    if first_row is not None:
        work = work.with_columns(pl.col("called").fill_null(view.filter(pl.col("name") == first_row)["ts"][0]))
    before = pl.col("end").shift(1).over("stream")
    late = (pl.col("called") > before).fill_null(value=False)
    short = (pl.col("ts") - before < 30).fill_null(value=False)
    cause = pl.when(late).then(pl.lit("host_wait")).when(short).then(pl.lit("kernel_wait")).otherwise(pl.lit("other"))
    return work.with_columns(gap=pl.col("ts") - before, cause=cause)


def counted(view: pl.DataFrame) -> pl.DataFrame:
    """Device rows that HTA's idle time counts: by the recorder's category, which leaves out CUDA's synchronisation."""
    on_mtia = pl.col("name").str.starts_with("event_")
    return view.filter((pl.col("stream") != -1) & (pl.col("category").is_in(("kernel", "memcpy", "memset")) | on_mtia))


def described(frame: pl.DataFrame, keys: list[str], value: str) -> list[dict[str, Any]]:
    """Sum and description of a column in each group: deviation of a sample, percentiles by linear interpolation."""
    v = pl.col(value)
    return (
        frame.group_by(keys)
        .agg(
            v.sum().alias("sum"),
            v.count().alias("count"),
            v.mean().alias("mean"),
            v.std().alias("std"),
            v.min().alias("min"),
            v.quantile(0.25, "linear").alias("25%"),
            v.quantile(0.5, "linear").alias("50%"),
            v.quantile(0.75, "linear").alias("75%"),
            v.max().alias("max"),
        )
        .to_dicts()
    )


@each_rank
def test_idle_time_breakdown(shared: Path, name: str, rank: int) -> None:
    gaps = their_gaps(seen(shared, name, rank)[0], FIRST_ROW.get(name))
    found = {(r.pop("stream"), r.pop("cause")): r for r in described(gaps, ["stream", "cause"], "gap")}
    result = answer(shared, name, f"idle_time_breakdown_rank{rank}")
    assert found.keys() == {(r["stream"], r["idle_category"]) for r in rows(result["idle"])}
    for want in rows(result["idle"]):
        row = found[want["stream"], want["idle_category"]]
        whole = sum(r["sum"] for (stream, _), r in found.items() if stream == want["stream"])
        share = round(row["sum"] / whole, 2) if whole else None
        assert (row["sum"], share) == (want["idle_time"], want["idle_time_ratio"])
    for want in rows(result["interval_stats"]):
        row = found[want["stream"], want["idle_category"]]
        assert {k: v and round(v, 2) for k, v in row.items() if k != "sum"} == {k: want[k] for k in row if k != "sum"}


@each_rank
def test_our_gaps_are_those_of_hta_where_work_does_not_overlap_on_a_stream(shared: Path, name: str, rank: int) -> None:
    view, trace = seen(shared, name, rank)[0], traces(shared, name)[rank]
    gaps = their_gaps(view, None)
    apart = set(gaps["stream"]) - set(gaps.filter((pl.col("gap") < 0) | (pl.col("dur") < 0))["stream"])
    assert apart or name in ROUNDED_BELOW_ZERO | {"tl_b200_eager_trace": 0}
    cause = pl.when("linked").then("cause").otherwise(pl.lit("unlinked"))
    positive = gaps.filter(pl.col("stream").is_in(apart) & (pl.col("gap") > 0)).with_columns(cause=cause)
    theirs = {
        (r["stream"], r["cause"]): (r["count"], r["sum"]) for r in described(positive, ["stream", "cause"], "gap")
    }
    spans = as_spans(pl.concat([view.filter(pl.col("stream") == -1), counted(view)]))
    # HTA judges by when the next work was called for alone; we also say what the host did.
    late, short = pl.col("late_ns") > 0, pl.col("dur_ns") < 30_000
    named = (
        pl.when(late.is_null()).then(pl.lit("unlinked")).when(late).then(pl.lit("host_wait"))
        .when(short).then(pl.lit("kernel_wait")).otherwise(pl.lit("other"))
    )  # fmt: skip
    work = device_work(spans, trace.tracks, needed_by="test")
    every = caused_gaps(work, spans, trace.tracks, ("rank", "device_id", "stream")).with_columns(named=named)
    sums = every.group_by("stream", "named").agg(pl.len(), pl.col("dur_ns").sum() // 1000)
    ours = {(s, c): (n, us) for s, c, n, us in sums.filter(pl.col("stream").is_in(apart)).iter_rows()}
    assert ours == theirs


QUEUE_COLUMNS = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")


def their_queue(view: pl.DataFrame, *, calls_first: bool) -> pl.DataFrame:
    """Change points of each stream's queue, up as a call starts, down as its work does; and how long each length holds.

    Of changes in the same µs, calls come first or last: HTA sorts them by an algorithm that leaves it to chance.
    """
    calls = view.filter(pl.col("name").is_in(QUEUE_CALLS) & (pl.col("stream") == -1))
    work = view.filter(pl.col("stream") != -1)
    pairs = calls.select("correlation", called="ts").join(work.select("correlation", "stream", "ts"), on="correlation")
    ups = pairs.select("stream", ts="called", change=pl.lit(1))
    downs = pairs.select("stream", "ts", change=pl.lit(-1))
    points = pl.concat([ups, downs]).sort("stream", "ts", "change", descending=[False, False, calls_first])
    return points.with_columns(
        length=pl.col("change").cum_sum().over("stream"),
        held=(pl.col("ts").shift(-1) - pl.col("ts")).over("stream"),
    )


@each_rank
def test_queue_length_summary(shared: Path, name: str, rank: int) -> None:
    view = seen(shared, name, rank)[0]
    points = their_queue(view, calls_first=True)
    high = {r["stream"]: r for r in described(points, ["stream"], "length")}
    low = {r["stream"]: r for r in described(their_queue(view, calls_first=False), ["stream"], "length")}
    expected = [r for r in rows(answer(shared, name, "queue_length_summary")) if r["rank"] == rank]
    assert high.keys() == {int(r["stream"]) for r in expected}
    for recorded in expected:
        want = {c: recorded[f"queue_length_{c}"] for c in QUEUE_COLUMNS} | {"stream": int(recorded["stream"])}
        least, most = low[want["stream"]], high[want["stream"]]
        if least == most:
            assert_same({c: most[c] for c in want}, want)
            continue
        assert want["count"] == most["count"]
        assert all(least[c] <= want[c] <= most[c] for c in ("mean", "min", "25%", "50%", "75%", "max"))
        swapped = (want["mean"] - least["mean"]) * want["count"]
        assert swapped == pytest.approx(round(swapped), abs=1e-6)

    # Ours: the same steps of the same calls, averaged over time, for which the order within a µs is of no account.
    queued = view.filter((pl.col("stream") == -1) & pl.col("name").is_in(QUEUE_CALLS))["correlation"].unique()
    of_them = counted(view).filter(pl.col("correlation").is_in(queued.implode()))
    trace = traces(shared, name)[rank]
    spans = as_spans(pl.concat([view.filter(pl.col("stream") == -1), of_them]))
    ours = {r["stream"]: r for r in launches(spans, trace.tracks, by="queue").to_dicts()}
    for stream, most in high.items():
        own = points.filter(pl.col("stream") == stream)
        weighted = own.select((pl.col("length") * pl.col("held")).sum() / pl.col("held").sum()).item()
        assert ours[stream]["queue_mean"] == pytest.approx(weighted, rel=1e-12)
        assert 2 * ours[stream]["calls"] == most["count"]
        assert low[stream]["max"] <= ours[stream]["queue_max"] <= most["max"]


@each_rank
def test_time_blocked_on_a_full_queue(shared: Path, name: str, rank: int) -> None:
    """No queue of these traces ever holds the 1,024 calls at which launches block: both find nothing."""
    assert answer(shared, name, "time_spent_blocked_on_full_queue")["rows"] == []
    ours = launches(seen(shared, name, rank)[1], traces(shared, name)[rank].tracks, by="queue")
    assert (ours["full_ns"] == 0).all()
    assert ours["queue_max"].max() < 1024


NAMED = {"cpu_duration": "dur", "gpu_duration": "dur_device", "launch_delay": "delay"}


@each_rank
def test_cuda_kernel_launch_stats(shared: Path, name: str, rank: int) -> None:
    view, spans = seen(shared, name, rank)
    calls = view.filter(pl.col("name").is_in(LAUNCH_CALLS))
    host = view.filter((pl.col("stream") == -1) & pl.col("correlation").is_in(calls["correlation"].unique().implode()))
    device = view.filter((pl.col("stream") != -1) & (pl.col("correlation") != -1))
    pairs = host.join(device, on="correlation", suffix="_device")
    pairs = pairs.with_columns(delay=(pl.col("ts_device") - pl.col("end")).clip(0))
    expected = answer(shared, name, "cuda_kernel_launch_stats")[str(rank)]
    assert pairs.height == expected["n"]
    for theirs, column in NAMED.items():
        (row,) = described(pairs.with_columns(all=pl.lit(0)), ["all"], column) or [{}]
        assert row.get("sum", 0) == expected["sum"][theirs]
        assert_same({k: row.get(k, 0 if k == "count" else None) for k in QUEUE_COLUMNS}, expected["describe"][theirs])
    listed = {tuple(row) for row in expected["first_200"]["rows"]}
    assert listed <= set(pairs.select("correlation", *NAMED.values()).rows())

    # Ours, of the same calls.
    if not pairs.is_empty():
        own = launches(spans, traces(shared, name)[rank].tracks).filter(
            pl.col("name").cast(pl.String).is_in(LAUNCH_CALLS)
        )
        sums = own.select("n_work", "host_total_ns", "device_total_ns", "delay_total_ns").sum().row(0)
        assert sums == (expected["n"], *(1000 * expected["sum"][c] for c in NAMED))


#: Many copies begin in the very µs in which another ends, and HTA leaves their order to chance: (trace, kind).
LEFT_TO_CHANCE = {("trace_diff_test", "Memcpy DtoD")}


@each_rank
def test_memory_bw_summary(shared: Path, name: str, rank: int) -> None:
    view, trace = seen(shared, name, rank)[0], traces(shared, name)[rank]
    copies = view.filter((pl.col("stream") != -1) & (pl.col("kernel_type") == "MEMORY"))
    rates = trace.transfers.select("span_id", gbps=pl.col("recorded_bytes_per_s") / 1e9)
    copies = copies.join(rates, on="span_id", maintain_order="left")
    memset = pl.when(pl.col("name").str.starts_with("Memset")).then(pl.lit("Memset"))
    copies = copies.with_columns(
        kind=memset.otherwise(pl.col("name").str.head(len("Memcpy DtoH"))),
        stop=pl.col("ts") + pl.col("dur").replace(0, 1),
    )
    starts = copies.select("kind", "ts", "gbps")
    points = pl.concat([starts, copies.select("kind", ts="stop", gbps=-pl.col("gbps"))])
    points = points.sort("kind", "ts", maintain_order=True).with_columns(bw=pl.col("gbps").cum_sum().over("kind"))
    # What is left of a sum after all its parts are taken away again, some 1e-14, counts as a point above 0.
    found = {r["kind"]: r for r in described(points.filter(pl.col("bw") > 0), ["kind"], "bw")}
    recorded = answer(shared, name, "memory_bw_summary")
    expected = [] if recorded is None else [r for r in rows(recorded) if r["rank"] == rank]
    assert found.keys() == {r["name"] for r in expected}
    own = transfers(trace.spans, trace.transfers.join(copies.select("span_id"), on="span_id", how="semi"))
    ours = {r["kind"]: r for r in own.to_dicts()}
    for want in expected:
        kind, figures = want["name"], {c: want[f"memory_bw_gbps_{c}"] for c in QUEUE_COLUMNS}
        if (name, kind) in LEFT_TO_CHANCE:
            assert found[kind]["mean"] == pytest.approx(figures["mean"], rel=0.02)
            assert found[kind]["count"] == pytest.approx(figures["count"], rel=0.001)
            continue
        assert_same({c: found[kind][c] for c in QUEUE_COLUMNS}, figures)
        mine = ours[kind.removeprefix("Memcpy ").replace("Memset", "memset")]
        if mine["calls"] == want["memory_bw_gbps_count"]:  # no two at a time: its points are our transfers
            spread = [mine[f"{c}_bytes_per_s"] / 1e9 for c in ("min", "p50", "max")]
            assert spread == pytest.approx([figures["min"], figures["50%"], figures["max"]])


@pytest.mark.parametrize("name", HOST_ONLY)
def test_without_device_work_we_say_so_where_hta_fails_or_returns_nothing(shared: Path, name: str) -> None:
    analyses = golden(shared, name)["analyses"]
    assert "IndexError" in analyses["temporal_breakdown"]["error"]
    assert any("ValueError" in a.get("error", "") for a in analyses.values())
    assert analyses["gpu_kernel_breakdown"]["result"]["kernel"]["rows"] == []
    assert analyses["queue_length_summary"]["result"] is None
    (trace,) = traces(shared, name).values()
    assert hta_view(trace).height == next(iter(golden(shared, name)["n_events_after_filter"].values()))
    for analysis in (TIMELINE, OVERLAP, KERNELS, IDLE, LAUNCHES):
        with pytest.raises(MissingTable, match=f"{analysis.name} needs device work"):
            analysis(trace)
    with pytest.raises(MissingTable, match="transfers"):
        TRANSFERS(trace)


def test_a_host_operator_of_triton_is_not_device_work(shared: Path) -> None:
    trace = traces(shared, "triton_example")[0]
    assert TIMELINE(trace).select("busy_ns", "total_ns", "n_events").row(0) == (1760, 1760, 1)
    (theirs,) = rows(answer(shared, "triton_example", "temporal_breakdown"))
    assert theirs["compute_time(us)"] == 94  # the operator on the host, which lasts 95.8 µs


def test_kernels_without_a_launch_in_the_trace_are_called_unlinked(shared: Path) -> None:
    trace = traces(shared, "tl_h100_Qwen_Qwen1.5-0.5B-Chat__1016005")[0]
    gaps = IDLE(trace, by="gap").filter(pl.col("cause") == "unlinked")
    assert gaps["launch"].null_count() == gaps.height > 400


def test_synchronisation_on_a_stream_is_not_busy_time(shared: Path) -> None:
    trace = traces(shared, "critical_path_cuda_event_sync")[0]
    ours = TIMELINE(trace).row(0, named=True)
    (theirs,) = rows(answer(shared, "critical_path_cuda_event_sync", "temporal_breakdown"))
    assert ours["idle_ns"] > 1000 * theirs["idle_time(us)"]
    assert ours["computation_ns"] == 1000 * theirs["compute_time(us)"]
    assert ours["exposed_memcpy_ns"] == 2000 < 1000 * theirs["non_compute_time(us)"]
