"""Which ranks do the same work, so that their times can be compared, and which groups play the same part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analyses.ranks.grouped_medians import numbered
from stepscope.analyses.ranks.groups import stride_of
from stepscope.analyses.ranks.parallel_groups import PARALLELISMS, parallelism_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.analyses.ranks.matching import Job

    Ints = NDArray[np.int64]

__all__ = ["Roles", "roles_of"]

#: Groups with a smaller part of a rank's calls say nothing of what it does in the job.
_MINOR = 0.05


@dataclass(frozen=True, slots=True)
class Roles:
    """For each rank and each group (indices) a number, the same for those that play the same part."""

    of_rank: Ints
    of_group: Ints


def roles_of(job: Job) -> Roles:
    """What part each rank and group plays.

    Groups of one parallelism, size and regular layout play the same part. Ranks do if they take part in such groups
    alike, and stand at the same place in their pipeline: its stages do different work.
    """
    labels = [label for label, _ in parallelism_of(job)]
    size = np.array([group.size for group in job.groups])
    stride = np.array([stride_of(group.ranks) or 0 for group in job.groups])
    of_group = numbered(np.array([PARALLELISMS.index(name) for name in labels]), size, stride)
    n_groups = len(job.groups)
    counts = np.bincount(job.rank * n_groups + job.ints("group"), minlength=len(job.ranks) * n_groups)
    counts = counts.reshape(len(job.ranks), n_groups)
    major = counts >= np.maximum(_MINOR * counts.sum(axis=1, keepdims=True), 1)
    at = {number: i for i, number in enumerate(job.ranks)}
    stages: dict[tuple[int, int], int] = {}
    for g, group in enumerate(job.groups):
        if labels[g] == "PP":
            stages |= {(at[number], g): place for place, number in enumerate(group.ranks) if number in at}
    known: dict[tuple[tuple[int, int], ...], int] = {}
    of_rank = np.empty(len(job.ranks), np.int64)
    for i in range(len(job.ranks)):
        key = {(int(of_group[g]), stages.get((i, g), 0)) for g in np.flatnonzero(major[i]).tolist()}
        of_rank[i] = known.setdefault(tuple(sorted(key)), len(known))
    return Roles(of_rank, of_group)
