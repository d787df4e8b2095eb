"""The spans of one file as sorted arrays: times in ns from the origin, begin/end pairs joined, wild times dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.span_builder import Sorted, believable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.issues import IssueLog

    Rows = NDArray[np.int64]

#: Sums of two times must stay within 64 bits.
_MOST_US = 2**51


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


def build_spans(columns: Columns, of_key: NDArray[np.uint32], issues: IssueLog) -> Sorted:
    """Sorted arrays of all complete and paired events. Counts in `issues` what was dropped or repaired."""
    cols = columns.spans
    ts, dur = to_ns(cols["ts"].join()), to_ns(cols["dur"].join())
    name, cat, track = cols["name"].join(), cols["cat"].join(), of_key[cols["track"].join()]
    n_recorded = ts.size
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
    issues.add("unpaired_events", "warning", int(ts.size - 2 * begin.size), "begin or end events without their partner")
    return ts[begin], ts[end] - ts[begin], name[begin], cat[begin], track[begin]
