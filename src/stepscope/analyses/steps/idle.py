"""Why the device was idle: each gap between pieces of work, and what ended it."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.common.device_work import device_work, label_devices, on_devices
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.core.errors import UnknownName
from stepscope.core.intervals import Ints, covered, union
from stepscope.core.names import is_sync_call, map_names
from stepscope.core.schema import DEVICES, SPANS, TRACKS, Column, Name, Table

__all__ = ["ANALYSIS", "CAUSES", "IDLE", "caused_gaps", "idle"]

By = Literal["device", "stream", "gap"]
KEYS = {"device": ("rank", "device_id"), "stream": ("rank", "device_id", "stream"), "gap": ("rank", "device_id")}

#: host_late: the host queued the next work only after the gap had begun; so it was with the two after it, but
#: data_loading: it spent most of that wait in loading data, or sync: it had been waiting for the device.
#: kernel_wait: queued in time, the gap is a short one, as between any two kernels; other: queued in time, long gap
#: (an event, another device, a slow launch); unlinked: the trace does not tell what queued the next work.
CAUSES = ("host_late", "data_loading", "sync", "kernel_wait", "other", "unlinked")

IDLE = Table(
    "idle",
    "why the device was idle",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("device_id", pl.UInt32(), "device", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("stream", pl.Int64(), "stream (by stream)", key=True),
        Column("ts_ns", pl.Int64(), "start of the gap, from the trace's origin (by gap)", "ns", key=True),
        Column("dur_ns", pl.Int64(), "length of the gap (by gap)", "ns"),
        Column("cause", pl.Enum(CAUSES), "what it waited for", key=True),
        Column("n_gaps", pl.Int64(), "how many gaps"),
        Column("total_ns", pl.Int64(), "summed length", "ns"),
        Column("share_ratio", pl.Float64(), "its part of all gaps of this device or stream", "ratio"),
        Column("mean_ns", pl.Float64(), "mean length", "ns"),
        Column("p50_ns", pl.Float64(), "median length", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("before", Name, "work that ended as the gap began (by gap)"),
        Column("after", Name, "work that ended the gap (by gap)"),
        Column("op", Name, "operator behind the work after the gap (by gap)"),
        Column("launch", Name, "host call that queued it (by gap)"),
        Column("late_ns", pl.Int64(), "how long after the gap had begun it was called; negative: before", "ns"),
        Column("step", pl.Int32(), "step that queued it (by gap)"),
    ),
)


def idle(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame | None = None,
    *,
    by: By = "device",
    min_gap_ns: int = 0,
    kernel_wait_ns: int = 30_000,
) -> pl.DataFrame:
    """One row per device and cause (by stream: and stream; by gap: per gap): how long the device was idle, and why.

    All streams of a device are merged, except by stream. A gap lies between the end of all earlier work and the start
    of the next. When the host called for the work that ends the gap decides its cause:

    - after the gap had begun: the host was late. The cause is `data_loading` if at least half of the time from the
      gap's start to the call was spent loading data, else `sync` if the host was inside a synchronising call then, else
      `host_late`. Only threads that queue device work are looked at.
    - before: `kernel_wait` if the gap is shorter than `kernel_wait_ns`, else `other`.
    - not known: `unlinked`.

    `min_gap_ns` leaves out shorter gaps. Time before the first and after the last work is no gap.

    Units: ns, ratio.
    Source: HTA's idle time breakdown (host_wait, kernel_wait, other), which judges per stream only, does not say why
    the host was late, and counts overlapping work as negative idle time.
    Raises MissingTable (no device work), UnknownName (by).
    """
    if by not in KEYS:
        raise UnknownName("grouping of idle", by, KEYS)
    work = device_work(spans, tracks, needed_by="idle")
    gaps = caused_gaps(work, spans, tracks, KEYS[by], kernel_wait_ns).filter(pl.col("dur_ns") >= min_gap_ns)
    result = _details(gaps, spans) if by == "gap" else _summary(gaps, KEYS[by])
    result = label_devices(result, DEVICES.empty() if devices is None else devices)
    return result.select(pl.col(k).cast(t) for k, t in IDLE.dtypes.items() if k in result.columns)


def caused_gaps(
    work: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame, keys: tuple[str, ...], kernel_wait_ns: int = 30_000
) -> pl.DataFrame:
    """Every gap of each group of `keys` with its cause, as in `idle`, and the ids of the spans around it.

    `work` is what `device_work` returns. Columns: the keys, ts_ns, dur_ns, cause, late_ns, loading_ns, sync_ns, step,
    and the spans before_id, after_id, launch_id, op_id. Units: ns.
    """
    return _with_cause(_gaps(on_devices(work), keys), spans, tracks, kernel_wait_ns)


def _gaps(work: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Row per gap: keys, ts_ns, dur_ns, before_id, after_id, launch_id, op_id, step (of the work after it)."""
    work = work.sort(*keys, "ts_ns", "end_ns", nulls_last=True)
    work = work.with_columns(reach=pl.col("end_ns").cum_max().over(keys))
    ends_last = pl.when(pl.col("end_ns") == pl.col("reach")).then(pl.col("span_id"))
    work = work.with_columns(
        pl.col("reach").shift(1).over(keys), before_id=ends_last.forward_fill().shift(1).over(keys)
    )
    work = work.filter(pl.col("ts_ns") > pl.col("reach"))
    return work.select(
        *keys,
        pl.col("reach").alias("ts_ns"),
        "before_id",
        "launch_id",
        "op_id",
        "step",
        dur_ns=pl.col("ts_ns") - pl.col("reach"),
        after_id="span_id",
    )


def _with_cause(gaps: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame, kernel_wait_ns: int) -> pl.DataFrame:
    called = of_spans(spans, gaps["launch_id"], "ts_ns")
    gaps = gaps.with_columns(late_ns=called - gaps["ts_ns"])
    gaps = gaps.with_columns(loading_ns=pl.lit(0, pl.Int64), sync_ns=pl.lit(0, pl.Int64))
    late = pl.col("late_ns") > 0
    if gaps.select(late.any()).item():
        gaps = _with_host(gaps, spans, tracks)
    waited = pl.min_horizontal("late_ns", "dur_ns")
    cause = (
        pl.when(pl.col("late_ns").is_null())
        .then(pl.lit("unlinked"))
        .when(late & (2 * pl.col("loading_ns") >= waited))
        .then(pl.lit("data_loading"))
        .when(late & (pl.col("sync_ns") > 0))
        .then(pl.lit("sync"))
        .when(late)
        .then(pl.lit("host_late"))
        .when(pl.col("dur_ns") < kernel_wait_ns)
        .then(pl.lit("kernel_wait"))
        .otherwise(pl.lit("other"))
    )
    return gaps.with_columns(cause=cause.cast(pl.Enum(CAUSES)))


def _with_host(gaps: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """The gaps with loading_ns and sync_ns: how long the launching threads spent in each while the call was awaited."""
    threads = of_spans(spans, gaps["launch_id"].drop_nulls().unique(), "track_id").unique()
    host = spans.select("track_id", "ts_ns", "dur_ns", "name", "category").filter(
        pl.col("category").is_in(("runtime", "driver", "dataloader")) & pl.col("track_id").is_in(threads.implode())
    )
    host = host.with_columns(loads=pl.col("category") == "dataloader")
    host = host.filter(pl.col("loads") | map_names(host["name"], is_sync_call, pl.Boolean()))
    host = host.join(tracks.select("track_id", host_rank="rank"), on="track_id", how="left")
    parts = []
    for rank in gaps["rank"].unique().to_list():
        part = gaps.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)))
        own = host.filter(pl.col("host_rank").eq_missing(pl.lit(rank, pl.Int32)))
        low = part["ts_ns"].to_numpy()
        high = low + part.select(pl.min_horizontal("late_ns", "dur_ns").fill_null(0)).to_series().to_numpy()
        parts.append(
            part.with_columns(
                loading_ns=pl.Series(_within(own.filter("loads"), low, high)),
                sync_ns=pl.Series(_within(own.filter(~pl.col("loads")), low, high)),
            )
        )
    return pl.concat(parts)


def _within(host: pl.DataFrame, low: Ints, high: Ints) -> Ints:
    starts = host["ts_ns"].to_numpy()
    return covered(union(starts, starts + host["dur_ns"].to_numpy()), low, high)


def _summary(gaps: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    length = pl.col("dur_ns")
    return (
        gaps.group_by(*keys, "cause")
        .agg(
            n_gaps=pl.len(),
            total_ns=length.sum(),
            mean_ns=length.mean(),
            p50_ns=length.median(),
            max_ns=length.max(),
        )
        .with_columns(share_ratio=pl.col("total_ns") / pl.col("total_ns").sum().over(keys))
        .sort(*keys, "total_ns", "cause", descending=[*(False for _ in keys), True, False], nulls_last=True)
    )


def _details(gaps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    ids = {"before": "before_id", "after": "after_id", "op": "op_id", "launch": "launch_id"}
    return gaps.with_columns(
        **{column: of_spans(spans, gaps[id_column], "name") for column, id_column in ids.items()}
    ).sort("dur_ns", "ts_ns", descending=[True, False])


ANALYSIS = Analysis(
    name="idle",
    doc="Why the device was idle: gaps by cause (host late, synchronising, data loading, kernel wait).",
    inputs=(SPANS, TRACKS),
    output=IDLE,
    run=idle,
    optional=(DEVICES,),
)
