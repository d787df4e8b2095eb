"""Computation slows down while ranks communicate on its device: by how much, and how long it then takes.

The slowdown is learned from kernels of the same name, operator and shapes that ran both alone and beside communication.
Time beside communication counts for less progress, so a kernel that runs alone after a change becomes shorter, and one
that comes to run beside communication longer.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.critical_path.forward_pass import Floats
from stepscope.analyses.critical_path.work import Work
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Ints, covered, union

#: Kernels of a kind ran alone at least so often, and then lasted the same within this share of their length.
_LEAST_RUNS, _ALIKE = 3, 0.15
#: The slowdown is more than so many of its standard errors, and costs this share of the time beside communication.
_SURE, _LEAST_SHARE, _MOST_SHARE = 4.0, 0.02, 0.6
#: A kernel ran beside communication if this share of it did; it ran alone if none did.
_OVERLAPS = 0.02


class Contention(msgspec.Struct, frozen=True):
    """How much of the time beside communication a kernel loses, and that time of each piece of work in ns."""

    share: float
    overlapped: Ints

    @property
    def lost_ns(self) -> float:
        """What communication costs computation in all."""
        return self.share * float(self.overlapped.sum())

    def factors(self, work: Work, wanted: Floats, start: Floats, end: Floats) -> Floats:
        """How many times its recorded length each piece takes if all pieces, and what communicates, run at those times.

        `wanted` are the factors that a change gives it where it runs beside as much communication as was recorded.
        """
        result = wanted.copy()
        took = work.end - work.start
        mine = np.flatnonzero((work.sort == COMPUTATION) & (took > 0))
        own = wanted[mine] * (took[mine] - self.share * self.overlapped[mine])
        begin, stop = (np.rint(times[mine]).astype(np.int64) for times in (start, end))
        talks = work.sort == COMMUNICATION
        overlapped = _overlap(work.device[mine], begin, stop, work.device[talks], start[talks], end[talks])
        moved = (overlapped != self.overlapped[mine]) | (wanted[mine] != 1)
        result[mine[moved]] = ((own + self.share * overlapped) / took[mine])[moved]
        return result


def contention_of(spans: pl.DataFrame, ops: pl.DataFrame, work: Work) -> Contention:
    """What the recording shows of it; a share of 0 if it shows nothing for sure."""
    none = Contention(0.0, np.zeros(work.row.size, np.int64))
    talks, took = work.sort == COMMUNICATION, work.end - work.start
    if not talks.any() or talks.all():
        return none
    begins, ends = work.start[talks].astype(np.float64), work.end[talks].astype(np.float64)
    overlapped = _overlap(work.device, work.start, work.end, work.device[talks], begins, ends)
    overlapped[work.sort != COMPUTATION] = 0
    mine = np.flatnonzero(
        (work.sort == COMPUTATION) & (took > 0) & ((overlapped == 0) | (overlapped > _OVERLAPS * took))
    )
    if not overlapped[mine].any():
        return none
    operator = spans["op_id"].gather(work.row[mine])
    kinds = pl.DataFrame(
        {
            "name": spans["name"].gather(work.row[mine]).to_physical(),
            "operator": of_spans(spans, operator, "name").to_physical(),
            "took": took[mine].astype(np.float64),
            "overlapped": overlapped[mine],
            "shapes": of_spans(ops, operator, "input_shapes").to_physical(),
        }
    )
    undisturbed = pl.col("took").filter(pl.col("overlapped") == 0)
    kinds = kinds.group_by("name", "operator", "shapes").agg(
        usual=undisturbed.median(),
        spread=undisturbed.std(),
        n=undisturbed.len(),
        n_overlapped=(pl.col("overlapped") > 0).sum(),
        lost=(pl.col("took").filter(pl.col("overlapped") > 0) - undisturbed.median()).sum(),
        overlapped=pl.col("overlapped").sum(),
    )
    kinds = kinds.filter(
        (pl.col("n") >= _LEAST_RUNS) & (pl.col("n_overlapped") > 0) & (pl.col("spread") <= _ALIKE * pl.col("usual"))
    )
    if kinds.is_empty():
        return none
    share = float(kinds["lost"].sum()) / float(kinds["overlapped"].sum())
    variance = (kinds["spread"] ** 2 * kinds["n_overlapped"] * (1 + kinds["n_overlapped"] / kinds["n"])).sum()
    error = float(variance) ** 0.5 / float(kinds["overlapped"].sum())
    is_sure = share > max(_SURE * error, _LEAST_SHARE) and share <= _MOST_SHARE
    return Contention(share, overlapped) if is_sure else none


def _overlap(device: Ints, begin: Ints, stop: Ints, on: Ints, starts: Floats, ends: Floats) -> Ints:
    """How much of each range the communication on its device covers, in ns."""
    result = np.zeros(begin.size, np.int64)
    for one in distinct_values(on):
        here, there = device == one, on == one
        talking = union(np.rint(starts[there]).astype(np.int64), np.rint(ends[there]).astype(np.int64))
        result[here] = covered(talking, begin[here], stop[here])
    return result
