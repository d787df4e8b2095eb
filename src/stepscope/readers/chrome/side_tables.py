"""Side tables of spans: kernels, transfers, collectives, allocations, counters, and the call stacks of operators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import intervals, names
from stepscope.core.arrays import distinct_values
from stepscope.core.schema import (
    ALLOCATIONS,
    CAPTURED_LAUNCHES,
    COLLECTIVES,
    COUNTERS,
    EVENT_WAITS,
    FRAMES,
    KERNEL_METRICS,
    KERNELS,
    STACKS,
    TRANSFERS,
)
from stepscope.readers.chrome.spans import to_ns
from stepscope.readers.common.columns import ABSENT, nullable, stable_order, text_column
from stepscope.readers.common.span_builder import NO_SPAN, launches, nearest_op, row_type
from stepscope.store.column_files import mapped_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.chrome.tracks import Tracks
    from stepscope.readers.common.columns import Column
    from stepscope.readers.common.source import IssueLog
    from stepscope.readers.common.span_builder import Sorted

    Rows = NDArray[np.signedinteger[Any]]


_MOST_FRAMES = 256
#: Rows that are fewer than this part of all spans are sorted faster than they are counted off.
_FEW = 16
_PIECE = 1 << 16


def stacks_from_texts(texts: Iterable[str], of_row: NDArray[np.uint32]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Stacks recorded as text (innermost frame first, separated by semicolons); and the stack of each row (−1 none)."""
    frames: list[list[str]] = []
    recorded: list[str | None] = []
    number: list[int] = []
    for text in texts:
        number.append(len(frames) if text else -1)
        if text:
            frames.append([f.strip() for f in text.split(";") if f.strip()][::-1])
            recorded.append(text)
    return _table(frames, recorded), np.array(number or [-1], np.int64)[of_row]


def stacks_from_frames(
    rows: NDArray[np.int64],
    parent: NDArray[np.int64],
    is_frame: NDArray[np.bool_],
    name: NDArray[np.uint32],
    names: list[str],
) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Stacks from enclosing Python frames of the rows (operators). Equal chains of names share a stack.

    Level by level from the roots: a frame's number is that of (its parent frame's number, its name).
    """
    frames = np.flatnonzero(is_frame)
    if not frames.size:
        return STACKS.empty(), np.full(rows.size, -1, np.int64)
    position = np.full(parent.size + 1, -1, np.int64)  # the last one, reached by index -1, stays -1
    position[frames] = np.arange(frames.size)
    up = position[nearest_op(parent[frames], parent, is_frame)]
    at = position[nearest_op(parent[rows], parent, is_frame)]
    frames, up, at = _with_ancestors(frames, up, at)
    chain = np.full(frames.size + 1, -1, np.int64)
    parent_chain: list[NDArray[np.int64]] = []
    own_name: list[NDArray[np.int64]] = []
    code = name[frames].astype(np.int64)
    level = np.flatnonzero(up < 0)
    children_of = stable_order(up)
    first_child = np.concatenate(([0], np.cumsum(np.bincount(up + 1, minlength=frames.size + 1))))
    n_chains = 0
    for _ in range(_MOST_FRAMES):
        if not level.size:
            break
        outer = chain[up[level]]
        key = (outer + 1) * len(names) + code[level]
        distinct, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        chain[level] = n_chains + inverse
        n_chains += distinct.size
        parent_chain.append(outer[first])
        own_name.append(code[level][first])
        low = first_child[level + 1]
        counts = first_child[level + 2] - low
        offsets = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        level = children_of[offsets]
    of_row = chain[at]
    used = distinct_values(of_row[of_row >= 0])
    if not used.size:
        return STACKS.empty(), np.full(rows.size, -1, np.int64)
    outer_of, name_of = np.concatenate(parent_chain), np.concatenate(own_name)
    frames_of = _unwound(used, outer_of, name_of, names)
    table = pl.DataFrame({"stack_id": np.arange(used.size, dtype=np.uint32), "frames": frames_of})
    return STACKS.conform(table), np.where(of_row >= 0, np.searchsorted(used, of_row), -1)


def _with_ancestors(frames: Rows, up: Rows, at: Rows) -> tuple[Rows, Rows, Rows]:
    """Those of the frames that are in `at` or around such a one; `up` and `at` with their places among these.

    `up` is the place of the frame around each, −1 for none.
    """
    is_one = np.zeros(frames.size, np.bool_)
    open_ = distinct_values(at[at >= 0])
    for _ in range(_MOST_FRAMES):
        if not open_.size:
            break
        is_one[open_] = True
        above = up[open_]
        open_ = distinct_values(above[(above >= 0) & ~is_one[above]])
    else:
        is_one[:] = True
    place = np.append(np.where(is_one, np.cumsum(is_one) - 1, -1), -1)
    return frames[is_one], place[up[is_one]], place[at]


def _unwound(chains: Rows, outer: Rows, name: Rows, names: list[str]) -> pl.Series:
    """The names of each chain, outermost first. `outer` is the chain around each one, −1 for none."""
    row, codes, rows = np.arange(chains.size), [], []
    level = chains
    while row.size:
        rows.append(row)
        codes.append(name[level])
        level = outer[level]
        row, level = row[level >= 0], level[level >= 0]
    row = np.concatenate(rows[::-1])
    order = np.argsort(row, kind="stable")
    used, code = np.unique(np.concatenate(codes[::-1])[order], return_inverse=True)
    texts = pl.Series([names[i] for i in used.tolist()], dtype=pl.String).gather(pl.Series(code))
    flat = pl.DataFrame({"row": row[order], "frames": texts})
    return flat.group_by("row", maintain_order=True).agg("frames")["frames"]


def _table(frames: list[list[str]], texts: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"stack_id": range(len(frames)), "frames": frames, "text": texts}, schema=dict(STACKS.dtypes))


def side_columns(cols: dict[str, Column], spans: Sorted) -> tuple[Rows, dict[str, NDArray[Any]]]:
    """Span rows of a side table in order, and its other columns in that order; rows of dropped spans are left out."""
    rows, order = side_rows(cols, spans)
    return rows, {n: c.join().take(order) for n, c in cols.items() if n != "row"}


def side_rows(cols: dict[str, Column], spans: Sorted) -> tuple[Rows, Rows]:
    """Span rows of a side table in order, and the order of its other columns."""
    rows = cols["row"].join(spans.position.take, spans.position.dtype.type)
    order = _ascending(rows, spans.ts.size)
    return rows.take(order), order


def of_each_span(cols: dict[str, Column], name: str, spans: Sorted) -> tuple[NDArray[np.bool_], Rows]:
    """Which spans have a row in a side table, and every span's value in a column of whole numbers (ABSENT: none)."""
    rows = cols["row"].join(spans.position.take, spans.position.dtype.type)
    has_one, values = np.zeros(spans.ts.size + 1, np.bool_), np.full(spans.ts.size + 1, ABSENT, np.int64)
    low = 0
    for block in cols[name].drain():
        for at in range(0, block.size, _PIECE):  # NumPy makes each row number eight bytes
            piece = block[at : at + _PIECE]
            place = rows[low + at : low + at + piece.size]
            has_one[place], values[place] = True, piece
        low += block.size
    return has_one[:-1], values[:-1]  # the last ones are of spans that were dropped


def _ascending(rows: Rows, n: int) -> Rows:
    """`stable_order` of those of the rows that are not −1. They are below n.

    Where they are many and distinct they are not sorted.
    """
    if rows.size * _FEW >= n:
        place = np.full(n + 1, -1, row_type(rows.size))  # the last one is that of −1
        place[rows] = np.arange(rows.size, dtype=place.dtype)
        order = place[:-1][place[:-1] >= 0]
        if order.size == np.count_nonzero(rows >= 0):
            return order
    there = np.flatnonzero(rows >= 0)
    return there.take(stable_order(rows.take(there)))


def _decoded(texts: Iterable[Any]) -> list[str | None]:
    return [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts]


def kernels(columns: Columns, spans: Sorted, is_kernel: NDArray[np.bool_], name_list: list[str]) -> pl.DataFrame:
    """The `kernels` table: every kernel span, with its launch configuration where recorded."""
    rows, side = side_columns(columns.kernels, spans)
    all_rows = np.flatnonzero(is_kernel)
    if not all_rows.size:
        return KERNELS.empty()
    place = np.full(spans.ts.size, -1, row_type(rows.size))
    place[rows] = np.arange(rows.size, dtype=place.dtype)
    at = place[all_rows]
    del place
    have = at >= 0
    dims = np.array([_dims(raw) for raw in columns.dims] or [(ABSENT,) * 3], np.int64)

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        absent = np.nan if values.dtype.kind == "f" else ABSENT
        if not values.size:
            return np.full(all_rows.size, absent, values.dtype)
        return np.where(have, values[at], absent)

    grid, block = (spread_dims(dims, side[k], have, at) for k in ("grid", "block"))
    mlu = _mlu_launches(columns, spans, all_rows)
    if mlu is not None:
        grid[mlu[0]] = dims[mlu[1].pop("dims")]
    used = distinct_values(spans.name[all_rows])
    is_tc = np.zeros(len(name_list), bool)
    is_tc[used] = [names.is_tensor_core(name_list[i]) for i in used.tolist()]
    frame = {
        "span_id": all_rows.astype(np.uint32),
        **{f"grid_{a}": nullable(grid[:, i], pl.Int32()) for i, a in enumerate("xyz")},
        **{f"block_{a}": nullable(block[:, i], pl.Int32()) for i, a in enumerate("xyz")},
        "registers": nullable(spread(side["registers"]), pl.Int32()),
        "shared_bytes": nullable(spread(side["shared"]), pl.Int32()),
        "blocks_per_sm": nullable(spread(side["blocks_sm"]), pl.Float64()),
        "warps_per_sm": nullable(spread(side["warps_sm"]), pl.Float64()),
        "est_occupancy_ratio": nullable(spread(side["occupancy"]) / 100.0, pl.Float64()),
        "tensor_core": pl.Series(is_tc[spans.name[all_rows]]),
    }
    table = KERNELS.conform(pl.DataFrame(frame))
    if mlu is not None:
        special = pl.DataFrame({"span_id": all_rows[mlu[0]].astype(np.uint32), **mlu[1]})
        table = table.drop(mlu[1]).join(special, on="span_id", how="left", maintain_order="left")
    return mapped_table(KERNELS.conform(table))


def _mlu_launches(columns: Columns, spans: Sorted, kernel_rows: Rows) -> tuple[Rows, dict[str, Any]] | None:
    """Which kernels have an MLU's launch configuration, and the configurations; None if no kernel has."""
    rows, side = side_columns(columns.launches, spans)
    is_kernel = np.isin(rows, kernel_rows)
    if not is_kernel.any():
        return None
    side = {name: values[is_kernel] for name, values in side.items()}
    texts = [t if isinstance(t, str) else None for t in columns.texts]
    return np.searchsorted(kernel_rows, rows[is_kernel]), {
        "dims": side["dims"],
        "kernel_type": text_column(side["kind"], texts),
        "graph_id": nullable(side["graph"], pl.Int64()),
        "graph_node_id": nullable(side["node"], pl.Int64()),
    }


def frames(columns: Columns, spans: Sorted) -> pl.DataFrame:
    """The `frames` table: Python calls with the recorder's ids."""
    rows, side = side_columns(columns.frames, spans)
    if not rows.size:
        return FRAMES.empty()
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "python_id": nullable(side["id"], pl.Int64()),
        "python_parent_id": nullable(side["parent"], pl.Int64()),
        "module_id": nullable(side["module"], pl.Int64()),
    })  # fmt: skip
    return FRAMES.conform(frame)


def captured_launches(
    columns: Columns, spans: Sorted, is_call: NDArray[np.bool_], launch: Rows, name_list: list[str]
) -> pl.DataFrame:
    """The `captured_launches` table: of a recording that captures graphs, the launches that queued no work.

    `launch` is the launch of each span, −1 for none.
    """
    if not any("StreamBeginCapture" in name for name in name_list):
        return CAPTURED_LAUNCHES.empty()
    launches = np.array([names.is_launch_call(name) and not names.is_graph_launch(name) for name in name_list])
    queued = np.zeros(is_call.size, np.bool_)
    queued[launch[launch >= 0]] = True
    rows = np.flatnonzero(is_call & launches[spans.name] & ~queued)
    with_name, side = side_columns(columns.kernels_of_calls, spans)
    kernel = np.full(is_call.size, len(name_list), np.uint32)
    kernel[with_name] = side["kernel"]
    kernels = text_column(kernel[rows], [*name_list, None]) if rows.size else None
    return CAPTURED_LAUNCHES.conform(pl.DataFrame({"span_id": rows.astype(np.uint32), "kernel": kernels}))


def event_waits(columns: Columns, spans: Sorted, correlation: Rows, is_call: NDArray[np.bool_]) -> pl.DataFrame:
    """The `event_waits` table: waits for events whose stream is known (−1 where it is not)."""
    rows, side = side_columns(columns.event_waits, spans)
    recorded = np.concatenate((np.where(is_call, correlation, 0), side["record"]))
    is_wait = np.arange(recorded.size) >= is_call.size
    call = launches(recorded, np.append(is_call, np.zeros(rows.size, np.bool_)), is_wait)[is_wait]
    known = side["stream"] >= 0
    return EVENT_WAITS.conform(pl.DataFrame({
        "span_id": rows[known].astype(np.uint32),
        "stream": side["stream"][known],
        "recording_id": nullable(call[known], pl.UInt32(), NO_SPAN),
    }))  # fmt: skip


def spread_dims(dims: Rows, codes: NDArray[Any], have: NDArray[np.bool_], at: Rows) -> Rows:
    """Three dimensions per kernel, ABSENT where not recorded."""
    if not codes.size:
        return np.full((have.size, 3), ABSENT, np.int64)
    return np.where(have[:, None], dims[codes[at]], ABSENT)


def _dims(raw: bytes) -> tuple[int, int, int]:
    """`[32, 1, 1]` as recorded; anything else is unknown."""
    try:
        sizes = json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, list) or not all(isinstance(v, int) and 0 <= v < 2**31 for v in sizes) or not sizes:
        return (ABSENT, ABSENT, ABSENT)
    x, y, z = (*sizes, 1, 1)[:3]
    return (x, y, z)


def transfers(columns: Columns, spans: Sorted, is_transfer: NDArray[np.bool_], name_list: list[str]) -> pl.DataFrame:
    """The `transfers` table: every memcpy and memset span; bytes and bandwidth where recorded."""
    rows, side = side_columns(columns.transfers, spans)
    all_rows = np.flatnonzero(is_transfer)
    if not all_rows.size:
        return TRANSFERS.empty()
    is_sized = np.zeros(spans.ts.size, np.bool_)
    is_sized[all_rows] = True
    known = np.flatnonzero(is_sized[rows])
    at = np.searchsorted(all_rows, rows[known])
    size, bandwidth = np.full(all_rows.size, ABSENT, np.int64), np.full(all_rows.size, np.nan)
    size[at], bandwidth[at] = side["bytes"][known], side["bandwidth"][known]
    codes = spans.name[all_rows]
    used = distinct_values(codes).tolist()
    kinds: dict[int, str] = {}
    ends: dict[int, tuple[str | None, str | None]] = {}
    for i in used:
        kinds[i] = names.transfer_kind(name_list[i])
        ends[i] = _ends(name_list[i])
    texts = [kinds.get(i) for i in range(len(name_list))]
    sources = [ends.get(i, (None, None))[0] for i in range(len(name_list))]
    targets = [ends.get(i, (None, None))[1] for i in range(len(name_list))]
    frame = pl.DataFrame({
        "span_id": all_rows.astype(np.uint32),
        "bytes": nullable(size, pl.Int64()),
        "kind": text_column(codes, texts),
        "src": text_column(codes, sources),
        "dst": text_column(codes, targets),
        "recorded_bytes_per_s": nullable(bandwidth * 1e9, pl.Float64()),
    })  # fmt: skip
    return TRANSFERS.conform(frame)


def _ends(name: str) -> tuple[str | None, str | None]:
    """Source and target of `Memcpy HtoD (Pageable -> Device)`."""
    inside = name.partition("(")[2].partition(")")[0]
    source, arrow, target = inside.partition("->")
    return (source.strip() or None, target.strip() or None) if arrow else (None, None)


def collectives(columns: Columns, spans: Sorted) -> pl.DataFrame:
    """The `collectives` table."""
    rows, side = side_columns(columns.collectives, spans)
    if not rows.size:
        return COLLECTIVES.empty()
    texts = _decoded(columns.texts)
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "collective": text_column(side["collective"], texts),
        "dtype": text_column(side["dtype"], texts),
        "in_elements": nullable(side["in"], pl.Int64()),
        "out_elements": nullable(side["out"], pl.Int64()),
        "group": text_column(side["group"], texts),
        "group_size": nullable(side["size"], pl.Int32()),
        "group_ranks": text_column(side["ranks"], texts),
        "group_description": text_column(side["description"], texts),
        "src_rank": nullable(side["src"], pl.Int32()),
        "dst_rank": nullable(side["dst"], pl.Int32()),
        "seq": nullable(side["seq"], pl.Int64()),
    })  # fmt: skip
    return COLLECTIVES.conform(frame)


def metrics(columns: Columns, spans: Sorted) -> pl.DataFrame:
    """The `kernel_metrics` table."""
    rows, side = side_columns(columns.metrics, spans)
    if not rows.size:
        return KERNEL_METRICS.empty()
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "metric": text_column(side["metric"], _decoded(columns.texts)),
        "value": nullable(side["value"], pl.Float64()),
    })  # fmt: skip
    return KERNEL_METRICS.conform(frame)


def allocations(
    columns: Columns, spans: Sorted, tracks: Tracks, parent: Rows, is_op: NDArray[np.bool_], issues: IssueLog
) -> pl.DataFrame:
    """The `allocations` table, in order of time, each with the innermost operator open on its thread."""
    cols = {n: c.join() for n, c in columns.memory.items()}
    cols["ts"] = to_ns(cols["ts"])
    ts = cols["ts"] - spans.origin_ns
    keep = (cols["bytes"] != ABSENT) & (cols["ts"] != ABSENT)
    what = "memory events without a size or a usable time were dropped"
    issues.add("incomplete_allocations", "warning", int((~keep).sum()), what)
    order = np.flatnonzero(keep)
    order = order[np.argsort(ts[order], kind="stable")]
    if not order.size:
        return ALLOCATIONS.empty()
    ts, track = ts[order], tracks.of_key[cols["track"][order]].astype(np.int64)
    on_host = ~tracks.is_device[track]
    at = np.full(order.size, -1, np.int64)
    ends = spans.ts + spans.dur
    innermost = intervals.innermost_at(
        track[on_host], ts[on_host], spans.ts, ends, spans.track.astype(np.int64), parent
    )
    at[on_host] = nearest_op(innermost, parent, is_op)
    index = cols["index"][order]
    of_index = tracks.device_of_index
    device = [of_index.get(i, -1) for i in distinct_values(index).tolist()]
    device_id = np.array(device, np.int64)[np.searchsorted(distinct_values(index), index)]
    frame = pl.DataFrame({
        "ts_ns": ts,
        "track_id": track.astype(np.uint32),
        "device_id": nullable(np.where(cols["type"][order] == 0, 0, device_id), pl.UInt32(), -1),
        "address": nullable(cols["address"][order], pl.UInt64(), 0),
        "bytes": cols["bytes"][order],
        "total_allocated_bytes": nullable(cols["allocated"][order], pl.Int64()),
        "total_reserved_bytes": nullable(cols["reserved"][order], pl.Int64()),
        "op_id": nullable(at, pl.UInt32(), -1),
    })  # fmt: skip
    return ALLOCATIONS.conform(frame)


def counters(columns: Columns, spans: Sorted, tracks: Tracks) -> pl.DataFrame:
    """The `counters` table from counter events: device is the track, metric the event's name and series."""
    cols = {n: c.join() for n, c in columns.samples.items()}
    cols["ts"] = to_ns(cols["ts"])
    usable = cols["ts"] != ABSENT
    cols = {n: values[usable] for n, values in cols.items()}
    if not cols["ts"].size:
        return COUNTERS.empty()
    track = tracks.of_key[cols["track"]]
    labels = tracks.tracks.select("process", "label", "pid", "device_id")
    name_of = [label or "" for label in labels["label"].to_list()]
    owner = [p or "" for p in labels["process"].to_list()]
    series = _decoded(columns.texts)
    pairs, inverse = np.unique(track.astype(np.int64) * len(series) + cols["metric"], return_inverse=True)
    metric = [_metric(name_of[p // len(series)], series[p % len(series)] or "") for p in pairs.tolist()]
    frame = pl.DataFrame({
        "ts_ns": cols["ts"] - spans.origin_ns,
        "device_id": labels["device_id"].gather(pl.Series(track)),
        "device": text_column(track, owner),
        "pid": labels["pid"].gather(pl.Series(track)),
        "metric": text_column(inverse, metric),
        "value": nullable(cols["value"], pl.Float64()),
    })  # fmt: skip
    return COUNTERS.conform(frame).sort("ts_ns", maintain_order=True)


def _metric(event: str, series: str) -> str:
    return event if series in ("value", event) or not series else f"{event} {series}".strip()
