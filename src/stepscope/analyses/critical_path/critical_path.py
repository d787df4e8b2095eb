"""Which operators, launches, kernels and waits determine how long each step takes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.critical_path.changes import rules, scale_of
from stepscope.analyses.critical_path.longest_path import KINDS, SPANNED, Kind, joins, paths, pieces, spent
from stepscope.analyses.critical_path.replay import program_of
from stepscope.analyses.critical_path.threads import Threads, host_threads
from stepscope.analyses.critical_path.windows import Windows, path_windows
from stepscope.analyses.critical_path.work import rows_of
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import nearest
from stepscope.core.schema import ARROWS, DEVICE_WORK, EVENT_WAITS, OPS, STEPS
from stepscope.core.table import Column, Name, Table

By = Literal["kind", "operator", "kernel", "launch", "piece"]
WAYS = ("kind", "operator", "kernel", "launch", "piece")

CRITICAL_PATH = Table(
    "critical-path",
    "what determined the length of each step: the longest chain of work that waited for each other",
    (
        Column("step", pl.Int32(), "its number; null: the whole recording", key=True),
        Column("rank", pl.Int32(), "rank that recorded it", key=True),
        Column("kind", Kind, "what the time was spent on", key=True),
        Column("operator", Name, "its operator, else range or Python call (by operator, piece)", key=True),
        Column("kernel", Name, "device work, also that which a wait was for (by kernel)", key=True),
        Column("launch", Name, "host call: itself, or the one that queued the work (by launch)", key=True),
        Column("ts_ns", pl.Int64(), "start of the piece (by piece)", "ns", key=True),
        Column("name", Name, "operator, call or work that the piece is part of; for a wait: what waited (by piece)"),
        Column("span_id", pl.Int64(), "its span (by piece)"),
        Column("on_path_ns", pl.Int64(), "time on the path; all rows of a step add up to step_dur_ns", "ns"),
        Column("share_ratio", pl.Float64(), "its share of the step", "ratio"),
        Column("calls", pl.Int64(), "calls, kernels or waits of it on the path"),
        Column("off_path_ns", pl.Int64(), "its time that is not on the path: hidden by the path", "ns"),
        Column("step_dur_ns", pl.Int64(), "duration of the step, until the device finished its work", "ns"),
        Column("scaled_dur_ns", pl.Int64(), "duration that --scale predicts", "ns"),
    ),
)


def critical_path(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    arrows: pl.DataFrame = ARROWS.empty(),
    event_waits: pl.DataFrame = EVENT_WAITS.empty(),
    *,
    by: By = "kind",
    step: int | None = None,
    within: str | None = None,
    scale: str | None = None,
) -> pl.DataFrame:
    """One row per step and kind of time on its critical path, or also per operator, kernel or call, or per piece.

    The path goes from the end of the step back to its start, at each wait to the dependency that was met last. So
    `on_path_ns` adds up to the step, to the nanosecond, and no chain is longer. A step lasts until the device has
    finished what it queued, as in `step-breakdown`. A thread's time belongs to the innermost open span. The time
    between a dependency and what waited for it is a wait, with a kind of its own.

    Device work waits for the end of the call that queued it (or its start, if the work began earlier), for the previous
    work of its stream, and for work of other streams of its device if a wait for an event was queued in between, if one
    graph holds both, or if it began at least 30 µs late while other work ran or had just ended.

    A thread runs on by itself, with these exceptions. A synchronising call ends after the last work that ended during
    it (on its stream, if recorded), and a call that copies ends after its copy. A thread that calls backward waits for
    the autograd thread's last operator, which begins after the caller's; arrows and sequence numbers identify autograd
    threads. A thread that called a collective of gloo or MPI waits for it, if it ends when the thread has been quiet
    for 30 µs. Other threads are assumed to be started by the step's own thread.

    `by` selects the rows: `kind`, or kind and `operator`, device work (`kernel`) or host call (`launch`); `piece` lists
    the path in order of time. `step` picks one step. `within` takes ranges whose names match a regular expression
    instead of steps, numbered from 0 (nested ones only if picked by `step`), or the whole `recording`.

    `scale` asks what if: 'gemm=0.5,launch delay=0' makes kernels of the class gemm take half as long and starts work as
    soon as its call returns. Before the = there is a kind (column `kind`), a class of kernels, or a regular expression
    for names of kernels, operators, calls and ranges; the last three include all that they contain on their thread. The
    first rule that matches counts. The whole recording is replayed, everything as early as its dependencies allow. A
    dependency that did not hold anything up gets the median wait of its kind, or its recorded one if that is less.
    Full launch queues and the pace of a data loader's workers hold it up too. Other ranks and clocks are not modelled.

    Units: ns; ratios 0..1.
    Source: the critical path method (Kelley and Walker, 1959) on the dependencies of HTA's critical path analysis. HTA
    gives no weight to the time between operators, nor to blocking calls, knows no wait for data or for a busy device
    without an event, and stops at the last kernel or operator of a range.
    Raises MissingTable (no host side; no steps or ranges), UnknownName (by, step), StepscopeError (scale, within).
    """
    threads = host_threads(spans, tracks)
    if not threads.n_active.any():
        raise MissingTable("operators and the calls that queue work", needed_by="critical-path", topic="host")
    devices = recorded_work(spans, tracks)
    windows, chosen = path_windows(spans, tracks, steps, devices, threads, within=within, step=step)
    shown = windows.only(chosen)
    program = program_of(spans, tracks, ops, arrows, event_waits, devices, threads, windows)
    work, held = program.work, program.held
    on_path = paths(work, held, joins(program.waited, work, program.passed, program.first), shown)
    rows = _named(pieces(spans, threads, work, held, on_path, shown), spans, threads, by)
    if by != "piece":
        total = _named(spent(spans, threads, work, shown), spans, threads, by)
        rows = _grouped(rows, total)
    if scale is None:
        return _finished(rows, shown, None)
    scaled = program.graph.lengths(program.graph.run(scale_of(rules(scale), spans, threads, work)))
    return _finished(rows, shown, np.rint(scaled[chosen]).astype(np.int64))


def recorded_work(spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """What `device_work` returns, or an empty frame with its columns."""
    if spans["category"].is_in(DEVICE_WORK).any():
        return device_work(spans, tracks, needed_by="critical-path")
    where = tracks.clear().select("track_id", "rank", "device_id", "stream")
    return spans.clear().with_columns(end_ns="ts_ns", sort=pl.lit(0, pl.Int8)).join(where, on="track_id", how="left")


def _named(pieces: pl.DataFrame, spans: pl.DataFrame, threads: Threads, by: By) -> pl.DataFrame:
    """Adds the names that the grouping needs."""
    if by == "kind":
        return pieces
    row = pieces["row"].replace(-1, None)
    names = spans["name"]
    if by == "operator":
        return pieces.with_columns(operator=names.gather(_operators(spans, threads, row)))
    if by == "piece":
        operator = names.gather(_operators(spans, threads, row))
        return pieces.with_columns(operator=operator, name=names.gather(row), span_id=spans["span_id"].gather(row))
    category = spans["category"].gather(row)
    wanted = DEVICE_WORK if by == "kernel" else ("runtime", "driver", *DEVICE_WORK)
    row = pieces.select(pl.when(category.is_in(wanted)).then(row)).to_series()
    if by == "launch":
        launch = rows_of(spans, spans["launch_id"].gather(row))
        row = pl.Series(np.where(launch >= 0, launch, row.fill_null(-1).to_numpy())).replace(-1, None)
    return pieces.with_columns(names.gather(row).alias(by))


def _operators(spans: pl.DataFrame, threads: Threads, row: pl.Series) -> pl.Series:
    """The row of each row's operator; outside operators the row itself, unless it is device work or a call."""
    is_operator = (spans["category"].gather(threads.row) == "operator").to_numpy()
    above = nearest(threads.parent, is_operator)
    operator_of = np.full(spans.height + 1, -1, np.int64)
    operator_of[threads.row] = np.append(threads.row, -1)[above]
    category = spans["category"].gather(row)
    other = (~category.is_in(("step", "runtime", "driver", *DEVICE_WORK))).fill_null(value=False).to_numpy()
    at = row.fill_null(-1).to_numpy()
    of_work = rows_of(spans, spans["op_id"].gather(row))
    op = np.where(category.is_in(DEVICE_WORK).fill_null(value=False).to_numpy(), of_work, operator_of[at])
    return pl.Series(np.where((op < 0) & other, at, op)).replace(-1, None)


def _grouped(pieces: pl.DataFrame, total: pl.DataFrame) -> pl.DataFrame:
    """Pieces summed by everything but their span, with the time off the path."""
    keys = [name for name in pieces.columns if name not in ("row", "ts_ns", "dur_ns")]
    is_span = pl.col("row") >= 0
    rows = pieces.group_by(keys).agg(
        on_path_ns=pl.col("dur_ns").sum(), calls=pl.col("row").filter(is_span).n_unique() + (~is_span).sum()
    )
    spent_ns = total.group_by(keys).agg(pl.col("total_ns").sum())
    rows = rows.join(spent_ns, on=keys, how="left", nulls_equal=True)
    spanned = pl.col("kind").is_in([code for code, kind in enumerate(KINDS) if kind in SPANNED])
    off = (pl.col("total_ns").fill_null(0) - pl.col("on_path_ns")).clip(0)
    return rows.with_columns(off_path_ns=pl.when(spanned).then(off))


def _finished(rows: pl.DataFrame, windows: Windows, scaled_ns: NDArray[np.int64] | None) -> pl.DataFrame:
    """The result's columns, sorted by step, then pieces by time and other rows by their time on the path."""
    of_step = {"step": windows.step, "rank": windows.rank, "step_dur_ns": windows.high - windows.low}
    if scaled_ns is not None:
        of_step["scaled_dur_ns"] = scaled_ns
    steps = pl.DataFrame(of_step).with_row_index("window").with_columns(pl.col("window").cast(pl.Int64))
    kind = pl.col("kind").cast(pl.UInt32).replace_strict(dict(enumerate(KINDS)), return_dtype=Kind)
    rows = rows.rename({"dur_ns": "on_path_ns"}, strict=False).join(steps, on="window", how="left")
    rows = rows.with_columns(kind, share_ratio=pl.col("on_path_ns") / pl.col("step_dur_ns"))
    if "ts_ns" in rows.columns:
        rows = rows.sort("window", "ts_ns")
    else:
        texts = [pl.col(c).cast(pl.String) for c in WAYS[:-1] if c in rows.columns and c != "kind"]
        order = ["window", pl.col("on_path_ns").neg(), "kind", *texts]
        rows = rows.sort(order, nulls_last=True)
    return rows.select(pl.col(c).cast(t) for c, t in CRITICAL_PATH.dtypes.items() if c in rows.columns)


ANALYSIS = analysis_of(
    critical_path,
    CRITICAL_PATH,
    "What determined each step's length: the longest chain of operators, launches, kernels and waits; what-if.",
)
