"""From a Paddle recording to the tables of a Trace.

What Paddle calls an operator is one here; the phases inside it (shape inference, kernel launch) and the framework's own
ranges around it are `other`: as operators they would take its time and its kernels away. `recorded_category` keeps
Paddle's word for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from stepscope.core import names
from stepscope.core.arrays import distinct_values
from stepscope.core.patterns import regex
from stepscope.core.schema import (
    ALLOCATIONS,
    COLLECTIVES,
    KERNELS,
    OPS,
    RESERVATIONS,
    STACKS,
    TRACKS,
    TRANSFERS,
)
from stepscope.readers.chrome.tracks import capability_of, device_type
from stepscope.readers.common.columns import ABSENT, device_table, nullable, text_column, whole_number
from stepscope.readers.common.span_builder import CODE, Sorted, believable, nearest_op, operators, span_table, steps_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog
    from stepscope.readers.paddle._columns import Recording

    Rows = NDArray[np.int64]
    from stepscope.readers.paddle._columns import Columns


_PLACE = regex(r"Place\((?P<kind>\w+?)(?::(?P<index>\d{1,4}))?\)")
_MOST_DEVICES = 1 << 16
_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")
_RATES = ("blocks_per_sm", "warps_per_sm", "est_occupancy_ratio")
_RESERVED = ("ReservedAllocate", "ReservedFree")
CATEGORY = {
    "Operator": "operator",
    "Communication": "operator",
    "Dataloader": "dataloader",
    "ProfileStep": "step",
    "CudaRuntime": "runtime",
    "MluRuntime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
    "Forward": "module",
    "Backward": "user_range",
    "Optimization": "user_range",
    "PythonUserDefined": "user_range",
    "PythonOp": "python",
}
_STEP = regex(r"ProfileStep#(\d{1,9})")


class Tracks(msgspec.Struct, frozen=True):
    """The two tables; the track of each row of the recording's tables; and the device of each of its texts (places)."""

    tracks: pl.DataFrame
    devices: pl.DataFrame
    of_host: NDArray[np.uint32]
    of_runtime: NDArray[np.uint32]
    of_device: NDArray[np.uint32]
    of_memory: NDArray[np.uint32]
    device_of_place: Rows


def build_tracks(recording: Recording, rank: int | None, host: str | None) -> Tracks:
    """Threads in the order of their ids, in which Paddle goes through them, then streams by device and number."""
    parts = (recording.host, recording.runtime, recording.memory)
    threads, of_thread = _pairs(_joined(parts, "tid"), _joined(parts, "pid"))
    streams, of_device = _pairs(recording.device["device"], recording.device["stream"])
    places = [_place(text) for text in recording.texts]
    indices = {index for index in (*(device for device, _ in streams), *places) if index is not None and index >= 0}
    devices = _devices(recording, indices)
    device_id = {index: i for i, index in enumerate(devices["index"].to_list())}
    # The tables have numbers of signed 64 bits; a thread id that needs all of 64 is read as a negative one.
    rows: list[tuple[Any, ...]] = [
        (rank, host, _known(pid), _known(tid), None, None, "thread", recording.extra.get(str(tid)))
        for tid, pid in threads
    ]
    rows += [
        (rank, host, None, None, device_id.get(device), _known(stream), "stream", f"stream {stream}")
        for device, stream in streams
    ]
    names = ("rank", "host", "pid", "tid", "device_id", "stream", "kind", "label")
    types = {name: TRACKS.dtypes[name] for name in names}
    tracks = pl.DataFrame(rows, schema=types, orient="row").with_row_index("track_id")
    first, second, _ = np.cumsum([part["pid"].size for part in parts]).tolist()
    return Tracks(
        TRACKS.conform(tracks), devices,
        of_thread[:first], of_thread[first:second], of_device + np.uint32(len(threads)), of_thread[second:],
        np.array([-1 if index is None else device_id.get(index, 0) for index in places] or [-1], np.int64),
    )  # fmt: skip


def _joined(parts: tuple[Columns, ...], name: str) -> Rows:
    return np.concatenate([part[name] for part in parts])


def _pairs(first: Rows, second: Rows) -> tuple[list[tuple[int, int]], NDArray[np.uint32]]:
    """The distinct pairs in order, and for each row the number of its pair."""
    a, of_a = np.unique(first, return_inverse=True)
    b, of_b = np.unique(second, return_inverse=True)
    codes, inverse = np.unique(of_a * max(b.size, 1) + of_b, return_inverse=True)
    pairs = [(int(a[code // b.size]), int(b[code % b.size])) for code in codes.tolist()]
    return pairs, inverse.astype(np.uint32)


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


def _place(text: str) -> int | None:
    """Index of the device of a place of memory: −1 for the host, None if it does not say."""
    match = _PLACE.fullmatch(text)
    if match is None or match["kind"].endswith("_pinned"):
        return None
    return -1 if match["kind"] == "cpu" else int(match["index"] or 0)


def _devices(recording: Recording, indices: set[int]) -> pl.DataFrame:
    """The host, then the accelerators in order of their index."""
    properties = {p["id"]: p for p in recording.devices if isinstance(p.get("id"), int)}
    used = distinct_values(recording.runtime["name"]).tolist()
    kind = device_type({"deviceProperties": recording.devices}, (), (recording.names[i] for i in used))
    rows: list[tuple[Any, ...]] = [(0, "cpu", None, None, None, None, None)]
    for index in sorted({*indices, *properties}):
        if 0 <= index < _MOST_DEVICES:
            p = properties.get(index, {})
            name = str(p["name"]) if p.get("name") else None
            units, memory = whole_number(p.get("smCount"), 31), whole_number(p.get("totalGlobalMem"))
            rows.append((len(rows), kind, index, name, units, memory, capability_of(p)))
    return device_table(rows)


def ops(recording: Recording, place: Rows) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The `ops` table, of operators whose arguments or call stack were recorded, and the `stacks` that it refers to."""
    rows, side = _placed(recording.arguments, "host", place)
    has_arguments = (side["shapes"] > 0) | (side["types"] > 0) | (side["stack"] > 0) if rows.size else np.zeros(0, bool)
    rows, side = rows[has_arguments], {name: column[has_arguments] for name, column in side.items()}
    if not rows.size:
        return OPS.empty(), STACKS.empty()
    used, stack = np.unique(side["stack"], return_inverse=True)
    texts = [recording.texts[i] for i in used.tolist()]
    number = np.cumsum([bool(text) for text in texts]) - 1
    frames = [[line.strip() for line in text.splitlines() if line.strip()] for text in texts if text]
    stacks = pl.DataFrame({"frames": frames}, schema={"frames": STACKS.dtypes["frames"]}).with_row_index("stack_id")
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "input_shapes": text_column(side["shapes"], recording.texts),
        "input_types": text_column(side["types"], recording.texts),
        "stack_id": nullable(np.where(np.array([bool(t) for t in texts]), number, -1)[stack], pl.UInt32(), -1),
    })  # fmt: skip
    return OPS.conform(frame), STACKS.conform(stacks)


def kernels(recording: Recording, place: Rows, all_rows: Rows, name: NDArray[np.uint32]) -> pl.DataFrame:
    """The `kernels` table: every kernel span, with its launch configuration where recorded."""
    if not all_rows.size:
        return KERNELS.empty()
    used = distinct_values(name[all_rows])
    is_tc = np.zeros(len(recording.names), bool)
    is_tc[used] = [names.is_tensor_core(recording.names[i]) for i in used.tolist()]
    whole = pl.DataFrame({"span_id": all_rows.astype(np.uint32), "tensor_core": is_tc[name[all_rows]]})
    rows, side = _placed(recording.kernels, "device", place)
    known = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        **{axis: nullable(side[axis], pl.Int32()) for axis in _AXES},
        **{rate: nullable(side[rate], pl.Float64()) for rate in _RATES},
    })  # fmt: skip
    return KERNELS.conform(
        whole.join(known.unique("span_id", maintain_order=True), on="span_id", how="left", maintain_order="left")
    )


def transfers(recording: Recording, place: Rows, name: NDArray[np.uint32]) -> pl.DataFrame:
    """The `transfers` table: copies and fills."""
    rows, side = _placed(recording.transfers, "device", place)
    if not rows.size:
        return TRANSFERS.empty()
    codes = name[rows]
    used = set(distinct_values(codes).tolist())
    kinds = [names.transfer_kind(text) if i in used else None for i, text in enumerate(recording.names)]
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "bytes": nullable(side["bytes"], pl.Int64()),
        "kind": text_column(codes, kinds),
        "src": text_column(side["src"], recording.texts),
        "dst": text_column(side["dst"], recording.texts),
        "recorded_bytes_per_s": nullable(side["bytes_per_s"], pl.Float64()),
    })  # fmt: skip
    return TRANSFERS.conform(frame)


def collectives(spans: pl.DataFrame) -> pl.DataFrame:
    """The `collectives` table: what Paddle calls communication, by its name."""
    rows = spans.filter(spans["recorded_category"] == "Communication")
    return COLLECTIVES.conform(rows.select("span_id", collective="name"))


def memory(
    recording: Recording,
    tracks: Tracks,
    place: Rows,
    origin_ns: int,
    parent: Rows,
    is_op: NDArray[np.bool_],
    issues: IssueLog,
) -> dict[str, pl.DataFrame]:
    """The tables `allocations` and `reservations`, in order of time."""
    cols = recording.memory
    usable = (cols["ts"] >= 0) & (cols["bytes"] != ABSENT)
    what = "memory events without a size or a usable time were dropped"
    issues.add("incomplete_allocations", "warning", int((~usable).sum()), what)
    reserved = np.array([word in _RESERVED for word in recording.types] or [False])[cols["type"]]
    tables = {}
    for table, mine in ((ALLOCATIONS, usable & ~reserved), (RESERVATIONS, usable & reserved)):
        rows = np.flatnonzero(mine)
        rows = rows[np.argsort(cols["ts"][rows], kind="stable")]
        if not rows.size:
            continue
        host = cols["host"][rows]
        span = np.where(host >= 0, place[host], -1) if place.size else np.full(rows.size, -1, np.int64)
        frame = pl.DataFrame({
            "ts_ns": cols["ts"][rows] - origin_ns,
            "track_id": tracks.of_memory[rows],
            "device_id": nullable(tracks.device_of_place[cols["place"][rows]], pl.UInt32(), -1),
            "address": nullable(cols["address"][rows].view(np.uint64), pl.UInt64(), ABSENT % 2**64),
            "bytes": cols["bytes"][rows],
            "total_allocated_bytes": nullable(cols["allocated"][rows], pl.Int64()),
            "total_reserved_bytes": nullable(cols["reserved"][rows], pl.Int64()),
            "op_id": nullable(nearest_op(span, parent, is_op), pl.UInt32(), -1),
            "span_id": nullable(span, pl.UInt32(), -1),
            "recorded_category": text_column(cols["type"][rows], recording.types),
            "place": text_column(cols["place"][rows], recording.texts),
            "peak_allocated_bytes": nullable(cols["peak_allocated"][rows], pl.Int64()),
            "peak_reserved_bytes": nullable(cols["peak_reserved"][rows], pl.Int64()),
        })  # fmt: skip
        tables[table.name] = table.conform(frame)
    return tables


def _placed(table: Columns, link: str, place: Rows) -> tuple[Rows, dict[str, Any]]:
    """Span rows of a side table in order, and its other columns in that order; rows of dropped events are left out."""
    at = table[link]
    rows = place[at] if place.size else np.full(at.size, -1, np.int64)
    present = np.flatnonzero(rows >= 0)
    order = present[np.argsort(rows[present], kind="stable")]
    return rows[order], {name: column[order] for name, column in table.items() if name != link}


class _Places(NamedTuple):
    """Where each row of the recording's tables is among the sorted spans, −1 if it was dropped."""

    host: Rows
    runtime: Rows
    device: Rows


def build_tables(
    recording: Recording, issues: IssueLog, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(recording, rank, host)
    parts = (recording.host, recording.runtime, recording.device)
    ts, end, name, type_ = (np.concatenate([part[c] for part in parts]) for c in ("start", "end", "name", "type"))
    track = np.concatenate((tracks.of_host, tracks.of_runtime, tracks.of_device))
    what = "events without a start or an end were dropped"
    spans = believable(ts, end - ts, track, name, type_, issues, what)
    first, second, _ = np.cumsum([part["name"].size for part in parts]).tolist()
    places = _Places(*np.split(spans.position, [first, second]))
    by_type = np.array([CODE[CATEGORY.get(word, "other")] for word in recording.types] or [0], np.uint8)
    category = by_type[spans.recorded]
    parent, launch = _parents(recording, spans, places, issues), _launches(recording, places, spans.ts.size)
    op = operators(category, launch >= 0, parent, launch)
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}
    tables["steps"], step = steps_of(spans, category == CODE["step"], recording.names, _step_number, launch, rank)
    correlation = np.full(spans.ts.size, ABSENT, np.int64)
    for place, table in ((places.runtime, recording.runtime), (places.device, recording.device)):
        correlation[place[place >= 0]] = table["correlation"][place >= 0]
    types = [word or None for word in recording.types]
    rows = {"parent_id": parent, "launch_id": launch, "op_id": op}
    tables["spans"] = span_table(spans, recording.names, types, category, step, {"correlation": correlation}, rows)
    tables["ops"], tables["stacks"] = ops(recording, places.host)
    tables["kernels"] = kernels(recording, places.device, np.flatnonzero(category == CODE["kernel"]), spans.name)
    tables["transfers"] = transfers(recording, places.device, spans.name)
    tables["collectives"] = collectives(tables["spans"])
    tables |= memory(recording, tracks, places.host, spans.origin_ns, parent, category == CODE["operator"], issues)
    return {name: frame for name, frame in tables.items() if not frame.is_empty()}, spans.origin_ns


def _parents(recording: Recording, spans: Sorted, places: _Places, issues: IssueLog) -> Rows:
    """The recorded tree: the parent of a host event is the event around it, of a call the event that made it."""
    parent = np.full(spans.ts.size, -1, np.int64)
    for place, link in ((places.host, recording.host["parent"]), (places.runtime, recording.runtime["host"])):
        up = np.where(link >= 0, places.host[link], -1) if places.host.size else np.full(link.size, -1, np.int64)
        is_there = place >= 0
        parent[place[is_there]] = up[is_there]
    # Parents come first on their own thread. Other parents, of a damaged file, could form cycles.
    rows = np.arange(parent.size)
    odd = (parent >= rows) | ((parent >= 0) & (spans.track[parent] != spans.track))
    issues.add("odd_parents", "warning", int(odd.sum()), "events inside one that begins later or on another thread")
    return np.where(odd, -1, parent)


def _launches(recording: Recording, places: _Places, n_spans: int) -> Rows:
    launch = np.full(n_spans, -1, np.int64)
    if places.runtime.size:
        link = recording.device["runtime"]
        is_there = places.device >= 0
        launch[places.device[is_there]] = np.where(link >= 0, places.runtime[link], -1)[is_there]
    return launch


def _step_number(name: str) -> int | None:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None
