"""Links that are slow: groups whose exchanges take longer than the same ones of other groups, once all have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analyses.ranks.grouped_medians import Floats, numbered, occurrence, segments
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import Job, ints
from stepscope.analyses.ranks.outliers import Found, stand_out
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.intervals import Ints

if TYPE_CHECKING:
    from stepscope.analyses.ranks.lateness import Blocks
    from stepscope.analyses.ranks.parallel_groups import Roles

_LEAST_SERIES = 3
#: Slower than the others by so much of their time, where there are too few to know how far apart healthy ones are.
_CLEARLY_SLOWER = 0.25


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Exchanges that are slow: of which ranks (indices), for which one rank or pair is to blame, and by how much each.

    `rank` is the index of the rank whose links all are slow, or of one end of the only one; `peer` the other end. Both
    are null where the ranks of a group cannot be told apart.
    """

    rank: int | None
    peer: int | None
    groups: Ints
    found: Found
    exchanges: Ints
    excess: Floats


def slow_links(job: Job, roles: Roles, blocks: Blocks) -> list[SlowLink]:
    """Groups (or pairs that send to each other) whose transfers are slower than those of the others of their class.

    A rank is named if all of its groups that can be compared are slow, and there are several: its own link is then the
    only one that they share.
    """
    transfer = transfers_of(job)
    kind = job.kind
    group, step, size = (ints(job.exchanges[c]) for c in ("group", "step", "size_bytes"))
    between = job.of_kind(*POINT_TO_POINT)
    counts = between | job.of_kind(*SYNCHRONISING)
    by_exchange = job.by_exchange
    rank = job.rank
    first = rank[by_exchange.order[by_exchange.starts]]
    last = rank[by_exchange.order[by_exchange.starts + by_exchange.sizes - 1]]
    pair = np.where(between, np.minimum(first, last) * len(job.ranks) + np.maximum(first, last), -1)
    series = numbered(group, pair)
    classes = roles.of_group[group]
    number = occurrence(numbered(series, kind, step))
    counts &= np.isfinite(transfer)
    alike = np.where(counts, numbered(classes, kind, step, number, size), -1)
    compared = segments(alike)
    excess = transfer - compared.median_of_others(transfer)
    known = np.asarray(np.isfinite(excess), np.bool_)
    if not known.any():
        return []
    values = blocks.sums(series, excess, blocks.of_exchange, int(series.max()) + 1)
    role = np.zeros(values.shape[0], np.int64)
    role[series] = numbered(classes, between.astype(np.int64))
    enough = np.bincount(role, np.isfinite(values).any(axis=1)) >= _LEAST_SERIES
    values[~enough[role]] = np.nan
    usual = segments(np.where(known, series, -1))
    slower = np.zeros(values.shape[0])
    names = series[usual.order[usual.starts]]
    slower[names] = usual.sums(np.nan_to_num(excess)) / np.maximum(usual.sums(np.nan_to_num(transfer - excess)), 1.0)
    found = [f for f in stand_out(values, role) if _counts(f, float(slower[f.series]))]
    if not found:
        return []
    of_row = series[job.exchange]
    members = {f.series: np.unique(rank[of_row == f.series]) for f in found}
    # Each rank's series that can be compared, once each.
    held = np.zeros(len(job.ranks), np.int64)
    one = np.unique(rank * values.shape[0] + of_row)
    tested = np.flatnonzero(np.isfinite(values).any(axis=1))
    np.add.at(held, one // values.shape[0], np.isin(one % values.shape[0], tested))
    return _blamed(found, members, held, series, group, excess)


def _counts(found: Found, slower: float) -> bool:
    return slower >= _CLEARLY_SLOWER if np.isnan(found.apart) else found.apart >= 1.0


def _blamed(
    found: list[Found], members: dict[int, Ints], held: Ints, series: Ints, group: Ints, excess: Floats
) -> list[SlowLink]:
    """Slow series put down to single ranks as far as these explain them."""
    left = {f.series: f for f in found}
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
        alone = best if able[best] else None
        rank, peer = (int(ends[0]), int(ends[1])) if ends.size == 2 else (alone, None)
        which = np.flatnonzero(np.isin(series, own) & np.isfinite(excess))
        surest = min((left[name] for name in own), key=lambda f: f.p_value)
        links.append(SlowLink(rank, peer, np.unique(group[which]), surest, which, excess[which]))
        for name in own:
            del left[name]
    return links
