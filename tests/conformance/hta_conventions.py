"""HolisticTraceAnalysis's view of a trace, built from our tables: its rounding, its rows, its classes of kernels.

Only tests use this: it lets our analyses run on what that tool looks at, so that its recorded numbers can be compared.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.names import map_names
from stepscope.core.schema import DEVICE_WORK, SPANS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

#: Rows that count as device rows whatever their stream.
_SYNC_NAMES = ("Event Sync", "Context Sync")
COMMUNICATION = re.compile(r"^(nccl|hip|hccl)|ncclKernel")
MEMORY = re.compile(r"^((hip)?Mem(cpy|set)|dma)")
OTHER = re.compile(
    r"Memcpy|Memset|dma|^.*Sync|^Stream Wait Event|cuda.*LaunchKernel"
    r"|^(runFunction|job_exe|packet|pe_exe|cpum_exe_subgraph|collective_subgraph_execution)"
)
_RECORDING = r"^(PyTorch Profiler|__cupti_profiler__) \("  # rows of category Trace: the recording itself
_STEP = r"^ProfilerStep#(\d+)"


def kernel_type(name: str) -> str:
    """COMMUNICATION, MEMORY, OTHER or COMPUTATION, by that tool's patterns in its order."""
    if COMMUNICATION.search(name):
        return "COMMUNICATION"
    if MEMORY.search(name):
        return "MEMORY"
    return "OTHER" if OTHER.search(name) else "COMPUTATION"


def recorded_us(trace: Trace) -> NDArray[np.float64]:
    """Start of each span in µs as the file has it, as the nearest double: what tools that read it as such work on."""
    origin_ns = (trace.meta.origin_unix_ns or 0) - int(trace.meta.facts.get("baseTimeNanoseconds", 0))
    whole, rest = np.divmod(trace.spans["ts_ns"].to_numpy() + origin_ns, 1000)
    return whole + rest / 1000


def hta_view(trace: Trace, *, drop_last_step: bool = True) -> pl.DataFrame:
    """The rows that the tool keeps, with its rounded times.

    Columns: span_id, track_id, name, category, launch_id, ts, end, dur (µs as recorded), stream (-1: host), correlation
    (-1: none), is_gpu, kernel_type (of device rows). Operators of Triton kernels lie on stream 0: they name the stream
    that they launch to, and the tool takes that for theirs.

    Times are rounded as it does: the start up, the end down, to whole µs, in floating point. With two or more different
    steps the last is dropped: host rows that start before it stay, and device rows of the same correlation.
    """
    spans = trace.spans
    ts = recorded_us(trace)
    end = ts + spans["dur_ns"].to_numpy() / 1000
    rows = spans.select(
        "span_id", "track_id", "category", "launch_id", name=pl.col("name").cast(pl.String)
    ).with_columns(
        ts=pl.Series(np.ceil(ts).astype(np.int64)),
        end=pl.Series(np.floor(end).astype(np.int64)),
        correlation=spans["correlation"].fill_null(-1),
    )
    streams = trace.tracks.select("track_id", pl.col("stream").fill_null(-1))
    rows = rows.join(streams, on="track_id", how="left", maintain_order="left")
    of_triton = (pl.col("category") == "operator") & pl.col("name").str.starts_with("triton_")
    rows = rows.with_columns(stream=pl.when(of_triton).then(0).otherwise("stream"))
    on_stream = (pl.col("stream") >= 0) & (pl.col("correlation") >= 0)
    rows = rows.with_columns(dur=pl.col("end") - pl.col("ts"), is_gpu=on_stream | pl.col("name").is_in(_SYNC_NAMES))
    rows = rows.filter(~pl.col("name").str.contains(_RECORDING))
    if drop_last_step:
        rows = _without_last_step(rows)
    types = map_names(rows["name"], kernel_type, pl.String())
    return rows.with_columns(kernel_type=pl.when(pl.col("stream") != -1).then(types))


def _without_last_step(rows: pl.DataFrame) -> pl.DataFrame:
    steps = rows.filter(pl.col("name").str.contains(_STEP))
    if steps["name"].n_unique() < 2:
        return rows
    last = steps.filter(~pl.col("is_gpu"))["ts"].max()
    host = rows.filter(~pl.col("is_gpu") & (pl.col("ts") < last))
    device = rows.filter("is_gpu").join(host.select("correlation"), on="correlation", how="inner")
    return pl.concat([device, host])


def as_spans(view: pl.DataFrame) -> pl.DataFrame:
    """The view as a table of spans (times in ns, new ids): what our analyses need to work on that tool's rows.

    Device rows become kernels (communication, computation) or copies (memory and whatever else it counts as busy).
    """
    sort = pl.col("kernel_type").is_in(["COMMUNICATION", "COMPUTATION"])
    category = (
        pl.when((pl.col("stream") == -1) & pl.col("category").is_in(DEVICE_WORK))
        .then(pl.lit("other"))
        .when(pl.col("stream") == -1)
        .then(pl.col("category").cast(pl.String))
        .when(sort)
        .then(pl.lit("kernel"))
        .otherwise(pl.lit("memcpy"))
    )
    ordered = view.sort("track_id", "ts", "dur", descending=[False, False, True], maintain_order=True)
    ids = ordered.select(launch_id="span_id").with_row_index("new").unique("launch_id", keep="first")
    return SPANS.conform(
        ordered.drop("span_id")
        .with_row_index("span_id")
        .join(ids, on="launch_id", how="left", maintain_order="left")
        .with_columns(ts_ns=pl.col("ts") * 1000, dur_ns=pl.col("dur") * 1000, category=category, launch_id="new")
        .with_columns(pl.col("correlation").replace(-1, None))
    )
