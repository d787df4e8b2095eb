"""Kineto and other Chrome traces: PyTorch 1.8 to 2.x on any accelerator, Ascend, XLA and rpd lanes, generic spans.

Format: the Trace Event Format (Chrome), as written by pytorch/kineto's `output_json.cpp`; times are microseconds.
The steps: `json` decodes blocks of events, `event_columns` collects them in columns (`parts`: of a big file several
processes side by side), `spans` and `tracks` make sorted
arrays of those; `build_tables` gives spans their categories and links, and `side_tables` makes the other tables.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.core import files, names
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import RECORDED
from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.core.files import rank_in
from stepscope.core.machine import threads_for
from stepscope.core.schema import OPS, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.chrome import side_tables
from stepscope.readers.chrome.decoding import decode
from stepscope.readers.chrome.events import category_of
from stepscope.readers.chrome.side_tables import of_each_span, side_rows, stacks_from_frames, stacks_from_texts
from stepscope.readers.chrome.spans import arrow_ends, build_spans, host_arrows, launch_arrows, to_ns
from stepscope.readers.chrome.tracks import Tracks, build_tracks, by_appearance
from stepscope.readers.common.categories import by_name, without_repeats_of_hccl
from stepscope.readers.common.columns import ABSENT, nullable, text_column, torch_npu_arguments, whole_number
from stepscope.readers.common.source import IssueLog, give_back, no_collection
from stepscope.readers.common.span_builder import (
    CALLS,
    CODE,
    WORK,
    Sorted,
    id_column,
    launches,
    note_coverage,
    operators,
    parents,
    row_type,
    span_table,
    steps_of,
)
from stepscope.store.column_files import mapped, settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.chrome.decoding import Decoded
    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.common.source import Source

    Rows = NDArray[np.signedinteger[Any]]


#: Parts of the document that are kept as JSON text: of the machine and of the job, not of what ran.
_FACTS_AS_JSON = ("deviceProperties", "distributedInfo")
#: The tables in their order.
_TABLES = (
    "tracks", "devices", "steps", "spans", "frames", "captured_launches", "event_waits", "arrows", "kernels",
    "transfers", "collectives", "kernel_metrics", "counters", "ops", "stacks", "allocations",
)  # fmt: skip
#: A smaller file is never decoded by several processes, even if it is packed.
_LEAST_FOR_PARTS = 1_500_000
_ITERATION = "Iteration Time"  # category of the steps that Ascend's profiler marks
_YEAR_2001_NS, _YEAR_2100_NS = 10**18, 41 * 10**17


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: one block of events and the columns so far.

    Raises UnknownFormat, CorruptInput, StepscopeError (size limit); lesser damage is counted in `issues`.
    """
    issues = IssueLog()
    with no_collection():
        decoded = _in_parts(source, issues) or decode(source, issues)
        columns, meta = decoded.columns, decoded.meta
        columns.track_order = by_appearance(columns)
        rank = _rank(meta, source.path)
        tables, origin_ns = build_tables(columns, meta, issues, rank=rank, host=_host(meta), path=source.path)
    give_back(source.n_bytes)
    if not columns.phases and (columns.n_events or decoded.n_lost):
        if columns.n_events or decoded.is_bare:
            msg = f"{source.label} is a JSON list, but not of trace events"
            raise UnknownFormat(msg, "see `stepscope formats` for what can be read")
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the trace again", path=source.label, offset=decoded.lost_at)
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the trace holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    return Trace(_meta(decoded, source, rank, origin_ns), tables)


def _in_parts(source: Source, issues: IssueLog) -> Decoded | None:
    """What several processes decode; None if one has to do it. They are no use for a small file, so neither is this."""
    if files.is_url(source.path) or files.size_of(source.path) < _LEAST_FOR_PARTS:
        return None
    from stepscope.readers.chrome.parts import decode_in_parts

    return decode_in_parts(source, issues)


def _rank(meta: Mapping[str, Any], path: str) -> int | None:
    rank = whole_number(_job(meta).get("rank"), 31)
    return rank_in(path) if rank is None or rank < 0 else rank


def _job(meta: Mapping[str, Any]) -> dict[str, Any]:
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _host(meta: Mapping[str, Any]) -> str | None:
    host = meta.get("host_name") or meta.get("hostname")
    return str(host) if host else None


def _meta(decoded: Decoded, source: Source, rank: int | None, origin_ns: int) -> Meta:
    meta, columns = decoded.meta, decoded.columns
    base = meta.get("baseTimeNanoseconds")
    unix: int | None
    if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < 2**62:
        unix = origin_ns + base
    else:
        unix = origin_ns if _YEAR_2001_NS < origin_ns < _YEAR_2100_NS else None
    facts = {k: str(v) for k, v in meta.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    if backend := _job(meta).get("backend"):
        facts["backend"] = str(backend)
    for key in _FACTS_AS_JSON:
        if meta.get(key):
            facts[key] = json.dumps(meta[key])
    return Meta(
        path=source.label,
        format="kineto",
        n_events=columns.n_events,
        size_bytes=source.n_bytes,
        rank=rank,
        world_size=whole_number(_job(meta).get("world_size"), 31),
        host=_host(meta),
        framework=framework_of(meta, columns),
        framework_version=next((str(meta[key]) for key in ("pytorch_version", "jax_version") if key in meta), None),
        origin_unix_ns=unix,
        origin_recorded_ns=origin_ns,
        decimal_times=bool(decoded.has_decimals),
        facts=facts,
    )


def framework_of(meta: Mapping[str, Any], columns: Columns) -> str | None:
    """The framework that the metadata, categories or processes of a trace name; None if none does."""
    if "schemaVersion" in meta or {"cpu_op", "Operator", "cuda_runtime"} & set(columns.cats):
        return "PyTorch"
    processes = [t.get("process_name", "") for t in columns.threads.values()]
    if "jax_version" in meta or any(p.startswith("/device:") for p in processes):
        return "JAX/XLA"
    return "Ascend" if any(p in ("CANN", "Ascend Hardware") for p in processes) else None


def build_tables(
    columns: Columns, meta: Mapping[str, Any], issues: IssueLog, *, rank: int | None, host: str | None, path: str = ""
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(columns, meta, rank, host, path)
    spans = build_spans(columns, tracks.of_key, issues)
    name_list = [n or "" for n in columns.names]
    category = _categories(spans, columns, tracks, name_list)
    is_device = tracks.is_device[spans.track]
    is_plain_work = is_device & np.isin(category, WORK)
    is_call = np.isin(category, CALLS)
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}
    own_issues = IssueLog()  # of what runs at the same time as the rest
    # Columns of big traces are what takes memory. So side tables, whose columns end in files, are made first.
    with threads_for(spans.ts.size) as start:
        arguments = start(_arguments, columns, spans)
        tables |= _of_device_work(columns, spans, category, is_device, name_list)
        settle(spans.ts.size)
        calls, correlation, external = _calls(columns, spans, tracks)
        calls = calls[category[calls] != CODE["operator"]]
        ops, stack = arguments()
        settle(spans.ts.size)
        parent = parents(spans.ts, spans.dur, spans.track, ~is_device)
        settle(spans.ts.size)
        category = without_repeats_of_hccl(category, parent, spans.name, name_list)
        launch = launches(correlation, is_call, is_device)
        is_op = category == CODE["operator"]
        arrows = arrow_ends(columns, tracks, spans)
        for heads, tails in launch_arrows(arrows, tracks, spans, parent, is_op):
            free = is_plain_work[heads] & ((launch[heads] < 0) | ~is_call[launch[heads]])
            launch[heads[free]] = tails[free]
        with_stacks = start(_with_stacks, columns, spans, ops, stack, parent, category, name_list)
        allocations = start(side_tables.allocations, columns, spans, tracks, parent, is_op, own_issues)
        op = operators(category, is_device, parent, launch, (calls, external))
        ids = {"external_id": id_column(external)}
        del calls, external
        tables["steps"], step = _steps(columns, spans, category, is_device, name_list, launch, rank)
        flow = _flow(columns, correlation, is_plain_work)
        tables["event_waits"] = side_tables.event_waits(columns, spans, correlation, is_call)
        ids["correlation"] = id_column(correlation)
        del correlation
        rows = {"parent_id": parent, "launch_id": launch, "op_id": op}
        spans, cats = _with_recorded_collectives(spans, columns, tracks)
        tables["spans"] = span_table(spans, name_list, cats, category, step, ids, rows, flow)
        tables["frames"] = side_tables.frames(columns, spans)
        tables["captured_launches"] = side_tables.captured_launches(columns, spans, is_call, launch, name_list)
        tables["arrows"] = host_arrows(arrows, tracks)
        tables["counters"] = side_tables.counters(columns, spans, tracks)
    tables["ops"], tables["stacks"] = with_stacks()
    tables["allocations"] = allocations()
    issues.extend(own_issues)
    note_coverage(spans.dur, is_plain_work, launch, issues, op)
    return {name: tables[name] for name in _TABLES if not tables[name].is_empty()}, spans.origin_ns


def _categories(spans: Sorted, columns: Columns, tracks: Tracks, name_list: list[str]) -> NDArray[np.uint8]:
    """Category codes: the recorder's category, then what the track is, then what the name says."""
    by_cat = np.array([CODE[category_of(c)] for c in columns.cats] or [0], np.uint8)
    category: NDArray[np.uint8] = by_cat[spans.recorded]
    other = category == CODE["other"]
    if other.any():
        by_track = np.array([CODE[c or "other"] for c in tracks.category] or [0], np.uint8)
        category[other] = by_track[spans.track[other]]
    category = by_name(category, spans.name, name_list)
    return _without_parts_of_collectives(category, spans, tracks, name_list)


def _without_parts_of_collectives(
    category: NDArray[np.uint8], spans: Sorted, tracks: Tracks, name_list: list[str]
) -> NDArray[np.uint8]:
    """The categories, where copies that are parts of a collective (HCCL's) are ranges: the collective is the work.

    Such copies are on the streams on which tasks wait for notifications of other ranks.
    """
    if not tracks.has_collectives[spans.track].any():
        return category
    notifies = np.array([name.lower().startswith("notify") for name in name_list], np.bool_)
    streams = distinct_values(spans.track[notifies[spans.name] & (category == CODE["sync"])])
    is_part = (category == CODE["memcpy"]) & np.isin(spans.track, streams)
    return np.where(is_part, np.uint8(CODE["device_range"]), category)


def _with_recorded_collectives(spans: Sorted, columns: Columns, tracks: Tracks) -> tuple[Sorted, list[str | None]]:
    """The spans with `communication` as recorded category on the tracks of collectives, and the list of categories."""
    cats = list(columns.cats)
    talks = tracks.has_collectives[spans.track]
    if not talks.any():
        return spans, cats
    recorded = np.where(talks, np.uint32(len(cats)), spans.recorded)
    return replace(spans, recorded=recorded), [*cats, RECORDED]


def _calls(columns: Columns, spans: Sorted, tracks: Tracks) -> tuple[Rows, Rows, Rows]:
    """Rows of calls and device work; every span's correlation and external id.

    Where no correlation is recorded, the ids of arrows that begin at a call, or end at device work, are taken for it.
    """
    with threads_for(spans.ts.size) as start:
        of_ids = start(of_each_span, columns.ids, "external", spans)
        is_call, correlation = of_each_span(columns.calls, "correlation", spans)
        rows = np.flatnonzero(is_call).astype(row_type(spans.ts.size))
        _, external = of_ids()
    if not columns.has_correlations:
        lane = np.full(tracks.is_device.size, ABSENT, np.int64)
        lane[tracks.of_key] = [columns.lanes.get(key[:2], ABSENT) for key in columns.tracks]
        starts = pl.DataFrame({"row": rows, "lane": lane[spans.track[rows]], "ts": spans.ts[rows]})
        ends = pl.DataFrame({name: column.join() for name, column in columns.launch_ends.items()})
        ts = to_ns(ends["ts"].to_numpy()) - spans.origin_ns
        ends = ends.with_columns(pl.col("lane").cast(pl.Int64), ts=pl.Series(ts))
        tied = starts.join(ends.unique(["lane", "ts"], keep="first"), on=["lane", "ts"])
        correlation[tied["row"].to_numpy()] = tied["id"].to_numpy()
    return rows, correlation, external


def _steps(
    columns: Columns,
    spans: Sorted,
    category: NDArray[np.uint8],
    is_device: NDArray[np.bool_],
    name_list: list[str],
    launch: Rows,
    rank: int | None,
) -> tuple[pl.DataFrame, pl.Series]:
    """The `steps` table, and each span's step."""
    is_step = (category == CODE["step"]) & ~is_device
    if is_step.any():
        return steps_of(spans, is_step, name_list, names.step_number, launch, rank)
    # Ascend's own steps, on a lane of the device
    is_step = np.isin(spans.recorded, [i for i, cat in enumerate(columns.cats) if cat == _ITERATION])
    return steps_of(spans, is_step, name_list, names.iteration_number, launch, rank)


def _arguments(columns: Columns, spans: Sorted) -> tuple[pl.DataFrame, NDArray[np.uint32]]:
    """The table `ops` without its stacks, and the recorded stack of each operator."""
    rows, order = side_rows(columns.ops, spans)

    def side(name: str) -> NDArray[Any]:  # one at a time, as most of what it takes is freed then
        return columns.ops[name].join().take(order)

    if not rows.size:
        return OPS.empty(), side("stack")
    # Of operators with several arguments torch_npu writes a text of several lines where Kineto writes a list.
    listed = any(isinstance(t, bytes) and rb";\r\n" in t for t in columns.texts)
    texts = [_compact(t, listed=listed) if isinstance(t, bytes) else t for t in columns.texts]
    frame = pl.DataFrame({
        "span_id": mapped(pl.Series(rows.astype(np.uint32))),
        "input_shapes": mapped(text_column(side("shapes"), texts)),
        "input_types": mapped(text_column(side("types"), texts)),
        "concrete_inputs": mapped(text_column(side("concrete"), texts)),
        "sequence": _from(0, side("sequence")),
        "forward_thread": _from(1, side("forward")),
    })  # fmt: skip
    return frame, side("stack")


def _with_stacks(
    columns: Columns,
    spans: Sorted,
    ops: pl.DataFrame,
    stack_of_row: NDArray[np.uint32],
    parent: Rows,
    category: NDArray[np.uint8],
    name_list: list[str],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables `ops` and `stacks`."""
    if ops.is_empty():
        return OPS.empty(), STACKS.empty()
    stack_texts = list(columns.stacks)
    if any(stack_texts):
        stacks, stack = stacks_from_texts(stack_texts, stack_of_row)
    else:
        is_frame = (category == CODE["python"]) | (category == CODE["module"])
        rows = ops["span_id"].to_numpy().astype(parent.dtype)
        stacks, stack = stacks_from_frames(rows, parent, is_frame, spans.name, name_list)
    return OPS.conform(ops.with_columns(stack_id=mapped(nullable(stack, pl.UInt32(), -1)))), stacks


def _of_device_work(
    columns: Columns,
    spans: Sorted,
    category: NDArray[np.uint8],
    is_device: NDArray[np.bool_],
    name_list: list[str],
) -> dict[str, pl.DataFrame]:
    """Side tables of device work, and the collectives."""
    is_transfer = (category == CODE["memcpy"]) | (category == CODE["memset"])
    return {
        "kernels": side_tables.kernels(columns, spans, category == CODE["kernel"], name_list),
        "transfers": side_tables.transfers(columns, spans, is_transfer & is_device, name_list),
        "collectives": side_tables.collectives(columns, spans),
        "kernel_metrics": side_tables.metrics(columns, spans),
    }


def _from(least: int, values: Rows) -> pl.Series:
    """The column of numbers from `least` on; others are unknown."""
    return id_column(np.where(values < least, ABSENT, values))


def _compact(raw: bytes, *, listed: bool) -> str | None:
    """JSON text without blanks; null, empty and unset as None; a string as its content, or `listed`: as torch_npu's."""
    if raw in (b"", b"null", b'""'):
        return None
    try:
        value = json.loads(raw)
        if isinstance(value, str):
            text = torch_npu_arguments(value) if listed and not value.startswith("[") else value
        else:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
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
