"""Literal traces of loops for the tests of cycles: a host thread, a backward thread, a lane, one GPU; nested spans."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.intervals import enclosing
from stepscope.core.schema import COUNTERS, DEVICES, SPANS, STEPS, TRACKS
from stepscope.core.trace import Meta, Trace

MAIN, BACKWARD, STREAM, LANE = 0, 1, 2, 3
PID = 41

GPU = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [3]}))
TRACKS_4 = TRACKS.conform(
    pl.DataFrame(
        {
            "track_id": [MAIN, BACKWARD, STREAM, LANE],
            "pid": [PID, PID, 0, None],
            "host": ["box"] * 4,
            "device_id": [None, None, 0, None],
            "kind": ["thread", "thread", "stream", "annotation"],
        }
    )
)
NO_STEPS = STEPS.empty()

Row = tuple[int, int, int, str, str] | tuple[int, int, int, str, str, str]


def spans_of(*rows: Row) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category[, name of the call that queued it, the latest before])."""
    named = sorted(((*row, None)[:6] for row in rows), key=lambda row: (row[0], row[1], -row[2]))
    tracks, starts, durations, names, categories, launched = zip(*named, strict=True)
    begin = np.array(starts)
    parents = enclosing(begin, begin + np.array(durations), np.array(tracks))
    is_host = np.array([track in (MAIN, BACKWARD) for track in tracks])
    frame = pl.DataFrame(
        {
            "track_id": tracks,
            "ts_ns": starts,
            "dur_ns": durations,
            "name": names,
            "category": categories,
            "parent_id": [int(p) if p >= 0 and host else None for p, host in zip(parents, is_host, strict=True)],
            "launch_id": [
                None if call is None else max(i for i, row in enumerate(named) if row[3] == call and row[1] <= ts)
                for call, ts in zip(launched, starts, strict=True)
            ],
        }
    )
    return SPANS.conform(frame.with_row_index("span_id"))


def samples_of(*rows: tuple[int, str, str, float, str]) -> pl.DataFrame:
    """Counters from (ts_ns, device, metric, value, unit)."""
    names = ("ts_ns", "device", "metric", "value", "unit")
    return COUNTERS.conform(pl.DataFrame(list(rows), schema=names, orient="row"))


def steps_of(*starts_and_lengths: tuple[int, int]) -> pl.DataFrame:
    """Marked steps, numbered from 0."""
    frame = pl.DataFrame(list(starts_and_lengths), schema=["ts_ns", "dur_ns"], orient="row").with_row_index("step")
    return STEPS.conform(frame.with_columns(source=pl.lit("annotation")))


def trace_of(spans: pl.DataFrame, **tables: pl.DataFrame) -> Trace:
    given = {"spans": spans, "tracks": TRACKS_4, "devices": GPU, **tables}
    return Trace(Meta("t.json", "kineto", origin_unix_ns=0), given)


def training(n: int, *, step_ns: int = 1000, layers: int = 4, first: int = 0) -> list[Row]:
    """A loop without marked steps: each turn loads, runs some layers (each launches a kernel), and optimizes."""
    rows: list[Row] = []
    for i in range(n):
        at = first + i * step_ns
        rows += [(MAIN, at + 10, 50, "load", "user_range"), (MAIN, at + 20, 30, "aten::copy_", "operator")]
        for layer in range(layers):
            begin = at + 100 + 100 * layer
            rows += [
                (MAIN, begin, 80, "aten::linear", "operator"),
                (MAIN, begin + 10, 60, "aten::mm", "operator"),
                (MAIN, begin + 20, 10, "cudaLaunchKernel", "runtime"),
                (STREAM, begin + 60, 70, "gemm", "kernel", "cudaLaunchKernel"),
            ]
        rows += [(MAIN, at + 800, 100, "optimize", "user_range"), (MAIN, at + 810, 80, "aten::add_", "operator")]
        rows += [(BACKWARD, at + 600, 100, "autograd::backward", "operator")]
    return rows
