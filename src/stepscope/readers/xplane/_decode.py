"""XSpace, the protobuf profile of JAX, TensorFlow and PyTorch/XLA, decoded into columns.

Format: xplane.proto of openxla/xla (tsl/profiler). A space has planes (a device, the host's threads, metadata), a plane
has lines, a line has events. Names and statistics that recur are messages of the plane, and events refer to them.
Fields that are zero are not written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.readers.common.columns import ABSENT, Interned
from stepscope.readers.common.protobuf import BYTES, DOUBLE, INT, MANY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.common.protobuf import Contents, Wire

    Rows = NDArray[np.int64]
    Children = tuple[Rows, Rows, Rows]  # owner, start, end

_SPACE = {1: ("planes", MANY), 2: ("errors", MANY), 3: ("warnings", MANY), 4: ("hosts", MANY)}
_PLANE = {
    2: ("name", BYTES), 3: ("lines", MANY), 4: ("event_metadata", MANY), 5: ("stat_metadata", MANY), 6: ("stats", MANY),
}  # fmt: skip
_LINE = {1: ("id", INT), 2: ("name", BYTES), 3: ("ts", INT), 4: ("events", MANY), 11: ("display_name", BYTES)}
_ENTRY = {1: ("key", INT), 2: ("value", BYTES)}
_STAT_METADATA = {2: ("name", BYTES)}
_EVENT_METADATA = {2: ("name", BYTES), 4: ("display_name", BYTES), 5: ("stats", MANY)}
_EVENT = {1: ("metadata", INT), 2: ("offset", INT), 3: ("dur", INT), 4: ("stats", MANY)}
_STAT = {1: ("key", INT), 2: ("double", DOUBLE), 3: ("uint", INT), 4: ("int", INT), 5: ("text", BYTES), 7: ("ref", INT)}
#: Statistics of events that are read: numbers, and texts.
NUMBERS = (
    "correlation_id", "program_id", "step_num", "group_id", "flops", "model_flops", "bytes_accessed",
    "allocation_bytes", "bytes_allocated", "peak_bytes_in_use", "addr",
)  # fmt: skip
TEXTS = (
    "hlo_op", "hlo_module", "hlo_category", "tf_op", "name", "annotation", "source", "shape_with_layout",
    "kernel_details", "memcpy_details", "allocator_name",
)  # fmt: skip
#: HLO modules (hlo.proto of openxla/xla), which say more of the operations that GPU events only name.
_PROTO = {1: ("module", BYTES)}
_MODULE = {3: ("computations", MANY), 17: ("frames", BYTES)}
_COMPUTATION = {2: ("instructions", MANY)}
_INSTRUCTION = {1: ("name", BYTES), 2: ("opcode", BYTES), 7: ("metadata", BYTES), 11: ("fusion_kind", BYTES)}
_METADATA = {2: ("op_name", BYTES), 3: ("file", BYTES), 4: ("line", INT), 15: ("frame", INT)}
_FRAMES = {1: ("files", MANY), 3: ("locations", MANY), 4: ("frames", MANY)}
_LOCATION = {1: ("file", INT), 3: ("line", INT)}
_FRAME = {1: ("location", INT)}
_COLUMNS: dict[str, type[np.generic]] = {"line": np.int32, "metadata": np.int32, "ts": np.int64, "end": np.int64}
_ROLES = {name.encode(): i for i, name in enumerate((*NUMBERS, *TEXTS))}
HLO_PROTO = b"Hlo Proto"
_BLOCK = 1 << 16  # events whose fields are in memory at a time
_LARGEST = 2**62


class Plane(msgspec.Struct, frozen=True):
    """One plane: its name and its own statistics."""

    name: str
    facts: Mapping[str, Any]


class Line(msgspec.Struct, frozen=True):
    """A line of events: the index of its plane, its id and name."""

    plane: int
    id: int
    name: str


@dataclass(slots=True)
class Space:
    """The whole profile. An event has a row in each of the arrays; texts are codes into `texts`, of which 0 is empty.

    `ts` and `end` are ns, `name` and `display_name` codes, `of_event` and `of_metadata` hold the statistics that were
    read, by name: rows and values. `metadata` is each event's row among the metadata of all planes.
    """

    planes: list[Plane] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    n_errors: int = 0
    first_error: str = ""
    #: HLO modules by their number, where the profile holds them: start and end in the file.
    modules: dict[int, tuple[int, int]] = field(default_factory=dict)
    texts: Interned = field(default_factory=lambda: Interned({b"": 0}))
    line: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    metadata: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    ts: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    end: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    name: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    display_name: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    of_event: dict[str, tuple[Rows, Rows]] = field(default_factory=dict)
    of_metadata: dict[str, tuple[Rows, Rows]] = field(default_factory=dict)
    n_without_metadata: int = 0

    def values(self, name: str) -> Rows | None:
        """A statistic of every event, its own or that of its metadata; ABSENT where it has none. None: no event has it.

        Texts are codes.
        """
        if name not in self.of_event and name not in self.of_metadata:
            return None
        values = np.full(self.ts.size, ABSENT, np.int64)
        if name in self.of_metadata:
            rows, numbers = self.of_metadata[name]
            of_metadata = np.full(self.name.size, ABSENT, np.int64)
            of_metadata[rows] = numbers
            values = of_metadata[self.metadata]
        if name in self.of_event:
            rows, numbers = self.of_event[name]
            values[rows] = numbers
        return values

    def text_list(self) -> list[str]:
        """All texts, by code."""
        return [text.decode("utf-8", "replace") for text in self.texts]


@dataclass(slots=True)
class _Parts:
    """Arrays of blocks of events, and of statistics by name, until they are joined."""

    columns: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: {n: [] for n in _COLUMNS})
    of_event: dict[str, list[tuple[Rows, Rows]]] = field(default_factory=dict)
    of_metadata: dict[str, list[tuple[Rows, Rows]]] = field(default_factory=dict)
    names: list[NDArray[np.uint32]] = field(default_factory=list)
    display_names: list[NDArray[np.uint32]] = field(default_factory=list)
    n_events: int = 0
    n_metadata: int = 0


def decode(wire: Wire) -> Space:
    """The whole file. What is damaged is left out, and counted in `wire.damage`."""
    top = wire.columns(wire.whole(), _SPACE, clip=True)
    space, parts = Space(), _Parts()
    space.hosts = [host.decode("utf-8", "replace") for host in wire.slices(top["hosts"][1:])]
    errors = wire.slices(top["errors"][1:])
    space.n_errors, space.first_error = len(errors), errors[0].decode("utf-8", "replace") if errors else ""
    _, starts, ends = top["planes"]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        _plane(wire, (np.array([start]), np.array([end])), space, parts)
    for name, dtype in _COLUMNS.items():
        setattr(space, name, np.concatenate([np.empty(0, dtype), *parts.columns.pop(name)]))
    space.name, space.display_name = (
        np.concatenate([np.empty(0, np.uint32), *p]) for p in (parts.names, parts.display_names)
    )
    space.of_event, space.of_metadata = (_joined(p) for p in (parts.of_event, parts.of_metadata))
    return space


def _joined(parts: dict[str, list[tuple[Rows, Rows]]]) -> dict[str, tuple[Rows, Rows]]:
    return {
        name: (np.concatenate([rows for rows, _ in blocks]), np.concatenate([values for _, values in blocks]))
        for name, blocks in parts.items()
    }


class _Keys(msgspec.Struct, frozen=True):
    """The names of a plane's statistics: their sorted ids, each one's place in `_ROLES` (−1: not read) and code."""

    ids: Rows
    role: Rows
    code: Rows

    def find(self, ids: Rows) -> Rows:
        """The row of each id; −1 where it is not declared."""
        return _find(self.ids, ids)


def _find(sorted_ids: Rows, ids: Rows) -> Rows:
    if not sorted_ids.size:
        return np.full(ids.size, -1, np.int64)
    at = np.minimum(np.searchsorted(sorted_ids, ids), sorted_ids.size - 1)
    return np.where(sorted_ids[at] == ids, at, -1)


def _zero(values: Rows) -> Rows:
    """Numbers of proto3, where a field that is not written is zero."""
    return np.where(values == ABSENT, 0, values)


def _entries(wire: Wire, messages: Children) -> tuple[Rows, Contents]:
    """Sorted keys of a map, and where the value of each is; of equal keys the last."""
    fields = wire.columns(messages[1:], _ENTRY)
    keys, (starts, ends) = _zero(fields["key"]), fields["value"]
    distinct, place = np.unique(keys[::-1], return_index=True)
    last = keys.size - 1 - place
    return distinct, (starts[last], ends[last])


def _inside(contents: Contents) -> Contents:
    """Contents, empty where they are missing."""
    starts, ends = contents
    return np.maximum(starts, 0), np.maximum(ends, 0)


def _plane(wire: Wire, message: Contents, space: Space, parts: _Parts) -> None:
    plane = wire.columns(message, _PLANE, clip=True)
    name = wire.slices(plane["name"])[0].decode("utf-8", "replace")
    ids, values = _entries(wire, plane["stat_metadata"])
    names = wire.slices(wire.columns(_inside(values), _STAT_METADATA)["name"])
    roles = np.array([_ROLES.get(text, -1) for text in names], np.int64)
    keys = _Keys(ids, roles, space.texts.codes(names).astype(np.int64) if names else np.empty(0, np.int64))
    texts = dict(zip(ids.tolist(), (text.decode("utf-8", "replace") for text in names), strict=True))
    space.planes.append(Plane(name, _facts(wire, plane["stats"], texts)))

    metadata_ids, contents = _entries(wire, plane["event_metadata"])
    metadata = wire.columns(_inside(contents), _EVENT_METADATA)
    base = parts.n_metadata
    for column, target in (("name", parts.names), ("display_name", parts.display_names)):
        target.append(space.texts.codes(wire.slices(metadata[column])) if metadata_ids.size else _NO_CODES)
    # Events whose metadata are missing have no name.
    parts.names.append(np.zeros(1, np.uint32))
    parts.display_names.append(np.zeros(1, np.uint32))
    parts.n_metadata += metadata_ids.size + 1
    _stats(wire, metadata["stats"], keys, space.texts, base, parts.of_metadata)
    _modules(wire, metadata["stats"], metadata_ids, texts, space)

    lines = wire.columns(plane["lines"][1:], _LINE, clip=True)
    first_line = len(space.lines)
    line_names = [
        (shown or plain).decode("utf-8", "replace")
        for plain, shown in zip(wire.slices(lines["name"]), wire.slices(lines["display_name"]), strict=True)
    ]
    space.lines += [
        Line(len(space.planes) - 1, number, text)
        for number, text in zip(_zero(lines["id"]).tolist(), line_names, strict=True)
    ]
    origins = _zero(lines["ts"])
    of_line, starts, ends = lines["events"]
    for low in range(0, starts.size, _BLOCK):
        high = min(low + _BLOCK, starts.size)
        event = wire.columns((starts[low:high], ends[low:high]), _EVENT)
        ts, end = _times(origins[of_line[low:high]], _zero(event["offset"]), _zero(event["dur"]))
        row = _find(metadata_ids, _zero(event["metadata"]))
        space.n_without_metadata += int((row < 0).sum())
        block = {
            "line": of_line[low:high] + first_line, "metadata": base + np.where(row < 0, metadata_ids.size, row),
            "ts": ts, "end": end,
        }  # fmt: skip
        for column, dtype in _COLUMNS.items():
            parts.columns[column].append(block[column].astype(dtype))
        _stats(wire, event["stats"], keys, space.texts, parts.n_events, parts.of_event)
        parts.n_events += high - low


_NO_CODES = np.empty(0, np.uint32)


def _times(origin: Rows, offset: Rows, dur: Rows) -> tuple[Rows, Rows]:
    """Start and end in ns, from ns and two numbers of ps; ABSENT where they are no times."""
    usable = np.logical_and.reduce([(n > -_LARGEST) & (n < _LARGEST) for n in (origin, offset, dur)])
    origin, offset, dur = (np.where(usable, column, 0) for column in (origin, offset, dur))
    ts, end = (origin + (ps + 500) // 1000 for ps in (offset, offset + dur))
    return np.where(usable, ts, ABSENT), np.where(usable, end, ABSENT)


def _stats(
    wire: Wire, messages: Children, keys: _Keys, texts: Interned, base: int, into: dict[str, list[tuple[Rows, Rows]]]
) -> None:
    """The statistics that are read, by name: rows counted from `base`, and values. Writes into `into`."""
    owner, starts, ends = messages
    if not starts.size:
        return
    fields = wire.columns((starts, ends), _STAT)
    at = keys.find(_zero(fields["key"]))
    role = np.where(at >= 0, keys.role[at], -1) if keys.role.size else np.full(at.size, -1)
    order = np.argsort(role, kind="stable")
    bounds = np.searchsorted(role[order], np.arange(len(_ROLES) + 1))
    for i, name in enumerate((*NUMBERS, *TEXTS)):
        rows = order[bounds[i] : bounds[i + 1]]
        if not rows.size:
            continue
        if name in NUMBERS:
            values = np.where(fields["int"][rows] != ABSENT, fields["int"][rows], fields["uint"][rows])
            fraction = fields["double"][rows]
            is_fraction = (values == ABSENT) & (np.abs(fraction) < _LARGEST)
            values[is_fraction] = fraction[is_fraction].astype(np.int64)
        else:
            text_starts, text_ends = fields["text"]
            values = texts.codes(wire.slices((text_starts[rows], text_ends[rows]))).astype(np.int64)
            refers = keys.find(fields["ref"][rows])
            is_ref = refers >= 0
            values[is_ref] = keys.code[refers[is_ref]]
        into.setdefault(name, []).append((owner[rows] + base, values))


def _facts(wire: Wire, messages: Children, names: Mapping[int, str]) -> dict[str, Any]:
    """The statistics of a plane itself, by name."""
    fields = wire.columns(messages[1:], _STAT)
    texts = wire.slices(fields["text"])
    facts: dict[str, Any] = {}
    for i, key in enumerate(_zero(fields["key"]).tolist()):
        number = next((int(fields[kind][i]) for kind in ("int", "uint") if fields[kind][i] != ABSENT), None)
        fraction = float(fields["double"][i])
        text = names.get(int(fields["ref"][i]), texts[i].decode("utf-8", "replace"))
        value = text if number is None and math.isnan(fraction) else fraction if number is None else number
        facts[names.get(key, "")] = value
    return facts


def _modules(wire: Wire, messages: Children, ids: Rows, names: Mapping[int, str], space: Space) -> None:
    """Where the HLO modules are that a plane of metadata holds; their number is that of the metadata."""
    key = next((number for number, name in names.items() if name == HLO_PROTO.decode()), None)
    if key is None:
        return
    owner, starts, ends = messages
    fields = wire.columns((starts, ends), {1: ("key", INT), 6: ("bytes", BYTES)})
    begin, stop = fields["bytes"]
    for i in np.flatnonzero((_zero(fields["key"]) == key) & (begin >= 0)).tolist():
        space.modules[int(ids[owner[i]])] = int(begin[i]), int(stop[i])


def instructions(wire: Wire, module: tuple[int, int]) -> dict[str, tuple[str, str, str]]:
    """Category (`loop fusion`, or the opcode), framework operation and `file:line` of each instruction, by name."""
    proto = wire.columns((np.array([module[0]]), np.array([module[1]])), _PROTO)
    top = wire.columns(_inside(proto["module"]), _MODULE, clip=True)
    computations = wire.columns(top["computations"][1:], _COMPUTATION)
    fields = wire.columns(computations["instructions"][1:], _INSTRUCTION)
    metadata = wire.columns(_inside(fields["metadata"]), _METADATA)
    frames = _frames(wire, top["frames"])
    columns = [fields["name"], fields["opcode"], fields["fusion_kind"], metadata["op_name"], metadata["file"]]
    texts = [[text.decode("utf-8", "replace") for text in wire.slices(column)] for column in columns]
    numbers = (metadata["line"].tolist(), metadata["frame"].tolist())
    return {
        name: (_category(opcode, kind), op_name, f"{file}:{line}" if file else frames.get(frame, ""))
        for name, opcode, kind, op_name, file, line, frame in zip(*texts, *numbers, strict=True)
    }


def _category(opcode: str, fusion_kind: str) -> str:
    """A fusion's kind (`kLoop`) in XProf's words; else the opcode."""
    return f"{fusion_kind[1:].lower()} fusion" if opcode == "fusion" and fusion_kind.startswith("k") else opcode


def _frames(wire: Wire, index: Contents) -> dict[int, str]:
    """`file:line` of each stack frame, by its number; numbers in this index count from 1."""
    fields = wire.columns(_inside(index), _FRAMES)
    files = [text.decode("utf-8", "replace") for text in wire.slices(fields["files"][1:])]
    locations = wire.columns(fields["locations"][1:], _LOCATION)
    texts = [
        f"{files[file - 1]}:{line}" if 0 < file <= len(files) and line != ABSENT else ""
        for file, line in zip(locations["file"].tolist(), locations["line"].tolist(), strict=True)
    ]
    of_frame = wire.columns(fields["frames"][1:], _FRAME)["location"].tolist()
    return {i: texts[at - 1] for i, at in enumerate(of_frame, 1) if 0 < at <= len(texts)}
