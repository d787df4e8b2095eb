"""What it cost to queue device work: the calls, the wait until the work starts, and how full the queues were."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work, label_devices
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.core.errors import MissingTable
from stepscope.core.names import is_launch_call, map_names
from stepscope.core.schema import DEVICES
from stepscope.core.table import Column, Name, Table

By = Literal["name", "op", "queue"]
QUEUE = ("rank", "device_id", "stream")

LAUNCHES = Table(
    "launches",
    "what it cost to queue device work",
    (
        Column("name", Name, "host call", key=True),
        Column("op", Name, "operator that made the call (by op)", key=True),
        Column("rank", pl.Int32(), "rank of the process in its job (by queue)", key=True),
        Column("device_id", pl.UInt32(), "device (by queue)", key=True),
        Column("device", pl.String(), "device as the framework calls it (by queue)"),
        Column("stream", pl.Int64(), "stream (by queue)", key=True),
        Column("calls", pl.Int64(), "calls that queued device work; by queue: onto this stream"),
        Column(
            "n_unlinked", pl.Int64(), "launch calls whose device work the trace does not hold or does not tie to it"
        ),
        Column("n_work", pl.Int64(), "kernels, copies and fills they queued (a graph launch: many)"),
        Column("host_total_ns", pl.Int64(), "summed duration of the calls", "ns"),
        Column("host_mean_ns", pl.Float64(), "mean duration of a call", "ns"),
        Column("host_p50_ns", pl.Float64(), "median duration of a call", "ns"),
        Column("host_max_ns", pl.Int64(), "longest call", "ns"),
        Column("device_total_ns", pl.Int64(), "summed duration of what they queued", "ns"),
        Column("delay_total_ns", pl.Int64(), "summed delay: from the end of a call to the start of its work", "ns"),
        Column("delay_mean_ns", pl.Float64(), "mean delay", "ns"),
        Column("delay_p50_ns", pl.Float64(), "median delay", "ns"),
        Column("delay_max_ns", pl.Int64(), "longest delay", "ns"),
        Column("latency_p50_ns", pl.Float64(), "median of the delay after earlier work of the stream had ended", "ns"),
        Column("n_short", pl.Int64(), "calls (not slow ones) that took longer than all that they queued"),
        Column("n_slow", pl.Int64(), "calls longer than slow_call_ns"),
        Column("n_late", pl.Int64(), "calls whose delay is longer than late_ns"),
        Column("queue_mean", pl.Float64(), "calls waiting in the queue, mean over time"),
        Column("queue_max", pl.Int64(), "most calls waiting at once"),
        Column("empty_ratio", pl.Float64(), "part of the time with nothing waiting", "ratio"),
        Column("full_ns", pl.Int64(), "time with at least full_queue calls waiting: launches block", "ns"),
        Column("full_ratio", pl.Float64(), "full_ns by the time from the first call to the last start", "ratio"),
    ),
)


def launches(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    by: By = "name",
    slow_call_ns: int = 50_000,
    late_ns: int = 100_000,
    full_queue: int = 1024,
) -> pl.DataFrame:
    """One row per launching call, by name or by operator; or per stream, how full its queue was (by queue).

    The delay of a call runs from its end to the start of its first work, and is never below 0. Much of it is usually
    spent waiting in the queue; the latency is what remains after the previous work of that stream had ended. A call
    that took longer than its work ("short") makes the device wait as soon as the queue runs empty. A graph launch is
    one call.

    By queue, a call waits from its start until its first work on that stream starts. Statistics are over time.

    Units: ns, ratio, counts.
    Source: HTA's launch statistics (delay, thresholds) and queue length; theirs leaves out graph launches, and
    averages queue length over its change points instead of over time.
    Raises MissingTable (no device work, or none that the trace ties to a launch), UnknownName (by).
    """
    work = _linked(spans, tracks)
    if by == "queue":
        frame = _queues(_waits(work, spans), full_queue)
        return _in_order(label_devices(frame, devices))
    calls = _calls(work, spans)
    short = (pl.col("device_ns") < pl.col("host_ns")) & (pl.col("host_ns") <= slow_call_ns)
    host, delay = pl.col("host_ns"), pl.col("delay_ns")
    frame = calls.group_by(by).agg(
        calls=pl.len(),
        n_work=pl.col("n_work").sum(),
        host_total_ns=host.sum(),
        host_mean_ns=host.mean(),
        host_p50_ns=host.median(),
        host_max_ns=host.max(),
        device_total_ns=pl.col("device_ns").sum(),
        delay_total_ns=delay.sum(),
        delay_mean_ns=delay.mean(),
        delay_p50_ns=delay.median(),
        delay_max_ns=delay.max(),
        latency_p50_ns=pl.col("latency_ns").median(),
        n_short=short.sum(),
        n_slow=(host > slow_call_ns).sum(),
        n_late=(delay > late_ns).sum(),
    )
    if by == "name":
        frame = frame.join(_unlinked(spans, work), on="name", how="full", coalesce=True)
        frame = frame.with_columns(pl.col("calls", "n_unlinked", "n_work").fill_null(0))
    return _in_order(frame.sort("host_total_ns", pl.col(by).cast(pl.String), descending=[True, False], nulls_last=True))


def queue_lengths(spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """How many calls wait on each stream as a step function: rank, device_id, stream, ts_ns, queue_length.

    A call waits from its start until its first work on the stream starts. The length holds until the next row of the
    stream; of several changes at one time only the last has a row.

    Units: ns.
    Source: HTA's queue length time series.
    Raises MissingTable (no device work, or none that the trace ties to a launch).
    """
    return _lengths(_waits(_linked(spans, tracks), spans))


def _linked(spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    work = device_work(spans, tracks, needed_by="launches").filter(pl.col("launch_id").is_not_null())
    if work.is_empty():
        raise MissingTable("host calls that queued the device work", needed_by="launches")
    return work


def _calls(work: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """One row per call: name, op, host_ns, device_ns, n_work, delay_ns, latency_ns."""
    before = pl.col("end_ns").cum_max().shift(1).over("track_id")  # spans are sorted by track and start
    work = work.with_columns(free_ns=before)
    calls = (
        work.sort("ts_ns")
        .group_by("launch_id", maintain_order=True)
        .agg(
            start=pl.col("ts_ns").first(),
            free_ns=pl.col("free_ns").first(),
            device_ns=pl.col("dur_ns").sum(),
            n_work=pl.len(),
            op_id=pl.col("op_id").first(),
        )
    )
    ids = calls["launch_id"]
    host = of_spans(spans, ids, "dur_ns")
    end = of_spans(spans, ids, "ts_ns") + host
    calls = calls.with_columns(name=of_spans(spans, ids, "name"), host_ns=host, end=end)
    ready = pl.max_horizontal("end", "free_ns")
    return calls.with_columns(
        op=of_spans(spans, calls["op_id"], "name"),
        delay_ns=(pl.col("start") - pl.col("end")).clip(0),
        latency_ns=(pl.col("start") - ready).clip(0),
    )


def _unlinked(spans: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Launch calls without device work. A driver call inside a runtime call shares its correlation: one launch."""
    host = spans.filter(pl.col("category").is_in(("runtime", "driver")))
    host = host.filter(map_names(host["name"], is_launch_call, pl.Boolean()))
    ids = work["launch_id"].unique()
    linked = of_spans(spans, ids, "correlation").drop_nulls()
    unlinked = host.filter(
        ~pl.col("span_id").is_in(ids.implode()) & ~pl.col("correlation").is_in(linked.implode()).fill_null(False)
    )
    return unlinked.group_by("name").agg(n_unlinked=pl.len())


def _waits(work: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """One row per call and stream: queued (when the call started) and start (of its first work there)."""
    first = work.sort("ts_ns").unique(["track_id", "launch_id"], keep="first", maintain_order=True)
    called = of_spans(spans, first["launch_id"], "ts_ns")
    # The clocks of host and device may disagree by a little.
    return first.select(*QUEUE, "track_id", start="ts_ns").with_columns(queued=pl.min_horizontal(called, "start"))


def _lengths(waits: pl.DataFrame) -> pl.DataFrame:
    changes = [
        waits.select("track_id", ts_ns="queued", change=pl.lit(1, pl.Int64)),
        waits.select("track_id", ts_ns="start", change=pl.lit(-1, pl.Int64)),
    ]
    steps = pl.concat(changes).sort("track_id", "ts_ns")
    steps = steps.with_columns(queue_length=pl.col("change").cum_sum().over("track_id"))
    last = (pl.col("ts_ns") != pl.col("ts_ns").shift(-1)) | (pl.col("track_id") != pl.col("track_id").shift(-1))
    where = waits.select(*QUEUE, "track_id").unique("track_id").sort(*QUEUE, nulls_last=True)
    steps = steps.filter(last.fill_null(value=True)).drop("change")
    return where.join(steps, on="track_id", how="left", maintain_order="left_right").drop("track_id")


def _queues(waits: pl.DataFrame, full_queue: int) -> pl.DataFrame:
    held, length = pl.col("ts_ns").shift(-1) - pl.col("ts_ns"), pl.col("queue_length")
    time, full = held.sum(), held.filter(length >= full_queue).sum()
    measured = (
        _lengths(waits)
        .group_by(QUEUE, maintain_order=True)
        .agg(
            queue_mean=pl.when(time > 0).then((length * held).sum() / time),
            queue_max=length.max(),
            empty_ratio=pl.when(time > 0).then(held.filter(length == 0).sum() / time),
            full_ns=full,
            full_ratio=pl.when(time > 0).then(full / time),
        )
    )
    calls = waits.group_by(QUEUE).agg(calls=pl.len())
    return measured.join(calls, on=QUEUE, how="left", nulls_equal=True, maintain_order="left")


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(k).cast(t) for k, t in LAUNCHES.dtypes.items() if k in frame.columns)


ANALYSIS = analysis_of(
    launches, LAUNCHES, "What it cost to queue device work: calls, delay until the work starts, queue length."
)
