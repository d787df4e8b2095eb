"""The workers of a run: which worker each file is, its collectives, and the view that compares the workers of a span.

A collective is a host operator of a communication library with the device work that has its id.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import union
from stepscope.core.patterns import regex
from stepscope.exports.tensorboard._events import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, PYTHON
from stepscope.exports.tensorboard._names import LIBRARIES, is_collective, library
from stepscope.exports.tensorboard._order import first_in_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._roles import Overlap, Steps

    Ints = NDArray[np.int64]
    Times = NDArray[Any]


#: The span of a file whose name has no time.
DEFAULT_SPAN = "default"

_PACKED = r"(?:\.(?:gz|zst|xz|bz2|zip))?"
#: The names that `torch.profiler.tensorboard_trace_handler` gives: a worker, perhaps a time, an ending.
_RECORDED = regex(rf"(?P<worker>.+?)(?:\.(?P<time>\d+))?\.pt\.trace\.json{_PACKED}", re.DOTALL)
_ENDING = regex(rf"(?:[._-]trace)?(?:\.json)?{_PACKED}$")


class Worker(msgspec.Struct, frozen=True):
    """A process of a job, and which of its recordings: "1", "2", … by time, or "default"."""

    worker: str
    span: str


class _Names(msgspec.Struct, frozen=True):
    """What a file's worker may be called, the shortest first, and the time in its name."""

    names: tuple[str, ...]
    time: str | None


def workers_of(files: Sequence[tuple[str, int | None]]) -> list[Worker]:
    """Worker and span of each file, given its path and the rank that the trace knows; no two are the same.

    A name `<worker>[.<digits>].pt.trace.json[.gz]` gives both: the digits of one worker's files are sorted as text, and
    the span is a file's place among them, from 1 on. Any other file is called `rank_N` or by its name without the
    ending, and has the span "default". If two names would be the same, the folders above the files distinguish them.

    Source: the plugin's names of files in a run. The plugin uses the last of several files with the same name.
    """
    known = [_names(path, rank) for path, rank in files]
    chosen = [0] * len(known)
    while True:
        workers = [names.names[i] for names, i in zip(known, chosen, strict=True)]
        keys = list(zip(workers, (names.time for names in known), strict=True))
        same = {worker for (worker, _), n in Counter(keys).items() if n > 1}
        longer = [
            min(i + 1, len(names.names) - 1) if worker in same else i
            for names, i, worker in zip(known, chosen, workers, strict=True)
        ]
        if longer == chosen:
            break
        chosen = longer
    times: dict[str, list[str]] = {}
    for worker, time in sorted({key for key in keys if key[1] is not None}):
        times.setdefault(worker, []).append(str(time))
    spans = [DEFAULT_SPAN if t is None else str(times[w].index(t) + 1) for w, t in keys]
    return [Worker(w, s) for w, s in zip(_numbered(keys), spans, strict=True)]


def by_span(workers: Iterable[Worker]) -> dict[str, list[int]]:
    """Places of the workers of each span, in order of the workers' names; spans in order of theirs, as text."""
    places: dict[str, list[int]] = {}
    for place, worker in sorted(enumerate(workers), key=lambda item: (item[1].span, item[1].worker)):
        places.setdefault(worker.span, []).append(place)
    return places


def _names(path: str, rank: int | None) -> _Names:
    *folders, base = re.split(r"[/\\]", path)
    recorded = _RECORDED.fullmatch(base)
    name = recorded["worker"] if recorded else _ENDING.sub("", base) or base
    longer = ["/".join((*folders[len(folders) - n :], name)) for n in range(len(folders) + 1)]
    by_rank = [f"rank_{rank}"] if rank is not None and recorded is None else []
    return _Names((*by_rank, *longer), recorded["time"] if recorded else None)


def _numbered(keys: list[tuple[str, str | None]]) -> list[str]:
    """Workers' names. If a file is given twice, the second name says so."""
    counts: Counter[tuple[str, str | None]] = Counter()
    names = []
    for key in keys:
        counts[key] += 1
        names.append(key[0] if counts[key] == 1 else f"{key[0]} ({counts[key]})")
    return names


#: Libraries whose device work has the id of the host operator, and the kinds of work that count.
_ON_DEVICE = {"nccl": (KERNEL,), "cncl": (KERNEL, MEMCPY)}
#: Bytes of an element of the types that the plugin knows. All other types have size 0.
_ELEMENT_BYTES = {"long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2, "unsigned char": 1}


class Collectives(msgspec.Struct, frozen=True):
    """Collectives of one worker by time: start, then longest. Times in µs.

    `row` is the span of the host operator, `external` its id, `name` indexes `names`, `step` the steps (−1: in none).
    The intervals of collective i are `first[i] : first[i + 1]` of `range_start` and `range_end`: the host operator's
    own and those of its device work, by time. `libraries` are all that the trace has. If there are several, there is no
    distributed view.
    """

    row: Ints
    external: Ints
    name: Ints
    names: list[str]
    start: Times
    end: Times
    step: Ints
    n_bytes: Ints
    first: Ints
    range_start: Times
    range_end: Times
    libraries: tuple[str, ...]


def find_collectives(events: Events, steps: Steps) -> Collectives:
    """The collectives of a trace. Units: µs, bytes.

    There is one per external id: a later operator with the same id replaces the earlier one. Bytes are the number of
    elements times the size of one, summed over all inputs with recorded shapes and a known type.
    """
    host = events.rows(OPERATOR, ANNOTATION, PYTHON)
    host = host[events.where(is_collective, host)]
    used = {library(events.names[i]) for i in distinct_values(events.name[host]).tolist()}
    libraries = tuple(name for name in LIBRARIES if name in used)
    ids, first_place = np.unique(events.external[host], return_index=True)
    last = host.size - 1 - np.unique(events.external[host][::-1], return_index=True)[1]
    row = host[last]
    order = np.lexsort((first_place, -events.end[row], events.ts[row]))
    row = row[order]
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    work = events.rows(*(kind for name in libraries for kind in _ON_DEVICE.get(name, ())))
    work = work[np.isin(events.external[work], ids)]
    owner = np.concatenate((np.arange(row.size), place[np.searchsorted(ids, events.external[work])]))
    part = np.concatenate((row, work))
    by_time = np.lexsort((-events.end[part], events.ts[part], owner))
    part = part[by_time]
    codes, name = np.unique(events.name[row], return_inverse=True)
    return Collectives(
        row=row,
        external=events.external[row],
        name=name.astype(np.int64),
        names=[events.names[i] for i in codes.tolist()],
        start=events.ts[row],
        end=events.end[row],
        step=_steps_of(events.ts[row], events.end[row], steps),
        n_bytes=_bytes(events, row),
        first=np.searchsorted(owner[by_time], np.arange(row.size + 1)),
        range_start=events.ts[part],
        range_end=events.end[part],
        libraries=libraries,
    )


def _steps_of(start: Times, end: Times, steps: Steps) -> Ints:
    """The step that wholly holds each collective, −1 for none. Once one starts after a step, that step is done."""
    step_of = np.full(start.size, -1, np.int64)
    at = 0
    for i, (low, high) in enumerate(zip(steps.start.tolist(), steps.end.tolist(), strict=True)):
        stop = max(at, int(np.searchsorted(start, high)))
        if stop < start.size and start[stop] == end[stop] == high >= low:  # an empty one, at the step's end
            stop = int(np.searchsorted(start, high, side="right"))
        step_of[at:stop] = np.where((start[at:stop] >= low) & (end[at:stop] <= high), i, -1)
        at = stop
    return step_of


def _bytes(events: Events, row: Ints) -> Ints:
    keys = ["input_shapes", "input_types"]
    ops = events.trace.ops.select("span_id", *keys)
    rows = pl.DataFrame({"span_id": row.astype(np.uint32)})
    called = rows.join(ops, on="span_id", how="left", maintain_order="left").select(keys)
    sorts = called.unique(maintain_order=True)
    sizes = sorts.with_columns(n_bytes=pl.Series([_size(*sort) for sort in sorts.iter_rows()], dtype=pl.Int64()))
    joined = called.join(sizes, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined["n_bytes"].to_numpy()


def _size(shapes: str | None, types: str | None) -> int:
    # The plugin fails if types are not recorded or an input is a list of tensors. Here their size is 0 for unknown.
    inputs = zip(_listed(shapes), _listed(types), strict=False)
    return sum(
        math.prod(shape) * _ELEMENT_BYTES.get(str(kind), 0)
        for shape, kind in inputs
        if isinstance(shape, list) and all(isinstance(n, int) for n in shape)
    )


def _listed(text: str | None) -> list[Any]:
    try:
        items = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return items if isinstance(items, list) else []


_NODE_AND_PROCESS = regex(r"(.*)_(\d+)")
_OPS_COLUMNS = (
    "Calls", "Total Size (bytes)", "Avg Size (bytes)", "Total Latency (us)", "Avg Latency (us)",
    "Data Transfer Time (us)", "Avg Data Transfer Time (us)",
)  # fmt: skip
_GIB = 1 << 30


class Part(msgspec.Struct, frozen=True):
    """One worker's part of a distributed run. It is small, because it holds no events.

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
    """Process ids of recorded kernels, copies and fills: the numbers of their devices. Text ids are left out."""
    tracks = events.trace.tracks
    used = distinct_values(events.trace.spans["track_id"].to_numpy()[events.rows(KERNEL, MEMCPY, MEMSET)])
    return sorted(set(tracks.filter(tracks["track_id"].is_in(used.tolist()))["pid"].drop_nulls().to_list()))


def distributed(parts: Iterable[Part]) -> dict[str, Any] | None:
    """The view of all workers of one span; None where it does not exist.

    It exists if each worker has collectives of one library, and all workers have the same number of them with the same
    numbers of intervals. The k-th collectives of all workers count as one. In each interval, data moves at the end, for
    as long as the shortest interval of all workers. The time before that is waiting for other workers.

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
        if match := _NODE_AND_PROCESS.match(part.worker):
            node, process = match.groups()
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
        # Steps of the same name are one. Collectives in no step are one more group, whose name is null in the plugin's
        # JSON.
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
        collectives = part.collectives
        calls, size = np.bincount(collectives.name).tolist(), np.zeros(len(collectives.names), np.int64)
        np.add.at(size, collectives.name, collectives.n_bytes)
        rows: list[list[Any]] = []
        for name, latency, transfer in _merged(collectives, collectives.name, moving):
            row = [collectives.names[name], calls[name]]
            for value in (int(size[name]), latency, transfer):
                row += [value, round(value / calls[name])]
            rows.append(row)
        data[part.worker] = {"columns": [dict(c) for c in columns], "rows": rows}
    return {"metadata": {"title": "Communication Operations Stats"}, "data": dict(sorted(data.items()))}


def _merged(collectives: Collectives, group: Ints, moving: Times) -> list[tuple[int, float, float]]:
    """Groups of collectives in order of the first: group, µs of their intervals, µs of the parts that move data."""
    number, firsts = first_in_groups(group)
    of_range = np.repeat(number, np.diff(collectives.first))
    order = np.argsort(of_range, kind="stable")
    start, end, length = collectives.range_start[order], collectives.range_end[order], moving[order]
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
