"""The plugin's distributed view: what the workers of one span did at the same time, collective by collective."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.intervals import union
from stepscope.exports.tensorboard._events import KERNEL, MEMCPY, MEMSET
from stepscope.exports.tensorboard._order import first_in_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._communication import Collectives
    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._roles import Overlap
    from stepscope.exports.tensorboard._steps import Steps

    Ints = NDArray[np.int64]
    Times = NDArray[Any]

_NODE_AND_PROCESS = re.compile(r"(.*)_(\d+)")
_OPS_COLUMNS = (
    "Calls", "Total Size (bytes)", "Avg Size (bytes)", "Total Latency (us)", "Avg Latency (us)",
    "Data Transfer Time (us)", "Avg Data Transfer Time (us)",
)  # fmt: skip
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's part in a distributed run. Small: it holds no events.

    `devices` are the recorded process ids of its device work, `properties` what the trace says of the devices, by that
    number. `noun` is the word for a device, as in GPU.
    """

    worker: str
    collectives: Collectives
    steps: Steps
    costs: Overlap
    devices: list[int]
    properties: list[dict[str, Any]]
    noun: str


def used_devices(events: Events) -> list[int]:
    """Process ids under which kernels, copies and fills are recorded: the numbers of their devices. Text has none."""
    tracks = events.trace.tracks
    used = np.unique(events.trace.spans["track_id"].to_numpy()[events.rows(KERNEL, MEMCPY, MEMSET)])
    return sorted(set(tracks.filter(tracks["track_id"].is_in(used.tolist()))["pid"].drop_nulls().to_list()))


def distributed(parts: Iterable[Part]) -> dict[str, Any] | None:
    """The view of all workers of one span; None where it does not exist.

    It exists if each worker has collectives, of one library, and as many as the others, each with as many intervals.
    The k-th collective of each worker is held to be the same one. Of each interval the part in which data moves is as
    long as the shortest of all workers, at the end; what comes before is waiting for the others.

    Units: µs, bytes.
    Source: the plugin; sums are of merged intervals, so that what runs at the same time counts once.
    """
    workers = list(parts)
    if not workers or not all(p.collectives.row.size and len(p.collectives.libraries) == 1 for p in workers):
        return None
    first = workers[0].collectives.first
    if not all(np.array_equal(p.collectives.first, first) for p in workers):
        return None
    moving = np.min([p.collectives.range_end - p.collectives.range_start for p in workers], axis=0)
    return {
        "gpu_info": _device_info(workers),
        "steps_to_overlap": _overlap(workers),
        "steps_to_wait": _wait(workers, moving),
        "comm_ops": _operations(workers, moving),
    }


def device_info(properties: list[dict[str, Any]], device: int) -> dict[str, Any] | None:
    """Name, memory and compute capability of a device, as far as recorded; None for one that is not described."""
    if not 0 <= device < len(properties):
        return None
    recorded = properties[device]
    info: dict[str, Any] = {}
    if recorded.get("name") is not None:
        info["Name"] = recorded["name"]
    memory, mebibytes = recorded.get("totalGlobalMem"), recorded.get("totalMem(MiB)")
    if memory is not None:
        info |= {"Memory": f"{round(float(memory) / _GIB, 2)} GB", "Memory Raw": memory}
    elif mebibytes is not None:
        info |= {"Memory": f"{round(float(mebibytes) / 1024, 2)} GB", "Memory Raw": mebibytes}
    major, minor = recorded.get("computeMajor"), recorded.get("computeMinor")
    if major is not None and minor is not None:
        info["Compute Capability"] = f"{major}.{minor}"
    return info


def _device_info(workers: list[Part]) -> dict[str, Any] | None:
    nodes: dict[str, dict[str, Any]] = {}
    unnumbered = 0
    for part in sorted(workers, key=lambda p: p.worker):
        if not part.properties:
            continue
        if found := _NODE_AND_PROCESS.match(part.worker):
            node, process = found.groups()
        else:
            node, process = part.worker, str(unnumbered)
            unnumbered += 1
        described = {f"{part.noun}{n}": device_info(part.properties, n) for n in part.devices}
        nodes.setdefault(node, {})[f"Process {process}"] = {k: v for k, v in described.items() if v is not None}
    if not nodes:
        return None
    data = {node: dict(sorted(processes.items())) for node, processes in nodes.items()}
    return {"metadata": {"title": "Device Information"}, "data": data}


def _overlap(workers: list[Part]) -> dict[str, Any]:
    data: dict[str, dict[str, Sequence[float]]] = {"all": {}}
    for part in workers:
        both = part.costs.overlap
        legs = part.costs.computation - both, both, part.costs.communication - both, part.costs.other
        rows = [list(row) for row in zip(*(values.tolist() for values in legs), strict=True)]
        for step, row in zip(part.steps.names, rows, strict=True):
            data.setdefault(step, {})[part.worker] = row
        data["all"][part.worker] = _means(rows, 4)
    legends = ["Computation", "Overlapping", "Communication", "Other"]
    return _chart("Computation/Communication Overview", legends, data)


def _wait(workers: list[Part], moving: Times) -> dict[str, Any]:
    data: dict[str, dict[str, Sequence[float]]] = {"all": {}}
    for part in workers:
        # Steps of the same name are one. What lies in no step is one more, whose name the plugin's JSON writes as null.
        names = [*part.steps.names, "null"]
        code = {name: i for i, name in reversed(list(enumerate(names)))}
        same = np.array([code[name] for name in names], np.int64)
        rows = []
        for step, latency, transfer in _merged(part.collectives, same[part.collectives.step], moving):
            rows.append([transfer, latency - transfer])
            data.setdefault(names[step], {})[part.worker] = rows[-1]
        data["all"][part.worker] = _means(rows, 2)
    return _chart("Synchronizing/Communication Overview", ["Data Transfer Time", "Synchronizing Time"], data)


def _operations(workers: list[Part], moving: Times) -> dict[str, Any]:
    columns = [{"type": "string", "name": "Name"}, *({"type": "number", "name": name} for name in _OPS_COLUMNS)]
    data = {}
    for part in workers:
        found = part.collectives
        calls, size = np.bincount(found.name).tolist(), np.zeros(len(found.names), np.int64)
        np.add.at(size, found.name, found.n_bytes)
        rows: list[list[Any]] = []
        for name, latency, transfer in _merged(found, found.name, moving):
            row = [found.names[name], calls[name]]
            for value in (int(size[name]), latency, transfer):
                row += [value, round(value / calls[name])]
            rows.append(row)
        data[part.worker] = {"columns": [dict(c) for c in columns], "rows": rows}
    return {"metadata": {"title": "Communication Operations Stats"}, "data": dict(sorted(data.items()))}


def _merged(found: Collectives, group: Ints, moving: Times) -> list[tuple[int, float, float]]:
    """Groups of collectives in order of the first: group, µs of their intervals, µs of the parts that move data."""
    number, firsts = first_in_groups(group)
    of_range = np.repeat(number, np.diff(found.first))
    order = np.argsort(of_range, kind="stable")
    start, end, length = found.range_start[order], found.range_end[order], moving[order]
    cuts = np.searchsorted(of_range[order], np.arange(firsts.size + 1)).tolist()
    rows = []
    for name, (lo, hi) in zip(group[firsts].tolist(), pairwise(cuts), strict=True):
        last = end[lo:hi]
        rows.append((name, _length(union(start[lo:hi], last)), _length(union(last - length[lo:hi], last))))
    return rows


def _length(merged: tuple[Times, Times]) -> float:
    length: float = (merged[1] - merged[0]).sum().item()
    return length


def _means(rows: list[list[float]], width: int) -> list[int]:
    """Means of columns, cut to whole numbers."""
    return [int(v / max(1, len(rows))) for v in np.cumsum([[0] * width, *rows], axis=0)[-1].tolist()]


def _chart(title: str, legends: list[str], data: dict[str, dict[str, Sequence[float]]]) -> dict[str, Any]:
    return {
        "metadata": {"title": title, "legends": legends, "units": "us"},
        "data": {step: dict(sorted(of_workers.items())) for step, of_workers in data.items()},
    }
