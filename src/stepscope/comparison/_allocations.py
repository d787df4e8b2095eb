"""What tensors hold, from the allocator's events, as a resource: exact, where the system's level is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.model import OWN_PROCESS
from stepscope.core.schema import COUNTERS

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = ["DEVICE_HELD", "HOST_HELD", "held_by_tensors"]

HOST_HELD, DEVICE_HELD = "process_mem_allocated", "gpu_mem_allocated"


def held_by_tensors(trace: Trace) -> pl.DataFrame:
    """A sample of `process_mem_allocated`, or of an accelerator's `gpu_mem_allocated`, at each allocation and free.

    Rows as in the table `counters`, bytes; counted from the start of the recording where the recorder does so.
    """
    events = trace.allocations.filter(pl.col("total_allocated_bytes").is_not_null() & pl.col("ts_ns").is_not_null())
    on_device = pl.col("type") != "cpu"
    where = trace.devices.select(
        "device_id",
        device=pl.when(on_device).then(pl.format("gpu{}", "index")).otherwise(pl.lit(OWN_PROCESS)),
        metric=pl.when(on_device).then(pl.lit(DEVICE_HELD)).otherwise(pl.lit(HOST_HELD)),
    )
    found = events.select("ts_ns", "device_id", value=pl.col("total_allocated_bytes").cast(pl.Float64))
    found = found.join(where, on="device_id", how="inner", maintain_order="left")
    return COUNTERS.conform(found.drop_nulls("device").with_columns(unit=pl.lit("bytes")))
