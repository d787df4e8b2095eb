"""Nsight Systems, exported to SQLite: `nsys export --type sqlite`, schemas 2.7 to 3.x (2021 to 2026).

Format: NVIDIA's "Exporter SQLite Schema" in the Nsight Systems user guide. Times are ns since the session began. Tables
are made when first needed: one that is not there holds no events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import UnknownFormat
from stepscope.core.schema import KERNELS, TRANSFERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.memory import give_back
from stepscope.readers.common.span_builder import Names, assemble
from stepscope.readers.common.sqlite import opened
from stepscope.readers.nsight import nsys_device, nsys_host
from stepscope.readers.nsight.nsys_target import Target, gpu_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.readers.common.source import Source
    from stepscope.readers.common.sqlite import Database

_TABLES = ("EXPORT_META_DATA", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", nsys_device.KERNEL, "NVTX_EVENTS")


def read(source: Source) -> Trace:
    """The whole export as tables. Memory: the columns. Environment variables and program output are not read.

    Raises CorruptInput (damaged database), UnknownFormat (another program's database), StepscopeError.
    """
    issues = IssueLog()
    with opened(source) as db:
        if not any(table in db for table in _TABLES):
            what = ", ".join(db.tables[:5]) or "nothing"
            hint = "see `stepscope formats` for what can be read"
            raise UnknownFormat(f"{source.label} is an SQLite database of no known recorder: it holds {what}", hint)
        trace = _trace(db, source, issues)
    give_back()
    return trace


def _trace(db: Database, source: Source, issues: IssueLog) -> Trace:
    target, names = Target(db), Names()
    stop = db.rows("SELECT max(stopTime) FROM ANALYSIS_DETAILS")[0][0] if "ANALYSIS_DETAILS" in db else None
    device = nsys_device.device_work(db, target, names, issues)
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
    tables["kernels"] = _stacked(device.kernels, [next(ids) for _ in device.kernels], KERNELS.empty())
    tables["transfers"] = _stacked(device.transfers, [next(ids) for _ in device.transfers], TRANSFERS.empty())
    if ranges.parts:
        tables["ops"] = ranges.ops(spans.ids[len(device.parts)])
    tables["counters"] = gpu_metrics(db, target, spans.origin_ns)
    tables["devices"] = target.devices()
    if not spans.spans.is_empty() and tables["kernels"].is_empty() and tables["transfers"].is_empty():
        what = "no kernel, copy or fill was recorded: was the process that uses the GPU profiled, with --trace=cuda?"
        issues.add("no_device_work", "warning", 1, what)
    if spans.spans.is_empty():
        issues.add("no_spans", "warning", 1, "the export holds nothing with a start and an end")
    tables["issues"] = issues.table()
    tables = {name: frame for name, frame in tables.items() if not frame.is_empty()}
    return Trace(_meta(db, source, target, rank, spans.spans, spans.origin_ns), tables)


def _stacked(
    makers: list[Callable[[NDArray[np.int64]], pl.DataFrame]], ids: list[NDArray[np.int64]], empty: pl.DataFrame
) -> pl.DataFrame:
    frames = [make(rows) for make, rows in zip(makers, ids, strict=True)]
    return frames[0] if len(frames) == 1 else pl.concat([empty, *frames]).sort("span_id")


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
