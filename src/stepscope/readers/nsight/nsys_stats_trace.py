"""Reports of `nsys stats` whose rows are events with a start (cuda_gpu_trace and its like) as the tables of a Trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.names import is_tensor_core, map_names, transfer_kind
from stepscope.core.patterns import regex
from stepscope.core.schema import KERNELS, TRANSFERS
from stepscope.core.table import Name
from stepscope.readers.common.columns import ABSENT, device_table
from stepscope.readers.common.span_builder import Names, Part, Tracks, assemble, code_of
from stepscope.readers.nsight.nsys_host import kind_of_range
from stepscope.readers.nsight.nsys_stats_text import number, scaled, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog
    from stepscope.readers.nsight.nsys_stats_text import Printed

_AXES = "xyz"
#: Labels of columns by what they are here.
_LABELS = {
    "name": ("name", "event"), "correlation": ("corrid",), "pid": ("pid",), "tid": ("tid",),
    "thread": ("thread name",), "device": ("device",), "context": ("ctx",), "stream": ("strm",), "src": ("srcmemkd",),
    "dst": ("dstmemkd",),
}  # fmt: skip
_DEVICE = regex(r"^(?P<name>.*?)\s*\((?P<index>\d+)\)$")
_RATE = regex(r"^(?P<unit>[KMGT]?i?B)(?:ps|/s)$")


def is_events(table: Printed) -> bool:
    """Whether the rows of a table are events on streams or threads."""
    is_timed = table.place("start") is not None and table.place("duration", "end") is not None
    where = table.place("strm", "tid", "device")
    return is_timed and where is not None and table.place("name", "event") is not None


class Events(msgspec.Struct, frozen=True):
    """Events of one sort: what they are, here and in the recorder's word, and their columns."""

    category: str | NDArray[np.uint8]
    recorded: str
    frame: pl.DataFrame
    on_device: bool


def events_of(table: Printed, issues: IssueLog) -> list[Events]:
    """The rows of a table by sort."""
    if table.place("strm", "device") is not None:
        return _work(table, issues)
    frame = _whole(table.select(issues, **_events(table, issues, ("pid", "tid", "thread"))), issues)
    if table.place("corrid") is not None:
        driver = map_names(frame["name"], _is_driver, pl.Boolean()).fill_null(value=False).to_numpy()
        codes = np.where(driver, code_of("driver"), code_of("runtime")).astype(np.uint8)
        return [Events(codes, "cuda_api", frame, on_device=False)]
    if table.place("durchild") is None and not table.report.startswith("nvtx"):
        return [Events("other", table.report.removesuffix("_trace") or "call", frame, on_device=False)]
    # Names begin with that of their domain, and PyTorch writes shapes behind them.
    kinds = map_names(frame["name"], lambda text: code_of(_range(text)[0]), pl.UInt8())
    frame = frame.with_columns(name=map_names(frame["name"], lambda text: _range(text)[1], pl.String()).cast(Name))
    return [Events(kinds.fill_null(code_of("user_range")).to_numpy(), "nvtx", frame, on_device=False)]


def event_tables(events: Sequence[Events], issues: IssueLog) -> tuple[dict[str, pl.DataFrame], int]:
    """The tables of a Trace, and its origin in the recorder's ns. Calls and work are tied by their correlation."""
    work = [one.frame for one in events if one.on_device]
    calls = [one.frame["pid"] for one in events if not one.on_device]
    may_link = not work or not calls or pl.concat(calls).n_unique() == 1
    if not may_link:
        what = "calls of several processes number their launches alike: work cannot be linked to them"
        issues.add("ambiguous_launches", "warning", sum(frame.height for frame in work), what)
    names, tracks = Names(), Tracks()
    devices, device_of = _devices(work)
    parts = []
    for one in events:
        track = _streams(one.frame, tracks, device_of) if one.on_device else _threads(one.frame, tracks)
        parts.append(_part(one, track, names, may_link=may_link))
    where = tracks.table(None, None)
    spans = assemble(parts, names.texts, where["device_id"].is_not_null().to_numpy(), issues, None)
    details = [
        (one.category, spans.of_spans(one.frame.with_columns(span_id=pl.Series(ids, dtype=pl.UInt32))))
        for one, ids in zip(events, spans.ids, strict=True)
        if one.on_device
    ]
    kernels = [
        KERNELS.conform(frame.with_columns(tensor_core=map_names(frame["name"], is_tensor_core, pl.Boolean())))
        for category, frame in details
        if category == "kernel"
    ]
    transfers = [
        TRANSFERS.conform(frame.with_columns(kind=map_names(frame["name"], transfer_kind, pl.String())))
        for category, frame in details
        if category != "kernel"
    ]
    tables = {
        "devices": devices,
        "tracks": where,
        "spans": spans.spans,
        "steps": spans.steps,
        "kernels": pl.concat([KERNELS.empty(), *kernels]).sort("span_id"),
        "transfers": pl.concat([TRANSFERS.empty(), *transfers]).sort("span_id"),
    }
    return tables, spans.origin_ns


def _events(table: Printed, issues: IssueLog, where: Sequence[str]) -> dict[str, pl.Expr]:
    """The columns that all events have, and those that say where they ran; null where the report lacks them."""
    start, end, duration = (table.place(label) for label in ("start", "end", "duration"))
    begin = _ns(table, str(start))
    table.note_units("ns", issues, of=("start", "end", "duration"))
    columns = {
        "start": begin,
        "end": _ns(table, end) if duration is None and end is not None else begin + _ns(table, str(duration)),
    }
    for name in ("name", "correlation", *where):
        dtype = Name if name in ("name", "device", "thread") else pl.Int64()
        columns[name] = _or_null(table, _LABELS[name], dtype)
    return columns


def _ns(table: Printed, column: str) -> pl.Expr:
    """Times as whole ns: as they are where they are printed so, since a double does not hold all digits."""
    if table.columns[int(column)].unit in ("", "ns"):
        return pl.col(column).cast(pl.Int64, strict=False)
    return scaled(table, column, "ns").round().cast(pl.Int64, strict=False)


def _or_null(table: Printed, labels: Sequence[str], dtype: pl.DataType) -> pl.Expr:
    at = table.place(*labels)
    return pl.lit(None, dtype) if at is None else pl.col(at).cast(dtype, strict=False)


def _whole(frame: pl.DataFrame, issues: IssueLog) -> pl.DataFrame:
    sound = frame.drop_nulls(["start", "end"])
    lost = frame.height - sound.height
    issues.add("incomplete_rows", "warning", lost, "rows without a start or an end were dropped")
    return sound


def _work(table: Printed, issues: IssueLog) -> list[Events]:
    """Kernels with how they were launched, copies and fills with what they moved."""
    common = _events(table, issues, ("device", "context", "stream"))
    columns = dict(common)
    for what, label in (("grid", "grd"), ("block", "blk")):
        columns |= {f"{what}_{a}": _or_null(table, (label + a,), pl.Int32()) for a in _AXES}
    columns["registers"] = _or_null(table, ("reg/trd",), pl.Int32())
    columns["shared_bytes"] = _bytes(table, "stcsmem") + _bytes(table, "dymsmem")
    columns["bytes"] = _bytes(table, "bytes")
    columns |= {name: _or_null(table, _LABELS[name], Name) for name in ("src", "dst")}
    table.note_units("bytes", issues, of=("stcsmem", "dymsmem", "bytes"))
    at = table.place("throughput", "thru")
    rate = None if at is None else _RATE.match(table.columns[int(at)].unit)
    if at is not None and rate is not None:
        columns["recorded_bytes_per_s"] = number(at) * size_of(rate["unit"])
    frame = _whole(table.select(issues, **columns), issues)
    is_kernel = frame["grid_x"].is_not_null() | map_names(frame["name"], _is_plain, pl.Boolean()).fill_null(value=True)
    is_set = map_names(frame["name"], _is_fill, pl.Boolean()).fill_null(value=False)
    moved = ("bytes", "src", "dst", "recorded_bytes_per_s")
    launched = [name for name in columns if name not in moved]
    transferred = [name for name in columns if name in common or name in moved]
    sorts = (
        ("kernel", is_kernel, launched), ("memcpy", ~is_kernel & ~is_set, transferred),
        ("memset", ~is_kernel & is_set, transferred),
    )  # fmt: skip
    return [Events(sort, sort, frame.select(wanted).filter(mine), on_device=True) for sort, mine, wanted in sorts]


def _bytes(table: Printed, label: str) -> pl.Expr:
    """A size; in bytes where no unit is printed."""
    at = table.place(label)
    size = pl.lit(None, pl.Float64) if at is None else scaled(table, at, "bytes", "bytes")
    return size.round().cast(pl.Int64, strict=False)


def _is_plain(name: str) -> bool:
    """Whether a row without a grid may be a kernel: copies and fills have their names in brackets."""
    return not name.startswith("[")


def _is_fill(name: str) -> bool:
    return "memset" in name.lower()


def _range(text: str) -> tuple[str, str, str | None, int]:
    return kind_of_range(text.removeprefix(":"))


def _is_driver(name: str) -> bool:
    return name.startswith("cu") and not name.startswith("cuda")


def _devices(work: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, dict[str, int]]:
    """The `devices` table, and the device_id of each device as it is printed: `NVIDIA A100 (0)`."""
    printed = {text or "" for frame in work for text in frame["device"].unique().to_list()}
    rows: list[tuple[object, ...]] = [(0, "cpu", None, None, None, None, None)]
    known = {text: _DEVICE.match(text) for text in printed}
    order = sorted(known, key=lambda text: (int(match["index"]) if (match := known[text]) else 0, text))
    for device_id, text in enumerate(order, 1):
        match = known[text]
        index, name = (int(match["index"]), match["name"]) if match else (None, text)
        rows.append((device_id, "cuda", index, name or None, None, None, None))
    return device_table(rows), {text: i for i, text in enumerate(order, 1)}


def _streams(frame: pl.DataFrame, tracks: Tracks, device_of: dict[str, int]) -> NDArray[np.uint32]:
    where = frame.select("device", "context", "stream")

    def track(device: str | None, context: int | None, stream: int | None) -> int:
        label = None if stream is None else f"stream {stream}"
        columns = {"device_id": device_of[device or ""], "stream": stream, "kind": "stream", "label": label}
        return tracks.id(("stream", device, context, stream), **columns)

    return _numbered(where, track)


def _threads(frame: pl.DataFrame, tracks: Tracks) -> NDArray[np.uint32]:
    where = frame.select("pid", "tid", "thread")

    def track(pid: int | None, tid: int | None, name: str | None) -> int:
        return tracks.id(("thread", pid, tid), pid=pid, tid=tid, kind="thread", label=name)

    return _numbered(where, track)


def _numbered(where: pl.DataFrame, track: Callable[..., int]) -> NDArray[np.uint32]:
    """The track of each row; `track` is asked once for each distinct row."""
    keys = where.unique(maintain_order=True)
    keys = keys.with_columns(track=pl.Series([track(*row) for row in keys.rows()], dtype=pl.UInt32))
    tracks = where.join(keys, on=where.columns, how="left", nulls_equal=True, maintain_order="left")["track"]
    return tracks.to_numpy().astype(np.uint32)


def _part(events: Events, track: NDArray[np.uint32], names: Names, *, may_link: bool) -> Part:
    frame = events.frame
    start, end, correlation = (frame[c].fill_null(ABSENT).to_numpy() for c in ("start", "end", "correlation"))
    unnamed = names.code("?") if frame["name"].null_count() else 0
    code = map_names(frame["name"], names.code, pl.UInt32()).fill_null(unnamed).to_numpy().astype(np.uint32)
    link = correlation if may_link else None
    return Part(events.category, events.recorded, start, end, track, code, correlation, link)
