"""Arrows that a trace draws: from a launch to its work where ids do not say, and between host threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import intervals
from stepscope.core.schema import ARROWS
from stepscope.readers.chrome.spans import to_ns
from stepscope.readers.common import links
from stepscope.readers.common.columns import text_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.chrome.tracks import Tracks
    from stepscope.readers.common.span_builder import Sorted

    Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ends:
    """Starts and ends of all arrows as recorded: time (ns from the origin), track, key, category and which of both."""

    ts: Rows
    track: Rows
    key: NDArray[Any]
    cat: NDArray[Any]
    start: NDArray[np.bool_]
    cats: list[str | None]


def recorded(columns: Columns, tracks: Tracks, spans: Sorted) -> Ends:
    """The arrows of a file, but for those from launches to device work, which ids tell better."""
    cols = {n: c.join() for n, c in columns.flows.items()}
    track = tracks.of_key[cols["track"]].astype(np.int64) if cols["track"].size else np.empty(0, np.int64)
    ts = to_ns(cols["ts"]) - spans.origin_ns
    return Ends(ts, track, cols["id"], cols["cat"], cols["start"] > 0, list(columns.cats))


def between_hosts(arrows: Ends, tracks: Tracks) -> pl.DataFrame:
    """The `arrows` table, in order of the first start of each key; of several starts or ends of a key the last."""
    host = np.flatnonzero(~tracks.is_device[arrows.track])
    pairs = []
    for cat in np.unique(arrows.cat[host]):
        mine = host[arrows.cat[host] == cat]
        tails, heads = mine[arrows.start[mine]], mine[~arrows.start[mine]]
        keys, first, inverse = np.unique(arrows.key[tails], return_index=True, return_inverse=True)
        if not keys.size or not heads.size:
            continue
        last = np.zeros(keys.size, np.int64)
        last[inverse] = tails  # of several the last is written last
        ends = np.full(keys.size, -1, np.int64)
        at = np.minimum(np.searchsorted(keys, arrows.key[heads]), keys.size - 1)
        met = keys[at] == arrows.key[heads]
        ends[at[met]] = heads[met]
        order = np.argsort(first, kind="stable")
        order = order[ends[order] >= 0]
        pairs.append((last[order], ends[order]))
    if not pairs:
        return ARROWS.empty()
    tails, heads = (np.concatenate(side) for side in zip(*pairs, strict=True))
    frame = pl.DataFrame({
        "recorded_category": text_column(arrows.cat[tails], arrows.cats),
        "from_track_id": arrows.track[tails].astype(np.uint32),
        "from_ts_ns": arrows.ts[tails],
        "to_track_id": arrows.track[heads].astype(np.uint32),
        "to_ts_ns": arrows.ts[heads],
    })  # fmt: skip
    return ARROWS.conform(frame)


def to_device(
    arrows: Ends, tracks: Tracks, spans: Sorted, parent: Rows, is_op: NDArray[np.bool_]
) -> Iterator[tuple[Rows, Rows]]:
    """Per kind of arrow: rows of device work at the heads, and of the innermost host spans at the tails.

    Recorders without correlation ids (Ascend) tie work to its launch by arrows alone. Kinds whose tails lie in an
    operator come last, so that they prevail.
    """
    ts, track, key, cats, start = arrows.ts, arrows.track, arrows.key, arrows.cat, arrows.start
    if not ts.size:
        return
    host = np.flatnonzero(~tracks.is_device[spans.track])
    to_host = np.full(spans.ts.size, -1, np.int64)
    to_host[host] = np.arange(host.size)
    up = np.where(parent[host] >= 0, to_host[parent[host]], -1)
    found = []
    for cat in np.unique(cats):
        tails = np.flatnonzero((cats == cat) & start & ~tracks.is_device[track])
        heads = np.flatnonzero((cats == cat) & ~start & tracks.is_device[track])
        if not tails.size or not heads.size:
            continue
        order = tails[np.argsort(key[tails], kind="stable")]
        at = order[np.minimum(np.searchsorted(key[order], key[heads]), order.size - 1)]
        tied = key[at] == key[heads]
        heads, tails = heads[tied], at[tied]
        work = _span_at(spans, track[heads], ts[heads])
        inner = intervals.innermost_at(
            track[tails],
            ts[tails],
            spans.ts[host],
            (spans.ts + spans.dur)[host],
            spans.track[host].astype(np.int64),
            up,
        )
        good = (work >= 0) & (inner >= 0)
        rows = host[inner[good]]
        found.append((int((links.nearest_op(rows, parent, is_op) >= 0).sum()), work[good], rows))
    for _, work, rows in sorted(found, key=lambda f: f[0]):
        yield work, rows


def _span_at(spans: Sorted, track: Rows, ts: Rows) -> Rows:
    """Row of the span that starts on that track at that time, −1 if none."""
    low = np.searchsorted(spans.track, track, "left")
    high = np.searchsorted(spans.track, track, "right")
    at = np.full(track.size, -1, np.int64)
    for one in np.unique(track):
        mine = np.flatnonzero(track == one)
        lo, hi = int(low[mine[0]]), int(high[mine[0]])
        place = np.minimum(lo + np.searchsorted(spans.ts[lo:hi], ts[mine]), max(hi - 1, 0))
        at[mine] = np.where((hi > lo) & (spans.ts[place] == ts[mine]), place, -1)
    return at
