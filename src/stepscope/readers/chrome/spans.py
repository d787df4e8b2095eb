"""Spans and arrows of one file as arrays.

Spans are sorted; times are ns from the origin, begin and end events are joined, impossible times are dropped. Arrows
link launches to their work where ids do not, and host threads to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.core import intervals
from stepscope.core.arrays import distinct_values
from stepscope.core.machine import threads_for
from stepscope.core.schema import ARROWS
from stepscope.readers.common.columns import ABSENT, stable_order, text_column
from stepscope.readers.common.source import give_back
from stepscope.readers.common.span_builder import Sorted, believable, nearest_op, sorted_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.source import IssueLog

    Rows = NDArray[np.int64]
    from collections.abc import Iterator

    from stepscope.readers.chrome.tracks import Tracks
    from stepscope.readers.common.span_builder import Sorted


#: Sums of two times must stay within 64 bits.
_MOST_US = 2**51
_EVENT_BYTES = 200  # of text, about


def to_ns(values: NDArray[Any]) -> Rows:
    """µs as doubles to ns, rounded; ns pass through. What is no time before 2041 becomes ABSENT."""
    if values.dtype == np.int64:
        far = (values < -_MOST_US * 1000) | (values > _MOST_US * 1000)
        return np.where(far, ABSENT, values) if far.any() else values
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(values) < _MOST_US)  # also true of NaN, which means absent
    if bad.any():
        none: Rows = np.where(bad, ABSENT, to_ns(np.where(bad, 0.0, values)))
        return none
    # Whole µs apart from the rest: a Unix time times 1000 does not fit the 53 bits of a double.
    whole = values.astype(np.int64)
    rest: NDArray[np.float64] = values - whole
    rest *= 1000.0
    np.rint(rest, out=rest)
    whole *= 1000
    whole += rest.astype(np.int16)
    return whole


def build_spans(columns: Columns, of_key: NDArray[np.uint32], issues: IssueLog) -> Sorted:
    """Sorted arrays of all complete and paired events. Counts in `issues` what was dropped or repaired."""
    cols = columns.spans
    with threads_for(sum(block.size for block in cols["ts"].blocks)) as start:
        lengths = start(cols["dur"].join, to_ns, np.int64)
        ts = cols["ts"].join(to_ns, np.int64)
        name, cat, track = cols["name"].join(), cols["cat"].join(), cols["track"].join(of_key.take)
        dur = lengths()
    n_recorded = ts.size
    give_back(columns.n_events * _EVENT_BYTES)
    pairs = _paired(columns, of_key, issues)
    if pairs is not None:
        ts, dur, name, cat, track = (
            np.concatenate(both) for both in zip((ts, dur, name, cat, track), pairs, strict=True)
        )
    spans = believable(ts, dur, track, name, cat, issues, "complete events without a usable ts or dur were dropped")
    return replace(spans, position=spans.position[:n_recorded])


def _paired(columns: Columns, of_key: NDArray[np.uint32], issues: IssueLog) -> tuple[NDArray[Any], ...] | None:
    """Begin and end events joined: on each track an end closes the latest open begin."""
    cols = columns.edges
    ts = to_ns(cols["ts"].join())
    if not ts.size:
        return None
    name, cat, track = cols["name"].join(), cols["cat"].join(), of_key[cols["track"].join()]
    sign = np.where(cols["begin"].join() > 0, 1, -1).astype(np.int8)
    begin, end = joined_edges(ts, track, sign, issues)
    return ts[begin], ts[end] - ts[begin], name[begin], cat[begin], track[begin]


def joined_edges(ts: Rows, track: NDArray[Any], sign: NDArray[np.int8], issues: IssueLog) -> tuple[Rows, Rows]:
    """Rows of begins (sign 1), and of the ends (−1) that close them; rows are in the order of the file.

    On each track an end closes the latest open begin. At one instant the order of the file counts, if the file holds
    the track's events in order of time; else ends come first, as far as spans are open. PyTorch writes all begins, and
    then their ends in the same order (Perfetto): these pairs are exact, even of spans that overlap. Events without
    their partner are counted.
    """
    n_tracks = int(track.max()) + 1 if track.size else 0
    track = track.astype(np.uint16) if n_tracks < 1 << 16 else track
    order, by_track = stable_order(track, ts), stable_order(track)
    is_mixed = np.zeros(n_tracks, np.bool_)
    same = track[by_track][1:] == track[by_track][:-1]
    is_mixed[track[by_track][1:][(np.diff(ts[by_track]) < 0) & same]] = True
    exact = [np.empty(0, np.int64)] * 2
    if is_mixed.any():
        is_exact, exact = _written_in_two_passes(by_track, ts, track, sign, is_mixed)
        order = order[~is_exact[track[order]]]
        if order.size:
            order = _ends_first(order, ts[order], track[order], sign[order], is_mixed[track[order]])
    s, g = sign[order], track[order]
    depth = np.cumsum(s, dtype=np.int32)
    level = np.where(s > 0, depth, depth + 1)
    by_level = stable_order(g, level)
    s, g, level = s[by_level], g[by_level], level[by_level]
    joined = np.flatnonzero((s[:-1] > 0) & (s[1:] < 0) & (g[:-1] == g[1:]) & (level[:-1] == level[1:]))
    begin, end = (np.concatenate((some, order[by_level[joined + i]])) for i, some in enumerate(exact))
    issues.add("unpaired_events", "warning", ts.size - 2 * begin.size, "begin or end events without their partner")
    return begin, end


def _written_in_two_passes(
    by_track: Rows, ts: Rows, track: NDArray[Any], sign: NDArray[np.int8], is_mixed: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], list[Rows]]:
    """Which tracks have groups of begins that are followed by their ends in the same order, and these pairs.

    The rows are in the order of the file, track by track. On such a track each group is complete, some end is later in
    the file than one that follows it in time, no duration is negative, and hardly a span ends after the one around it.
    """
    some = by_track[is_mixed[track[by_track]]]
    of, sign_ = track[some], sign[some]
    is_last = np.append(of[1:] != of[:-1], [True] * (of.size > 0))
    is_group_end = is_last | ((np.append(sign_[1:], 1) > 0) & (sign_ < 0))
    is_exact = np.zeros(is_mixed.size, np.bool_)
    is_exact[of[1:][(sign_[1:] < 0) & (np.diff(ts[some]) < 0) & ~is_last[:-1]]] = True
    is_first = np.append([True] * (of.size > 0), of[1:] != of[:-1])
    n_open = np.cumsum(sign_, dtype=np.int64)
    n_before = (n_open - sign_)[np.maximum.accumulate(np.where(is_first, np.arange(of.size), 0))]
    is_exact[of[is_group_end & (n_open != n_before)]] = False
    begin, end = (some[is_exact[of] & (sign_ == one)] for one in (1, -1))
    is_exact[track[begin[ts[end] < ts[begin]]]] = False
    begin, end = (rows[is_exact[track[begin]]] for rows in (begin, end))
    order = sorted_order(ts[begin], ts[end] - ts[begin], track[begin].astype(np.uint32))
    starts, ends, of = ts[begin[order]], ts[end[order]], track[begin[order]]
    outer = intervals.enclosing(starts, ends, of)
    crosses = (outer >= 0) & (ends > ends[np.maximum(outer, 0)])
    is_exact &= np.bincount(of[crosses], minlength=is_exact.size) * 10 <= np.bincount(of, minlength=is_exact.size)
    good = is_exact[track[begin]]
    return is_exact, [begin[good], end[good]]


def _ends_first(
    order: Rows, ts: Rows, track: NDArray[Any], sign: NDArray[np.int8], is_mixed: NDArray[np.bool_]
) -> Rows:
    """The order with ends before begins of the same instant, as many as spans are open; on tracks that are mixed."""
    is_new = np.concatenate(([True], (ts[1:] != ts[:-1]) | (track[1:] != track[:-1])))
    if is_new.all():
        return order
    heads, instant = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    summed = np.concatenate(([0], np.cumsum(sign, dtype=np.int64)))
    starts = np.flatnonzero(np.concatenate(([True], track[1:] != track[:-1])))
    of_track = np.repeat(summed[starts], np.diff([*starts, track.size]))
    open_before = summed[heads] - of_track[heads]
    n_ends = np.concatenate(([0], np.cumsum(sign < 0)))
    number = n_ends[:-1] - n_ends[heads][instant]  # of an end among those of its instant
    phase = np.where(sign > 0, 1, np.where(number < open_before[instant], 0, 2))
    return order[stable_order(instant, np.where(is_mixed, phase, 0))]


class Ends(msgspec.Struct, frozen=True):
    """Starts and ends of all arrows as recorded: time (ns from the origin), track, key, category and which of both."""

    ts: Rows
    track: Rows
    key: NDArray[Any]
    cat: NDArray[Any]
    start: NDArray[np.bool_]
    cats: list[str | None]


def arrow_ends(columns: Columns, tracks: Tracks, spans: Sorted) -> Ends:
    """The arrows of a file, without those from launches to device work, for which ids are more reliable."""
    cols = {n: c.join() for n, c in columns.flows.items()}
    track = tracks.of_key[cols["track"]].astype(np.int64) if cols["track"].size else np.empty(0, np.int64)
    ts = to_ns(cols["ts"]) - spans.origin_ns
    return Ends(ts, track, cols["id"], cols["cat"], cols["start"] > 0, list(columns.cats))


def host_arrows(arrows: Ends, tracks: Tracks) -> pl.DataFrame:
    """The `arrows` table, in order of the first start of each key. The last start and end of a key count."""
    host = np.flatnonzero(~tracks.is_device[arrows.track])
    pairs = []
    for cat in distinct_values(arrows.cat[host]):
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


def launch_arrows(
    arrows: Ends, tracks: Tracks, spans: Sorted, parent: Rows, is_op: NDArray[np.bool_]
) -> Iterator[tuple[Rows, Rows]]:
    """Per kind of arrow: rows of device work at the heads, and of the innermost host spans at the tails.

    Recorders without correlation ids (Ascend) tie work to its launch by arrows alone. Kinds whose tails are inside
    operators come last, so that they prevail.
    """
    ts, track, key, cats, start = arrows.ts, arrows.track, arrows.key, arrows.cat, arrows.start
    if not ts.size or not spans.ts.size:
        return
    host = np.flatnonzero(~tracks.is_device[spans.track])
    to_host = np.full(spans.ts.size, -1, np.int64)
    to_host[host] = np.arange(host.size)
    up = np.where(parent[host] >= 0, to_host[parent[host]], -1)
    by_kind = []
    for cat in distinct_values(cats):
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
        by_kind.append((int((nearest_op(rows, parent, is_op) >= 0).sum()), work[good], rows))
    for _, work, rows in sorted(by_kind, key=lambda f: f[0]):
        yield work, rows


def _span_at(spans: Sorted, track: Rows, ts: Rows) -> Rows:
    """Row of the span that starts on that track at that time, −1 if none."""
    low = np.searchsorted(spans.track, track, "left")
    high = np.searchsorted(spans.track, track, "right")
    at = np.full(track.size, -1, np.int64)
    for one in distinct_values(track):
        mine = np.flatnonzero(track == one)
        lo, hi = int(low[mine[0]]), int(high[mine[0]])
        place = np.minimum(lo + np.searchsorted(spans.ts[lo:hi], ts[mine]), max(hi - 1, 0))
        at[mine] = np.where((hi > lo) & (spans.ts[place] == ts[mine]), place, -1)
    return at
