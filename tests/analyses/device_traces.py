"""Literal traces for the tests of device analyses: two host threads, two devices, three streams."""

from __future__ import annotations

import polars as pl

from stepscope.core.schema import DEVICES, SPANS, TRACKS

HOST, BACKWARD, STREAM_7, STREAM_8, OTHER_DEVICE = 0, 1, 2, 3, 4

DEVICES_2 = DEVICES.conform(
    pl.DataFrame({"device_id": [0, 1], "type": ["cuda", "cuda"], "index": [0, 1], "name": ["H100", "H100"]})
)
TRACKS_5 = TRACKS.conform(
    pl.DataFrame(
        {
            "track_id": [HOST, BACKWARD, STREAM_7, STREAM_8, OTHER_DEVICE],
            "rank": [3] * 5,
            "device_id": [None, None, 0, 0, 1],
            "stream": [None, None, 7, 8, 7],
        }
    )
)

Row = tuple[int, int, int, str, str] | tuple[int, int, int, str, str, int | None]


def spans_of(*rows: Row, **columns: list[object]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category[, launch_id]), sorted by track and start; more columns."""
    names = ("track_id", "ts_ns", "dur_ns", "name", "category", "launch_id")
    filled = [(*row, None)[:6] for row in rows]
    frame = pl.DataFrame(filled, schema=names, orient="row", infer_schema_length=None).with_row_index("span_id")
    return SPANS.conform(frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}))


def kernel(track: int, ts: int, dur: int, name: str = "gemm", launch: int | None = None) -> Row:
    return (track, ts, dur, name, "kernel", launch)
