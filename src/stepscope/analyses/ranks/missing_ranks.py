"""Which ranks of a job lack a trace, from those that have one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["missing_of"]


def missing_of(ranks: Iterable[int], world_sizes: Iterable[int | None]) -> tuple[int | None, tuple[int, ...]]:
    """How many ranks the job has, where known, and those that are not among `ranks`.

    `world_sizes` is what traces say of the job's size; most count. Where none says it, gaps in the numbers are missing
    ranks, if they are fewer than the numbers.
    """
    there = set(ranks)
    told = Counter(size for size in world_sizes if size)
    world = told.most_common(1)[0][0] if told else None
    if not there or (world is not None and max(there) >= world):
        return None, ()
    every = range(world) if world is not None else range(min(there), max(there) + 1)
    missing = tuple(rank for rank in every if rank not in there)
    if world is None and len(missing) >= len(there):
        return None, ()
    return world, missing
