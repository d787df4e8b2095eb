"""The plugin's collectives: host operators of a communication library, each with the device work that has its id."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.exports.tensorboard._events import ANNOTATION, KERNEL, MEMCPY, OPERATOR, PYTHON
from stepscope.exports.tensorboard._names import LIBRARIES, is_collective, library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._steps import Steps

    Ints = NDArray[np.int64]
    Times = NDArray[Any]

#: Libraries whose device work carries the id of the host operator, and the kinds of work that counts.
_ON_DEVICE = {"nccl": (KERNEL,), "cncl": (KERNEL, MEMCPY)}
#: Bytes of an element, as far as the plugin knew types. Of all others the size is 0.
_ELEMENT_BYTES = {"long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2, "unsigned char": 1}


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives of one worker by time: start, then longest. Times in µs.

    `row` is the span of the host operator, `external` its id, `name` indexes `names`, `step` the steps (−1: in none).
    The intervals of collective i are `first[i] : first[i + 1]` of `range_start` and `range_end`: the host operator's
    own and those of its device work, by time. `libraries` are all that the trace has; more than one: no distributed
    view.
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

    One per external id: a later operator with the same id replaces the earlier. Bytes are elements × size of one, over
    all inputs with recorded shapes and a known type.
    """
    host = events.rows(OPERATOR, ANNOTATION, PYTHON)
    host = host[events.where(is_collective, host)]
    used = {library(events.names[i]) for i in np.unique(events.name[host]).tolist()}
    libraries = tuple(name for name in LIBRARIES if name in used)
    ids, first_seen = np.unique(events.external[host], return_index=True)
    last = host.size - 1 - np.unique(events.external[host][::-1], return_index=True)[1]
    row = host[last]
    order = np.lexsort((first_seen, -events.end[row], events.ts[row]))
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
    """The step that holds each collective wholly, −1 for none. A step that one starts behind is not asked again."""
    found = np.full(start.size, -1, np.int64)
    at = 0
    for i, (low, high) in enumerate(zip(steps.start.tolist(), steps.end.tolist(), strict=True)):
        stop = max(at, int(np.searchsorted(start, high)))
        if stop < start.size and start[stop] == end[stop] == high >= low:  # lasts no time, where the step ends
            stop = int(np.searchsorted(start, high, side="right"))
        found[at:stop] = np.where((start[at:stop] >= low) & (end[at:stop] <= high), i, -1)
        at = stop
    return found


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
    # Where types are not recorded, or an input is a list of tensors, the plugin fails: here their size is unknown, 0.
    inputs = zip(_listed(shapes), _listed(types), strict=False)
    return sum(
        math.prod(shape) * _ELEMENT_BYTES.get(str(kind), 0)
        for shape, kind in inputs
        if isinstance(shape, list) and all(isinstance(n, int) for n in shape)
    )


def _listed(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
