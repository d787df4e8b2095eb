"""Literal recordings of an engine's batches."""

from __future__ import annotations

import polars as pl

from stepscope.core.schema import SPANS, TRACKS

HOST, DEVICE = 0, 1
TABLE_OF_TRACKS = TRACKS.conform(pl.DataFrame({
    "track_id": [HOST, DEVICE], "rank": [0, 0], "device_id": [None, 0], "stream": [None, 7],
    "kind": ["thread", "stream"],
}))  # fmt: skip


def spans_of(*rows):
    """Spans from (category, name, start, duration in µs, launch): a launch is the row of its call, else None."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0] == "kernel", rows[i][2], -rows[i][3]))
    new = {old: at for at, old in enumerate(order)}
    return SPANS.conform(pl.DataFrame([
        {
            "span_id": at, "track_id": DEVICE if rows[old][0] == "kernel" else HOST, "category": rows[old][0],
            "name": rows[old][1], "ts_ns": rows[old][2] * 1000, "dur_ns": rows[old][3] * 1000,
            "launch_id": None if rows[old][4] is None else new[rows[old][4]],
        }
        for at, old in enumerate(order)
    ], infer_schema_length=None))  # fmt: skip


def run(*batch_rows):
    """A recording of batches (name, start, host duration, device start, device duration), each with one kernel."""
    rows = []
    for name, start, host, at, dur in batch_rows:
        rows += [
            ("user_range", name, start, host, None),
            ("runtime", "cudaGraphLaunch", start + 1, 1, None),
            ("kernel", "k", at, dur, len(rows) + 1),
        ]
    return spans_of(*rows)
