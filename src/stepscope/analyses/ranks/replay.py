"""A replay of the job: how long it would take if a rank were not late, or a link not slow.

Each rank's work between collectives and each collective's transfer stay as recorded; arrivals and ends follow from
them. So a change saves only what remains once the next-slowest ranks set the pace. The method is that of the what-if
analysis of stragglers by Lin et al. (OSDI 2025), on the recorded collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.analyses.ranks.calls import own_base
from stepscope.analyses.ranks.grouped_medians import Floats
from stepscope.analyses.ranks.lateness import blocking_of, transfers_of
from stepscope.analyses.ranks.matching import Job
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Bools, Ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.ranks.clocks import Clocks


_TOGETHER = 4  # changes that are replayed at once
_AT_ONCE_NS = 20_000


class Change(msgspec.Struct, frozen=True):
    """What is shortened: the work of these rows of calls, and the transfer of these collectives; in ns."""

    rows: Ints
    work_ns: Floats
    collectives: Ints
    transfer_ns: Floats

    def also(self, other: Change) -> Change:
        """This change and another one."""
        fields = ("rows", "work_ns", "collectives", "transfer_ns")
        return Change(*(np.concatenate((getattr(self, f), getattr(other, f))) for f in fields))


def job_times(job: Job, clocks: Clocks, changes: Sequence[Change]) -> tuple[float, list[float]]:
    """How long the job takes from its first arrival to its last end, replayed as it is and with each change.

    Units: ns. Ranks whose clocks cannot be compared start at the times that their clocks show.
    """
    model = _model(job, clocks)
    times: list[float] = []
    for first in range(0, max(len(changes), 1), _TOGETHER):
        whole, *changed = model.run(changes[first : first + _TOGETHER])
        times = [whole, *times[1:], *changed]
    return times[0], times[1:]


class _Model(msgspec.Struct, frozen=True):
    """A job as events: an arrival depends on one earlier event, the end of a collective on all its arrivals.

    `heirs` and `heads` list the rows that follow each event: event i is the arrival of row i, event n_rows + k the end
    of collective k. Rows that are `unshared` wait for no other rank.
    """

    base: Ints
    after_end: Bools
    work: Floats
    begin: Floats
    collective: Ints
    transfer: Floats
    unshared: Bools
    any_unshared: bool
    length: Floats
    heirs: Ints
    heads: Ints

    def run(self, changes: Sequence[Change]) -> list[float]:
        """The time of the job as it is, then with each of the changes.

        It goes round by round: all arrivals whose base is known, then the ends of collectives at which all have
        arrived. If traces contradict each other and no event is ready, the earliest of the rest happens as recorded.
        """
        n_rows, n_collectives, n = self.work.size, self.transfer.size, len(changes) + 1
        work, transfer = (np.repeat(v[None, :], n, axis=0) for v in (self.work, self.transfer))
        for i, change in enumerate(changes, 1):
            np.subtract.at(work[i], change.rows, change.work_ns)
            np.subtract.at(transfer[i], change.collectives, change.transfer_ns)
        transfer = np.maximum(transfer, 0.0)
        arrived, ended = np.empty_like(work), np.full((n, n_collectives), -np.inf)
        left = np.bincount(self.collective, minlength=n_collectives)
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
            own = self.collective[rows]
            if forced:
                now = self.begin[rows] + work[:, rows] - self.work[rows]
                forced = False
            else:
                at = self.base[rows]
                since = arrived[:, at]
                end = ended[:, self.collective[at]]
                if self.any_unshared:
                    end = np.where(self.unshared[at], since + self.length[at], end)
                now = np.where(self.after_end[rows], end, since) + work[:, rows]
            arrived[:, rows] = now
            for line, times in zip(ended, now, strict=True):
                np.maximum.at(line, own, times)
            np.subtract.at(left, own, 1)
            closed = distinct_values(own[left[own] == 0])
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
    rank, collective = job.rank, job.collective
    start, end = job.start, job.end
    transfer = transfers_of(job)
    unshared = ~(job.of_kind(*SYNCHRONISING, *POINT_TO_POINT) & np.isfinite(transfer))[collective]
    base, after_end = _bases(job, rank, start, end)
    at = np.maximum(base, 0)
    work = np.maximum(start - np.where(after_end, end[at], start[at]), 0)
    event = np.where(after_end & ~unshared[at], rank.size + collective[at], at)
    has = np.flatnonzero(base >= 0)
    heads = np.zeros(rank.size + transfer.size + 1, np.int64)
    np.cumsum(np.bincount(event[has], minlength=heads.size - 1), out=heads[1:])
    return _Model(
        base=base,
        after_end=after_end,
        work=work.astype(np.float64),
        begin=clocks.true(rank, start),
        collective=collective,
        transfer=np.nan_to_num(transfer),
        unshared=unshared,
        any_unshared=bool(unshared.any()),
        length=(end - start).astype(np.float64),
        heirs=has[np.argsort(event[has], kind="stable")],
        heads=heads,
    )


def _bases(job: Job, rank: Ints, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """The row that each row follows (−1: none), and whether it follows its end.

    A collective that starts right when another one ends waited for it, even if the rank's work did not.
    """
    every = np.ones(rank.size, bool)
    hung, latest = (own_base(start, end, blocks, rank) for blocks in (blocking_of(job), every))
    at = np.maximum(latest, 0) >> 1
    queued = (latest >= 0) & (latest & 1 == 0) & (start - end[at] <= _AT_ONCE_NS)
    base = np.where(queued, latest, hung)
    return np.where(base >= 0, base >> 1, -1), base & 1 == 0
