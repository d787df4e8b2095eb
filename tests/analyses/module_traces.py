"""Literal traces of modules for the tests of module analyses."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.intervals import enclosing
from stepscope.core.schema import ARROWS, FRAMES, SPANS

MAIN, BACKWARD, STREAM = 0, 1, 7

Row = tuple[int, int, int, str, str]


def spans_of(*rows: Row, launches: dict[int, int] | None = None) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category), sorted here; parents of host spans are worked out.

    `launches` says for the start of device work that of the call that queued it.
    """
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category")
    frame = pl.DataFrame(sorted(rows, key=lambda r: (r[0], r[1], -r[2])), schema=columns, orient="row")
    ts, dur, track = (frame[c].to_numpy().astype(np.int64) for c in ("ts_ns", "dur_ns", "track_id"))
    parents = pl.Series("parent_id", enclosing(ts, ts + dur, track)).replace(-1, None)
    host = pl.col("track_id") != STREAM
    frame = frame.with_row_index("span_id").with_columns(parents).with_columns(pl.when(host).then("parent_id"))
    calls = {t: i for i, t, c in frame.select("span_id", "ts_ns", "category").iter_rows() if c == "runtime"}
    links = [calls.get((launches or {}).get(t, -1)) if k == STREAM else None for k, t in zip(track, ts, strict=True)]
    return SPANS.conform(frame.with_columns(launch_id=pl.Series(links, dtype=pl.UInt32)))


def frames_of(spans: pl.DataFrame) -> pl.DataFrame:
    """Numbers of modules, as their names end."""
    modules = spans.filter(pl.col("category") == "module")
    ids = modules["name"].cast(pl.String).str.extract(r"_(\d+)$").cast(pl.Int64)
    return FRAMES.conform(modules.select("span_id").with_columns(module_id=ids))


def arrows_of(*rows: tuple[int, int, int, int], kind: str = "fwdbwd") -> pl.DataFrame:
    """Arrows from (from_track_id, from_ts_ns, to_track_id, to_ts_ns)."""
    columns = ("from_track_id", "from_ts_ns", "to_track_id", "to_ts_ns")
    schema = dict.fromkeys(columns, pl.Int64)
    return ARROWS.conform(pl.DataFrame(rows, schema=schema, orient="row").with_columns(recorded_category=pl.lit(kind)))
