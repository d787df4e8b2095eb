"""What each moment of a step was spent on, as the plugin divides it: one role prevails over the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard._events import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, PYTHON, RUNTIME
from stepscope.exports.tensorboard._names import is_collective, is_data_loading
from stepscope.exports.tensorboard._ranges import Ranges, amounts, intersected, merged, subtracted, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._steps import Steps

    Ints = NDArray[np.int64]
    Times = NDArray[Any]

#: Roles in order of priority, as the view calls them. What none of them covers is "Other".
ROLES = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec")
OTHER = "Other"


@dataclass(frozen=True, slots=True)
class Flags:
    """Whether there is any such work, be it outside of all steps. Kernels of collectives are communication."""

    has_runtime: bool
    has_kernel: bool
    has_communication: bool
    has_memcpy_or_memset: bool

    @property
    def has_device(self) -> bool:
        """Whether an accelerator was used."""
        return self.has_runtime or self.has_kernel or self.has_memcpy_or_memset


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Time of each role, and in all, in each step. Units: µs, whole if the trace's are."""

    parts: dict[str, list[float]]
    total: list[float]

    def mean(self, role: str | None = None) -> float:
        """Mean over the steps of a role, or of the whole step."""
        values = self.total if role is None else self.parts[role]
        return summed(np.array(values, np.float64)) / len(values)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Per step: kernels (host work where there are none), communication, both at once, neither. Units: µs."""

    computation: Times
    communication: Times
    overlap: Times
    other: Times


def find_roles(events: Events) -> dict[str, Ranges]:
    """When each role's work ran, whatever else ran then; merged. Units: µs.

    A kernel with the external id of a collective's host operator is communication, on MLU so is a copy. As in the
    plugin, to have no id is an id.
    """
    host = events.rows(OPERATOR, PYTHON, ANNOTATION)
    collective, loading = events.where(is_collective, host), events.where(is_data_loading, host)
    loading &= events.kind[host] != PYTHON
    kernels, copies = events.rows(KERNEL), events.rows(MEMCPY)
    moving = [host[collective]]
    ids = events.external[host[collective]]
    if ids.size:
        of_collective = np.isin(events.external[kernels], ids)
        moving.append(kernels[of_collective])
        kernels = kernels[~of_collective]
    if ids.size and events.dialect.is_mlu:
        of_collective = np.isin(events.external[copies], ids)
        moving.append(copies[of_collective])
        copies = copies[~of_collective]
    rows = (
        kernels, copies, events.rows(MEMSET), np.concatenate(moving), events.rows(RUNTIME), host[loading],
        host[~collective & ~loading],
    )  # fmt: skip
    return {role: merged(events.ts[r], events.end[r]) for role, r in zip(ROLES, rows, strict=True)}


def flags_of(roles: dict[str, Ranges]) -> Flags:
    """What kinds of work there are."""
    has = {role: bool(ranges[0].size) for role, ranges in roles.items()}
    return Flags(has["Runtime"], has["Kernel"], has["Communication"], has["Memcpy"] or has["Memset"])


def step_costs(roles: dict[str, Ranges], steps: Steps) -> StepCosts:
    """How long each role prevailed in each step.

    Units: µs.
    Source: the plugin, with its defect: once roles have claimed all time of all steps, the next role starts anew, as
    if none had been claimed, so that the parts of a step may exceed it.
    """
    prevailing: dict[str, Ranges] = {}
    free: Ranges = (steps.start[:0], steps.end[:0])
    for role, ranges in roles.items():
        if free[0].size:
            prevailing[role] = intersected(free, ranges)
        else:
            prevailing[role] = ranges
            free = merged(steps.start, steps.end)
        free = subtracted(free, prevailing[role])
    prevailing[OTHER] = free
    windows = steps.start, steps.end
    parts = {role: amounts(ranges, windows) for role, ranges in prevailing.items()}
    return StepCosts(parts, (steps.end - steps.start).tolist())


def overlap_costs(roles: dict[str, Ranges], steps: Steps) -> Overlap:
    """How far communication and computation overlapped in each step; time may count in both. Units: µs."""
    computing = roles["Kernel"] if roles["Kernel"][0].size else roles["CPU Exec"]
    moving = roles["Communication"]
    windows = steps.start, steps.end
    both, computation, communication = (
        np.array(amounts(ranges, windows)) for ranges in (intersected(computing, moving), computing, moving)
    )
    other = steps.end - steps.start + both - computation - communication
    return Overlap(computation, communication, both, other)
