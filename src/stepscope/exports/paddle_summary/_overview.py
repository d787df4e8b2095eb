"""Paddle's Device, Overview, Model and Distribution Summary: how busy processors were, and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.core.intervals import intersection, total, union
from stepscope.exports.paddle_summary._text import FIVE, Sheet, calls_width, items, ratio, time, times, times_width
from stepscope.exports.paddle_summary._tree import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._text import TimeUnit
    from stepscope.exports.paddle_summary._tree import Events, Tree

    Ints = NDArray[np.int64]

    from stepscope.core.intervals import Intervals
    from stepscope.exports.paddle_summary._text import Item


_DEVICE_NOTE = """\
Note:
CPU(Process) Utilization = Current process CPU time over all cpu cores / elapsed time, so max utilization can be \
reached 100% * number of cpu cores.
CPU(System) Utilization = All processes CPU time over all cpu cores(busy time) / (busy time + idle time).
GPU Utilization = Current process GPU time / elapsed time."""
_NOTE = """\
Note:
In this table, We sum up all collected events in terms of event type.
The time of events collected on host are presented as CPU Time, and as GPU Time if on device.
Events with different types may overlap or inclusion, e.g. Operator includes OperatorInner, so the sum of ratios is \
not 100%.
The time of events in the same type with overlap will not calculate twice, and all time is summed after merged.
Example:
Thread 1:
  Operator: |___________|     |__________|
Thread 2:
  Operator:   |____________|     |___|
After merged:
  Result:   |______________|  |__________|
"""


def device_summary(tree: Tree, facts: Mapping[str, str]) -> str:
    """Share of the steps' time in which each processor was busy. A device is busy while a kernel runs."""
    sheet = Sheet((30, 20))
    sheet.title("Device Summary")
    sheet.head("Device", "Utilization (%)")
    for label, key in (("CPU(Process)", "Process Cpu Utilization"), ("CPU(System)", "System Cpu Utilization")):
        sheet.row(label, _fact(facts.get(key, "")))
    rows = _below_hosts(tree)
    is_kernel = tree.device.type.where("Kernel")
    for device in dict.fromkeys(tree.device_of[rows].tolist()):
        mine = np.flatnonzero(is_kernel & (tree.device_of == device) & (tree.device.node >= 0))
        sheet.row(f"GPU{device}", ratio(_merged(tree.device, mine), tree.steps_ns))
    sheet.rule()
    sheet.note(_DEVICE_NOTE)
    return sheet.done()


def overview_summary(tree: Tree, unit: TimeUnit) -> str:
    """Time and calls of each type of event, on the host and on the device; empty if nothing was recorded."""
    host = [*_host_rows(tree)]
    if not host:
        return ""
    sheet = Sheet((25, 25, 25, 25))
    sheet.title("Overview Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Event Type", "Calls", "CPU Time", "Ratio (%)")
    host.sort(key=lambda row: row[2], reverse=True)
    for indent, (word, calls, ns) in zip(["", *["  "] * len(host)], host, strict=False):
        sheet.row(indent + word, str(calls), time(ns, unit), ratio(ns, tree.steps_ns))
    sheet.head("", "Calls", "GPU Time", "Ratio (%)")
    for word, calls, ns in _device_rows(tree):
        sheet.row("  " + word, str(calls), time(ns, unit), ratio(ns, tree.steps_ns))
    sheet.rule()
    sheet.note(_NOTE)
    return sheet.done()


def _fact(text: str) -> str:
    try:
        return ratio(float(text), 1)
    except ValueError:
        return "-"


def _below_hosts(tree: Tree) -> Ints:
    """Device events under some host event, in the order in which Paddle meets them."""
    return tree.device_order(np.flatnonzero(tree.device.node >= 0))


def _merged(events: Events, rows: Ints) -> int:
    return total(union(events.start[rows], events.end[rows]))


def _host_rows(tree: Tree) -> Iterator[tuple[str, int, int]]:
    """Type, calls and time of host events, in the order in which their types are first met."""
    in_host = np.flatnonzero(tree.calls.node >= 0)
    ranks = (
        np.concatenate((2 * tree.visit, 2 * tree.visit[tree.calls.node[in_host]] + 1)) if len(tree.host) else tree.visit
    )
    codes = np.concatenate((tree.host.type.codes, tree.calls.type.codes[in_host]))[np.argsort(ranks, kind="stable")]
    model = phases(tree)
    talk = communication(tree)
    for code in dict.fromkeys(codes.tolist()):
        word = tree.host.type.texts[code]
        of_host = np.flatnonzero(tree.host.type.codes == code)
        of_calls = in_host[tree.calls.type.codes[in_host] == code]
        if word == "Communication":
            continue
        if word in PHASES and word in model:
            yield word, model[word].calls, model[word].cpu.total
            continue
        starts = np.concatenate((tree.host.start[of_host], tree.calls.start[of_calls]))
        ends = np.concatenate((tree.host.end[of_host], tree.calls.end[of_calls]))
        yield word, starts.size, total(union(starts, ends))
    if talk.n_host:
        yield "Communication", talk.n_host, total(talk.host)


def _device_rows(tree: Tree) -> Iterator[tuple[str, int, int]]:
    """Type, calls and time of device events, all devices together, in the order in which they are first met."""
    rows = _below_hosts(tree)
    pairs = dict.fromkeys(zip(tree.device_of[rows].tolist(), tree.device.type.codes[rows].tolist(), strict=True))
    devices = dict.fromkeys(device for device, _ in pairs)
    for code in dict.fromkeys(code for device in devices for of, code in pairs if of == device):
        mine = rows[tree.device.type.codes[rows] == code]
        yield tree.device.type.texts[code], mine.size, _merged(tree.device, mine)
    talk = communication(tree)
    if talk.n_device:
        yield "Communication", talk.n_device, total(talk.device)


STEP = "ProfileStep"
_ORDER = (STEP, "Dataloader", "Forward", "Backward", "Optimization")
_MODEL_NOTE = """\
Note:
In this table, GPU time is the sum of all device(GPU) events called in the phase.
Unlike overview summary, if two device(GPU) events execute on different streams with overlap time, we sum them \
directly here.
"""
_DISTRIBUTION_NOTE = """\
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


class Communication(msgspec.Struct, frozen=True):
    """When ranks communicated, on host and device, and when other work was computed. Counts are of distinct times."""

    host: Intervals
    device: Intervals
    computation: Intervals
    n_host: int
    n_device: int


def phases(tree: Tree) -> Mapping[str, Item]:
    """Steps and the outermost phases of the model by type; device time is that of kernels alone."""
    rows = np.flatnonzero(tree.host.type.where(STEP, *PHASES) & tree.outermost)
    phase_items = items(tree.host.type.codes[rows], tree.host.type.texts, tree.host.dur[rows], tree.kernels_ns[rows])
    return {item.name: item for item in phase_items}


def model_summary(tree: Tree, unit: TimeUnit) -> str:
    """Steps, and how they divide into phases; empty unless there is more than one row to show."""
    by_phase = phases(tree)
    if len(by_phase) <= 1:
        return ""
    shown = [by_phase[name] for name in _ORDER if name in by_phase]
    device_ns = by_phase[STEP].gpu.total if STEP in by_phase else 0
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
    """What Paddle calls communication: its own type of event, some operators by name, kernels below them or of NCCL."""
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
    sheet.note(_DISTRIBUTION_NOTE)
    return sheet.done()


def _distinct(starts: Ints, ends: Ints) -> int:
    return len(set(zip(starts.tolist(), ends.tolist(), strict=True)))
