"""A memory snapshot laid out for drawing: what is in use over time, stacked by groups, and the memory at a moment.

A level is a step function of the events. What a pixel shows is exact at every zoom: the most and the least that was in
use in it, and what the groups held at the moment of the most. An answer costs one look at the window's levels, and a
look-up for each pixel and group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import label_devices
from stepscope.analyses.memory.snapshots import CATEGORIES, about_stacks, levels_of, lives_of
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.report import printable
from stepscope.web.timeline.drawing import pack
from stepscope.web.timeline.level_of_detail import pixel_edges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]

By = Literal["category", "stack"]
Axis = Literal["time", "event"]
BEFORE, REST, NO_STACK = "allocated before recording", "other stacks", "no stack"
_MOST_STACKS = 11
_MOST_HOLDERS = 40
_MOST_BLOCKS = 20_000
_LONGEST_LINE = 80
_FOLDERS = regex(r"\([^()]*/")
_NEVER = np.iinfo(np.int64).max


class Grouping(msgspec.Struct, frozen=True, eq=False):
    """Names of groups; the group of each block (the first group: not among the blocks); changes by group.

    `events` and `held` have, for each group but the first, the places in the history where it changed and what it holds
    from then on.
    """

    names: tuple[str, ...]
    group: NDArray[np.uint8]
    events: tuple[Ints, ...]
    held: tuple[Ints, ...]

    def held_at(self, at: Ints, level: Ints) -> Ints:
        """What each group holds (rows) after each of these places in the history (columns); they add up to `level`."""
        rows = np.zeros((len(self.names), at.size), np.int64)
        for i, (events, held) in enumerate(zip(self.events, self.held, strict=True), 1):
            place = np.searchsorted(events, at, side="right")
            rows[i] = np.where(place > 0, held[np.maximum(place, 1) - 1] if held.size else 0, 0)
        rows[0] = level - rows[1:].sum(axis=0)
        return rows


class DeviceMemory(msgspec.Struct, frozen=True, eq=False):
    """The memory of a device. Place 0 of `times`, `level` and `reserved` is before the first event.

    Blocks lived from the place `made` up to `freed`.
    """

    label: str
    times: Ints | None
    level: Ints
    reserved: Ints
    made: Ints
    freed: Ints
    address: Ints
    size: Ints
    stack: Ints
    groupings: Mapping[By, Grouping]
    events: pl.DataFrame
    segments: pl.DataFrame

    def axis(self, axis: Axis) -> Ints:
        """Where each place lies on the axis: ns from the first event, or the event's number. Ascending."""
        return self.times if axis == "time" and self.times is not None else np.arange(self.level.size)

    def ends(self, axis: Axis) -> tuple[int, int]:
        """The axis from its first point up to behind its last one."""
        along = self.axis(axis)
        return int(along[0]), int(along[-1]) + 1


class MemoryScene(msgspec.Struct, frozen=True, eq=False):
    """The devices of a snapshot, and for each stack its frames and its line."""

    trace: Trace
    devices: tuple[DeviceMemory, ...]
    frames: Mapping[int, list[str]]
    lines: Mapping[int, str]

    def device(self, index: int) -> DeviceMemory:
        """The device of that place. Raises StepscopeError."""
        if not 0 <= index < len(self.devices):
            raise StepscopeError(f"no device has the number {index}", f"there are {len(self.devices)}, from 0")
        return self.devices[index]


def memory_scene_of(trace: Trace) -> MemoryScene:
    """Lay out a snapshot. Raises MissingTable (no memory snapshot)."""
    if not trace.is_memory_snapshot:
        raise MissingTable("a memory snapshot", needed_by="memory over time", topic="memory_events")
    about = about_stacks(trace.stacks)
    lines = {number: line or "" for number, line in about.select("stack_id", "line").iter_rows()}
    levels = levels_of(trace.memory_events, trace.memory_segments, trace.memory_blocks)
    known = label_devices(levels.select("device_id").unique().sort("device_id"), trace.devices)
    devices = [
        _device(trace, about, lines, levels.filter(pl.col("device_id") == number), number, label or f"device {number}")
        for number, label in known.iter_rows()
    ]
    frames = dict(trace.stacks.select("stack_id", "frames").iter_rows())
    return MemoryScene(trace, tuple(devices), frames, lines)


def _device(
    trace: Trace, about: pl.DataFrame, lines: Mapping[int, str], levels: pl.DataFrame, number: int, label: str
) -> DeviceMemory:
    is_own = pl.col("device_id") == number
    lives = lives_of(trace.memory_events, trace.memory_blocks, about, number)
    stack = lives["stack_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    # Places are one more than positions in the history: 0 is before the first event.
    made = (lives["made"].cast(pl.Int64).fill_null(-1) + 1).to_numpy()
    freed = (lives["freed"].cast(pl.Int64) + 1).fill_null(_NEVER).to_numpy()
    size = lives["bytes"].cast(pl.Int64).to_numpy()
    level = levels["allocated_bytes"].to_numpy()
    # Blocks that nothing is known of are in the row of what was allocated before.
    is_known = (lives["made"].is_not_null() | lives["stack_id"].is_not_null()).to_numpy()
    codes = {name: i for i, name in enumerate(CATEGORIES, 1)}
    category = np.where(is_known, lives["category"].replace_strict(codes, return_dtype=pl.UInt8).to_numpy(), 0)
    groupings: dict[By, Grouping] = {
        "category": _grouping((BEFORE, *CATEGORIES), category.astype(np.uint8), made, freed, size),
        "stack": _by_stack(lines, stack, is_known, int(level.argmax()), made, freed, size),
    }
    times = levels["ts_ns"].to_numpy()[1:] if levels.height > 1 and not levels["ts_ns"][1:].null_count() else None
    if times is not None:
        times = np.maximum.accumulate(np.concatenate((times[:1], times)).astype(np.int64))
    return DeviceMemory(
        label,
        times,
        level,
        levels["reserved_bytes"].to_numpy(),
        made,
        freed,
        lives["address"].cast(pl.Int64).fill_null(0).to_numpy(),
        size,
        stack,
        groupings,
        trace.memory_events.filter(is_own),
        trace.memory_segments.filter(is_own),
    )


def _by_stack(
    lines: Mapping[int, str], stack: Ints, is_known: NDArray[np.bool_], peak: int, made: Ints, freed: Ints, size: Ints
) -> Grouping:
    """Groups of the lines that hold most at the peak; what is left is one group."""
    names, code = np.unique([lines.get(number, "") for number in stack.tolist()] or [""], return_inverse=True)
    code = code[: stack.size]
    held = (made <= peak) & (freed > peak) & is_known
    order = np.argsort(-np.bincount(code[held], weights=size[held], minlength=names.size), kind="stable")[:_MOST_STACKS]
    group_of = np.full(names.size, order.size + 1, np.uint8)
    group_of[order] = np.arange(1, order.size + 1)
    shown = (BEFORE, *(str(names[i]) or NO_STACK for i in order), REST)
    group = np.where(is_known, group_of[code], 0) if stack.size else np.empty(0)
    return _grouping(shown, group.astype(np.uint8), made, freed, size)


def _grouping(names: tuple[str, ...], group: NDArray[np.uint8], made: Ints, freed: Ints, size: Ints) -> Grouping:
    events, held = [], []
    for number in range(1, len(names)):
        own = group == number
        ends = own & (freed != _NEVER)
        place = np.concatenate((made[own], freed[ends]))
        change = np.concatenate((size[own], -size[ends]))
        order = np.argsort(place, kind="stable")
        events.append(place[order])
        held.append(np.cumsum(change[order]))
    return Grouping(names, group, tuple(events), tuple(held))


def memory_layout(scene: MemoryScene) -> dict[str, Any]:
    """What the browser needs before it asks for windows. Times in ns."""
    origin = scene.trace.meta.origin_unix_ns
    return {
        "label": printable(scene.trace.meta.path.replace("\\", "/").rsplit("/", 1)[-1]),
        "origin_unix_ns": None if origin is None else str(origin),
        "devices": [
            {
                "label": one.label,
                "axes": {axis: one.ends(axis) for axis in _axes(one)},
                "groups": {by: [_short(name) for name in own.names] for by, own in one.groupings.items()},
                "full": {by: list(map(printable, own.names)) for by, own in one.groupings.items()},
                "peak": int(one.level.argmax()),
                "most": int(max(one.level.max(), one.reserved.max())),
                "peaks": {axis: int(one.axis(axis)[one.level.argmax()]) for axis in _axes(one)},
            }
            for one in scene.devices
        ],
    }


def _short(line: str) -> str:
    """The line without its folders: 'forward (model.py:39)'."""
    name = printable(_FOLDERS.sub("(", line))
    return name if len(name) <= _LONGEST_LINE else f"{name[: _LONGEST_LINE - 1]}…"


def _axes(device: DeviceMemory) -> tuple[Axis, ...]:
    return ("event",) if device.times is None else ("time", "event")


def draw_levels(device: DeviceMemory, low: int, high: int, n_pixels: int, by: By, axis: Axis) -> bytes:
    """The window [low, high) of the axis by pixel, packed; high > low.

    `most` and `least` are exact; `parts` is what each group holds at the moment `at` of the most, group by group;
    `reserved` is the most that the allocator had.
    """
    along, grouping = device.axis(axis), device.groupings[by]
    edges = pixel_edges(low, high, n_pixels)
    first = np.searchsorted(along, edges)
    # What was in use at the left edge of a pixel counts, unless an event lies right on it.
    begin = np.where((first < along.size) & (along[np.minimum(first, along.size - 1)] == edges), first, first - 1)
    begin, end = np.maximum(begin[:-1], 0), np.maximum(first[1:], 1)
    end = np.maximum(end, begin + 1)
    level = device.level
    at = np.fromiter(
        (a + int(level[a:b].argmax()) for a, b in zip(begin.tolist(), end.tolist(), strict=True)), np.int64
    )
    bounds = np.column_stack((begin, end)).ravel()
    most = level[at]
    arrays = {
        "at": at.astype("u4"),
        "most": most.astype("f8"),
        "least": _reduced(np.minimum, level, bounds).astype("f8"),
        "reserved": _reduced(np.maximum, device.reserved, bounds).astype("f8"),
        "parts": grouping.held_at(at, most).ravel().astype("f4"),
    }
    header = {"low": low, "high": high, "pixels": n_pixels, "groups": len(grouping.names)}
    return pack(header, arrays)


def _reduced(function: np.ufunc, values: Ints, bounds: Ints) -> Ints:
    """The function over values[a:b] for each pair a < b of bounds."""
    padded = np.append(values, values[-1])  # the end of the last may be that of the array
    result: Ints = function.reduceat(padded, bounds)[::2]
    return result


def moment(scene: MemoryScene, device: DeviceMemory, place: int, by: By) -> dict[str, Any]:
    """The memory after an event: what holds it, by stack, and the segments with their blocks, by address.

    Of very many blocks the largest are listed.
    """
    place = min(max(place, 0), device.level.size - 1)
    grouping = device.groupings[by]
    live = np.flatnonzero((device.made <= place) & (device.freed > place))
    at = np.array([place])
    held = grouping.held_at(at, device.level[at])[:, 0]
    held_by = pl.DataFrame({"stack": device.stack[live], "group": grouping.group[live], "bytes": device.size[live]})
    keys = ["stack", "group"]
    holders = held_by.group_by(keys).agg(pl.col("bytes").sum(), blocks=pl.len()).filter(pl.col("bytes") > 0)
    holders = holders.sort("bytes", *keys, descending=[True, False, False])
    is_placed = device.address[live] > 0
    blocks = live[is_placed]
    if blocks.size > _MOST_BLOCKS:
        blocks = np.sort(blocks[np.argsort(-device.size[blocks], kind="stable")[:_MOST_BLOCKS]])
    blocks = blocks[np.argsort(device.address[blocks], kind="stable")]
    action = device.events.row(place - 1, named=True) if place else None
    return {
        "place": place,
        "event": None if action is None else {"action": action["action"], "bytes": action["bytes"],
                                              "stack": action["stack_id"]},
        "ts_ns": None if device.times is None or not place else int(device.times[place]),
        "allocated": int(device.level[place]),
        "reserved": int(device.reserved[place]),
        "groups": held.tolist(),
        "holders": [
            {"stack": stack if stack >= 0 else None, "bytes": size, "blocks": n, "group": group,
             "line": _short(scene.lines.get(stack) or (NO_STACK if group else BEFORE))}
            for stack, group, size, n in holders.head(_MOST_HOLDERS).iter_rows()
        ],
        "holders_left_out": max(holders.height - _MOST_HOLDERS, 0),
        "segments": _segments_at(device, place),
        "blocks": [device.address[blocks].tolist(), device.size[blocks].tolist(), grouping.group[blocks].tolist(),
                   device.stack[blocks].tolist(), device.made[blocks].tolist()],
        "blocks_left_out": int(is_placed.sum()) - blocks.size,
    }  # fmt: skip


def _segments_at(device: DeviceMemory, place: int) -> list[tuple[int, int]]:
    """Address and bytes of what was reserved after an event, in order of address.

    The segments at the end are known. From there the later events are undone: what was taken is absent before, what was
    given back is there.
    """
    ends = device.segments.select("address", "bytes").drop_nulls().rows()
    action = device.events["action"].cast(pl.String)
    taken = action.is_in(["segment_alloc", "segment_map"])
    rows = device.events.with_columns(taken=taken).with_row_index("at").filter(
        (taken | action.is_in(["segment_free", "segment_unmap"])) & (pl.int_range(pl.len()) >= place)
    )  # fmt: skip
    later = rows.select("address", "bytes", "taken").drop_nulls().rows()[::-1]
    cuts = np.unique([edge for begin, size, *_ in (*ends, *later) for edge in (begin, begin + size)])
    if not cuts.size:
        return []
    is_there, starts = np.zeros(cuts.size, np.bool_), np.zeros(cuts.size, np.bool_)
    for begin, size, was_taken in (*((begin, size, False) for begin, size in ends), *later):
        low, high = np.searchsorted(cuts, (begin, begin + size))
        is_there[low:high] = not was_taken
        starts[low] = True
    starts |= ~is_there | ~np.concatenate(([False], is_there[:-1]))
    first = np.flatnonzero(starts)
    lengths = np.append(cuts[first[1:]], cuts[-1]) - cuts[first]
    return [(int(cuts[i]), int(n)) for i, n in zip(first, lengths, strict=True) if is_there[i] and n > 0]
