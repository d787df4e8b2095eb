"""Operator → launch → device work → step, resolved by array operations over sorted spans. Any reader may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import intervals
from stepscope.readers.common.columns import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    Flags = NDArray[np.bool_]

NONE = -1
#: Ancestors looked at one by one, before looking all up at once pays. Overlapping calls may form chains of any length.
_HOPS = 32


def parents(ts: Rows, dur: Rows, track: NDArray[Any], is_host: Flags) -> Rows:
    """Innermost open span of the same host track at each span's start; rows sorted by track, start, longest first."""
    parent = intervals.enclosing(ts, ts + dur, track)
    parent[~is_host] = NONE
    return parent


def launches(correlation: Rows, is_call: Flags, is_device: Flags) -> Rows:
    """For device work the row of the call with the same correlation; of several the first. Ids below 1 bind nothing."""
    launch = np.full(correlation.size, NONE, np.int64)
    calls = np.flatnonzero(is_call & (correlation > 0))
    work = np.flatnonzero(is_device & (correlation > 0))
    if calls.size and work.size:
        order = np.argsort(correlation[calls], kind="stable")
        ids = correlation[calls][order]
        at = np.minimum(np.searchsorted(ids, correlation[work]), ids.size - 1)
        launch[work] = np.where(ids[at] == correlation[work], calls[order[at]], NONE)
    return launch


def nearest_op(rows: Rows, parent: Rows, is_op: Flags) -> Rows:
    """For each of the rows the nearest ancestor, or itself, that is an operator."""
    found = rows.astype(np.int64, copy=True)
    open_ = np.flatnonzero((found >= 0) & ~is_op[found])
    for _ in range(_HOPS):
        if not open_.size:
            return found
        found[open_] = parent[found[open_]]
        open_ = open_[(found[open_] >= 0) & ~is_op[found[open_]]]
    found[open_] = intervals.nearest(parent, is_op)[found[open_]]
    return found


def by_external_id(op: Rows, calls: Rows, external: Rows, op_rows: Rows, op_external: Rows) -> None:
    """Fill in operators of calls that lie in none on their thread, by the recorder's own id. Writes into `op`."""
    open_ = (op[calls] < 0) & (external > 0)
    valid = op_external > 0
    if not open_.any() or not valid.any():
        return
    ids, rows = op_external[valid], op_rows[valid]
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    wanted = external[open_]
    at = np.minimum(np.searchsorted(ids, wanted), ids.size - 1)
    op[calls[open_]] = np.where(ids[at] == wanted, rows[at], NONE)


def step_of(points: Rows, starts: Rows, ends: Rows, numbers: Rows) -> Rows:
    """Number of the step that holds each time; ABSENT between steps. Steps are disjoint and sorted."""
    if not starts.size:
        return np.full(points.size, ABSENT, np.int64)
    at = intervals.locate((starts, ends), points)
    return np.where(at >= 0, numbers[at], ABSENT)
