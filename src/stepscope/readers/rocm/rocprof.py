"""AMD's recorders: rocprofv3 as CSV, JSON or rocpd database, rocmProfileData's .rpd, rocprof-compute's pmc_perf.csv.

Format: rocprofiler-sdk's manual and its `rocpd_tables.sql` (schema 3); rocmProfileData's schema 2. Times are ns of the
host's steady clock, so that the Unix time of a recording is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.names import is_tensor_core, map_names, transfer_kind
from stepscope.core.schema import KERNEL_METRICS, KERNELS, OPS, SERIALISED, TRANSFERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.columns import ABSENT, device_table
from stepscope.readers.common.source import SQLITE_MAGIC, IssueLog, give_back
from stepscope.readers.common.span_builder import Names, Part, Tracks, assemble, code_of
from stepscope.readers.common.sqlite import opened
from stepscope.readers.rocm.rocprof_csv import read_csv
from stepscope.readers.rocm.rocprof_db import read_database
from stepscope.readers.rocm.rocprof_json import read_json
from stepscope.readers.rocm.rocprof_records import AXES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.source import Source
    from stepscope.readers.rocm.rocprof_records import Records

    Rows = NDArray[np.int64]


#: The recorder's domain of a call, by how it begins: what it is here.
_DOMAINS = (("MARKER", "user_range"), ("ROCTX", "user_range"), ("HIP", "runtime"), ("HSA", "driver"))
_KINDS = ("kernel", "copy")


def build(records: Records, issues: IssueLog) -> tuple[dict[str, pl.DataFrame], int, bool]:
    """All tables, the origin in the recorder's ns, and whether it has a clock at all.

    Launches without times (counter files of older versions) keep their order and get no times.
    """
    names, tracks = Names(), Tracks()
    devices, device_of = _devices(records)
    dispatches = records.dispatches.with_row_index("row")
    timed = dispatches["start"].null_count() == 0
    if not timed:
        what = "launches are recorded without times; only their order is known"
        issues.add("no_clock", "warning", dispatches.height, what)
        dispatches = dispatches.with_columns(start=pl.col("row").cast(pl.Int64), end=pl.col("row").cast(pl.Int64))
    work = [dispatches, records.copies]
    parts = [_work_part(frame, kind, names, tracks, device_of) for frame, kind in zip(work, _KINDS, strict=True)]
    parts.append(_calls_part(records.calls, names, tracks))
    table = tracks.table(None, records.host)
    spans = assemble(parts, names.texts, table["device_id"].is_not_null().to_numpy(), issues, None)
    frame = spans.spans
    if not timed:
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias(c) for c in ("ts_ns", "dur_ns"))
    tables = {"devices": devices, "tracks": table, "spans": frame, "steps": spans.steps}
    dispatches, copies, calls = (
        spans.of_spans(rows.with_columns(span_id=pl.Series(ids, dtype=pl.UInt32)))
        for rows, ids in zip((dispatches, records.copies, records.calls), spans.ids, strict=True)
    )
    tables["kernels"] = _kernels(dispatches, devices, device_of)
    tables["transfers"] = _transfers(copies)
    known = dispatches.select("dispatch", "span_id").drop_nulls().unique("dispatch", keep="first")
    metrics = records.metrics.join(known, on="dispatch", how="inner", maintain_order="left")
    lost = records.metrics.height - metrics.height
    issues.add("unknown_dispatch", "warning", lost, "counter values belong to launches that are not recorded")
    tables["kernel_metrics"] = KERNEL_METRICS.conform(metrics.sort("span_id", maintain_order=True))
    what = "kernels ran one at a time to have their counters read: idle time is the recorder's, not the program's"
    issues.add(SERIALISED, "warning", int(timed and not records.metrics.is_empty()), what)
    with_shapes = calls.filter(pl.col("shapes").is_not_null())
    tables["ops"] = OPS.conform(with_shapes.select("span_id", input_shapes="shapes"))
    return tables, spans.origin_ns, timed


def _devices(records: Records) -> tuple[pl.DataFrame, dict[str, int]]:
    """The `devices` table: the host and the accelerators in use; and each one's device_id."""
    used = pl.concat([records.dispatches["agent"], records.copies["agent"]]).fill_null("").unique().to_list()
    known = {row["agent"]: row for row in records.agents.to_dicts()}
    order = sorted(used, key=lambda agent: (known.get(agent, {}).get("index") or 0, len(agent), agent))
    rows: list[tuple[object, ...]] = [(0, "cpu", None, None, None, None, None)]
    for device_id, agent in enumerate(order, 1):
        row = known.get(agent, {})
        columns = ("index", "name", "cu_count", "memory_bytes", "arch")
        rows.append((device_id, "rocm", *(row.get(column) for column in columns)))
    return device_table(rows), {a: i for i, a in enumerate(order, 1)}


def _work_part(frame: pl.DataFrame, kind: str, names: Names, tracks: Tracks, device_of: dict[str, int]) -> Part:
    where = frame.select(pl.col("agent").fill_null(""), "stream", "queue", "pid")
    keys = where.unique(maintain_order=True).sort("agent", "stream", "queue", "pid", nulls_last=True)
    ids = [_stream(tracks, device_of, *row) for row in keys.rows()]
    keys = keys.with_columns(track=pl.Series(ids, dtype=pl.UInt32))
    track = where.join(keys, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["track"]
    if kind == "kernel":
        label, category = frame["name"], np.full(frame.height, code_of("kernel"), np.uint8)
    else:
        label = frame["kind"]
        fill = map_names(label, lambda text: transfer_kind(text) == "memset", pl.Boolean()).fill_null(value=False)
        category = np.where(fill.to_numpy(), code_of("memset"), code_of("memcpy")).astype(np.uint8)
    recorded = "kernel_dispatch" if kind == "kernel" else "memory_copy"
    return _part(frame, category, recorded, track.to_numpy(), _codes(label, names))


def _stream(
    tracks: Tracks, device_of: dict[str, int], agent: str, stream: int | None, queue: int | None, pid: int | None
) -> int:
    """A track for each stream; where only queues are recorded, for each queue."""
    number = queue if stream is None else stream
    word = "queue" if stream is None else "stream"
    label = word if number is None else f"{word} {number}"
    columns = {"pid": pid, "device_id": device_of[agent], "stream": number, "kind": "stream", "label": label}
    return tracks.id(("stream", agent, word, number, pid), **columns)


def _calls_part(calls: pl.DataFrame, names: Names, tracks: Tracks) -> Part:
    where = calls.select("pid", "tid")
    keys = where.unique(maintain_order=True)
    ids = [tracks.id(("thread", pid, tid), pid=pid, tid=tid, kind="thread") for pid, tid in keys.rows()]
    keys = keys.with_columns(track=pl.Series(ids, dtype=pl.UInt32))
    track = where.join(keys, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["track"]
    category = map_names(calls["domain"], _call_category, pl.UInt8()).fill_null(code_of("other"))
    return _part(calls, category.to_numpy(), "api", track.to_numpy(), _codes(calls["name"], names))


def _call_category(domain: str) -> int:
    if domain == "operator":
        return code_of("operator")
    upper = domain.upper()
    return code_of(next((category for word, category in _DOMAINS if upper.startswith(word)), "other"))


def _part(
    frame: pl.DataFrame,
    category: NDArray[np.uint8],
    recorded: str,
    track: NDArray[np.uint32],
    name: NDArray[np.uint32],
) -> Part:
    start, end, correlation = (
        frame[c].fill_null(ABSENT).to_numpy().astype(np.int64) for c in ("start", "end", "correlation")
    )
    return Part(category, recorded, start, end, track.astype(np.uint32), name, correlation, correlation)


def _codes(labels: pl.Series, names: Names) -> NDArray[np.uint32]:
    return map_names(labels.fill_null("?"), names.code, pl.UInt32()).to_numpy().astype(np.uint32)


def _kernels(dispatches: pl.DataFrame, devices: pl.DataFrame, device_of: dict[str, int]) -> pl.DataFrame:
    """The `kernels` table: grids in work-groups, a last one that is not full counted."""
    groups = {
        f"grid_{a}": pl.when(pl.col(f"group_{a}") > 0).then(
            (pl.col(f"grid_{a}") + pl.col(f"group_{a}") - 1) // pl.col(f"group_{a}")
        )
        for a in AXES
    }
    units = devices.select("device_id", "sm_count")
    frame = dispatches.with_columns(
        **groups,
        **{f"block_{a}": pl.col(f"group_{a}") for a in AXES},
        tensor_core=map_names(dispatches["name"], is_tensor_core, pl.Boolean()),
        device_id=pl.col("agent").fill_null("").replace_strict(device_of, default=None, return_dtype=pl.UInt32),
    )
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    frame = frame.join(units, on="device_id", how="left").with_columns(blocks_per_sm=blocks / pl.col("sm_count"))
    return KERNELS.conform(frame.sort("span_id"))


def _transfers(copies: pl.DataFrame) -> pl.DataFrame:
    kind = map_names(copies["kind"], transfer_kind, pl.String())
    return TRANSFERS.conform(copies.with_columns(kind=kind).sort("span_id"))


def read(source: Source) -> Trace:
    """One run's records as tables; of CSV files, also the others of the same run.

    Raises CorruptInput, UnknownFormat (a summary), UnsupportedVersion, StepscopeError; lesser damage is in `issues`.
    """
    issues = IssueLog()
    head = next(iter(source.chunks()), b"")
    source.n_bytes = 0
    if head.startswith(SQLITE_MAGIC):
        with opened(source, issues) as db:
            records = read_database(db, source.label)
    elif head.lstrip()[:1] == b"{":
        text = b"".join(source.chunks())
        records = read_json(text, source.label)
    else:
        records = read_csv(source, issues)
    trace = _trace(records, source, issues)
    give_back()
    return trace


def _trace(records: Records, source: Source, issues: IssueLog) -> Trace:
    tables, origin_ns, timed = build(records, issues)
    if tables["spans"].is_empty():
        issues.add("no_spans", "warning", 1, "the file holds no launch, copy or call")
    tables["issues"] = issues.table()
    operators = "operator" in tables["spans"]["category"]
    meta = Meta(
        path=source.label,
        format="rocprof",
        n_events=tables["spans"].height,
        size_bytes=source.n_bytes,
        host=records.host,
        framework="PyTorch" if operators else None,
        origin_recorded_ns=origin_ns if timed else 0,
        facts=records.facts,
    )
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})
