"""From columns to the tables of a Trace: categories, side tables, links and their coverage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import names
from stepscope.core.schema import CATEGORIES, OPS
from stepscope.readers.chrome import arrows as _arrows
from stepscope.readers.chrome import side_tables
from stepscope.readers.chrome.events import category_of
from stepscope.readers.chrome.side_tables import side_columns, stacks_from_frames, stacks_from_texts
from stepscope.readers.chrome.spans import build_spans
from stepscope.readers.chrome.tracks import Tracks, build_tracks
from stepscope.readers.common import links as _links
from stepscope.readers.common.columns import ABSENT, nullable, text_column
from stepscope.readers.common.span_builder import (
    CALLS,
    CODE,
    WORK,
    Sorted,
    note_coverage,
    operators,
    span_table,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.issues import IssueLog

    Rows = NDArray[np.int64]


def build_tables(
    columns: Columns, meta: Mapping[str, Any], issues: IssueLog, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(columns, meta, rank, host)
    spans = build_spans(columns, tracks.of_key, issues)
    name_list = [n or "" for n in columns.names]
    category = _categories(spans, columns, tracks, name_list)
    is_work = np.isin(category, WORK)
    is_device = tracks.is_device[spans.track]
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}

    calls, correlation, external = _calls(columns, spans)
    is_call = np.isin(category, CALLS)
    parent = _links.parents(spans.ts, spans.dur, spans.track, ~is_device)
    launch = _links.launches(correlation, is_call, is_device)
    is_op = category == CODE["operator"]
    is_plain_work = is_device & is_work
    arrows = _arrows.recorded(columns, tracks, spans)
    for heads, tails in _arrows.to_device(arrows, tracks, spans, parent, is_op):
        free = is_plain_work[heads] & ((launch[heads] < 0) | ~is_call[launch[heads]])
        launch[heads[free]] = tails[free]
    op_sides = _ops(columns, spans, parent, category, name_list, tables)
    op = operators(category, is_device, parent, launch, (calls, external))
    is_step = (category == CODE["step"]) & ~is_device
    tables["steps"], step = steps_of(spans, is_step, name_list, names.step_number, launch, rank)
    flow = _flow(columns, correlation, is_plain_work)
    ids = {"correlation": correlation, "external_id": external}
    rows = {"parent_id": parent, "launch_id": launch, "op_id": op}
    tables["spans"] = span_table(spans, name_list, list(columns.cats), category, step, ids, rows, flow)
    tables["ops"] = op_sides
    tables["frames"] = side_tables.frames(columns, spans)
    tables["arrows"] = _arrows.between_hosts(arrows, tracks)
    tables["kernels"] = side_tables.kernels(columns, spans, category == CODE["kernel"], name_list)
    is_transfer = (category == CODE["memcpy"]) | (category == CODE["memset"])
    tables["transfers"] = side_tables.transfers(columns, spans, is_transfer & is_device, name_list)
    tables["collectives"] = side_tables.collectives(columns, spans)
    tables["kernel_metrics"] = side_tables.metrics(columns, spans)
    tables["allocations"] = side_tables.allocations(columns, spans, tracks, parent, is_op, issues)
    tables["counters"] = side_tables.counters(columns, spans, tracks)
    note_coverage(spans.dur, is_plain_work, launch, issues, op)
    tables = {name: frame for name, frame in tables.items() if not frame.is_empty()}
    return tables, spans.origin_ns


def _categories(spans: Sorted, columns: Columns, tracks: Tracks, name_list: list[str]) -> NDArray[np.uint8]:
    """Category codes: the recorder's category, then what the track is, then what the name says."""
    by_cat = np.array([CODE[category_of(c)] for c in columns.cats] or [0], np.uint8)
    category: NDArray[np.uint8] = by_cat[spans.recorded]
    other = category == CODE["other"]
    if other.any():
        by_track = np.array([CODE[c or "other"] for c in tracks.category] or [0], np.uint8)
        category[other] = by_track[spans.track[other]]
    unset = 255
    rules = np.full((len(CATEGORIES), len(name_list)), unset, np.uint8)
    for i, name in enumerate(name_list):
        if name.startswith("ProfilerStep#"):
            rules[[CODE["operator"], CODE["user_range"], CODE["other"]], i] = CODE["step"]
        elif name.startswith("nn.Module: "):
            rules[CODE["python"], i] = CODE["module"]
        elif names.is_dataloader(name):
            rules[[CODE["operator"], CODE["user_range"]], i] = CODE["dataloader"]
        elif (kind := _odd_device_work(name)) is not None:
            rules[CODE["kernel"], i] = CODE[kind]
    if name_list:
        refined = rules[category, spans.name]
        category = np.where(refined == unset, category, refined)
    return category


def _odd_device_work(name: str) -> str | None:
    """Device records that are no kernels although listed with them (MTIA, Ascend)."""
    lowered = name.lower()
    if lowered.startswith(("event_", "notify", "event sync", "stream_wait", "wait")):
        return "sync"
    if lowered.startswith(("memcpy", "dma", "sdma", "memory copy")):
        return "memcpy"
    return "memset" if lowered.startswith("memset") else None


def _calls(columns: Columns, spans: Sorted) -> tuple[Rows, Rows, Rows]:
    """Rows of calls and device work; every span's correlation and external id."""
    rows, side = side_columns(columns.calls, spans)
    correlation = np.full(spans.ts.size, ABSENT, np.int64)
    correlation[rows] = side["correlation"]
    external = np.full(spans.ts.size, ABSENT, np.int64)
    with_id, ids = side_columns(columns.ids, spans)
    external[with_id] = ids["external"]
    return rows, correlation, external


def _ops(
    columns: Columns,
    spans: Sorted,
    parent: Rows,
    category: NDArray[np.uint8],
    name_list: list[str],
    tables: dict[str, pl.DataFrame],
) -> pl.DataFrame:
    rows, side = side_columns(columns.ops, spans)
    if not rows.size:
        return OPS.empty()
    stack_texts = list(columns.stacks)
    if any(stack_texts):
        tables["stacks"], stack = stacks_from_texts(stack_texts, side["stack"])
    else:
        is_frame = (category == CODE["python"]) | (category == CODE["module"])
        tables["stacks"], stack = stacks_from_frames(rows, parent, is_frame, spans.name, name_list)
    texts = [_compact(t) if isinstance(t, bytes) else t for t in columns.texts]
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "input_shapes": text_column(side["shapes"], texts),
        "input_types": text_column(side["types"], texts),
        "concrete_inputs": text_column(side["concrete"], texts),
        "sequence": nullable(np.where(side["sequence"] < 0, ABSENT, side["sequence"]), pl.Int64()),
        "forward_thread": nullable(np.where(side["forward"] <= 0, ABSENT, side["forward"]), pl.Int64()),
        "stack_id": nullable(stack, pl.UInt32(), -1),
    })  # fmt: skip
    return OPS.conform(frame)


def _compact(raw: bytes) -> str | None:
    """JSON text without blanks; a string as its content; null, empty and unset as None."""
    if raw in (b"", b"null", b'""'):
        return None
    try:
        value = json.loads(raw)
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.encode().decode()  # which lone surrogates do not survive
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def _flow(columns: Columns, correlation: Rows, is_work: NDArray[np.bool_]) -> pl.Series:
    if not columns.has_launch_flows:
        return pl.repeat(None, correlation.size, dtype=pl.Boolean, eager=True)
    ids = np.sort(columns.launch_flows.join())
    rows = np.flatnonzero(is_work)
    tied = np.zeros(correlation.size, bool)
    if ids.size:
        at = np.minimum(np.searchsorted(ids, correlation[rows]), ids.size - 1)
        tied[rows] = (ids[at] == correlation[rows]) & (correlation[rows] != ABSENT)
    return pl.select(pl.when(pl.Series(is_work)).then(pl.Series(tied))).to_series()
