"""Groups many processes by what they do, and compares each group with the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.effects import effects
from stepscope.comparison.model import Pair
from stepscope.core.arrays import distinct_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.model import Observation

    Floats = NDArray[np.float64]


#: Processes are alike if their time by function differs by less than this share of a cycle: healthy ranks of one job
#: differ by some percent in waiting alone.
ALIKE = 0.1
#: Or by less than this many times the difference between the halves of one process, if that is more.
_TIMES_OWN_NOISE = 2.0


class Role(msgspec.Struct, frozen=True):
    """Processes that do the same. `apart` is EFFECTS of this group against the largest one, and empty for that one."""

    members: tuple[Observation, ...]
    apart: pl.DataFrame

    @property
    def step_ns(self) -> float:
        """Mean duration of their cycles, in ns."""
        return float(np.mean([run.complete_cycles["dur_ns"].to_numpy().mean() for run in self.members]))


def roles(processes: Sequence[Observation]) -> tuple[Role, ...]:
    """Groups of processes that spend a cycle alike, the largest first, each with its differences from the largest.

    Groups are complete-linkage clusters: no two members differ by more than `ALIKE`, or twice the noise of the noisier.
    """
    groups = _clusters(processes)
    groups.sort(key=lambda group: (-len(group), group[0]))
    largest = tuple(processes[i] for i in groups[0])

    def role(k: int, group: list[int]) -> Role:
        members = tuple(processes[i] for i in group)
        pairs = [Pair(f"group {k}", largest, members, "likeness")] if k > 1 else []
        return Role(members, effects(pairs))

    return tuple(role(k, group) for k, group in enumerate(groups, 1))


def distances(processes: Sequence[Observation]) -> tuple[Floats, Floats]:
    """Share of a cycle that each two processes spend differently, 0..2, and the noise of each process.

    The noise is the same measure between the odd and even cycles of one process.
    """
    columns = [_profile(run) for run in processes]
    halves = [_profile(run, parity) for run in processes for parity in (0, 1)]
    wide = _aligned([*columns, *halves])
    n = len(processes)
    scale = np.array([run.complete_cycles["dur_ns"].to_numpy().mean() for run in processes])
    apart = np.zeros((n, n))
    for i in range(n):
        each = np.abs(wide[:, :n] - wide[:, i : i + 1]).sum(axis=0)
        apart[i] = each / np.maximum(scale, scale[i])
    own: Floats = np.abs(wide[:, n::2] - wide[:, n + 1 :: 2]).sum(axis=0) / scale
    return apart, own


def _clusters(processes: Sequence[Observation]) -> list[list[int]]:
    if len(processes) < 2:
        return [[i] for i in range(len(processes))]
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    apart, noise = distances(processes)
    noisier = np.maximum(noise[:, None], noise[None, :])
    relative = apart / np.maximum(ALIKE, _TIMES_OWN_NOISE * noisier)
    tree = linkage(squareform(relative, checks=False), method="complete")
    labels = fcluster(tree, t=1.0, criterion="distance")
    return [np.flatnonzero(labels == label).tolist() for label in distinct_values(labels)]


def _profile(run: Observation, parity: int | None = None) -> pl.DataFrame:
    """Own time per cycle of each function on each device."""
    cycles = run.complete_cycles
    if parity is not None and cycles.height > 1:
        cycles = cycles.filter(pl.col("at") % 2 == parity)
    rows = run.functions.join(cycles.select("cycle"), on="cycle", how="semi")
    own = pl.coalesce("self_ns", "total_ns").sum() / max(cycles.height, 1)
    return rows.group_by(pl.col("device", "name").cast(pl.String)).agg(own.alias("ns"))


def _aligned(profiles: Sequence[pl.DataFrame]) -> Floats:
    """A row per function, a column per profile."""
    tall = pl.concat([frame.with_columns(column=pl.lit(i)) for i, frame in enumerate(profiles)], how="vertical")
    keys = tall.select("device", "name").unique(maintain_order=True).with_row_index("row")
    tall = tall.join(keys, on=["device", "name"], how="left")
    wide = np.zeros((keys.height, len(profiles)))
    wide[tall["row"].to_numpy(), tall["column"].to_numpy()] = tall["ns"].to_numpy()
    return wide
