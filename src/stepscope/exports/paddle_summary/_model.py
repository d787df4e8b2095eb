"""Paddle's Model Summary (the phases of a step) and Distribution Summary (communication beside computation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.intervals import intersection, total, union
from stepscope.exports.paddle_summary._items import items
from stepscope.exports.paddle_summary._text import FIVE, Sheet, calls_width, ratio, time, times, times_width
from stepscope.exports.paddle_summary._tree import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.core.intervals import Intervals
    from stepscope.exports.paddle_summary._text import Item, TimeUnit
    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]

STEP = "ProfileStep"
_ORDER = (STEP, "Dataloader", "Forward", "Backward", "Optimization")
_MODEL_NOTE = """\
Note:
In this table, GPU time is the sum of all device(GPU) events called in the phase.
Unlike overview summary, if two device(GPU) events execute on different streams with overlap time, we sum them \
directly here.
"""
_NOTE = """\
Note:
Communication time: Communication Event time, Communication Op time and its kernel time on gpu.
Computation time: Kernel time, except kernels belong to communication(nccl kernels).
Overlap time: Communication time intersects with computation time.
Example:
Communication:
  CPU:              |_________________|
  GPU:                                  |______________|
  Total:            |_________________| |______________|
Computation time(Kernel):
  GPU:         |________________|
Overlap time:       |___________|
"""


@dataclass(frozen=True, slots=True)
class Communication:
    """When ranks talked, on host and device, and when something else was computed. Counts are of distinct times."""

    host: Intervals
    device: Intervals
    computation: Intervals
    n_host: int
    n_device: int


def phases(tree: Tree) -> Mapping[str, Item]:
    """Steps and the outermost phases of the model by type; device time is that of kernels alone."""
    rows = np.flatnonzero(tree.host.type.where(STEP, *PHASES) & tree.outermost)
    found = items(tree.host.type.codes[rows], tree.host.type.texts, tree.host.dur[rows], tree.kernels_ns[rows])
    return {item.name: item for item in found}


def model_summary(tree: Tree, unit: TimeUnit) -> str:
    """Steps, and how they divide into phases; empty unless there is more than one row to show."""
    found = phases(tree)
    if len(found) <= 1:
        return ""
    shown = [found[name] for name in _ORDER if name in found]
    device_ns = found[STEP].gpu.total if STEP in found else 0
    rows: list[tuple[str, ...]] = []
    for item in shown:
        cpu, gpu = times(item.cpu, item.calls, tree.steps_ns, unit), times(item.gpu, item.calls, device_ns, unit)
        rows.append((item.name if item.name == STEP else f"  {item.name}", str(item.calls), cpu, gpu))
    parts = [item for item in shown if item.name != STEP]
    rest = (tree.steps_ns - sum(i.cpu.total for i in parts), device_ns - sum(i.gpu.total for i in parts))
    cells = [
        f"{time(ns, unit)} / - / - / - / {ratio(ns, whole)}"
        for ns, whole in zip(rest, (tree.steps_ns, device_ns), strict=True)
    ]
    rows.append(("  Others", "-", *cells))
    sheet = Sheet((15, calls_width(shown), times_width(row[2] for row in rows), times_width(row[3] for row in rows)))
    sheet.title("Model Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"CPU {FIVE}", f"GPU {FIVE}")
    for row in rows:
        sheet.row(*row)
    sheet.rule()
    sheet.note(_MODEL_NOTE)
    return sheet.done()


def communication(tree: Tree) -> Communication:
    """Paddle's view of communication: its own type of event, some operators by name, kernels below them or of NCCL."""
    host, device = tree.host, tree.device
    talks = host.type.where("Communication")
    talks |= host.type.where("Operator") & host.name.containing("allreduce", "broadcast", "rpc")
    below = talks.copy()
    for level in tree.levels[1:]:
        below[level] |= below[host.node[level]]
    of_kernel = np.flatnonzero(device.type.where("Kernel") & (device.node >= 0))
    node = device.node[of_kernel]
    named = device.name.containing("nccl", "xccl")[of_kernel]
    sent = of_kernel[(below[node] | named) if len(host) else named]
    computed = of_kernel[~talks[node] & ~named if len(host) else ~named]
    return Communication(
        union(host.start[talks], host.end[talks]),
        union(device.start[sent], device.end[sent]),
        union(device.start[computed], device.end[computed]),
        _distinct(host.start[talks], host.end[talks]),
        _distinct(device.start[sent], device.end[sent]),
    )


def distribution_summary(tree: Tree, unit: TimeUnit) -> str:
    """Communication, computation and their overlap; empty if no communication was recorded."""
    talk = communication(tree)
    if not talk.n_host + talk.n_device:
        return ""
    talking = union(*(np.concatenate(both) for both in zip(talk.host, talk.device, strict=True)))
    rows = {
        STEP: tree.steps_ns,
        "  Communication": total(talking),
        "  Computation": total(talk.computation),
        "  Overlap": total(intersection(talking, talk.computation)),
    }
    sheet = Sheet((25, 25, 25))
    sheet.title("Distribution Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Total Time", "Ratio (%)")
    for name, ns in rows.items():
        sheet.row(name, time(ns, unit), ratio(ns, tree.steps_ns))
    sheet.rule()
    sheet.note(_NOTE)
    return sheet.done()


def _distinct(starts: Ints, ends: Ints) -> int:
    return len(set(zip(starts.tolist(), ends.tolist(), strict=True)))
