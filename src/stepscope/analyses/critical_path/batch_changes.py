"""What changes to the batches of a server do to its recorded program: no empty places, no prefill."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.critical_path.replay import Program
from stepscope.analyses.steps.batches import empty_places, laws, with_work
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, union

Floats = NDArray[np.float64]


def batch_change(program: Program, subject: str) -> tuple[Floats, list[Intervals]]:
    """Factors of the device work without `padding` or without `prefill`, and times on host threads that are not spent.

    Of a decode batch, empty places take what a request takes by the law of its duration. Without prefill, batches that
    read prompts are gone, and those that do both take as long as the median decode batch. All factors are 1 where no
    range names a batch.
    """
    work, threads = program.work, program.threads
    nothing = np.empty(0, np.int64)
    held = [(nothing, nothing)] * threads.track.size
    frame = pl.DataFrame({"launch_id": work.call, "ts_ns": work.start, "end_ns": work.end})
    called = pl.when(pl.col("launch_id") >= 0).then("launch_id").cast(pl.UInt32)
    try:
        rows, frame = with_work(program.spans, frame.with_columns(launch_id=called))
    except MissingTable:
        return np.ones(work.row.size), held
    sums = frame.drop_nulls("step").group_by("step").agg(work_ns=(pl.col("end_ns") - pl.col("ts_ns")).sum())
    rows = rows.with_row_index("step").cast({"step": pl.Int32}).join(sums, "step", how="left", maintain_order="left")
    rows = rows.with_columns(factor=_without_padding(rows) if subject == "padding" else _without_prefill(rows))
    if subject == "prefill":
        gone = rows.filter(pl.col("factor") == 0)
        for thread, track in enumerate(threads.track):
            mine = gone.filter(pl.col("track_id") == int(track))
            held[thread] = union(mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy())
    factors = frame.select(pl.col("step").replace_strict(rows["step"], rows["factor"], default=1.0)).to_series()
    return factors.fill_null(1.0).to_numpy(), held


def _without_padding(rows: pl.DataFrame) -> pl.Expr:
    law = laws(rows).filter((pl.col("kind") == "decode") & pl.col("per_request_ns").is_not_null())
    each_ns = 0.0 if law.is_empty() else float(law["per_request_ns"][0])
    empty_ns = empty_places() * each_ns
    is_known = (pl.col("kind") == "decode") & (pl.col("work_ns") > 0)
    return pl.when(is_known).then((1 - empty_ns / pl.col("work_ns")).clip(0, 1)).otherwise(1.0).fill_null(1.0)


def _without_prefill(rows: pl.DataFrame) -> pl.Expr:
    usual = rows.filter(pl.col("kind") == "decode")["work_ns"].median()
    if not isinstance(usual, int | float):  # no decode batch, which would gain
        return pl.lit(1.0)
    mixed = (usual / pl.col("work_ns")).clip(0, 1).fill_null(1.0)
    return pl.when(pl.col("kind") == "prefill").then(0.0).when(pl.col("kind") == "mixed").then(mixed).otherwise(1.0)
