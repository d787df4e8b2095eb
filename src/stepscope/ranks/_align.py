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


def realigned(
    family: Ints, rank: Ints, order: Ints, ends: Ints, sizes: Ints, *, anchored: Flags, fixed: Flags
) -> Ints:
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
    return several & ~stays & ((least != most) | (loose & (most > 1)))


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
    """For each of a rank's calls the one of the reference that is the same; −1 for none."""
    shift = _shift(base, base_sizes, own, own_sizes)
    i = np.arange(max(0, -shift), min(own.size, base.size - shift))
    offset = float(np.median(own[i] - base[i + shift]))
    place = i + shift
    if own.size == base.size and shift == 0:
        return place
    for _ in range(_ROUNDS):
        # Each call goes to the nearest in time; of several for one the nearest stays.
        at = own - offset
        right = np.clip(np.searchsorted(base, at), 1, max(base.size - 1, 1))
        left = right - 1
        right = np.minimum(right, base.size - 1)
        place = np.where(np.abs(base[left] - at) <= np.abs(base[right] - at), left, right)
        far = np.abs(base[place] - at)
        order = np.lexsort((far, place))
        keeps = np.concatenate(([True], np.diff(place[order]) != 0))
        place[order[~keeps]] = -1
        kept = place >= 0
        again = float(np.median(own[kept] - base[place[kept]]))
        if again == offset:
            break
        offset = again
    return place


def _shift(base: NDArray[np.float64], base_sizes: Ints, own: NDArray[np.float64], own_sizes: Ints) -> int:
    """By how many calls the reference began earlier: that for which differences of ends vary least."""
    reach = abs(base.size - own.size) + _SLACK
    best, best_score = 0, np.inf
    for shift in sorted(range(-reach, reach + 1), key=abs):
        i = np.arange(max(0, -shift), min(own.size, base.size - shift))
        if i.size < max(1, min(own.size, base.size) // 2):
            continue
        apart = own[i] - base[i + shift]
        unlike = float((own_sizes[i] != base_sizes[i + shift]).mean())
        score = (float(np.median(np.abs(apart - np.median(apart)))) + 1.0) * (1.0 + 10.0 * unlike)
        if score < best_score:
            best, best_score = shift, score
    return best
