"""A recording as Paddle's own statistics see it: a tree of host events for each thread, with device events below it.

Paddle goes through each thread's tree depth first, taking the last child first, and through the threads in the order
of their ids. It lists what it meets first, and its sorts are stable, so `visit` records that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import total, union
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

#: One of these inside another one is not counted; see `Tree.outermost`.
PHASES = ("Forward", "Dataloader", "Backward", "Optimization")


class CodedTexts(msgspec.Struct, frozen=True, eq=False):
    """Recurring texts, each with a number."""

    codes: Ints
    texts: list[str]

    @classmethod
    def of(cls, column: pl.Series) -> CodedTexts:
        """The texts of a column; null is empty."""
        distinct, codes = np.unique(column.to_physical().fill_null(2**32 - 1).to_numpy(), return_inverse=True)
        first = np.zeros(distinct.size, np.int64)
        first[codes[::-1]] = np.arange(codes.size)[::-1]
        return cls(codes.astype(np.int64), [t or "" for t in column.gather(first).cast(pl.String).to_list()])

    def where(self, *wanted: str) -> Flags:
        """Which rows are one of these."""
        return np.array([text in wanted for text in self.texts] or [False], np.bool_)[self.codes]

    def containing(self, *parts: str) -> Flags:
        """Which rows contain one of these, whatever the case."""
        matches = [any(part in text.lower() for part in parts) for text in self.texts]
        return np.array(matches or [False], np.bool_)[self.codes]


class Events(msgspec.Struct, frozen=True, eq=False):
    """Events of one kind. `node` is the host event above each (for host events their parent), −1 the root."""

    start: Ints
    dur: Ints
    type: CodedTexts
    name: CodedTexts
    node: Ints
    thread: Ints
    span: Ints

    @property
    def end(self) -> Ints:
        """When each ended."""
        return self.start + self.dur

    def __len__(self) -> int:
        return int(self.start.size)


class Tree(msgspec.Struct, frozen=True, eq=False):
    """All events of a recording, in order of thread and time, with sums over the events below each host event.

    `visit` ranks host events in the order in which Paddle meets them. `kernels_ns` and `device_ns` are the summed
    durations of kernels, and of all device events, launched anywhere below each. `steps_ns` is the time in which any
    step was open. Times in ns.
    """

    host: Events
    calls: Events
    device: Events
    device_of: Ints  # of device events: the device's index
    visit: Ints
    outermost: Flags  # no phase of the model is around it
    kernels_ns: Ints
    device_ns: Ints
    steps_ns: int
    levels: list[Ints]  # rows of host events by depth, each level sorted by parent
    thread_ids: list[int | None]

    def device_order(self, rows: Ints) -> Ints:
        """These rows of `device` in the order in which Paddle meets them."""
        node = self.device.node[rows]
        visit = np.where(node >= 0, self.visit[node], -1) if len(self.host) else node
        return rows[np.lexsort((np.arange(rows.size), visit, self.device.thread[rows]))]


def tree_of(trace: Trace) -> Tree:
    """The tree of a Paddle trace. Raises StepscopeError for a trace that Paddle did not record."""
    if trace.meta.framework != "PaddlePaddle":
        msg = f"{trace.meta.path} was not recorded by Paddle, and the summary needs Paddle's kinds of events"
        raise StepscopeError(msg, "`stepscope report` describes any trace")
    spans = trace.spans
    is_device = spans["category"].is_in(DEVICE_WORK).to_numpy()
    is_call = (spans["category"] == "runtime").to_numpy()
    host_rows, call_rows = np.flatnonzero(~is_device & ~is_call), np.flatnonzero(is_call)
    place = np.full(spans.height + 1, -1, np.int64)  # host events by span; index −1 gives −1
    place[host_rows] = np.arange(host_rows.size)
    parent, launch = (spans[c].cast(pl.Int64).fill_null(-1).to_numpy() for c in ("parent_id", "launch_id"))
    track = spans["track_id"].cast(pl.Int64).to_numpy()
    device_rows = np.flatnonzero(is_device & (launch >= 0))
    device_rows = device_rows[np.lexsort((spans["ts_ns"].to_numpy()[device_rows], launch[device_rows]))]
    through = launch[device_rows]
    name, kind = CodedTexts.of(spans["name"]), CodedTexts.of(spans["recorded_category"])

    def events(rows: Ints, node: Ints, thread: Ints) -> Events:
        ts, dur = spans["ts_ns"].to_numpy()[rows], spans["dur_ns"].to_numpy()[rows]
        types, names = (CodedTexts(coded.codes[rows], coded.texts) for coded in (kind, name))
        return Events(ts, dur, types, names, node, thread, rows)

    host = events(host_rows, place[parent[host_rows]], track[host_rows])
    calls = events(call_rows, place[parent[call_rows]], track[call_rows])
    device = events(device_rows, place[parent[through]], track[through])
    of_kernel = device.type.where("Kernel") & (device.node >= 0)
    own_kernels, own = (
        np.bincount(device.node[rows], device.dur[rows], minlength=len(host)).astype(np.int64)
        for rows in (of_kernel, device.node >= 0)
    )
    levels = _levels(host.node)
    size, kernels_ns, device_ns = (
        _summed(levels, host.node, v) for v in (np.ones(len(host), np.int64), own_kernels, own)
    )
    is_step = host.type.where("ProfileStep")
    return Tree(
        host=host,
        calls=calls,
        device=device,
        device_of=_device_index(trace)[track[device_rows]],
        visit=_visits(levels, host, size),
        outermost=_outermost(levels, host),
        kernels_ns=kernels_ns,
        device_ns=device_ns,
        steps_ns=total(union(host.start[is_step], host.end[is_step])),
        levels=levels,
        thread_ids=trace.tracks["tid"].to_list(),
    )


def _device_index(trace: Trace) -> Ints:
    """The index of each track's device, −1 of threads."""
    known = trace.tracks.select("device_id").join(
        trace.devices.select("device_id", "index"), on="device_id", how="left", maintain_order="left"
    )
    return known["index"].cast(pl.Int64).fill_null(-1).to_numpy()


def _levels(parent: Ints) -> list[Ints]:
    """Rows level by level from those without a parent, each level sorted by parent, then by row."""
    by_parent = np.argsort(parent, kind="stable")
    keys = parent[by_parent]
    level = by_parent[: np.searchsorted(keys, 0)]
    levels = []
    while level.size:
        levels.append(level)
        level = np.sort(level)
        low = np.searchsorted(keys, level)
        counts = np.searchsorted(keys, level, "right") - low
        level = by_parent[np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
    return levels


def _summed(levels: list[Ints], parent: Ints, values: Ints) -> Ints:
    """Each row's value and those of all rows below it."""
    sums = values.copy()
    for level in levels[:0:-1]:
        np.add.at(sums, parent[level], sums[level])
    return sums


def _visits(levels: list[Ints], host: Events, size: Ints) -> Ints:
    """The rank of each row if the last child comes first; `size` counts each row and all below it."""
    visit = np.zeros(len(host), np.int64)
    for depth, level in enumerate(levels):
        family = host.node[level] if depth else host.thread[level]
        own = size[level]
        ends = np.cumsum(own)
        first, last = np.searchsorted(family, family), np.searchsorted(family, family, "right") - 1
        later = ends[last] - ends  # its later siblings, and everything below them, come before it
        visit[level] = later + (visit[family] + 1 if depth else ends[first] - own[first])
    return visit


def _outermost(levels: list[Ints], host: Events) -> Flags:
    """Whether no phase of the model is around each row."""
    is_phase = host.type.where(*PHASES)
    inside = np.zeros(len(host), np.bool_)
    for level in levels[1:]:
        above = host.node[level]
        inside[level] = inside[above] | is_phase[above]
    return ~inside
