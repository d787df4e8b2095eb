"""The job run again with other times: what would it have taken had a rank not been late, or a link not been slow?

Each rank's work between exchanges and each exchange's transfer stay as recorded; when ranks arrive and exchanges end
follows from them. So what a change saves is what is left of it once the next-slowest ranks set the pace. The method is
that of the what-if analysis of stragglers by Lin et al. (OSDI 2025), on the exchanges that traces hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analyses.ranks.calls import own_base
from stepscope.analyses.ranks.grouped_medians import Floats
from stepscope.analyses.ranks.lateness import blocking_of, transfers_of
from stepscope.analyses.ranks.matching import Job
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Bools, Ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.ranks.clocks import Clocks


_TOGETHER = 4  # changes
_AT_ONCE_NS = 20_000


@dataclass(frozen=True, slots=True)
class Change:
    """What to change: rows of calls whose work, and exchanges whose transfer, is so many ns shorter."""

    rows: Ints
    work_ns: Floats
    exchanges: Ints
    transfer_ns: Floats

    def also(self, other: Change) -> Change:
        """This change and another one."""
        fields = ("rows", "work_ns", "exchanges", "transfer_ns")
        return Change(*(np.concatenate((getattr(self, f), getattr(other, f))) for f in fields))


def job_times(job: Job, clocks: Clocks, changes: Sequence[Change]) -> tuple[float, list[float]]:
    """How long the job takes from its first arrival to its last end, run again as it is and with each of the changes.

    Units: ns. Ranks whose clocks cannot be compared start when their clocks say.
    """
    model = _model(job, clocks)
    found: list[float] = []
    for first in range(0, max(len(changes), 1), _TOGETHER):
        whole, *others = model.run(changes[first : first + _TOGETHER])
        found = [whole, *found[1:], *others]
    return found[0], found[1:]


@dataclass(frozen=True, slots=True)
class _Model:
    """A job as events that depend on each other: an arrival on one event before it, an end on all arrivals.

    `heirs` and `heads` list the rows that follow an event: those after the arrival of row i, then those after the end
    of exchange k at n_rows + k.
    """

    base: Ints
    after_end: Bools
    work: Floats
    begin: Floats
    exchange: Ints
    transfer: Floats
    alone: Bools
    any_alone: bool
    length: Floats
    heirs: Ints
    heads: Ints

    def run(self, changes: Sequence[Change]) -> list[float]:
        """The whole time as it is, then under each of the changes.

        All that can happen happens at once, round by round: arrivals whose base is known, then ends of exchanges at
        which all have arrived. Where traces contradict each other and nothing is left that can happen, the earliest of
        what is left happens as recorded.
        """
        n_rows, n_exchanges, n = self.work.size, self.transfer.size, len(changes) + 1
        work, transfer = (np.repeat(v[None, :], n, axis=0) for v in (self.work, self.transfer))
        for i, change in enumerate(changes, 1):
            np.subtract.at(work[i], change.rows, change.work_ns)
            np.subtract.at(transfer[i], change.exchanges, change.transfer_ns)
        transfer = np.maximum(transfer, 0.0)
        arrived, ended = np.empty_like(work), np.full((n, n_exchanges), -np.inf)
        left = np.bincount(self.exchange, minlength=n_exchanges)
        done = np.zeros(n_rows, bool)
        in_time, next_in_time = np.argsort(self.begin, kind="stable"), 0
        rows, forced = np.flatnonzero(self.base < 0), True
        while True:
            if not rows.size:
                while next_in_time < n_rows and done[in_time[next_in_time]]:
                    next_in_time += 1
                if next_in_time == n_rows:
                    break
                rows, forced = in_time[next_in_time : next_in_time + 1], True
            done[rows] = True
            own = self.exchange[rows]
            if forced:
                now = self.begin[rows] + work[:, rows] - self.work[rows]
                forced = False
            else:
                at = self.base[rows]
                since = arrived[:, at]
                end = ended[:, self.exchange[at]]
                if self.any_alone:
                    end = np.where(self.alone[at], since + self.length[at], end)
                now = np.where(self.after_end[rows], end, since) + work[:, rows]
            arrived[:, rows] = now
            for line, times in zip(ended, now, strict=True):
                np.maximum.at(line, own, times)
            np.subtract.at(left, own, 1)
            closed = np.unique(own[left[own] == 0])
            ended[:, closed] += transfer[:, closed]
            rows = self._after(np.concatenate((rows, n_rows + closed)))
            rows = rows[~done[rows]]
        whole: list[float] = (ended.max(axis=1) - arrived.min(axis=1)).tolist()
        return whole

    def _after(self, events: Ints) -> Ints:
        """Rows that follow any of the events."""
        low, count = self.heads[events], self.heads[events + 1] - self.heads[events]
        return self.heirs[np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))]


def _model(job: Job, clocks: Clocks) -> _Model:
    rank, exchange = job.rank, job.exchange
    start, end = job.start, job.end
    transfer = transfers_of(job)
    alone = ~(job.of_kind(*SYNCHRONISING, *POINT_TO_POINT) & np.isfinite(transfer))[exchange]
    base, after_end = _bases(job, rank, start, end)
    at = np.maximum(base, 0)
    work = np.maximum(start - np.where(after_end, end[at], start[at]), 0)
    event = np.where(after_end & ~alone[at], rank.size + exchange[at], at)
    has = np.flatnonzero(base >= 0)
    heads = np.zeros(rank.size + transfer.size + 1, np.int64)
    np.cumsum(np.bincount(event[has], minlength=heads.size - 1), out=heads[1:])
    return _Model(
        base=base,
        after_end=after_end,
        work=work.astype(np.float64),
        begin=clocks.true(rank, start),
        exchange=exchange,
        transfer=np.nan_to_num(transfer),
        alone=alone,
        any_alone=bool(alone.any()),
        length=(end - start).astype(np.float64),
        heirs=has[np.argsort(event[has], kind="stable")],
        heads=heads,
    )


def _bases(job: Job, rank: Ints, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """The row that each follows (−1: none), and whether its end.

    What starts at once when another exchange has ended waited for that, though the rank's work did not.
    """
    every = np.ones(rank.size, bool)
    hung, latest = (own_base(start, end, blocks, rank) for blocks in (blocking_of(job), every))
    at = np.maximum(latest, 0) >> 1
    queued = (latest >= 0) & (latest & 1 == 0) & (start - end[at] <= _AT_ONCE_NS)
    base = np.where(queued, latest, hung)
    return np.where(base >= 0, base >> 1, -1), base & 1 == 0
