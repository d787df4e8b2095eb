"""Nsight Systems, exported to SQLite: `nsys export --type sqlite`, schemas 2.7 to 3.x (2021 to 2026).

Format: NVIDIA's "Exporter SQLite Schema" in the Nsight Systems user guide. Times are ns since the session began. Tables
are made when first needed: one that is not there holds no events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.names import is_tensor_core
from stepscope.core.schema import KERNELS, TRANSFERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.columns import ABSENT, nullable, text_column
from stepscope.readers.common.span_builder import Names, Part, assemble, unique
from stepscope.readers.common.sqlite import WIDE, read_database
from stepscope.readers.nsight import nsys_host
from stepscope.readers.nsight.nsys_target import Target, gpu_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog, Source
    from stepscope.readers.common.sqlite import Columns, Database

    Rows = NDArray[np.int64]


_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_TABLES = ("EXPORT_META_DATA", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", _KERNEL, "NVTX_EVENTS")
_TIMES = {"start": WIDE, "end": WIDE, "globalPid": WIDE, "correlationId": 32}
_WHERE = {"deviceId": 6, "contextId": 12, "streamId": 24}
#: CUDA's limits: a grid of 2³¹ − 1 × 65,535 × 65,535 blocks, a block of 1,024 × 1,024 × 64 threads.
_LAUNCH = {
    "dynamicSharedMemory": 20, "gridX": 31, "gridY": 16, "gridZ": 15, "blockX": 11, "blockY": 11, "blockZ": 7,
    "registersPerThread": 9, "staticSharedMemory": 20, "graphNodeId": WIDE, "graphId": WIDE,
}  # fmt: skip
#: CUPTI's numbers of copies (CUpti_ActivityMemcpyKind, and unified memory's three of nsys' own): what they are here.
_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
#: Of memory (CUpti_ActivityMemoryKind, as nsys writes it).
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
#: Of waits (CUpti_ActivitySynchronizationType), in Kineto's words.
_WAITS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_COPY = {"copyKind": 8, "srcKind": 8, "dstKind": 8}
_IS_SET = 1 << 24
_UNKNOWN = len(_MEMORY) - 1


def read(source: Source) -> Trace:
    """The whole export as tables. Memory: the columns. Environment variables and program output are not read.

    Raises CorruptInput (damaged database), UnknownFormat (another program's database), StepscopeError.
    """
    unknown = ("an SQLite database of an unknown recorder", "see `stepscope formats` for what can be read")
    return read_database(source, _TABLES, _trace, unknown)


def _trace(db: Database, source: Source, issues: IssueLog) -> Trace:
    target, names = Target(db), Names()
    stop = db.rows("SELECT max(stopTime) FROM ANALYSIS_DETAILS")[0][0] if "ANALYSIS_DETAILS" in db else None
    device = device_work(db, target, names, issues)
    ranges = nsys_host.nvtx_ranges(db, target, names, issues, stop)
    calls = nsys_host.runtime_calls(db, target, names, issues)
    other_calls = nsys_host.other_calls(db, target, names, stop)
    parts = [*device.parts, *ranges.parts, *calls, *other_calls]
    rank = target.rank()
    tracks = target.tracks.table(rank, target.host)
    on_device = tracks["device_id"].is_not_null().to_numpy()
    spans = assemble(parts, names.texts, on_device, issues, rank)
    ids = iter(spans.ids)
    tables = {"spans": spans.spans, "steps": spans.steps, "tracks": tracks}
    tables["kernels"] = spans.of_spans(pl.concat([KERNELS.empty(), *(make(next(ids)) for make in device.kernels)]))
    tables["transfers"] = spans.of_spans(
        pl.concat([TRANSFERS.empty(), *(make(next(ids)) for make in device.transfers)])
    )
    if ranges.parts:
        tables["ops"] = spans.of_spans(ranges.ops(spans.ids[len(device.parts)]))
    tables["counters"] = gpu_metrics(db, target, spans.origin_ns)
    tables["devices"] = target.devices()
    if not spans.spans.is_empty() and tables["kernels"].is_empty() and tables["transfers"].is_empty():
        what = "no kernel, copy or fill was recorded: profile the process that uses the GPU, with --trace=cuda"
        issues.add("no_device_work", "warning", 1, what)
    if spans.spans.is_empty():
        issues.add("no_spans", "warning", 1, "the export holds nothing with a start and an end")
    tables["issues"] = issues.table()
    tables = {name: frame for name, frame in tables.items() if not frame.is_empty()}
    return Trace(_meta(db, source, target, rank, spans.spans, spans.origin_ns), tables)


def _meta(db: Database, source: Source, target: Target, rank: int | None, spans: pl.DataFrame, origin_ns: int) -> Meta:
    exported: dict[str, str] = {}
    for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        if table in db:
            wanted = "('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')"
            exported |= dict(db.rows(f"SELECT name, value FROM {table} WHERE name IN {wanted}"))  # noqa: S608
    facts = {
        key: exported[name]
        for key, name in (("nsys_version", "EXPORT_PRODUCT_VERSION"), ("nsys_schema", "EXPORT_SCHEMA_VERSION"))
        if name in exported
    }
    start = target.start_unix_ns
    return Meta(
        path=source.label,
        format="nsys",
        n_events=spans.height,
        size_bytes=source.n_bytes,
        rank=rank,
        host=target.host,
        framework="PyTorch" if "operator" in spans["category"] else None,
        origin_unix_ns=None if start is None else start + origin_ns,
        origin_recorded_ns=origin_ns,
        facts=facts,
    )


class Device(msgspec.Struct, frozen=True):
    """Parts of spans, and how to make each one's side table from its span ids."""

    parts: list[Part]
    kernels: list[Callable[[Rows], pl.DataFrame]]
    transfers: list[Callable[[Rows], pl.DataFrame]]


def device_work(db: Database, target: Target, names: Names, issues: IssueLog) -> Device:
    """All that ran on the devices. Kernels come first among the parts, then graphs, then copies and fills."""
    parts: list[Part] = []
    kernels: list[Callable[[Rows], pl.DataFrame]] = []
    transfers: list[Callable[[Rows], pl.DataFrame]] = []
    if "start" in db.columns_of(_KERNEL):
        name_column = next(c for c in ("demangledName", "shortName", "mangledName") if c in db.columns_of(_KERNEL))
        cols = db.columns(_KERNEL, _TIMES | {name_column: 30} | _WHERE | _LAUNCH)
        texts = db.texts("StringIds", unique(cols[name_column])[0].tolist())
        part = _part("kernel", cols, names.of_keys(cols[name_column], lambda i: texts.get(i) or "?"), target)
        parts.append(part)
        kernels.append(_Kernels(part, cols, names, target).table)
    if "start" in db.columns_of("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        cols = db.columns("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _TIMES | _WHERE | {"graphId": WIDE})
        part = _part("kernel", cols, names.of_keys(cols["graphId"], lambda i: f"CUDA graph {i}"), target, "graph")
        parts.append(part)
        kernels.append(_Kernels(part, cols, names, target).table)
        what = "CUDA graphs are recorded as a whole, without their kernels (--cuda-graph-trace=node records them)"
        issues.add("whole_graphs", "warning", part.ts.size, what)
    if "bytes" in db.columns_of("CUPTI_ACTIVITY_KIND_MEMCPY"):
        cols = db.columns("CUPTI_ACTIVITY_KIND_MEMCPY", _TIMES | _WHERE | {"bytes": WIDE} | _COPY)
        key = cols["copyKind"] << 16 | cols["srcKind"] << 8 | cols["dstKind"]
        part = _part("memcpy", cols, names.of_keys(key, _copy_name), target)
        parts.append(part)
        transfers.append(_Transfers(cols["bytes"], key).table)
    if "bytes" in db.columns_of("CUPTI_ACTIVITY_KIND_MEMSET"):
        cols = db.columns("CUPTI_ACTIVITY_KIND_MEMSET", _TIMES | _WHERE | {"bytes": WIDE, "memKind": 8})
        kind = np.where(cols["memKind"] == ABSENT, _UNKNOWN, cols["memKind"])
        part = _part("memset", cols, names.of_keys(kind, lambda i: f"Memset ({_memory(i)})"), target)
        parts.append(part)
        transfers.append(_Transfers(cols["bytes"], kind | _IS_SET).table)
    if "syncType" in db.columns_of("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        cols = db.columns("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _TIMES | _WHERE | {"syncType": 8})
        parts.append(_part("sync", cols, names.of_keys(cols["syncType"], lambda i: _WAITS.get(i, "Sync")), target))
    return Device(parts, kernels, transfers)


def _part(category: str, cols: Columns, name: NDArray[np.uint32], target: Target, recorded: str | None = None) -> Part:
    """Spans of a table; takes from its columns those that no side table needs."""
    correlation, global_pid = cols["correlationId"], cols["globalPid"]
    rows = np.stack([cols[column] for column in ("globalPid", *_WHERE)])
    heads = np.flatnonzero(np.concatenate(([True] * bool(name.size), (rows[:, 1:] != rows[:, :-1]).any(axis=0))))
    keys, of_head = np.unique(rows[:, heads], axis=1, return_inverse=True)
    of_run = np.array([target.stream(*key, is_sure=category != "sync") for key in keys.T.tolist()], np.uint32)[of_head]
    return Part(
        category,
        recorded or category,
        cols.pop("start"),
        cols.pop("end"),
        np.repeat(of_run, np.diff(np.append(heads, name.size))),
        name,
        correlation,
        target.links(global_pid, correlation),
    )


def _copy_name(key: int) -> str:
    return f"Memcpy {_COPIES.get(key >> 16, 'unknown')} ({_memory(key >> 8 & 0xFF)} -> {_memory(key & 0xFF)})"


def _memory(kind: int) -> str:
    return _MEMORY[kind] if 0 <= kind < len(_MEMORY) else _MEMORY[-1]


class _Kernels(msgspec.Struct, frozen=True):
    """What becomes rows of the `kernels` table."""

    part: Part
    cols: Columns
    names: Names
    target: Target

    def table(self, ids: Rows) -> pl.DataFrame:
        """The `kernels` table of these spans, in their order."""
        order = np.argsort(ids, kind="stable")
        cols, absent = self.cols, np.full(ids.size, ABSENT, np.int64)

        def of(name: str) -> Rows:
            values = cols.take(name)
            return absent if values is None else values[order]

        static, dynamic = of("staticSharedMemory"), of("dynamicSharedMemory")
        shared = np.where((static == ABSENT) | (dynamic == ABSENT), ABSENT, static + dynamic)
        code = self.part.name[order]
        used = unique(code)[0]
        tensor_core = np.zeros(int(used[-1]) + 1 if used.size else 0, np.bool_)
        tensor_core[used] = [is_tensor_core(self.names.texts[i]) for i in used.tolist()]
        frame = pl.DataFrame({
            "span_id": ids[order].astype(np.uint32),
            **{f"grid_{a.lower()}": nullable(of(f"grid{a}"), pl.Int32()) for a in "XYZ"},
            **{f"block_{a.lower()}": nullable(of(f"block{a}"), pl.Int32()) for a in "XYZ"},
            "registers": nullable(of("registersPerThread"), pl.Int32()),
            "shared_bytes": nullable(shared, pl.Int32()),
            "tensor_core": tensor_core[code],
            "graph_id": nullable(of("graphId"), pl.Int64()),
            "graph_node_id": nullable(of("graphNodeId"), pl.Int64()),
        })  # fmt: skip
        return KERNELS.conform(self._with_load(frame, self.part.track[order]))

    def _with_load(self, frame: pl.DataFrame, track: NDArray[np.uint32]) -> pl.DataFrame:
        """Blocks and warps per multiprocessor, where the device is known."""
        devices = self.target.devices().select("device_id", "sm_count")
        of_track = self.target.tracks.table(None, None).select("track_id", "device_id")
        sms = of_track.join(devices, on="device_id", how="left", maintain_order="left")["sm_count"]
        if sms.null_count() == sms.len():
            return frame
        per_sm = sms.gather(pl.Series(track))
        blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
        warps = pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z") / 32
        frame = frame.with_columns(blocks_per_sm=blocks / per_sm)
        return frame.with_columns(warps_per_sm=pl.col("blocks_per_sm") * warps)


class _Transfers(msgspec.Struct, frozen=True):
    """What becomes rows of the `transfers` table: bytes, and a key for the kinds of copy and memory."""

    n_bytes: Rows
    key: Rows

    def table(self, ids: Rows) -> pl.DataFrame:
        """The `transfers` table of these spans, in their order."""
        order = np.argsort(ids, kind="stable")
        distinct, code = np.unique(self.key[order], return_inverse=True)
        ends = [_ends(key) for key in distinct.tolist()]
        frame = pl.DataFrame({
            "span_id": ids[order].astype(np.uint32),
            "bytes": nullable(self.n_bytes[order], pl.Int64()),
            "kind": text_column(code, [kind for kind, _, _ in ends]),
            "src": text_column(code, [source for _, source, _ in ends]),
            "dst": text_column(code, [target for _, _, target in ends]),
        })  # fmt: skip
        return TRANSFERS.conform(frame)


def _ends(key: int) -> tuple[str, str | None, str | None]:
    if key & _IS_SET:
        return "memset", None, _memory(key & 0xFF)
    return _COPIES.get(key >> 16, "unknown"), _memory(key >> 8 & 0xFF), _memory(key & 0xFF)
