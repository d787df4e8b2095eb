"""Who is late, by how much of its own making: for each rank and exchange, against ranks that do the same work.

What counts is the time from a rank's previous exchange to its arrival at the next, on its own clock. A rank that others
made late is not late in it, nor is one whose clock is off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.analyses.ranks.calls import own_base
from stepscope.analyses.ranks.grouped_medians import Floats, dense, numbered, occurrence, segments
from stepscope.analyses.ranks.matching import Job, ints
from stepscope.analyses.ranks.parallel_groups import Roles
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Ints

__all__ = ["Lateness", "blocking_of", "lateness_of", "transfers_of"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """For each call of a job, in the order of its rows; times in ns, NaN where unknown.

    `base` is the row of the call that its work follows (−1: none) and `after_end` whether that one's end or its start;
    `work` the time since; `peers` the number of the set of calls that it is compared with (−1: none), each of another
    rank; `excess` how much longer the work took than the median of the others, of a rank's first exchange how much less
    it waited there.
    """

    base: Ints
    after_end: NDArray[np.bool_]
    work: Floats
    peers: Ints
    excess: Floats


def transfers_of(job: Job) -> Floats:
    """For each exchange how long it took once all ranks had come: its shortest duration on any rank; NaN for one rank.

    The last to come waits for nobody, so its duration is that of the transfer, whatever its clock.
    """
    length = (job.end - job.start).astype(np.float64)
    found = -job.by_exchange.largest(-length)
    found[job.exchanges["n_ranks"].to_numpy() < 2] = np.nan
    return found


def lateness_of(job: Job, roles: Roles) -> Lateness:
    """How late each rank came to each exchange by its own doing.

    A call is compared with those of the ranks of the same role that stand at the same place of the same step: same
    class of group, same kind, same number. Where no other rank has its role, with the other ranks of the exchange. All
    are measured from the same thing before it, that of most of them.
    """
    rank, exchange = job.rank, job.exchange
    start, end = job.start, job.end
    peers = _peers(job, roles, rank, exchange)
    row_base = own_base(start, end, blocking_of(job), rank)
    base, after_end = _common_base(rank, peers, row_base)
    known = base >= 0
    at = np.maximum(base, 0)
    work = np.where(known, start - np.where(after_end, end[at], start[at]), np.nan)
    compared = segments(np.where(np.isnan(work), -1, peers))
    excess = work - compared.median_of_others(work)
    _first(job, rank, exchange, (end - start).astype(np.float64), known, excess)
    return Lateness(base, after_end, work, peers, excess)


def _first(job: Job, rank: Ints, exchange: Ints, length: Floats, known: NDArray[np.bool_], excess: Floats) -> None:
    """Fill in the excess of each rank's first exchange, before which nothing is recorded: how much less it waited.

    Only where it is like the rank's others: profilers do not start on all ranks at once, which is nobody's lateness.
    """
    first = np.flatnonzero(np.concatenate(([True], np.diff(rank) != 0)))
    first = first[~known[first] & job.of_kind(*SYNCHRONISING)[exchange[first]]]
    waited_less = -(length - job.by_exchange.median_of_others(length))[first]
    far = np.zeros(len(job.ranks))
    told = np.isfinite(excess)
    np.maximum.at(far, rank[told], np.abs(excess[told]))
    like = np.abs(waited_less) <= far[rank[first]]
    excess[first[like]] = waited_less[like]


def blocking_of(job: Job) -> NDArray[np.bool_]:
    """For each call whether ranks wait for its exchange before they go on, as most of its ranks say."""
    exchange = job.exchange
    blocks = job.calls["blocks"].fill_null(value=True).to_numpy()
    waiting = np.bincount(exchange, blocks, minlength=job.exchanges.height)
    found: NDArray[np.bool_] = (2 * waiting >= np.bincount(exchange, minlength=job.exchanges.height))[exchange]
    return found


def _peers(job: Job, roles: Roles, rank: Ints, exchange: Ints) -> Ints:
    kind, role = job.kind, roles.of_rank
    step, group = (ints(job.exchanges[c]) for c in ("step", "group"))
    between = job.of_kind(*POINT_TO_POINT)
    number = occurrence(numbered(group, kind, step))[exchange]
    # Messages are counted by each rank for itself, those up and those down the line apart.
    own = np.array(job.ranks)[rank]
    src, dst = job.ints("src"), job.ints("dst")
    sends = dst >= 0
    far = np.where(sends, dst, src)
    way = np.where(between[exchange] & (far >= 0), 1 + 2 * (far > own) + sends, 0)
    row_kind = kind[exchange]
    if between.any():
        row_kind = np.where(between[exchange], ints(job.calls["kind"].to_physical()), row_kind)
        counted = occurrence(numbered(rank, group[exchange], row_kind, way, step[exchange]))
        number = np.where(between[exchange], counted, number)
    classes = roles.of_group[group[exchange]]
    # A group may meet several times in a role: then its own number counts, as places do not compare.
    of_role = numbered(role[rank], classes, row_kind, way, step[exchange], number)
    lonely = np.bincount(role)[role] < 2
    whole = job.of_kind(*SYNCHRONISING)[exchange]
    found = np.where(lonely[rank], np.where(whole, of_role.max(initial=0) + 1 + exchange, -1), of_role)
    doubtful = occurrence(numbered(found, rank)) > 0
    found[doubtful] = -1
    return found


def _common_base(rank: Ints, peers: Ints, row_base: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """For each row the row that it is measured from (−1: none), and whether from that one's end.

    That is its own base, with two exceptions. Where most peers are measured from one end of a call and a rank from the
    other end of the same, it follows the most. Where its trace lacks the call that most are measured from, nothing is
    known of its work.
    """
    base = np.where(row_base >= 0, row_base >> 1, -1)
    after_end = row_base & 1 == 0
    of_base = peers[np.maximum(base, 0)]
    told = (base >= 0) & (peers >= 0) & (of_base >= 0)
    rows = np.flatnonzero(told)
    if not rows.size:
        return base, after_end
    width = 2 * (int(peers.max()) + 1)
    same = 2 * of_base + after_end
    codes, count = np.unique(peers[rows] * width + same[rows], return_counts=True)
    owner = codes // width
    order = np.lexsort((-count, owner))
    best = order[np.concatenate(([True], np.diff(owner[order]) != 0))]
    usual = np.full(width // 2, -1, np.int64)
    usual[owner[best]] = codes[best] % width
    wanted = usual[np.maximum(peers, 0)]
    differs = np.flatnonzero((base >= 0) & (peers >= 0) & (wanted >= 0) & (~told | (wanted != same)))
    twin = differs[(wanted[differs] >> 1) == of_base[differs]]
    after_end[twin] = ~after_end[twin]
    other = np.setdiff1d(differs, twin, assume_unique=True)
    if other.size:
        keys = np.sort(rank * (width + 1) + peers + 1)
        look = rank[other] * (width + 1) + (wanted[other] >> 1) + 1
        place = np.minimum(np.searchsorted(keys, look), keys.size - 1)
        base[other[keys[place] != look]] = -1
    return base, after_end


_MOST = 128
_WITHOUT_STEPS = 40
_LEAST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block of each exchange, and how many there are. `steps` are the steps' numbers, if blocks are steps."""

    of_exchange: Ints
    n: int
    steps: Ints | None

    def sums(self, series: Ints, values: Floats, blocks: Ints, n_series: int) -> Floats:
        """Values summed by series and block; NaN where there are none."""
        known = np.isfinite(values)
        cell = series[known] * self.n + blocks[known]
        total = np.bincount(cell, values[known], minlength=n_series * self.n)
        count = np.bincount(cell, minlength=n_series * self.n)
        return np.where(count > 0, total, np.nan).reshape(n_series, self.n)


def blocks_of(job: Job) -> Blocks:
    """Steps, several together where they are many; where they are few or unknown, parts with equally many exchanges.

    For each group the exchanges are counted by themselves, so that a block holds the same ones of all groups.
    """
    step = job.exchanges["step"]
    numbers = np.unique(step.drop_nulls().to_numpy()).astype(np.int64)
    if step.null_count() == 0 and numbers.size >= _LEAST_STEPS:
        n = min(numbers.size, _MOST)
        place = np.searchsorted(numbers, step.to_numpy())
        return Blocks(place * n // numbers.size, n, numbers if n == numbers.size else None)
    group = dense(job.exchanges["group"].to_numpy().astype(np.int64))
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    place = np.empty(group.size, np.int64)
    place[order] = np.arange(group.size) - np.repeat(np.cumsum(counts) - counts, counts)
    n = min(_WITHOUT_STEPS, int(counts.max()))
    return Blocks(place * n // counts[group], n, None)
