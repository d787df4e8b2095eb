"""The spans of one file as sorted arrays: times in ns from the origin, begin/end pairs joined, wild times dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.readers.common.columns import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.issues import Notes

    Rows = NDArray[np.int64]

#: Kineto can write zero or far-off times for single events. A recording longer than this is not believed.
_DAY_NS = 86_400 * 10**9
_MOST_WILD_RATIO = 0.01
#: Sums of two times must stay within 64 bits.
_MOST_US = 2**51


@dataclass(frozen=True, slots=True)
class Spans:
    """Sorted by track, start, longest first. `position` maps a row as recorded to its place here (−1: dropped)."""

    ts: Rows
    dur: Rows
    track: NDArray[np.uint32]
    name: NDArray[np.uint32]
    cat: NDArray[np.uint16]
    position: Rows
    origin_ns: int


def to_ns(values: NDArray[Any]) -> Rows:
    """µs as doubles to ns, rounded; ns pass through. What is no time before 2041 becomes ABSENT."""
    if values.dtype == np.int64:
        far = (values < -_MOST_US * 1000) | (values > _MOST_US * 1000)
        return np.where(far, ABSENT, values) if far.any() else values
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(values) < _MOST_US)  # also true of NaN, which stands for absent
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


def build_spans(columns: Columns, of_key: NDArray[np.uint32], notes: Notes) -> Spans:
    """Sorted arrays of all complete and paired events. Counts in `notes` what was dropped or repaired."""
    cols = columns.spans
    ts, dur = to_ns(cols["ts"].join()), to_ns(cols["dur"].join())
    name, cat, track = cols["name"].join(), cols["cat"].join(), of_key[cols["track"].join()]
    n_recorded = ts.size
    pairs = _paired(columns, of_key, notes)
    if pairs is not None:
        ts, dur, name, cat, track = (
            np.concatenate(both) for both in zip((ts, dur, name, cat, track), pairs, strict=True)
        )
    order, position, origin = placed(ts, dur, track, notes, "complete events without a usable ts or dur were dropped")
    return Spans(ts[order] - origin, dur[order], track[order], name[order], cat[order], position[:n_recorded], origin)


def placed(
    ts: Rows, dur: Rows, track: NDArray[np.uint32], notes: Notes, incomplete_means: str
) -> tuple[NDArray[np.intp], Rows, int]:
    """Order of the sound rows as spans have it, where each row comes to stand (−1: dropped), and the origin.

    Durations below zero are set to zero, in place. Counts in `notes` what was dropped or repaired; `incomplete_means`
    says of rows without a time what they are. Units: ns.
    """
    incomplete = (ts == ABSENT) | (dur == ABSENT)
    notes.add("incomplete_events", "warning", int(incomplete.sum()), incomplete_means)
    negative = (dur < 0) & (dur != ABSENT)
    notes.add("negative_durations", "warning", int(negative.sum()), "durations below zero were set to zero")
    np.maximum(dur, 0, out=dur, where=dur != ABSENT)
    keep = _believable(ts, dur)
    order = sorted_order(ts, dur, track)
    if not keep.all():
        n_wild = int((~keep & ~incomplete).sum())
        notes.add("wild_times", "warning", n_wild, "events more than a day from the others were dropped")
        order = order[keep[order]]
    position = np.full(ts.size, -1, np.int64)
    position[order] = np.arange(order.size)
    return order, position, int(ts[keep].min()) if keep.any() else 0


def _believable(ts: Rows, dur: Rows) -> NDArray[np.bool_]:
    keep: NDArray[np.bool_] = (ts != ABSENT) & (dur != ABSENT) & (dur <= 30 * _DAY_NS)
    if keep.any():
        middle = int(np.median(ts[keep]))
        near = np.abs(ts - middle) <= _DAY_NS
        if (keep & ~near).sum() <= max(_MOST_WILD_RATIO * ts.size, 2):
            keep &= near
    return keep


def sorted_order(ts: Rows, dur: Rows, track: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Stable order by track, start, longest first. Files are nearly in time order, which a stable sort exploits."""
    by_time = np.argsort(ts, kind="stable")
    tracks = track.astype(np.uint16) if track.size and int(track.max()) < 1 << 16 else track
    order = by_time[np.argsort(tracks[by_time], kind="stable")]
    same = (ts[order][1:] == ts[order][:-1]) & (track[order][1:] == track[order][:-1])
    if same.any():
        tied = np.zeros(ts.size, bool)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        order[tied] = rows[np.lexsort((-dur[rows], ts[rows], track[rows]))]
    return order


def _paired(columns: Columns, of_key: NDArray[np.uint32], notes: Notes) -> tuple[NDArray[Any], ...] | None:
    """Begin and end events joined: on each track an end closes the latest open begin."""
    cols = columns.edges
    ts = to_ns(cols["ts"].join())
    if not ts.size:
        return None
    name, cat, track = cols["name"].join(), cols["cat"].join(), of_key[cols["track"].join()]
    sign = np.where(cols["begin"].join() > 0, 1, -1)
    # An end goes before a begin of the same instant only if something is open; recorded order already says so.
    order = np.lexsort((np.arange(ts.size), ts, track))
    sign, group = sign[order], track[order]
    depth = np.cumsum(sign)
    level = np.where(sign > 0, depth, depth + 1)
    by_level = np.lexsort((np.arange(ts.size), level, group))
    s, g, at_level = sign[by_level], group[by_level], level[by_level]
    joined = np.flatnonzero((s[:-1] > 0) & (s[1:] < 0) & (g[:-1] == g[1:]) & (at_level[:-1] == at_level[1:]))
    begin, end = order[by_level[joined]], order[by_level[joined + 1]]
    notes.add("unpaired_events", "warning", int(ts.size - 2 * begin.size), "begin or end events without their partner")
    return ts[begin], ts[end] - ts[begin], name[begin], cat[begin], track[begin]
