"""How much of the communication is hidden behind computation."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.collective_calls import named_calls
from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    by_device,
    device_work,
    groups_of,
    hidden_ns,
    label_devices,
    occupancy,
)
from stepscope.core.errors import MissingTable
from stepscope.core.schema import COLLECTIVES, DEVICES
from stepscope.core.table import Column, Name, Table
from stepscope.core.trace import extent_ns

By = Literal["rank", "device", "collective", "name"]
KEYS = {"rank": ("rank",), "device": ("rank", "device_id"), "collective": ("rank",), "name": ("rank",)}

OVERLAP = Table(
    "overlap",
    "how much of the communication is hidden behind computation",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("device_id", pl.UInt32(), "device", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("collective", Name, "the collective, as in `communication` (by collective)", key=True),
        Column("name", Name, "communication kernel (by name)", key=True),
        Column("calls", pl.Int64(), "how often it ran"),
        Column("communication_ns", pl.Int64(), "time in communication; by collective, name: summed over calls", "ns"),
        Column("overlapped_ns", pl.Int64(), "of it, while something computes", "ns"),
        Column("exposed_ns", pl.Int64(), "of it, while nothing computes", "ns"),
        Column("overlap_ratio", pl.Float64(), "overlapped part of communication; null without communication", "ratio"),
        Column("computation_ns", pl.Int64(), "time in computation", "ns"),
    ),
)


def overlap(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    collectives: pl.DataFrame = COLLECTIVES.empty(),
    *,
    by: By = "rank",
    linked_only: bool = False,
    communication: str = "any",
) -> pl.DataFrame:
    """One row per rank, device, collective or kernel: how much of its communication runs while something computes.

    By device, communication and computation are unions of intervals over all streams, so that concurrent collectives
    count once; by rank, they are the mean of the rank's devices. By collective and name, each call counts in full, so
    those that run at the same time count it twice. What computes on one device hides no communication of another.
    `collectives` is the trace's table; `linked_only` and `communication` are those of `timeline`.

    Units: ns, ratio.
    Source: |communication ∩ computation| / |communication|, HTA's communication computation overlap.
    Raises MissingTable (no device work; by collective, name: no communication), UnknownName (by).
    """
    work = device_work(spans, tracks, needed_by="overlap", linked_only=linked_only, communication=communication)
    if by in ("collective", "name"):
        calls = work.filter(pl.col("sort") == COMMUNICATION)
        if calls.is_empty():
            raise MissingTable("communication kernels", needed_by=f"overlap by {by}")
        if by == "collective":
            calls = named_calls(calls.with_columns(caller=pl.coalesce("launch_id", "op_id")), spans, collectives)
        result = _of_calls(calls.with_columns(hidden=hidden_ns(work, calls, "computation")), by)
    else:
        parts = by_device(work) if by == "device" else groups_of(work, KEYS[by])
        rows = [{**dict(zip(KEYS[by], key, strict=True)), **_of_group(part)} for key, part in parts]
        result = pl.DataFrame(rows, schema_overrides={k: OVERLAP.column(k).dtype for k in KEYS[by]})
    if by == "device":
        result = label_devices(result, devices)
    hidden = pl.when(pl.col("communication_ns") > 0).then(pl.col("overlapped_ns") / pl.col("communication_ns"))
    result = result.with_columns(exposed_ns=pl.col("communication_ns") - pl.col("overlapped_ns"), overlap_ratio=hidden)
    return OVERLAP.conform(result).select(c for c in OVERLAP.dtypes if c in result.columns)


def _of_group(work: pl.DataFrame) -> dict[str, int]:
    lows, highs = (np.array([time]) for time in extent_ns(work))
    means, _ = occupancy(work, lows, highs)
    communication, exposed = int(means["communication_ns"][0]), int(means["exposed_communication_ns"][0])
    return {
        "calls": int((work["sort"] == COMMUNICATION).sum()),
        "communication_ns": communication,
        "overlapped_ns": communication - exposed,
        "computation_ns": int(means["computation_ns"][0]),
    }


def _of_calls(calls: pl.DataFrame, key: str) -> pl.DataFrame:
    return (
        calls.group_by("rank", key)
        .agg(
            calls=pl.len().cast(pl.Int64),
            communication_ns=pl.col("dur_ns").sum(),
            overlapped_ns=pl.col("hidden").sum(),
        )
        .sort(
            "rank",
            pl.col("overlapped_ns") - pl.col("communication_ns"),
            pl.col(key).cast(pl.String),
            nulls_last=True,
        )
    )


ANALYSIS = analysis_of(overlap, OVERLAP, "How much of the communication is hidden behind computation.")
