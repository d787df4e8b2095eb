"""From columns to the tables of a Trace: categories, side tables, links and their coverage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import names
from stepscope.core.schema import CATEGORIES, DEVICE_WORK, OPS, SPANS, STEPS, Category, Name
from stepscope.readers.chrome import arrows as _arrows
from stepscope.readers.chrome import side_tables, stacks
from stepscope.readers.chrome.classify import category_of
from stepscope.readers.chrome.side_tables import side_columns
from stepscope.readers.chrome.spans import Spans, build_spans
from stepscope.readers.chrome.tracks import Tracks, build_tracks
from stepscope.readers.common import links as _links
from stepscope.readers.common.columns import ABSENT, nullable, text_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.issues import Notes

    Rows = NDArray[np.int64]

_CODE = {name: i for i, name in enumerate(CATEGORIES)}


def build_tables(
    columns: Columns, meta: Mapping[str, Any], notes: Notes, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(columns, meta, rank, host)
    spans = build_spans(columns, tracks.of_key, notes)
    name_list = [n or "" for n in columns.names]
    category = _categories(spans, columns, tracks, name_list)
    is_work = np.isin(category, [_CODE[c] for c in DEVICE_WORK])
    is_device = tracks.is_device[spans.track]
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}

    calls, correlation, external = _calls(columns, spans)
    is_call = np.isin(category, [_CODE["runtime"], _CODE["driver"]])
    parent = _links.parents(spans.ts, spans.dur, spans.track, ~is_device)
    launch = _links.launches(correlation, is_call, is_device)
    is_op = category == _CODE["operator"]
    is_plain_work = is_device & is_work
    arrows = _arrows.recorded(columns, tracks, spans)
    for heads, tails in _arrows.to_device(arrows, tracks, spans, parent, is_op):
        free = is_plain_work[heads] & ((launch[heads] < 0) | ~is_call[launch[heads]])
        launch[heads[free]] = tails[free]
    op_sides = _ops(columns, spans, parent, category, name_list, tables)
    rows = np.flatnonzero(is_call)
    op = np.full(spans.ts.size, -1, np.int64)
    op[rows] = _links.nearest_op(rows, parent, is_op)
    op_rows = np.flatnonzero(is_op)
    _links.by_external_id(op, calls, external[calls], op_rows, external[op_rows])
    work = np.flatnonzero(is_device)
    through = launch[work]
    behind = np.where(through >= 0, op[through], -1)
    loose = (through >= 0) & (behind < 0) & ~is_call[through]  # tied by an arrow to something that is no call
    behind[loose] = _links.nearest_op(through[loose], parent, is_op)
    op[work] = behind
    tables["steps"], step = _steps(spans, category, is_device, launch, name_list, rank)
    flow = _flow(columns, correlation, is_plain_work)
    ids = {"correlation": correlation, "external_id": external}
    links = {"parent_id": parent, "launch_id": launch, "op_id": op}
    tables["spans"] = _span_frame(spans, columns, category, ids, links, step, flow)
    tables["ops"] = op_sides
    tables["frames"] = side_tables.frames(columns, spans)
    tables["arrows"] = _arrows.between_hosts(arrows, tracks)
    tables["kernels"] = side_tables.kernels(columns, spans, category == _CODE["kernel"], name_list)
    is_transfer = (category == _CODE["memcpy"]) | (category == _CODE["memset"])
    tables["transfers"] = side_tables.transfers(columns, spans, is_transfer & is_device, name_list)
    tables["collectives"] = side_tables.collectives(columns, spans)
    tables["kernel_metrics"] = side_tables.metrics(columns, spans)
    tables["allocations"] = side_tables.allocations(columns, spans, tracks, parent, is_op, notes)
    tables["counters"] = side_tables.counters(columns, spans, tracks)
    _coverage(spans, launch, op, is_plain_work, notes)
    tables = {name: frame for name, frame in tables.items() if not frame.is_empty()}
    return tables, spans.origin_ns


def _categories(spans: Spans, columns: Columns, tracks: Tracks, name_list: list[str]) -> NDArray[np.uint8]:
    """Category codes: the recorder's category, then what the track is, then what the name says."""
    by_cat = np.array([_CODE[category_of(c)] for c in columns.cats] or [0], np.uint8)
    category = by_cat[spans.cat]
    other = category == _CODE["other"]
    if other.any():
        by_track = np.array([_CODE[c or "other"] for c in tracks.category] or [0], np.uint8)
        category[other] = by_track[spans.track[other]]
    unset = 255
    rules = np.full((len(CATEGORIES), len(name_list)), unset, np.uint8)
    for i, name in enumerate(name_list):
        if name.startswith("ProfilerStep#"):
            rules[[_CODE["operator"], _CODE["user_range"], _CODE["other"]], i] = _CODE["step"]
        elif name.startswith("nn.Module: "):
            rules[_CODE["python"], i] = _CODE["module"]
        elif names.is_dataloader(name):
            rules[[_CODE["operator"], _CODE["user_range"]], i] = _CODE["dataloader"]
        elif (kind := _odd_device_work(name)) is not None:
            rules[_CODE["kernel"], i] = _CODE[kind]
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


def _calls(columns: Columns, spans: Spans) -> tuple[Rows, Rows, Rows]:
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
    spans: Spans,
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
        tables["stacks"], stack = stacks.from_texts(stack_texts, side["stack"])
    else:
        is_frame = (category == _CODE["python"]) | (category == _CODE["module"])
        tables["stacks"], stack = stacks.from_frames(rows, parent, is_frame, spans.name, name_list)
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


def _steps(
    spans: Spans,
    category: NDArray[np.uint8],
    is_device: NDArray[np.bool_],
    launch: Rows,
    name_list: list[str],
    rank: int | None,
) -> tuple[pl.DataFrame, Rows]:
    """The steps table, and each span's step: host work by time, device work as its launch, else by time."""
    found = np.flatnonzero((category == _CODE["step"]) & ~is_device)
    all_numbers = {i: names.step_number(name_list[i]) for i in np.unique(spans.name[found]).tolist()}
    numbers = {i: n for i, n in all_numbers.items() if n is not None and abs(n) < 2**31}
    found = found[np.isin(spans.name[found], list(numbers))]
    if found.size:  # a step noted on several threads counts once: on the thread that has most of them
        main = np.argmax(np.bincount(spans.track[found]))
        found = found[spans.track[found] == main]
    number = np.array([numbers[i] for i in spans.name[found].tolist()], np.int64)
    starts = spans.ts[found]
    ends = starts + spans.dur[found]
    ends = np.minimum(ends, np.append(starts[1:], np.iinfo(np.int64).max))
    frame = pl.DataFrame({
        "step": number, "ts_ns": starts, "dur_ns": spans.dur[found],
        "source": ["annotation"] * found.size,
    }, schema_overrides={"source": STEPS.dtypes["source"]})  # fmt: skip
    frame = frame.with_columns(pl.lit(rank, dtype=pl.Int32).alias("rank"))
    step = _links.step_of(spans.ts, starts, ends, number)
    linked = launch >= 0
    step[linked] = step[launch[linked]]
    return STEPS.conform(frame), step


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


def _span_frame(
    spans: Spans,
    columns: Columns,
    category: NDArray[np.uint8],
    ids: dict[str, Rows],
    links: dict[str, Rows],
    step: Rows,
    flow: pl.Series,
) -> pl.DataFrame:
    n = spans.ts.size
    return pl.DataFrame({
        "span_id": np.arange(n, dtype=np.uint32),
        "track_id": spans.track,
        "ts_ns": spans.ts,
        "dur_ns": spans.dur,
        "name": pl.Series([n or "" for n in columns.names], dtype=Name).gather(pl.Series(spans.name)),
        "category": pl.Series(CATEGORIES, dtype=Category).gather(pl.Series(category)),
        "recorded_category": pl.Series(list(columns.cats), dtype=Name).gather(pl.Series(spans.cat)),
        **{name: nullable(values, pl.Int64()) for name, values in ids.items()},
        **{name: nullable(rows.astype(np.int32), pl.UInt32(), -1) for name, rows in links.items()},
        "step": nullable(step, pl.Int32()),
        "flow": flow,
    }, schema=dict(SPANS.dtypes))  # fmt: skip


def _coverage(spans: Spans, launch: Rows, op: Rows, is_work: NDArray[np.bool_], notes: Notes) -> None:
    """How much device work could not be tied to its launch or operator, by number and by time."""
    n_work, work_ns = int(is_work.sum()), int(spans.dur[is_work].sum())
    for code, link, what in (
        ("no_launch", launch, "device events have no launch in the trace"),
        ("no_operator", op, "device events are launched by a call outside any operator"),
    ):
        bare = is_work & (link < 0) & (launch >= 0 if code == "no_operator" else True)
        n, ns = int(bare.sum()), int(spans.dur[bare].sum())
        share = f"{n:,} of {n_work:,} {what} ({ns / max(work_ns, 1):.1%} of device time)"
        notes.add(code, "warning" if code == "no_launch" and 2 * n > n_work else "info", n, share)
