"""Side tables of a Paddle recording: arguments of operators, launches of kernels, transfers, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import names
from stepscope.core.schema import ALLOCATIONS, COLLECTIVES, KERNELS, OPS, RESERVATIONS, STACKS, TRANSFERS
from stepscope.readers.common.columns import ABSENT, nullable, text_column
from stepscope.readers.common.links import nearest_op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.issues import Notes
    from stepscope.readers.paddle._recording import Columns, Recording
    from stepscope.readers.paddle._tracks import Tracks

    Rows = NDArray[np.int64]

_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")
_RATES = ("blocks_per_sm", "warps_per_sm", "est_occupancy_ratio")
_RESERVED = ("ReservedAllocate", "ReservedFree")


def ops(recording: Recording, place: Rows) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The `ops` table, of operators whose arguments or call stack were recorded, and the `stacks` that it refers to."""
    rows, side = _placed(recording.arguments, "host", place)
    told = (side["shapes"] > 0) | (side["types"] > 0) | (side["stack"] > 0) if rows.size else np.zeros(0, bool)
    rows, side = rows[told], {name: column[told] for name, column in side.items()}
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
    used = np.unique(name[all_rows])
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
    used = set(np.unique(codes).tolist())
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
    found = spans.filter(spans["recorded_category"] == "Communication")
    return COLLECTIVES.conform(found.select("span_id", collective="name"))


def memory(
    recording: Recording,
    tracks: Tracks,
    place: Rows,
    origin_ns: int,
    parent: Rows,
    is_op: NDArray[np.bool_],
    notes: Notes,
) -> dict[str, pl.DataFrame]:
    """The tables `allocations` and `reservations`, in order of time."""
    cols = recording.memory
    usable = (cols["ts"] >= 0) & (cols["bytes"] != ABSENT)
    what = "memory events without a size or a usable time were dropped"
    notes.add("incomplete_allocations", "warning", int((~usable).sum()), what)
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
    kept = np.flatnonzero(rows >= 0)
    order = kept[np.argsort(rows[kept], kind="stable")]
    return rows[order], {name: column[order] for name, column in table.items() if name != link}
