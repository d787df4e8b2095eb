"""All ranks on one timeline, in true time: Chrome's trace format, which Perfetto and chrome://tracing show.

Only one rank is in memory at a time: each trace is read once to solve the clocks, and once to write it.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.clocks import Clocks, clocks_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import enclosing
from stepscope.core.schema import DEVICE_LABEL
from stepscope.exports import Export, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.core.trace import Run, Trace
    from stepscope.exports import Context

    Ints = NDArray[np.int64]
    from collections.abc import Callable, Mapping, Sequence

    Truth = Callable[[Ints], Ints]


def chrome(run: Run, context: Context, *, as_recorded: bool = False) -> Stream:
    """All traces on one timeline: spans, counters, arrows, tracks named by rank.

    Clocks of ranks are corrected by the offsets of `show clock-offsets`, so that no collective ends on one rank before
    it has begun on another; `as_recorded` leaves them as they are. Ranks that share no collective with others keep
    their own clock. Spans of a thread that overlap, such as collectives of several threads of a library, are drawn on
    separate lines.

    Units: us in the file, as the format has it, with ns as decimals.
    Source: Trace Event Format, Google.
    """
    return Stream(_document(run, context, as_recorded=as_recorded))


def _document(run: Run, context: Context, *, as_recorded: bool) -> Iterator[str]:
    held = run.open_trace(run.paths[0]) if len(run.paths) == 1 else None
    placed = (
        [_PlacedFile(run.paths[0], None, None)]
        if held is not None
        else _place_files(run, context, as_recorded=as_recorded)
    )
    # Corrected times must not become negative, because viewers do not show negative times.
    begin = min(int(place(np.zeros(1, np.int64))[0]) for place in placed)
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    used: set[int] = set()
    for place in placed:
        trace = held if held is not None else run.open_trace(place.path)
        for piece in events(trace, _number(trace, used), partial(place, since=begin)):
            yield separator + piece
            separator = ",\n"
        del trace
    yield "\n]}\n"


class _PlacedFile(msgspec.Struct, frozen=True):
    """A file and its place in true time: `shift` ns after the origin, then corrected by its rank's clock."""

    path: str
    shift: int | None
    clock: tuple[Clocks, int] | None

    def __call__(self, local_ns: Ints, *, since: int = 0) -> Ints:
        """True times in ns after the common origin, less `since` ns."""
        shown = local_ns + (self.shift or 0)
        if self.clock is None:
            return shown - since
        clocks, rank = self.clock
        true: Ints = np.rint(clocks.true(np.full(shown.size, rank), shown)).astype(np.int64)
        return true - since


def _place_files(run: Run, context: Context, *, as_recorded: bool) -> list[_PlacedFile]:
    """The files that can be read, each with its place in true time."""
    read: list[tuple[str, str, int | None]] = []
    parts = []
    for path in run.paths:
        try:
            trace = run.open_trace(path)
        except StepscopeError as error:
            context.tell(f"{path} is left out: {error.message}")
            continue
        read.append((path, trace.meta.path, trace.meta.origin_unix_ns))
        try:
            parts += [] if as_recorded else [rank_calls(trace)]
        except StepscopeError as error:
            context.tell(f"{path} keeps its own clock: {error.message}")
        del trace
    if not read:
        raise StepscopeError("none of the traces can be read", "`stepscope report` says what is wrong with each")
    if not parts:
        first = min((origin for *_, origin in read if origin is not None), default=0)
        return [_PlacedFile(path, 0 if origin is None else origin - first, None) for path, _, origin in read]
    job = job_of(parts)
    clocks = clocks_of(job)
    index = {part.label: i for i, part in enumerate(job.parts)}
    placed = []
    for path, label, origin in read:
        rank = index.get(label)
        own = job.shifts[rank] if rank is not None else 0
        known = origin is not None and job.origin_unix_ns is not None
        shift = origin - job.origin_unix_ns if known and origin and job.origin_unix_ns else own
        placed.append(_PlacedFile(path, shift, None if rank is None else (clocks, rank)))
    return placed


def _number(trace: Trace, used: set[int]) -> int:
    """A number that no other trace has: its rank, if that is free."""
    number = trace.rank if trace.rank is not None and trace.rank not in used else max(used, default=-1) + 1
    used.add(number)
    return number


EXPORT = Export(
    name="chrome",
    doc="All ranks on one timeline in true time, as Chrome trace JSON, for Perfetto (-o merged.json.gz).",
    run=chrome,
)


_CHUNK = 100_000  # spans written at a time
_LANES = 16  # rows of a track that overlap without one being inside the other are drawn on so many lines
_PROCESSES = 1000  # process ids of a rank
#: Our categories as PyTorch calls them, which viewers colour by and readers know.
_CATEGORIES = {
    "step": "user_annotation", "user_range": "user_annotation", "operator": "cpu_op", "python": "python_function",
    "module": "python_function", "runtime": "cuda_runtime", "driver": "cuda_driver", "kernel": "kernel",
    "memcpy": "gpu_memcpy", "memset": "gpu_memset", "sync": "cuda_sync", "device_range": "gpu_user_annotation",
    "overhead": "overhead",
}  # fmt: skip


def events(trace: Trace, number: int, truth: Truth) -> Iterator[str]:
    """All events of one trace as JSON objects with commas between, some at a time.

    Process ids begin at `number` × 1000. `truth` converts ns from the trace's origin to the times to write (ns).
    """
    trace.require_clock(needed_by="chrome")
    tracks = _tracks(trace, number)
    yield _lines(_headers(tracks, trace, number))
    spans = trace.spans
    if not spans.is_empty():
        begin = truth(spans["ts_ns"].to_numpy())
        end = truth(spans["ts_ns"].to_numpy() + spans["dur_ns"].to_numpy())
        lane = _lanes(spans["track_id"].to_numpy().astype(np.int64), begin, end)
        placed = spans.select(
            *("span_id", "track_id", "name", "category", "recorded_category", "step", "correlation", "external_id"),
            "launch_id",
            begin=pl.Series(begin),
            length=pl.Series(end - begin),
            lane=pl.Series(lane),
        )
        places = tracks.select("track_id", "new_pid", "new_tid")
        placed = placed.join(places, on="track_id", how="left", maintain_order="left")
        if more := _lane_headers(placed, tracks):
            yield _lines(more)
        details = _details(trace)
        recorded = trace.meta.format == "kineto"
        for low in range(0, spans.height, _CHUNK):
            yield _spans(placed[low : low + _CHUNK], details, low, recorded=recorded)
        yield from _launches(placed, number)
    yield from _arrows(trace, tracks, truth, number)
    yield from _counters(trace, truth, number)


def _tracks(trace: Trace, number: int) -> pl.DataFrame:
    """Tracks with the process and thread ids that they get: unique among all ranks."""
    tracks = trace.tracks
    device = pl.format("device {}", "device_id")
    where = pl.when(pl.col("device_id").is_not_null()).then(device).otherwise(pl.format("process {}", "pid"))
    tracks = tracks.with_columns(where=pl.coalesce(where, pl.lit("other")))
    order = tracks.sort(pl.col("device_id").is_not_null(), "device_id", "track_id")["where"].unique(maintain_order=True)
    place = pl.DataFrame({"where": order, "new_pid": number * _PROCESSES + np.arange(len(order))})
    return tracks.join(place, on="where", how="left", maintain_order="left").with_columns(
        new_tid=pl.col("track_id").cast(pl.Int64) * _LANES
    )


def _headers(tracks: pl.DataFrame, trace: Trace, number: int) -> list[dict[str, Any]]:
    """Names of processes and threads, and the order in which they are shown."""
    rank = f"rank {trace.rank}" if trace.rank is not None else f"trace {number}"
    described = pl.concat_str(DEVICE_LABEL, "name", separator=" ", ignore_nulls=True)
    devices = dict(trace.devices.select("device_id", described).iter_rows())
    headers: list[dict[str, Any]] = []
    for pid, own in tracks.group_by("new_pid", maintain_order=True):
        head = own.row(0, named=True)
        of = devices.get(head["device_id"]) or head["process"] or "host"
        headers.append(_header("process_name", pid[0], 0, name=f"{rank} · {of}"))
        headers.append(_header("process_sort_index", pid[0], 0, sort_index=pid[0]))
        for row in own.iter_rows(named=True):
            stream = f"stream {row['stream']}" if row["stream"] is not None else None
            headers.append(
                _header("thread_name", pid[0], row["new_tid"], name=row["label"] or stream or row["kind"] or "")
            )
            headers.append(_header("thread_sort_index", pid[0], row["new_tid"], sort_index=row["new_tid"]))
    return headers


def _header(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _lane_headers(placed: pl.DataFrame, tracks: pl.DataFrame) -> list[dict[str, Any]]:
    """Names of the additional lines of tracks whose rows overlap."""
    more = placed.filter(pl.col("lane") > 0).select("new_pid", "new_tid", "lane").unique().sort("new_tid", "lane")
    labels = dict(zip(tracks["new_tid"].to_list(), tracks["label"].to_list(), strict=True))
    return [
        _header("thread_name", pid, tid + lane, name=f"{labels[tid] or 'thread'} ({lane + 1})")
        for pid, tid, lane in more.iter_rows()
    ]


def _lanes(track: Ints, begin: Ints, end: Ints) -> Ints:
    """The line of its track on which each span is drawn, so that spans on one line are nested or disjoint.

    Of two spans that cross, the shorter one moves to the next line, so that a long one (a step) stays with its content.
    """
    lane = np.zeros(track.size, np.int64)
    rows = np.arange(track.size)
    for line in range(1, _LANES):
        moved = [_crossing(rows, track, begin, end)]
        while moved[-1].size:
            rows = np.setdiff1d(rows, moved[-1], assume_unique=True)
            moved.append(_crossing(rows, track, begin, end))
        rows = np.sort(np.concatenate(moved))
        if not rows.size:
            break
        lane[rows] = line
    return lane


def _crossing(rows: Ints, track: Ints, begin: Ints, end: Ints) -> Ints:
    """The shorter row of each pair that overlaps without being nested."""
    ranked = rows[np.lexsort((-end[rows], begin[rows], track[rows]))]
    parent = enclosing(begin[ranked], end[ranked], track[ranked])
    outer = ranked[np.maximum(parent, 0)]
    crosses = (parent >= 0) & (end[ranked] > end[outer])
    inner, outer = ranked[crosses], outer[crosses]
    return distinct_values(np.where(end[inner] - begin[inner] <= end[outer] - begin[outer], inner, outer))


def _spans(part: pl.DataFrame, details: Mapping[int, str], low: int, *, recorded: bool) -> str:
    """Complete events of some spans. `details` holds further arguments of some of them, by row."""
    own = part["category"].cast(pl.String).replace_strict(_CATEGORIES, default=None, return_dtype=pl.String())
    kind = pl.coalesce(own, part["category"].cast(pl.String))
    kinds = part.select(
        pl.coalesce(pl.col("recorded_category").cast(pl.String), kind) if recorded else kind
    ).to_series()
    arguments = [
        pl.when(pl.col(column).is_not_null())
        .then(pl.concat_str(pl.lit(f', "{label}": '), pl.col(column)))
        .otherwise(pl.lit(""))
        for column, label in (("step", "step"), ("correlation", "correlation"), ("external_id", "External id"))
    ]
    if details:
        arguments.append(pl.lit(pl.Series([details.get(row, "") for row in range(low, low + part.height)])))
    part = part.with_columns(quoted=_quoted(part["name"]), cat=_quoted(kinds))
    lines = part.select(
        pl.concat_str(
            pl.lit('{"ph": "X", "cat": '), "cat", pl.lit(', "name": '), "quoted", *_place("new_pid", "lane"),
            pl.lit(', "ts": '), _us("begin"), pl.lit(', "dur": '), _us("length"),
            pl.lit(', "args": {'), pl.concat_str(arguments).str.strip_prefix(", "), pl.lit("}}"),
        )
    )  # fmt: skip
    return _joined(lines)


def _place(pid: str, lane: str) -> list[pl.Expr]:
    return [pl.lit(', "pid": '), pl.col(pid), pl.lit(', "tid": '), pl.col("new_tid") + pl.col(lane)]


def _us(column: str) -> pl.Expr:
    """Nanoseconds as microseconds with three decimals."""
    whole, rest = pl.col(column) // 1000, (pl.col(column) % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(whole, pl.lit("."), rest)


def _quoted(names: pl.Series) -> pl.Series:
    """Texts as JSON; each distinct one is escaped once."""
    distinct = names.unique().cast(pl.String)
    escaped = pl.Series([json.dumps(name or "") for name in distinct.to_list()], dtype=pl.String)
    return names.cast(pl.String).replace_strict(distinct, escaped, default='""', return_dtype=pl.String())


def _joined(lines: pl.DataFrame) -> str:
    return str(lines.to_series().str.join(",\n").item())


def _lines(events: Sequence[Mapping[str, Any]]) -> str:
    return ",\n".join(json.dumps(event) for event in events)


def _details(trace: Trace) -> dict[int, str]:
    """What is known of collectives, as further arguments of their spans, by row."""
    labels = {
        "collective": "Collective name", "dtype": "dtype", "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group": "Process Group Name", "group_size": "Group size", "group_ranks": "Process Group Ranks",
        "group_description": "Process Group Description", "src_rank": "Src Rank", "dst_rank": "Dst Rank", "seq": "Seq",
    }  # fmt: skip
    details = {}
    for row in trace.collectives.iter_rows(named=True):
        args = {label: row[column] for column, label in labels.items() if row[column] is not None}
        details[row["span_id"]] = ", " + json.dumps(args)[1:-1] if args else ""
    return details


def _launches(placed: pl.DataFrame, number: int) -> Iterator[str]:
    """Arrows from launches to the work that they queued."""
    work = placed.filter(pl.col("launch_id").is_not_null())
    for low in range(0, work.height, _CHUNK):
        part = work[low : low + _CHUNK]
        start = placed.select("begin", "new_pid", "new_tid", "lane")[part["launch_id"].cast(pl.Int64)]
        part = part.with_columns(start.select(pl.all().name.prefix("from_")))
        ids = pl.col("span_id").cast(pl.Int64) + (number << 32)
        yield _joined(
            part.select(
                pl.concat_str(
                    pl.lit('{"ph": "s", "id": '), ids, pl.lit(', "cat": "ac2g", "name": "ac2g", "pid": '),
                    "from_new_pid", pl.lit(', "tid": '), pl.col("from_new_tid") + pl.col("from_lane"),
                    pl.lit(', "ts": '), _us("from_begin"), pl.lit('},\n{"ph": "f", "bp": "e", "id": '), ids,
                    pl.lit(', "cat": "ac2g", "name": "ac2g"'), *_place("new_pid", "lane"), pl.lit(', "ts": '),
                    _us("begin"), pl.lit("}"),
                )
            )
        )  # fmt: skip


def _arrows(trace: Trace, tracks: pl.DataFrame, truth: Truth, number: int) -> Iterator[str]:
    """Arrows between host threads, as from forward to backward."""
    arrows = trace.arrows
    if arrows.is_empty():
        return
    for end in ("from", "to"):
        place = tracks.select(
            pl.col("track_id").alias(f"{end}_track_id"), pl.col("new_pid", "new_tid").name.prefix(f"{end}_")
        )
        arrows = arrows.join(place, on=f"{end}_track_id", how="inner", maintain_order="left")
        when = pl.Series(truth(arrows[f"{end}_ts_ns"].to_numpy()))
        arrows = arrows.with_columns(when.alias(f"{end}_true"))
    arrows = arrows.with_columns(quoted=_quoted(arrows["recorded_category"])).with_row_index("row")
    ids = pl.col("row").cast(pl.Int64) + (number << 32) + (1 << 31)
    for low in range(0, arrows.height, _CHUNK):
        yield _joined(
            arrows[low : low + _CHUNK].select(
                pl.concat_str(
                    pl.lit('{"ph": "s", "id": '), ids, pl.lit(', "cat": '), "quoted", pl.lit(', "name": '), "quoted",
                    pl.lit(', "pid": '), "from_new_pid", pl.lit(', "tid": '), "from_new_tid", pl.lit(', "ts": '),
                    _us("from_true"), pl.lit('},\n{"ph": "f", "bp": "e", "id": '), ids, pl.lit(', "cat": '), "quoted",
                    pl.lit(', "name": '), "quoted", pl.lit(', "pid": '), "to_new_pid",
                    pl.lit(', "tid": '), "to_new_tid",
                    pl.lit(', "ts": '), _us("to_true"), pl.lit("}"),
                )
            )
        )  # fmt: skip


def _counters(trace: Trace, truth: Truth, number: int) -> Iterator[str]:
    """Samples of resources, in the rank's first process."""
    counters = trace.counters.filter(pl.col("value").is_finite())
    for low in range(0, counters.height, _CHUNK):
        part = counters[low : low + _CHUNK]
        part = part.with_columns(true=pl.Series(truth(part["ts_ns"].to_numpy()))).filter(pl.col("true") >= 0)
        if part.is_empty():  # recorded before the first span
            continue
        part = part.with_columns(
            quoted=_quoted(part.select(pl.concat_str("metric", pl.lit(" "), "device", ignore_nulls=True)).to_series()),
        )
        yield _joined(
            part.select(
                pl.concat_str(
                    pl.lit('{"ph": "C", "name": '), "quoted",
                    pl.lit(f', "pid": {number * _PROCESSES}, "tid": 0, "ts": '),
                    _us("true"), pl.lit(', "args": {"value": '), "value", pl.lit("}}"),
                )
            )
        )  # fmt: skip
