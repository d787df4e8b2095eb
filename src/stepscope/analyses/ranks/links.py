"""Slow links: groups whose transfers take longer than those of similar groups, once all ranks have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.analyses.ranks.grouped_medians import Floats, numbered, occurrence, segments
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import Job, ints
from stepscope.analyses.ranks.outliers import Outlier, stand_out
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Ints

if TYPE_CHECKING:
    from stepscope.analyses.ranks.lateness import Blocks
    from stepscope.analyses.ranks.parallel_groups import Roles

_LEAST_SERIES = 3
#: If there are too few series to know how healthy ones differ, a slow one takes at least this much longer.
_CLEARLY_SLOWER = 0.25


class SlowLink(msgspec.Struct, frozen=True):
    """Slow collectives of one link: the rank or pair to blame, and by how much each collective is slower, in ns.

    `rank` is the index of the rank whose links are all slow, or of one end of a link between two; `peer` is the other
    end. Both are None if the ranks of a group cannot be distinguished.
    """

    rank: int | None
    peer: int | None
    groups: Ints
    outlier: Outlier
    collectives: Ints
    excess: Floats


def slow_links(job: Job, roles: Roles, blocks: Blocks) -> list[SlowLink]:
    """Groups, or pairs that send to each other, whose transfers are slower than those of others of their class.

    A rank is named if all of its comparable groups are slow and there are several, as its own link is all that they
    share.
    """
    transfer = transfers_of(job)
    kind = job.kind
    group, step, size = (ints(job.collectives[c]) for c in ("group", "step", "size_bytes"))
    between = job.of_kind(*POINT_TO_POINT)
    counts = between | job.of_kind(*SYNCHRONISING)
    by_collective = job.by_collective
    rank = job.rank
    first = rank[by_collective.order[by_collective.starts]]
    last = rank[by_collective.order[by_collective.starts + by_collective.sizes - 1]]
    pair = np.where(between, np.minimum(first, last) * len(job.ranks) + np.maximum(first, last), -1)
    series = numbered(group, pair)
    classes = roles.of_group[group]
    number = occurrence(numbered(series, kind, step))
    counts &= np.isfinite(transfer)
    alike = np.where(counts, numbered(classes, kind, step, number, size), -1)
    compared = segments(alike)
    excess = transfer - compared.leave_one_out_median(transfer)
    known = np.asarray(np.isfinite(excess), np.bool_)
    if not known.any():
        return []
    values = blocks.sums(series, excess, blocks.of_collective, int(series.max()) + 1)
    role = np.zeros(values.shape[0], np.int64)
    role[series] = numbered(classes, between.astype(np.int64))
    enough = np.bincount(role, np.isfinite(values).any(axis=1)) >= _LEAST_SERIES
    values[~enough[role]] = np.nan
    usual = segments(np.where(known, series, -1))
    slower = np.zeros(values.shape[0])
    names = series[usual.order[usual.starts]]
    slower[names] = usual.sums(np.nan_to_num(excess)) / np.maximum(usual.sums(np.nan_to_num(transfer - excess)), 1.0)
    slow = [f for f in stand_out(values, role) if _counts(f, float(slower[f.series]))]
    if not slow:
        return []
    of_row = series[job.collective]
    members = {f.series: distinct_values(rank[of_row == f.series]) for f in slow}
    # The number of comparable series of each rank.
    held = np.zeros(len(job.ranks), np.int64)
    one = distinct_values(rank * values.shape[0] + of_row)
    tested = np.flatnonzero(np.isfinite(values).any(axis=1))
    np.add.at(held, one // values.shape[0], np.isin(one % values.shape[0], tested))
    return _blamed(slow, members, held, series, group, excess)


def _counts(outlier: Outlier, slower: float) -> bool:
    return slower >= _CLEARLY_SLOWER if np.isnan(outlier.apart) else outlier.apart >= 1.0


def _blamed(
    slow: list[Outlier], members: dict[int, Ints], held: Ints, series: Ints, group: Ints, excess: Floats
) -> list[SlowLink]:
    """Slow series, attributed to single ranks where one explains several."""
    left = {f.series: f for f in slow}
    links = []
    while left:
        hits = np.zeros(held.size, np.int64)
        for name in left:
            hits[members[name]] += 1
        able = (hits == held) & (hits > 1)
        best = int(np.argmax(np.where(able, hits, 0)))
        if able[best]:
            own = [name for name in left if best in members[name]]
            ends = members[own[0]][:0]
        else:
            own = [next(iter(left))]
            ends = members[own[0]]
        by_itself = best if able[best] else None
        rank, peer = (int(ends[0]), int(ends[1])) if ends.size == 2 else (by_itself, None)
        which = np.flatnonzero(np.isin(series, own) & np.isfinite(excess))
        surest = min((left[name] for name in own), key=lambda f: f.p_value)
        links.append(SlowLink(rank, peer, distinct_values(group[which]), surest, which, excess[which]))
        for name in own:
            del left[name]
    return links
