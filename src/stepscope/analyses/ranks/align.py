"""Which call of one rank is which of another's, where they made different numbers of them and no number tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_SLACK = 3  # calls by which recordings may begin earlier or later besides the difference of their numbers
_ROUNDS = 4
_TRIED = (0.5, 0.25, 0.75, 0.0, 1.0)


def realigned(family: Ints, rank: Ints, order: Ints, ends: Ints, sizes: Ints, *, anchored: Flags, fixed: Flags) -> Ints:
    """The order of each call among those of its family, put right where ranks have different numbers of calls.

    Rows are calls, sorted by rank and time; a family are the calls that may match each other. Of families that nothing
    anchors in time (no step) also those with equal numbers are looked at: recordings may begin at different calls.
    `fixed` families stay as they are. Times are those of each rank's own clock: what is compared are their differences.
    """
    found = order.copy()
    doubtful = _doubtful(family, rank, anchored, fixed)
    rows = np.flatnonzero(doubtful[family])
    rows = rows[np.argsort(family[rows], kind="stable")]
    for own in np.split(rows, np.flatnonzero(np.diff(family[rows])) + 1) if rows.size else ():
        found[own] = _aligned(rank[own], ends[own].astype(np.float64), sizes[own])
    return found


def _doubtful(family: Ints, rank: Ints, anchored: Flags, fixed: Flags) -> Flags:
    n_families = int(family.max()) + 1
    code = family * (int(rank.max()) + 1) + rank
    order = np.argsort(code, kind="stable")
    heads = np.flatnonzero(np.concatenate(([True], np.diff(code[order]) != 0)))
    n_calls = np.diff(np.append(heads, code.size))
    of = family[order[heads]]
    least, most = np.full(n_families, np.iinfo(np.int64).max), np.zeros(n_families, np.int64)
    np.minimum.at(least, of, n_calls)
    np.maximum.at(most, of, n_calls)
    several = np.bincount(of, minlength=n_families) > 1
    loose = np.zeros(n_families, bool)
    loose[family[~anchored]] = True
    stays = np.zeros(n_families, bool)
    stays[family[fixed]] = True
    doubtful: Flags = several & ~stays & ((least != most) | (loose & (most > 1)))
    return doubtful


def _aligned(rank: Ints, ends: NDArray[np.float64], sizes: Ints) -> Ints:
    """The order of calls of one family, as places on the timeline of the rank that made most."""
    names, counts = np.unique(rank, return_counts=True)
    reference = int(names[np.argmax(counts)])
    base = np.flatnonzero(rank == reference)
    found = np.empty(rank.size, np.int64)
    extra = base.size
    for name in names.tolist():
        own = np.flatnonzero(rank == name)
        if name == reference:
            found[own] = np.arange(own.size)
            continue
        place = _matched(ends[base], sizes[base], ends[own], sizes[own])
        lone = np.flatnonzero(place < 0)
        place[lone] = extra + np.arange(lone.size)
        extra += lone.size
        found[own] = place
    return found


def _matched(base: NDArray[np.float64], base_sizes: Ints, own: NDArray[np.float64], own_sizes: Ints) -> Ints:
    """For each of a rank's calls the one of the reference that is the same; −1 for none.

    Tried are offsets at which the reference began some calls earlier or later; the one with which most calls find a
    counterpart of their size near by is refined. Of several calls for one counterpart the nearest stays.
    """
    reach = abs(base.size - own.size) + _SLACK
    least = float(np.median(np.diff(base))) / 2 if base.size > 1 else 1.0
    best, offset = np.inf, 0.0
    for shift in sorted(range(-reach, reach + 1), key=abs):
        i = np.arange(max(0, -shift), min(own.size, base.size - shift))
        if i.size < max(1, min(own.size, base.size) // 2):
            continue
        # Differences as they are: where a call is missing, some of them are right and a middle of them is not.
        for tried in np.quantile(own[i] - base[i + shift], _TRIED, method="nearest").tolist():
            place, far = _nearest(base, own - tried)
            far = np.where(own_sizes == base_sizes[place], np.minimum(far, least), least)
            if float(far.mean()) < best:
                best, offset = float(far.mean()), tried
    for _ in range(_ROUNDS):
        place, far = _nearest(base, own - offset)
        order = np.lexsort((far, place))
        keeps = np.concatenate(([True], np.diff(place[order]) != 0))
        place[order[~keeps]] = -1
        kept = place >= 0
        again = float(np.median(own[kept] - base[place[kept]]))
        if again == offset:
            break
        offset = again
    return place


def _nearest(base: NDArray[np.float64], at: NDArray[np.float64]) -> tuple[Ints, NDArray[np.float64]]:
    """The place of the nearest of `base`, which is sorted, and how far it is."""
    right = np.minimum(np.searchsorted(base, at), base.size - 1)
    left = np.maximum(right - 1, 0)
    place = np.where(np.abs(base[left] - at) <= np.abs(base[right] - at), left, right)
    return place, np.abs(base[place] - at)
