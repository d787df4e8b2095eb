"""How much memory tensors held, when most, whether it grows, and which operators asked for it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import label_devices
from stepscope.analyses.common.span_lookup import at_or_around
from stepscope.core.errors import MissingTable
from stepscope.core.schema import ALLOCATIONS, DEVICES, OPS, SPANS, STACKS, STEPS
from stepscope.core.table import Column, Name, Table, filtered, integers

MEMORY = Table(
    "memory",
    "memory held by tensors: per device, per operator, or over time",
    (
        Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("name", Name, "operator that asked for it; null: none was open (by operator, by stack)", key=True),
        Column("module", Name, "innermost module around that operator (by module)", key=True),
        Column("stack", pl.String(), "where it was called from, outermost frame first (by stack)", key=True),
        Column("ts_ns", pl.Int64(), "when, from the trace's origin (over time)", "ns", key=True),
        Column("allocated_bytes", pl.Int64(), "held by tensors from then on (over time)", "bytes"),
        Column("reserved_bytes", pl.Int64(), "held by the allocator from then on (over time)", "bytes"),
        Column("peak_allocated_bytes", pl.Int64(), "most that tensors held at once", "bytes"),
        Column("peak_reserved_bytes", pl.Int64(), "most that the allocator held at once", "bytes"),
        Column("capacity_bytes", pl.Int64(), "memory on the device", "bytes"),
        Column("peak_ts_ns", pl.Int64(), "when tensors first held most", "ns"),
        Column("peak_step", pl.Int32(), "step within which that was"),
        Column("growth_bytes", pl.Int64(), "held after the last event more than before the first", "bytes"),
        Column("growth_bytes_per_step", pl.Float64(), "median change from one step's end to the next's", "bytes"),
        Column("at_peak_bytes", pl.Int64(), "still held at the device's peak", "bytes"),
        Column("requested_bytes", pl.Int64(), "sum of all that was allocated", "bytes"),
        Column("kept_bytes", pl.Int64(), "of that, not freed when the recording ended", "bytes"),
        Column("n_allocations", pl.Int64(), "how often memory was allocated"),
        Column("n_frees", pl.Int64(), "how often memory was freed"),
    ),
)
_CALLERS = {"operator": ("name",), "module": ("module",), "stack": ("name", "stack")}


def memory(
    allocations: pl.DataFrame = ALLOCATIONS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    spans: pl.DataFrame = SPANS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    stacks: pl.DataFrame = STACKS.empty(),
    *,
    by: Literal["device", "operator", "module", "stack", "time"] = "device",
) -> pl.DataFrame:
    """One row per device; per device and operator, module or call stack that asked for memory; or per event (by time).

    The main columns are `peak_allocated_bytes` and `growth_bytes` by device, `at_peak_bytes` and `requested_bytes` by
    what asked for it. Levels are the recorded totals. Where there are none, they are the running sum of what was
    allocated and freed, from 0 at the start of the recording. A block is one address of one device from its allocation
    to its next event. Blocks allocated before the recording belong to no operator, so `peak_allocated_bytes` may exceed
    the sum of `at_peak_bytes`.

    Units: bytes; ns.
    Source: the allocator's own totals and events, as PyTorch records them with profile_memory=True.
    Raises MissingTable (no allocations), UnknownName (by).
    """
    if allocations.is_empty():
        raise MissingTable("allocations", needed_by="memory", topic="allocations")
    events = _levels(allocations)
    if by == "time":
        result = events.select("device_id", "ts_ns", "allocated_bytes", "reserved_bytes")
    elif by in _CALLERS:
        result = _by_caller(events, spans, ops, stacks, by)
    else:
        result = device_memory(allocations, steps)
        result = result.join(devices.select("device_id", capacity_bytes="memory_bytes"), on="device_id", how="left")
        result = result.sort("peak_allocated_bytes", "device_id", descending=[True, False])
    known = [c for c in MEMORY.dtypes if c in {*result.columns, "device"}]
    return MEMORY.conform(label_devices(result, devices)).select(known)


def device_memory(allocations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """A row per device with its peaks, growth and counts, as in `memory`. Units: bytes; ns."""
    events = _levels(allocations)
    first = pl.col("allocated_bytes").first() - pl.col("bytes").first()
    totals = events.group_by("device_id", maintain_order=True).agg(
        peak_allocated_bytes=pl.col("allocated_bytes").max(),
        peak_reserved_bytes=pl.col("reserved_bytes").max(),
        peak_ts_ns=pl.col("ts_ns").get(pl.col("allocated_bytes").arg_max()),
        growth_bytes=pl.col("allocated_bytes").last() - first,
        requested_bytes=pl.col("bytes").filter(pl.col("bytes") > 0).sum(),
        n_allocations=(pl.col("bytes") > 0).sum().cast(pl.Int64),
        n_frees=(pl.col("bytes") < 0).sum().cast(pl.Int64),
    )
    if steps.is_empty():
        return totals
    rows = steps.sort("ts_ns")
    starts = rows["ts_ns"].to_numpy()
    ends = starts + rows["dur_ns"].to_numpy()
    growth, peak_step = list[float | None](), list[int | None]()
    for device_id, peak_ns in totals[["device_id", "peak_ts_ns"]].iter_rows():
        mine = filtered(events[["ts_ns", "allocated_bytes"]], events["device_id"].eq_missing(device_id))
        # Before the first event, at index -1, nothing is known.
        level = np.append(mine["allocated_bytes"].cast(pl.Float64).to_numpy(), np.nan)
        more = np.diff(level[np.searchsorted(mine["ts_ns"].to_numpy(), np.sort(ends), side="right") - 1])
        more = more[~np.isnan(more)]
        growth.append(float(np.median(more)) if more.size else None)
        at = -1 if peak_ns is None else int(np.searchsorted(starts, peak_ns, side="right")) - 1
        peak_step.append(rows["step"][at] if at >= 0 and peak_ns < ends[at] else None)
    growth_per_step = pl.Series("growth_bytes_per_step", growth, pl.Float64)
    return totals.hstack([growth_per_step, pl.Series("peak_step", peak_step, rows["step"].dtype)])


def _levels(allocations: pl.DataFrame) -> pl.DataFrame:
    """The events in order of time, with what is held after each."""
    events = allocations.sort("ts_ns", maintain_order=True)
    running = pl.col("bytes").cum_sum().over("device_id")
    recorded = pl.col("total_allocated_bytes").is_not_null().any().over("device_id")
    level = pl.when(recorded).then(pl.col("total_allocated_bytes").forward_fill().over("device_id")).otherwise(running)
    return events.with_columns(allocated_bytes=level, reserved_bytes="total_reserved_bytes")


def _by_caller(
    events: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame, stacks: pl.DataFrame, by: str
) -> pl.DataFrame:
    # The order of events decides, not their times: a trace in whole microseconds has many at the same time.
    after = {c: pl.col(c).shift(-1).over("device_id", "address") for c in ("bytes", "at")}
    events = events.with_row_index("at")
    peak = pl.col("at").get(pl.col("allocated_bytes").arg_max()).over("device_id")
    blocks = events.with_columns(peak=peak, freed_at=after["at"], is_freed=(after["bytes"] < 0).fill_null(value=False))
    blocks = blocks.filter(pl.col("bytes") > 0)
    held = (pl.col("at") <= pl.col("peak")) & (~pl.col("is_freed") | (pl.col("freed_at") > pl.col("peak")))
    callers = blocks["op_id"]
    if by == "module":
        blocks = blocks.with_columns(_module(callers, spans))
    else:
        blocks = blocks.with_columns(spans["name"].gather(callers).alias("name"))
    if by == "stack":
        blocks = blocks.with_columns(_stack(callers, ops, stacks))
    keys = ("device_id", *_CALLERS[by])
    sums = blocks.group_by(keys).agg(
        at_peak_bytes=pl.col("bytes").filter(held).sum(),
        requested_bytes=pl.col("bytes").sum(),
        kept_bytes=pl.col("bytes").filter(~pl.col("is_freed")).sum(),
        n_allocations=pl.len().cast(pl.Int64),
        n_frees=pl.col("is_freed").sum().cast(pl.Int64),
    )
    # Without addresses it is not known which free belongs to which allocation.
    followed = blocks.group_by("device_id").agg(followed=pl.col("address").is_not_null().any())
    sums = sums.join(followed, on="device_id", how="left").with_columns(
        pl.when("followed").then(pl.col(c)).alias(c) for c in ("at_peak_bytes", "kept_bytes", "n_frees")
    )
    order = ("at_peak_bytes", "requested_bytes", *keys)
    return sums.sort(order, descending=[c.endswith("_bytes") for c in order], nulls_last=True)


def _module(op_ids: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Name of the innermost module around each operator, null where there is none."""
    is_module = (spans["category"] == "module").to_numpy()
    around = np.append(at_or_around(spans, is_module), -1)[integers(op_ids)]
    return spans["name"].gather(pl.Series(around).replace(-1, None).cast(pl.UInt32)).alias("module")


def _stack(op_ids: pl.Series, ops: pl.DataFrame, stacks: pl.DataFrame) -> pl.Series:
    """The stack each operator was called from, null where unknown."""
    text = ops.select("span_id", "stack_id").drop_nulls().join(stacks, on="stack_id", how="inner")
    text = text.select("span_id", stack=pl.col("frames").list.join(";"))
    return op_ids.to_frame("span_id").join(text, on="span_id", how="left", maintain_order="left")["stack"]


ANALYSIS = analysis_of(memory, MEMORY, "Memory held by tensors: per device, per operator, or over time.")
