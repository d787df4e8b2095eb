"""How late each rank is by its own doing, per collective and against ranks that do the same work.

What counts is the time from a rank's previous collective to its arrival at the next, on its own clock. So a rank that
others delayed is not late, nor is one whose clock is off. Lateness is summed up in blocks of time.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.analyses.ranks.calls import own_base
from stepscope.analyses.ranks.grouped_medians import Floats, dense, numbered, occurrence, segments
from stepscope.analyses.ranks.matching import Job, ints
from stepscope.analyses.ranks.parallel_groups import Roles
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Ints

_MOST = 128
_WITHOUT_STEPS = 40
_LEAST_STEPS = 8


class Lateness(msgspec.Struct, frozen=True):
    """Per call of a job, in the order of its rows; times in ns, NaN for unknown.

    `base` is the row of the call that its work follows (−1: none), and `after_end` whether it follows its end or its
    start; `work` is the time since; `peers` the number of the set of calls of other ranks that it is compared with (−1:
    none); `excess` by how much its work took longer than their median, or for a rank's first collective how much less
    it waited there.
    """

    base: Ints
    after_end: NDArray[np.bool_]
    work: Floats
    peers: Ints
    excess: Floats


def transfers_of(job: Job) -> Floats:
    """Per collective how long it took once all ranks had arrived: its shortest duration on any rank; NaN for one rank.

    The last rank to arrive waits for nobody, so its duration is that of the transfer, whatever its clock.
    """
    length = (job.end - job.start).astype(np.float64)
    shortest = -job.by_collective.largest(-length)
    shortest[job.collectives["n_ranks"].to_numpy() < 2] = np.nan
    return shortest


def lateness_of(job: Job, roles: Roles) -> Lateness:
    """How late each rank arrived at each collective by its own doing.

    A call is compared with those of ranks of the same role at the same place of the same step: same class of group,
    kind and number. If no other rank has its role, it is compared with the other ranks of the collective. All are
    measured from the same previous event, that of most of them.
    """
    rank, collective = job.rank, job.collective
    start, end = job.start, job.end
    peers = _peers(job, roles, rank, collective)
    row_base = own_base(start, end, blocking_of(job), rank)
    base, after_end = _common_base(rank, peers, row_base)
    known = base >= 0
    at = np.maximum(base, 0)
    work = np.where(known, start - np.where(after_end, end[at], start[at]), np.nan)
    compared = segments(np.where(np.isnan(work), -1, peers))
    excess = work - compared.leave_one_out_median(work)
    _first(job, rank, collective, (end - start).astype(np.float64), known, excess)
    return Lateness(base, after_end, work, peers, excess)


def _first(job: Job, rank: Ints, collective: Ints, length: Floats, known: NDArray[np.bool_], excess: Floats) -> None:
    """Fill in the excess of each rank's first collective, before which nothing is recorded: how much less it waited.

    Only if it is in the range of the rank's other values: profilers start at different times, which is no lateness.
    """
    first = np.flatnonzero(np.concatenate(([True], np.diff(rank) != 0)))
    first = first[~known[first] & job.of_kind(*SYNCHRONISING)[collective[first]]]
    waited_less = -(length - job.by_collective.leave_one_out_median(length))[first]
    far = np.zeros(len(job.ranks))
    known_excess = np.isfinite(excess)
    np.maximum.at(far, rank[known_excess], np.abs(excess[known_excess]))
    like = np.abs(waited_less) <= far[rank[first]]
    excess[first[like]] = waited_less[like]


def blocking_of(job: Job) -> NDArray[np.bool_]:
    """Per call whether most ranks wait for its collective before they go on."""
    collective = job.collective
    blocks = job.calls["blocks"].fill_null(value=True).to_numpy()
    waiting = np.bincount(collective, blocks, minlength=job.collectives.height)
    blocking: NDArray[np.bool_] = (2 * waiting >= np.bincount(collective, minlength=job.collectives.height))[collective]
    return blocking


def _peers(job: Job, roles: Roles, rank: Ints, collective: Ints) -> Ints:
    kind, role = job.kind, roles.of_rank
    step, group = (ints(job.collectives[c]) for c in ("step", "group"))
    between = job.of_kind(*POINT_TO_POINT)
    number = occurrence(numbered(group, kind, step))[collective]
    # Each rank counts its own messages, in each direction of the pipeline.
    own = np.array(job.ranks)[rank]
    src, dst = job.ints("src"), job.ints("dst")
    sends = dst >= 0
    far = np.where(sends, dst, src)
    way = np.where(between[collective] & (far >= 0), 1 + 2 * (far > own) + sends, 0)
    row_kind = kind[collective]
    if between.any():
        row_kind = np.where(between[collective], ints(job.calls["kind"].to_physical()), row_kind)
        counted = occurrence(numbered(rank, group[collective], row_kind, way, step[collective]))
        number = np.where(between[collective], counted, number)
    classes = roles.of_group[group[collective]]
    # Several groups of a rank may have one role; then calls at the same place cannot be compared.
    of_role = numbered(role[rank], classes, row_kind, way, step[collective], number)
    lonely = np.bincount(role)[role] < 2
    whole = job.of_kind(*SYNCHRONISING)[collective]
    peers = np.where(lonely[rank], np.where(whole, of_role.max(initial=0) + 1 + collective, -1), of_role)
    doubtful = occurrence(numbered(peers, rank)) > 0
    peers[doubtful] = -1
    return peers


def _common_base(rank: Ints, peers: Ints, row_base: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """For each row the row that it is measured from (−1: none), and whether from that row's end.

    That is its own base, with two exceptions. If most peers are measured from the end of a call and this one from its
    start, or the reverse, it follows the majority. If its trace lacks the call that most are measured from, its work is
    unknown.
    """
    base = np.where(row_base >= 0, row_base >> 1, -1)
    after_end = row_base & 1 == 0
    of_base = peers[np.maximum(base, 0)]
    known = (base >= 0) & (peers >= 0) & (of_base >= 0)
    rows = np.flatnonzero(known)
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
    differs = np.flatnonzero((base >= 0) & (peers >= 0) & (wanted >= 0) & (~known | (wanted != same)))
    twin = differs[(wanted[differs] >> 1) == of_base[differs]]
    after_end[twin] = ~after_end[twin]
    other = np.setdiff1d(differs, twin, assume_unique=True)
    if other.size:
        keys = np.sort(rank * (width + 1) + peers + 1)
        look = rank[other] * (width + 1) + (wanted[other] >> 1) + 1
        place = np.minimum(np.searchsorted(keys, look), keys.size - 1)
        base[other[keys[place] != look]] = -1
    return base, after_end


class Blocks(msgspec.Struct, frozen=True):
    """The block of each collective, and their number. `steps` are the steps' numbers, if blocks are steps."""

    of_collective: Ints
    n: int
    steps: Ints | None

    def sums(self, series: Ints, values: Floats, blocks: Ints, n_series: int) -> Floats:
        """Values summed by series and block; NaN if there are none."""
        known = np.isfinite(values)
        cell = series[known] * self.n + blocks[known]
        total = np.bincount(cell, values[known], minlength=n_series * self.n)
        count = np.bincount(cell, minlength=n_series * self.n)
        return np.where(count > 0, total, np.nan).reshape(n_series, self.n)


def blocks_of(job: Job) -> Blocks:
    """Blocks of time: steps, or several steps each if there are many; else parts with equal numbers of collectives.

    The collectives of each group are counted separately, so that a block has the same ones of all groups.
    """
    step = job.collectives["step"]
    numbers = distinct_values(step.drop_nulls().to_numpy()).astype(np.int64)
    if step.null_count() == 0 and numbers.size >= _LEAST_STEPS:
        n = min(numbers.size, _MOST)
        place = np.searchsorted(numbers, step.to_numpy())
        return Blocks(place * n // numbers.size, n, numbers if n == numbers.size else None)
    group = dense(job.collectives["group"].to_numpy().astype(np.int64))
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    place = np.empty(group.size, np.int64)
    place[order] = np.arange(group.size) - np.repeat(np.cumsum(counts) - counts, counts)
    n = min(_WITHOUT_STEPS, int(counts.max()))
    return Blocks(place * n // counts[group], n, None)
