"""How long threads ran on cores, how long they waited for one, and which threads they waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.windows import host_windows
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import reached
from stepscope.core.schema import STEPS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    pass

#: What follows a thread's name in the label of its lane of scheduling.
LANE = r" \d+ · cores$"
By = Literal["thread", "process", "step"]
_KEYS: dict[str, tuple[str, ...]] = {
    "thread": ("process", "pid", "tid", "thread"),
    "process": ("process", "pid"),
    "step": ("step", "process", "pid", "tid", "thread"),
}

SCHEDULING = Table(
    "scheduling",
    "how long threads had a core or waited for one",
    (
        Column("step", pl.Int32(), "number of the step; absent unless by step", key=True),
        Column("process", pl.String(), "process name", key=True),
        Column("pid", pl.Int64(), "process id", key=True),
        Column("tid", pl.Int64(), "thread id", key=True),
        Column("thread", pl.String(), "name of its lane", key=True),
        Column("oncpu_ns", pl.Int64(), "time on a core", "ns"),
        Column("runq_ns", pl.Int64(), "time ready and waiting for a core", "ns"),
        Column("waiting_ratio", pl.Float64(), "time waiting for a core over time seen", "ratio"),
        Column("behind", Name, "whom it waited longest for: who took its core, or had it when it woke up"),
        Column("behind_is_own", pl.Boolean(), "whether that is a thread of the job itself"),
        Column("behind_ns", pl.Int64(), "time waiting for threads of that name", "ns"),
        Column("waits", pl.Int64(), "how often it waited for a core"),
        Column("longest_wait_ns", pl.Int64(), "the longest of these waits", "ns"),
        Column("preempted", pl.Int64(), "how often it lost the core though it could have gone on"),
        Column("sleeps", pl.Int64(), "how often it gave up the core by itself"),
        Column("migrations", pl.Int64(), "how often it got another core than the last one"),
        Column(
            "seen_ns", pl.Int64(), "time from a thread's first to its last span; of a process, of all threads", "ns"
        ),
        Column("asleep_ns", pl.Int64(), "the rest of that: it slept, or waited for something else", "ns"),
        Column("running_ratio", pl.Float64(), "time on a core over time seen", "ratio"),
    ),
)


def scheduling(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    sched: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: By = "thread",
) -> pl.DataFrame:
    """One row per thread, per process, or per step and thread; the longest waits first, steps in order.

    The main columns are `oncpu_ns`, `runq_ns`, `waiting_ratio` and `behind`, the name that it waited for longest. By
    step, spans are cut at the steps' bounds, the time of a thread is that from its first to its last span, and events
    count in the step in which their span begins. `sched` is the table of that name.

    Units: ns; ratios 0..1.
    Source: our own; the terms are those of the kernel's schedstat (run time, run delay).
    Raises MissingTable (by step, without steps).
    """
    category = pl.col("category").cast(pl.String)
    rows = (
        sched.join(spans.select("span_id", "track_id", "ts_ns", "dur_ns", "category"), on="span_id", how="inner")
        .join(_lanes(tracks), on="track_id", how="left")
        .with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns"), is_wait=category == "sched_runq")
        .sort("track_id", "ts_ns")
    )
    ran = rows.filter(~pl.col("is_wait")).select("span_id", last_core=pl.col("core").shift(1).over("track_id"))
    rows = rows.join(ran, on="span_id", how="left", maintain_order="left").with_columns(
        whole_ns=pl.col("dur_ns"), begins=pl.lit(value=True)
    )
    extents = rows.group_by("track_id").agg(first_ns=pl.col("ts_ns").min(), last_ns=pl.col("end_ns").max())
    if by == "step":
        rows, extents = _by_step(rows, extents, steps)
    keys = [key for key in _KEYS[by] if key in rows.columns]
    of_lane = ["step", "track_id"] if by == "step" else ["track_id"]
    lanes = rows.select(*of_lane, *(key for key in keys if key not in of_lane)).unique(maintain_order=True)
    known = (
        lanes.join(extents, on=of_lane, how="left")
        .group_by(keys)
        .agg(seen_ns=(pl.col("last_ns") - pl.col("first_ns")).sum())
    )
    sums = rows.group_by(keys, maintain_order=True).agg(**_sums()).join(known, on=keys, how="left", nulls_equal=True)
    sums = sums.join(_longest_waited_for(rows, keys), on=keys, how="left", nulls_equal=True).with_columns(
        asleep_ns=pl.col("seen_ns") - pl.col("oncpu_ns") - pl.col("runq_ns"),
        running_ratio=pl.col("oncpu_ns") / pl.col("seen_ns"),
        waiting_ratio=pl.col("runq_ns") / pl.col("seen_ns"),
    )
    columns = [
        column
        for column in SCHEDULING.columns
        if column.name not in ({"step", "process", "pid", "tid", "thread"} - set(_KEYS[by]))
    ]
    order = ["step"] * (by == "step") + ["runq_ns", "oncpu_ns", *(k for k in ("pid", "tid") if k in keys)]
    falls = [name in {"runq_ns", "oncpu_ns"} for name in order]
    return sums.select(pl.col(c.name).cast(c.dtype) for c in columns).sort(order, descending=falls)


def _lanes(tracks: pl.DataFrame) -> pl.DataFrame:
    """The process and thread of each track."""
    thread = pl.col("label").str.replace(LANE, "")
    return tracks.select("track_id", "process", "pid", "tid", thread=thread)


def _sums() -> dict[str, pl.Expr]:
    wait, length = pl.col("is_wait"), pl.col("dur_ns")
    mine = pl.col("begins")
    reason = pl.col("reason").cast(pl.String)
    moved = ~wait & (pl.col("core") != pl.col("last_core")) & mine
    return {
        "oncpu_ns": length.filter(~wait).sum(),
        "runq_ns": length.filter(wait).sum(),
        "waits": (wait & mine).sum(),
        "longest_wait_ns": pl.col("whole_ns").filter(wait).max(),
        "preempted": (~wait & mine & (reason == "preempted")).sum(),
        "sleeps": (~wait & mine & reason.is_in(("sleeps", "blocked", "stopped"))).sum(),
        "migrations": moved.sum(),
    }


def _longest_waited_for(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """For each group the name of the thread that it waited for longest."""
    waits = rows.filter(pl.col("is_wait") & pl.col("other").is_not_null()).with_columns(pl.col("other").cast(pl.String))
    sums = waits.group_by(*keys, "other", "other_is_own").agg(behind_ns=pl.col("dur_ns").sum())
    top = sums.sort("behind_ns", "other", "other_is_own", descending=[True, False, False]).unique(keys, keep="first")
    return top.select(*keys, "behind_ns", behind="other", behind_is_own="other_is_own")


def _by_step(rows: pl.DataFrame, extents: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows cut at the bounds of steps, one per step that they reach into; the extent of each lane in each step."""
    if steps.is_empty():
        raise MissingTable("steps", needed_by="scheduling by step", topic="steps")
    windows = host_windows(steps).filter(pl.col("host_window_ns") > 0).sort("ts_ns")
    lows = windows["ts_ns"].to_numpy()
    highs = lows + windows["host_window_ns"].to_numpy()
    numbers = windows["step"]

    def clipped(frame: pl.DataFrame, low: str, high: str) -> pl.DataFrame:
        start, end = frame[low].to_numpy(), frame[high].to_numpy()
        row, window = reached(start, end, (lows, highs))
        return frame[row].with_columns(
            pl.Series(low, np.maximum(start[row], lows[window])),
            pl.Series(high, np.minimum(end[row], highs[window])),
            step=numbers.gather(pl.Series(window)),
            at_start=pl.Series(start[row] >= lows[window]),
        )

    pieces = clipped(rows, "ts_ns", "end_ns").with_columns(
        dur_ns=pl.col("end_ns") - pl.col("ts_ns"), begins=pl.col("at_start")
    )
    return pieces, clipped(extents, "first_ns", "last_ns").drop("at_start")


ANALYSIS = analysis_of(
    scheduling, SCHEDULING, "How long threads had a core or waited for one, and which thread had it meanwhile."
)
