"""The columns of a Paddle profile, the same for protobuf and JSON; and JSON's decoded events as columns.

Times are ns on the recorder's clock (Unix time in all files known). Rows of `host` are in the order of the file: thread
by thread, each breadth first. A link is a row of the table that it points into, −1 for the root of its thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Raw, Struct
from msgspec import field as renamed

from stepscope.core.patterns import regex
from stepscope.readers.common.columns import ABSENT, Interned, columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Rows = list[tuple[int, "Event"]]
    Columns = Mapping[str, NDArray[Any]]


_NOTHING = Raw(b"")
#: Event types by their number in protobuf; JSON has these names. In Paddle 2.x number 15 was MluRuntime.
TYPES = (
    "Operator", "Dataloader", "ProfileStep", "CudaRuntime", "Kernel", "Memcpy", "Memset", "UserDefined",
    "OperatorInner", "Forward", "Backward", "Optimization", "Communication", "PythonOp", "PythonUserDefined",
    "DygraphKernelLaunch", "StaticKernelLaunch",
)  # fmt: skip
MEMORY_TYPES = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")
#: The columns of each table. Those of names, types and texts are numbers of `Recording.names`, `.types` and `.texts`,
#: rates are fractions, the others whole numbers; ABSENT and NaN mean unknown.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "host": ("name", "type", "start", "end", "pid", "tid", "parent"),
    "runtime": ("name", "type", "start", "end", "pid", "tid", "correlation", "host"),
    "device": ("name", "type", "start", "end", "device", "stream", "correlation", "runtime"),
    "kernels": (
        "device", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes",
        "blocks_per_sm", "warps_per_sm", "est_occupancy_ratio",
    ),
    "transfers": ("device", "bytes", "src", "dst", "bytes_per_s"),
    "memory": (
        "ts", "type", "address", "bytes", "pid", "tid", "place", "allocated", "reserved", "peak_allocated",
        "peak_reserved", "host",
    ),
    "arguments": ("host", "shapes", "types", "stack"),
}  # fmt: skip
_DIGITS = regex(r"\d{1,18}")
_PER_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
_MOST_NS = 2.0**61
_AXES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: Names, types and texts are numbered; rates are fractions; the others whole numbers.
_CODES = ("name", "type", "place", "shapes", "types", "stack", "src", "dst")
_RATES = ("blocks_per_sm", "warps_per_sm", "est_occupancy_ratio", "bytes_per_s")
_SPAN = ("at", "name", "type", "ts", "dur", "from", "to", "pid", "tid")
_TABLES = {
    "host": _SPAN,
    "runtime": (*_SPAN, "correlation"),
    "device": ("at", "name", "type", "ts", "dur", "from", "to", "device", "stream", "correlation"),
    "kernels": ("at", *_AXES, "registers", "shared_bytes", *_RATES[:3]),
    "transfers": ("at", "bytes", "src", "dst", "bytes_per_s"),
    "memory": (
        "at", "ts", "type", "pid", "tid", "address", "bytes", "place", "allocated", "reserved", "peak_allocated",
        "peak_reserved",
    ),
    "arguments": ("at", "shapes", "types", "stack"),
}  # fmt: skip


class Args(Struct, gc=False, frozen=True):
    """`args` of an event."""

    start_time: str = ""
    end_time: str = ""
    correlation: int = renamed(name="correlation id", default=ABSENT)
    input_shapes: Raw = _NOTHING
    input_dtypes: Raw = _NOTHING
    callstack: str = ""
    stream: int = ABSENT
    registers: int = renamed(name="registers per thread", default=ABSENT)
    shared_bytes: int = renamed(name="shared memory", default=ABSENT)
    blocks_per_sm: float | None = renamed(name="blocks per SM", default=None)
    warps_per_sm: float | None = renamed(name="warps per SM", default=None)
    grid: list[int] | None = None
    block: list[int] | None = None
    occupancy: float | None = renamed(name="theoretical achieved occupancy %", default=None)
    occupancy_old: float | None = renamed(name="est. achieved occupancy %", default=None)
    size_bytes: int = renamed(name="bytes", default=ABSENT)
    bandwidth: float | None = renamed(name="memory bandwidth (GB/s)", default=None)
    place: str = ""
    addr: int = ABSENT
    increase_bytes: int = ABSENT
    current_allocated: int = ABSENT
    current_reserved: int = ABSENT
    peak_allocated: int = ABSENT
    peak_reserved: int = ABSENT


_NO_ARGS = Args()


class Event(Struct, gc=False):
    """One element of `traceEvents`. `ts` is whole µs of Unix time, `dur` µs; threads are text, streams numbers."""

    name: str = ""
    pid: int | None = None
    tid: int | str | None = None
    ts: int | None = None
    dur: float | None = None
    ph: str = ""
    cat: str = ""
    args: Args = _NO_ARGS


@dataclass(slots=True)
class Recording:
    """One recorded cycle: tables of COLUMNS, the texts that they number (the first one empty), what the file says."""

    host: Columns
    runtime: Columns
    device: Columns
    kernels: Columns
    transfers: Columns
    memory: Columns
    arguments: Columns
    names: list[str]
    types: list[str]
    texts: list[str]
    version: str | None = None
    span_index: int | None = None
    extra: dict[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def n_events(self) -> int:
        """Events of all kinds."""
        return sum(int(table["type"].size) for table in (self.host, self.runtime, self.device, self.memory))


class Events:
    """All columns of one file; `at` is an event's position in it. Feed it blocks with `add`.

    `ts` is µs as written, other times are ns: `dur`, and `from` and `to` from the start of the trace.
    """

    def __init__(self) -> None:
        self.names, self.types, self.texts = Interned(), Interned(), Interned({"": 0})
        self._n = 0
        self._cols = {table: columns_of({name: _dtype(name) for name in names}) for table, names in _TABLES.items()}

    def table(self, name: str) -> dict[str, NDArray[Any]]:
        """The columns of one table, joined; frees the blocks."""
        return {column: blocks.join() for column, blocks in self._cols[name].items()}

    def add(self, events: list[Event]) -> None:
        """Append one block of events."""
        host: Rows = []
        runtime: Rows = []
        device: Rows = []
        memory: Rows = []
        for row in enumerate(events, self._n):
            event = row[1]
            if event.ph == "X":
                (device if type(event.tid) is int else runtime if event.cat.endswith("Runtime") else host).append(row)
            elif event.ph == "i" and event.cat in MEMORY_TYPES:
                memory.append(row)
        self._n += len(events)
        self._add_spans("host", host)
        self._add_spans("runtime", runtime)
        self._add_spans("device", device)
        self._add_details(device)
        self._add_memory(memory)
        self._add_arguments([row for row in host if row[1].cat == "Operator"])

    def _add_spans(self, table: str, rows: Rows) -> None:
        cols = self._cols[table]
        cols["at"].extend([i for i, _ in rows])
        cols["name"].extend(self.names.codes([_bare(e.name) for _, e in rows]))
        cols["type"].extend(self.types.codes([e.cat for _, e in rows]))
        cols["ts"].extend([e.ts for _, e in rows])
        cols["dur"].extend([ABSENT if e.dur is None or not 0 <= e.dur < 1e15 else round(e.dur * 1000) for _, e in rows])
        cols["from"].extend([_ns(e.args.start_time) for _, e in rows])
        cols["to"].extend([_ns(e.args.end_time) for _, e in rows])
        if table == "device":
            cols["device"].extend([e.pid for _, e in rows])
            cols["stream"].extend([e.tid for _, e in rows])
        else:
            cols["pid"].extend([e.pid for _, e in rows])
            cols["tid"].extend([_thread(e.tid) for _, e in rows])
        if "correlation" in cols:
            cols["correlation"].extend([e.args.correlation for _, e in rows])

    def _add_details(self, rows: Rows) -> None:
        cols = self._cols["kernels"]
        launched = [(i, e.args) for i, e in rows if e.args.grid or e.args.registers != ABSENT]
        sizes = [_sizes(a.grid) + _sizes(a.block) for _, a in launched]
        cols["at"].extend([i for i, _ in launched])
        for axis, name in enumerate(_AXES):
            cols[name].extend([size[axis] for size in sizes])
        cols["registers"].extend([a.registers for _, a in launched])
        cols["shared_bytes"].extend([a.shared_bytes for _, a in launched])
        cols["blocks_per_sm"].extend([a.blocks_per_sm for _, a in launched])
        cols["warps_per_sm"].extend([a.warps_per_sm for _, a in launched])
        occupancy = [a.occupancy_old if a.occupancy is None else a.occupancy for _, a in launched]
        cols["est_occupancy_ratio"].extend([None if o is None else o / 100 for o in occupancy])
        cols = self._cols["transfers"]
        moved = [(i, e.args) for i, e in rows if e.args.size_bytes != ABSENT]
        cols["at"].extend([i for i, _ in moved])
        cols["bytes"].extend([a.size_bytes for _, a in moved])
        cols["bytes_per_s"].extend([None if a.bandwidth is None else a.bandwidth * 1e9 for _, a in moved])
        for end in ("src", "dst"):  # only protobuf has them
            cols[end].extend([0] * len(moved))

    def _add_memory(self, rows: Rows) -> None:
        cols = self._cols["memory"]
        args = [e.args for _, e in rows]
        cols["at"].extend([i for i, _ in rows])
        cols["ts"].extend([e.ts for _, e in rows])
        cols["type"].extend(self.types.codes([e.cat for _, e in rows]))
        cols["pid"].extend([e.pid for _, e in rows])
        cols["tid"].extend([_thread(e.tid) for _, e in rows])
        cols["place"].extend(self.texts.codes([a.place for a in args]))
        cols["address"].extend([a.addr for a in args])
        cols["bytes"].extend([a.increase_bytes for a in args])
        cols["allocated"].extend([a.current_allocated for a in args])
        cols["reserved"].extend([a.current_reserved for a in args])
        cols["peak_allocated"].extend([a.peak_allocated for a in args])
        cols["peak_reserved"].extend([a.peak_reserved for a in args])

    def _add_arguments(self, rows: Rows) -> None:
        cols = self._cols["arguments"]
        cols["at"].extend([i for i, _ in rows])
        cols["shapes"].extend(self.texts.codes([_compact(bytes(e.args.input_shapes)) for _, e in rows]))
        cols["types"].extend(self.texts.codes([_compact(bytes(e.args.input_dtypes)) for _, e in rows]))
        cols["stack"].extend(self.texts.codes([e.args.callstack for _, e in rows]))


def _dtype(name: str) -> type[np.generic]:
    return np.uint32 if name in _CODES else np.float64 if name in _RATES else np.int64


def _bare(name: str) -> str:
    """Without the duration that Paddle puts behind it, as in `matmul[1.234 us]`."""
    bracket = name.rfind("[") if name.endswith("s]") else -1
    return name if bracket < 0 else name[:bracket]


def _ns(text: str) -> int:
    """`1234.567 us` as ns; ABSENT for anything else."""
    number, _, unit = text.partition(" ")
    try:
        value = float(number) * _PER_NS[unit]
    except (ValueError, KeyError):
        return ABSENT
    return round(value) if abs(value) < _MOST_NS else ABSENT


@lru_cache(1 << 12)
def _thread(tid: int | str | None) -> int:
    """The number in `14538(Python)`."""
    match = _DIGITS.match(tid) if isinstance(tid, str) else None
    return tid if isinstance(tid, int) else int(match[0]) if match else ABSENT


def _sizes(sizes: list[int] | None) -> tuple[int, ...]:
    return tuple((sizes or []) + [ABSENT] * 3)[:3] if sizes and len(sizes) == 3 else (ABSENT,) * 3


@lru_cache(1 << 14)
def _compact(raw: bytes) -> str:
    """A JSON object without blanks; empty if it has no keys. Invalid text stays as it is."""
    try:
        value = json.loads(raw) if raw else None
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False) if value else ""
        return text.encode().decode()  # which lone surrogates do not survive
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
