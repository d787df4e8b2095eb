"""The process groups of a job, put together from what each rank knows of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from stepscope.analyses.ranks.calls import Comm, RankCalls

    Key = tuple[object, ...]

__all__ = ["Group", "groups_of", "listed", "stride_of"]

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: `present` are those of its ranks whose traces are at hand, `members` all, where known.

    `size` counts all members, also those without a trace; it is the number of those present where no trace tells.
    """

    name: str
    description: str | None
    size: int
    members: tuple[int, ...] | None
    present: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks as far as they are known."""
        return self.members if self.members is not None else self.present


def groups_of(parts: Sequence[RankCalls], ranks: Sequence[int]) -> tuple[tuple[Group, ...], list[NDArray[np.int64]]]:
    """The groups of all ranks, and for each rank the group's index for each of its `comms`. `ranks` are their numbers.

    Two ranks mean the same group if its name and its members agree, as far as they are recorded. A group without a name
    is that of all ranks if it has as many; if smaller, it follows from each rank's place in it: a regular layout, as
    contiguous blocks or with a stride, in which all places are right. Without that, ranks are not matched.
    """
    strides = _strides(parts, ranks)
    keys: dict[Key, list[tuple[int, Comm]]] = {}
    for rank, part in zip(ranks, parts, strict=True):
        for comm in part.comms:
            keys.setdefault(_key(comm, rank, len(parts), strides), []).append((rank, comm))
    number = {key: i for i, key in enumerate(keys)}
    groups = tuple(_group(found) for found in keys.values())
    at = [
        np.array([number[_key(comm, rank, len(parts), strides)] for comm in part.comms], np.int64)
        for rank, part in zip(ranks, parts, strict=True)
    ]
    return groups, at


def stride_of(ranks: Sequence[int]) -> int | None:
    """The step between neighbours if it is always the same: 1 for contiguous ranks; None otherwise, or for one rank.

    >>> stride_of((0, 8, 16, 24)), stride_of((4, 5, 6)), stride_of((0, 1, 4))
    (8, 1, None)
    """
    steps = set(np.diff(ranks).tolist())
    return steps.pop() if len(steps) == 1 else None


def listed(ranks: Iterable[int]) -> str:
    """Ranks in few words.

    >>> listed(range(8)), listed((0, 8, 16, 24)), listed((1, 5, 6)), listed((3,))
    ('0–7', '0–24 by 8', '1, 5, 6', '3')
    """
    found = sorted(ranks)
    stride = stride_of(found)
    if stride is not None and len(found) > 2:
        return f"{found[0]}–{found[-1]}" + (f" by {stride}" if stride != 1 else "")
    shown = ", ".join(map(str, found[:_SHOWN]))
    return shown if len(found) <= _SHOWN else f"{shown} … ({len(found)} ranks)"


def _key(comm: Comm, rank: int, n_ranks: int, strides: dict[tuple[int, int], int | None]) -> Key:
    if comm.members is not None:
        return comm.name or "", comm.members
    if comm.name is not None:
        return comm.name, comm.size
    if comm.size is None or comm.size >= n_ranks:
        return "", "all", comm.ordinal
    stride = strides.get((comm.size, comm.ordinal))
    if stride is None:
        return "", "alone", rank, comm.ordinal
    return "", comm.size, comm.ordinal, rank // (stride * comm.size), rank % stride


def _strides(parts: Sequence[RankCalls], ranks: Sequence[int]) -> dict[tuple[int, int], int | None]:
    """For nameless groups of one size the stride that explains every rank's place in them; None if there is none."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, part in zip(ranks, parts, strict=True):
        for comm in part.comms:
            if comm.name is None and comm.members is None and comm.size and comm.place is not None:
                places.setdefault((comm.size, comm.ordinal), []).append((rank, comm.place))
    top = max(ranks, default=0) + 1
    return {
        (size, ordinal): next(
            (s for s in range(1, top // size + 1) if all((rank // s) % size == place for rank, place in found)), None
        )
        for (size, ordinal), found in places.items()
    }


def _group(found: Sequence[tuple[int, Comm]]) -> Group:
    comms = [comm for _, comm in found]
    present = tuple(sorted({rank for rank, _ in found}))
    members = next((comm.members for comm in comms if comm.members is not None), None)
    size = next((comm.size for comm in comms if comm.size is not None), None)
    name = next((comm.name for comm in comms if comm.name is not None), None)
    return Group(
        name=name if name is not None else listed(members or present),
        description=next((comm.description for comm in comms if comm.description is not None), None),
        size=max(size or 0, len(members or present)),
        members=members,
        present=present,
    )
