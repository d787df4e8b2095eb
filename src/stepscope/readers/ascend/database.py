"""Databases of Ascend's profilers: what torch_npu, MindSpore and msprof export to SQLite.

Format: Ascend's documentation of `ascend_pytorch_profiler_{rank}.db` and `msprof_{time}.db` (schema 1). Names are
numbers of the table STRING_IDS, times are ns since 1970. The same run exported as text (`trace_view.json`) gives the
same kernels, operators and collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.core import files, intervals
from stepscope.core import names as rules
from stepscope.core.collectives import kind_of
from stepscope.core.schema import ARROWS, COLLECTIVES, COUNTERS, DEVICES, KERNELS, OPS, STACKS, TRANSFERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.ascend.tables import of_modules, text_of, unit_of, with_kernels, with_memory
from stepscope.readers.common.categories import HCCL_TYPES, by_name, odd_device_work, without_repeats_of_hccl
from stepscope.readers.common.columns import ABSENT, torch_npu_arguments
from stepscope.readers.common.span_builder import (
    CODE,
    WORK,
    Names,
    Tracks,
    believable,
    note_coverage,
    operators,
    parents,
    span_table,
    steps_of,
)
from stepscope.readers.common.sqlite import read_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog, Source
    from stepscope.readers.common.span_builder import Sorted
    from stepscope.readers.common.sqlite import Database

    Rows = NDArray[np.int64]

#: Tables of which a database of these profilers has at least one.
TABLES = ("PYTORCH_API", "CANN_API", "COMPUTE_TASK_INFO", "COMMUNICATION_OP")
#: PyTorch's own ranges by type (ENUM_API_TYPE): what they are here.
_RANGES = {50001: "operator", 50002: "other", 50003: "python", 50004: "user_range"}
_QUEUE = 50002
#: CANN's layers, as the text export calls them.
_LAYERS = {5000: "Runtime", 5500: "Hccl", 10000: "Node", 15000: "Model", 20000: "AscendCL"}
#: Intervals that the profiler derives from its own tasks (OVERLAP_ANALYSIS), by type.
_OVERLAPS = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
_TIMES = {"start": "startNs", "end": "endNs"}
_THREAD_BITS = 32
_MOST_DEVICE = 2**16 - 1
_DAY_NS = 86_400 * 10**9


class _Run(msgspec.Struct, frozen=True):
    """The open database, the tracks so far, and the device_id of each device's number."""

    db: Database
    tracks: Tracks
    devices: dict[int, int]

    def named(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """The frame with the texts of some columns of numbers."""
        for column in columns:
            texts = self.db.texts("STRING_IDS", frame[column].drop_nulls().to_list())
            text = pl.col(column).replace_strict(texts, default=None, return_dtype=pl.String())
            frame = frame.with_columns(text)
        return frame

    def on_threads(self, frame: pl.DataFrame, process: str) -> pl.DataFrame:
        """The frame of host spans with their tracks, from the column `thread` (process and thread in one number).

        Calls of libraries are on the tracks of the threads that called them, where PyTorch recorded these.
        """
        ids = {
            key: self.tracks.id(
                key, pid=key >> _THREAD_BITS, tid=(tid := key % (1 << _THREAD_BITS)), kind="thread",
                process=process, label=f"Thread {tid}",
            )
            for key in frame["thread"].fill_null(0).unique(maintain_order=True).to_list()
        }  # fmt: skip
        return frame.with_columns(track=pl.col("thread").fill_null(0).replace_strict(ids, return_dtype=pl.Int64()))

    def on_lanes(
        self, frame: pl.DataFrame, key: str, process: str, label: Callable[[int], str], kind: str
    ) -> pl.DataFrame:
        """The frame of a device's spans with their tracks, one for each device and number of the column `key`."""
        pairs = frame.select(pl.col("device", key).fill_null(0)).unique(maintain_order=True)
        ids = []
        for device, number in pairs.rows():
            columns = {"device_id": self.devices.get(device), "kind": kind, "process": process}
            stream = number if process == "Ascend Hardware" else None
            text = label(number)
            ids.append(self.tracks.id((process, text, device), stream=stream, label=text, **columns))
        pairs = pairs.with_columns(track=pl.Series(ids, dtype=pl.Int64()))
        frame = frame.with_columns(pl.col("device", key).fill_null(0))
        return frame.join(pairs, on=["device", key], how="left", maintain_order="left")


def read(source: Source) -> Trace:
    """The whole database as tables. Memory: the columns.

    Raises CorruptInput (damaged database), UnknownFormat (another program's database), StepscopeError.
    """
    hint = "open ascend_pytorch_profiler_*.db, msprof_*.db or trace_view.json of the same run"
    return read_database(source, TABLES, _trace, ("no trace of an Ascend device", hint))


def _trace(db: Database, source: Source, issues: IssueLog) -> Trace:
    numbers = {n for t in ("TASK", "OVERLAP_ANALYSIS") for n in db.frame(t, {"d": "deviceId"})["d"].unique().to_list()}
    numbers = {n for n in numbers if n is not None and 0 <= n <= _MOST_DEVICE}
    run = _Run(db, Tracks(), {number: i for i, number in enumerate(sorted(numbers) or [0], 1)})
    ranks = db.frame("RANK_DEVICE_MAP", {"rank": "rankId"})["rank"]
    ranks = ranks.filter(ranks.is_between(0, 2**31 - 1))
    rank = ranks[0] if ranks.len() == 1 else files.rank_in(source.path)
    host = next(iter(db.frame("HOST_INFO", {"host": "hostName"}, ["host"])["host"]), None)
    tasks = _tasks(run)
    parts = [
        _ranges(run),
        _calls(run),
        _marks(run),
        tasks,
        _collectives(run, tasks),
        _planes(run, tasks),
        _overlaps(run),
    ]
    rows = _in_session(db, pl.concat(parts, how="diagonal_relaxed"), issues)
    names = Names()
    recorded = Names()
    codes = rules.map_names(rows["recorded"].fill_null(""), recorded.code, pl.UInt32()).to_numpy()
    categories = [word or None for word in recorded.texts]
    start, end = (rows[column].fill_null(ABSENT).to_numpy().copy() for column in ("start", "end"))
    lacks = (start == ABSENT) | (end == ABSENT)
    texts = rows["name"].fill_null("?")
    name = rules.map_names(texts, names.code, pl.UInt32()).to_numpy()
    what = "spans without a start or an end were dropped"
    track = rows["track"].to_numpy().astype(np.uint32)
    spans = believable(start, np.where(lacks, ABSENT, end - start), track, name, codes, issues, what)
    rows = rows.with_columns(span_id=pl.Series(spans.position)).filter(pl.col("span_id") >= 0).sort("span_id")
    tables = _linked(run, rows, spans, names.texts, categories, rank, issues)
    tables["tracks"] = run.tracks.table(rank, host)
    tables["devices"] = _devices(run)
    tables |= _side_tables(run, rows, spans.origin_ns)
    if spans.ts.size == 0:
        issues.add("no_spans", "warning", 1, "the database holds nothing with a start and an end")
    tables["issues"] = issues.table()
    versions = dict(db.rows("SELECT name, value FROM META_DATA")) if "META_DATA" in db else {}
    meta = Meta(
        path=source.label,
        format="ascend",
        n_events=rows.height,
        size_bytes=source.n_bytes,
        rank=rank,
        host=host,
        framework="PyTorch" if (rows["kind"] == "range").any() else "Ascend",
        origin_unix_ns=spans.origin_ns,
        origin_recorded_ns=spans.origin_ns,
        facts={"ascend_schema": str(versions["SCHEMA_VERSION"])} if "SCHEMA_VERSION" in versions else {},
    )
    trace = _with_memory(run, _with_details(run, rows, Trace(meta, tables)))
    return replace(trace, tables={name: frame for name, frame in trace.tables.items() if not frame.is_empty()})


def _in_session(db: Database, rows: pl.DataFrame, issues: IssueLog) -> pl.DataFrame:
    """The rows within a day of the time for which the profiler says that it recorded."""
    session = db.frame("SESSION_TIME_INFO", {"start": "startTimeNs", "end": "endTimeNs"})
    session = session.filter(pl.all_horizontal(pl.all().is_between(0, 2**62)))
    if session.is_empty():
        return rows
    low, high = int(str(session["start"].min())) - _DAY_NS, int(str(session["end"].max())) + _DAY_NS
    far = ~(rows["start"].is_between(low, high) & rows["end"].is_between(low, high)).fill_null(value=True)
    issues.add("wild_times", "warning", int(far.sum()), "spans more than a day from the recorded session were dropped")
    return rows.filter(~far)


def _kind(frame: pl.DataFrame, kind: str, category: pl.Expr | str, recorded: str | None = None) -> pl.DataFrame:
    category = pl.lit(category) if isinstance(category, str) else category
    return frame.with_columns(kind=pl.lit(kind), category=category, recorded=pl.lit(recorded, pl.String()))


def _ranges(run: _Run) -> pl.DataFrame:
    """What PyTorch recorded on the host."""
    columns = {
        "thread": "globalTid", "link": "connectionId", "name": "name", "sequence": "sequenceNumber", "type": "type",
        "forward": "fwdThreadId", "types": "inputDtypes", "shapes": "inputShapes", "stack": "callchainId",
    }  # fmt: skip
    frame = run.db.frame("PYTORCH_API", _TIMES | columns)
    frame = run.on_threads(run.named(frame, "name", "types", "shapes"), "Python")
    category = pl.col("type").replace_strict(_RANGES, default="other", return_dtype=pl.String())
    kinds = {50001: "cpu_op", 50002: "queue", 50003: "python_function", 50004: "mstx"}
    recorded = pl.col("type").replace_strict(kinds, default=None, return_dtype=pl.String())
    return _kind(frame, "range", category).with_columns(recorded=recorded)


def _calls(run: _Run) -> pl.DataFrame:
    """Calls of CANN's libraries, named as in the text export."""
    columns = _TIMES | {"type": "type", "thread": "globalTid", "connection": "connectionId", "name": "name"}
    frame = run.on_threads(run.named(run.db.frame("CANN_API", columns), "name"), "CANN")
    layer = pl.col("type").replace_strict(_LAYERS, default="CANN", return_dtype=pl.String())
    return _kind(frame.with_columns(name=layer + "@" + pl.col("name").fill_null("?")).drop("type"), "call", "other")


def _marks(run: _Run) -> pl.DataFrame:
    """Ranges that the program marked with MSTX."""
    frame = run.db.frame("MSTX_EVENTS", _TIMES | {"name": "message", "thread": "globalTid"})
    return _kind(run.on_threads(run.named(frame, "name"), "MSTX"), "mark", "user_range", "mstx")


def _tasks(run: _Run) -> pl.DataFrame:
    """What ran on the devices' streams.

    Tasks of the cores without a row of their own among the computing tasks are frames around those that have one.
    """
    columns = {"device": "deviceId", "connection": "connectionId", "task": "globalTaskId", "word": "taskType"}
    tasks = run.db.frame("TASK", _TIMES | columns | {"stream": "streamId"})
    computing = run.db.frame("COMPUTE_TASK_INFO", {
        "task": "globalTaskId", "name": "name", "blocks": "blockDim", "core": "taskType", "type": "opType",
        "shapes": "inputShapes", "dtypes": "inputDataTypes", "wait": "waitNs",
    })  # fmt: skip
    parts = (
        run.db.frame("COMMUNICATION_TASK_INFO", {"task": "globalTaskId"}).unique().with_columns(is_part=pl.lit(True))
    )
    texts = ("name", "core", "type", "shapes", "dtypes")
    computing = run.named(computing.drop_nulls("task").unique("task", keep="first"), *texts).with_columns(
        pl.when(pl.col("name").is_not_null()).then(text_of(column)).alias(column) for column in texts[1:]
    )
    frame = run.named(tasks, "word").join(computing, on="task", how="left", maintain_order="left")
    frame = frame.join(parts, on="task", how="left", maintain_order="left")
    odd = rules.map_names(frame["word"], odd_device_work, pl.String())
    plain = pl.lit("device_range" if computing.height else "kernel")
    category = (
        pl.when(pl.col("name").is_not_null()).then(pl.lit("kernel"))
        .when(pl.col("is_part") & (pl.col("odd") == "memcpy")).then(pl.lit("device_range"))
        .otherwise(pl.coalesce("odd", pl.when("is_part").then(pl.lit("device_range")), plain))
    )  # fmt: skip
    frame = _kind(frame.with_columns(odd=odd), "task", category).with_columns(name=pl.coalesce("name", "word"))
    return run.on_lanes(frame.drop("odd", "is_part", "word"), "stream", "Ascend Hardware", "Stream {}".format, "stream")


def _collectives(run: _Run, tasks: pl.DataFrame) -> pl.DataFrame:
    """Whole collectives, which no stream shows as such: a lane for each group of ranks."""
    columns = _TIMES | {
        "name": "opName", "connection": "connectionId", "group": "groupName", "n_elements": "count",
        "dtype": "dataType",
    }  # fmt: skip
    frame = run.named(run.db.frame("COMMUNICATION_OP", columns), "name", "group")
    types = run.db.frame("ENUM_HCCL_DATA_TYPE", {"id": "id", "text": "name"}, ["text"]).drop_nulls()
    dtypes = {number: HCCL_TYPES.get(text, text) for number, text in types.rows()}
    device = tasks.select("connection", "device").drop_nulls().unique("connection", keep="first")
    frame = frame.join(device, on="connection", how="left", maintain_order="left").with_columns(
        dtype=pl.col("dtype").replace_strict(dtypes, default=None, return_dtype=pl.String()),
        lane=pl.col("group").fill_null("").rank("dense").cast(pl.Int64) - 1,
        device=pl.col("device").fill_null(min(run.devices)),
    )
    frame = run.on_lanes(frame, "lane", "HCCL", "Group {} Communication".format, "stream")
    return _kind(frame, "collective", "kernel", "communication")


def _planes(run: _Run, tasks: pl.DataFrame) -> pl.DataFrame:
    """The parts of collectives on HCCL's planes."""
    columns = {"task": "globalTaskId", "name": "taskType", "plane": "planeId"}
    frame = run.named(run.db.frame("COMMUNICATION_TASK_INFO", columns), "name")
    times = tasks.select("task", "start", "end", "device").drop_nulls("task").unique("task", keep="first")
    frame = frame.join(times, on="task", how="inner", maintain_order="left").drop("task")
    return _kind(run.on_lanes(frame, "plane", "HCCL", "Plane {}".format, "annotation"), "plane", "device_range")


def _overlaps(run: _Run) -> pl.DataFrame:
    frame = run.db.frame("OVERLAP_ANALYSIS", _TIMES | {"device": "deviceId", "type": "type"})
    frame = frame.filter(pl.col("type").is_between(0, len(_OVERLAPS) - 1))
    name = pl.col("type").replace_strict(dict(enumerate(_OVERLAPS)), return_dtype=pl.String())
    frame = run.on_lanes(frame.with_columns(name=name), "type", "Overlap Analysis", _OVERLAPS.__getitem__, "annotation")
    return _kind(frame.drop("type"), "overlap", "device_range")


def _linked(
    run: _Run, rows: pl.DataFrame, spans: Sorted, texts: list[str], categories: list[str | None], rank: int | None,
    issues: IssueLog,
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """The `spans`, `steps` and `arrows` tables."""
    codes = rows["category"].replace_strict(CODE, return_dtype=pl.UInt8()).to_numpy()
    category = by_name(codes, spans.name, texts)
    on_device = rows["device"].is_not_null().to_numpy()
    parent = parents(spans.ts, spans.dur, spans.track, ~on_device)
    category = without_repeats_of_hccl(category, parent, spans.name, texts)
    is_work = on_device & np.isin(category, WORK)
    ties = run.db.frame("CONNECTION_IDS", {"link": "id", "connection": "connectionId"})
    ends = rows.filter(pl.col("kind") == "range").select("link", "name", "recorded", end="span_id").drop_nulls("link")
    # At most two ranges of a kind share their connections: a damaged file that claims more must not cost the product.
    shared = pl.struct("link", "recorded", pl.col("name") == "Enqueue")
    ends = ends.sort("end").filter(shared.is_first_distinct() | shared.is_last_distinct())
    ends = ends.join(ties, on="link").sort("end")
    launch = _launches(rows, spans, parent, is_work, ends)
    op = operators(category, on_device, parent, launch)
    steps, step = steps_of(spans, category == CODE["step"], texts, rules.step_number, launch, rank)
    correlation = rows["connection"].fill_null(ABSENT).to_numpy()
    note_coverage(spans.dur, is_work, launch, issues, op)
    links = {"parent_id": parent, "launch_id": launch, "op_id": op}
    table = span_table(spans, texts, categories, category, step, {"correlation": correlation}, links)
    return {"spans": table, "steps": steps, "arrows": _arrows(ends, spans)}


def _arrows(ends: pl.DataFrame, spans: Sorted) -> pl.DataFrame:
    """An arrow for each connection of two ranges: through the queue of tasks, or from forward to backward."""
    starts = ends.with_columns(ts=pl.Series(spans.ts[ends["end"].to_numpy()])).sort("ts")
    pairs = starts.group_by("connection", maintain_order=True).agg(
        pl.len(), tail=pl.col("end").first(), head=pl.col("end").last(), word=pl.col("recorded").first()
    )
    pairs = pairs.filter(pl.col("len") > 1)
    tails, heads = pairs["tail"].to_numpy(), pairs["head"].to_numpy()
    kinds = {"queue": "async_task_queue", "cpu_op": "fwdbwd"}
    frame = pairs.select(
        recorded_category=pl.col("word").replace_strict(kinds, default="other", return_dtype=pl.String())
    )
    return ARROWS.conform(
        frame.with_columns(
            from_track_id=pl.Series(spans.track[tails]), from_ts_ns=pl.Series(spans.ts[tails]),
            to_track_id=pl.Series(spans.track[heads]), to_ts_ns=pl.Series(spans.ts[heads]),
        )
    )  # fmt: skip


def _launches(rows: pl.DataFrame, spans: Sorted, parent: Rows, is_work: NDArray[np.bool_], ends: pl.DataFrame) -> Rows:
    """For device work the operator that the profiler ties it to; else where the call of CANN came from; else that call.

    `ends` are the ranges of PyTorch that are tied to anything, a row for each connection. The thread that calls CANN
    takes tasks from PyTorch's queue: such a call came from where its task was put in.
    """
    tied = ends.filter(pl.col("recorded") == "cpu_op").unique("connection", keep="first")
    puts = ends.filter(pl.col("name") == "Enqueue").select(queue="connection", put="end").unique("queue", keep="first")
    calls = rows.filter(pl.col("kind") == "call", pl.col("connection").is_not_null())
    calls = calls.unique("connection", keep="first", maintain_order=True)
    threads = rows.filter(pl.col("kind") == "range").select("thread", taker="track").unique("thread")
    calls = calls.join(threads, on="thread", how="left", maintain_order="left")
    host = np.flatnonzero((rows["kind"] == "range").to_numpy())
    at = calls["span_id"].to_numpy()
    to_host = np.full(spans.ts.size, -1, np.int64)
    to_host[host] = np.arange(host.size)
    up = np.where(parent[host] >= 0, to_host[parent[host]], -1)
    taker = calls["taker"].fill_null(-1).to_numpy().astype(np.int64)
    track, end = spans.track[host].astype(np.int64), (spans.ts + spans.dur)[host]
    inner = intervals.innermost_at(taker, spans.ts[at], spans.ts[host], end, track, up)
    around = np.append(host, -1)[inner]
    taken = ends.filter(pl.col("recorded") == "queue").select(around="end", queue="connection").unique("around")
    calls = calls.select("connection", call="span_id", around=pl.Series(around).replace(-1, None))
    calls = calls.join(taken, on="around", how="left").join(puts, on="queue", how="left")
    calls = calls.select("connection", origin=pl.coalesce("put", "around", "call"))
    work = rows.filter(pl.Series(is_work)).select("span_id", "connection")
    work = work.join(tied.select("connection", launch="end"), on="connection", how="left", maintain_order="left")
    work = work.join(calls, on="connection", how="left", maintain_order="left")
    launch = np.full(spans.ts.size, -1, np.int64)
    launch[work["span_id"].to_numpy()] = (
        work.select(pl.coalesce("launch", "origin").fill_null(-1)).to_series().to_numpy()
    )
    return launch


def _devices(run: _Run) -> pl.DataFrame:
    names = dict(run.db.frame("NPU_INFO", {"id": "id", "text": "name"}, ["text"]).drop_nulls().rows())
    npus = [{"device_id": i, "type": "npu", "index": n, "name": names.get(n)} for n, i in run.devices.items()]
    schema = {name: DEVICES.dtypes[name] for name in ("device_id", "type", "index", "name")}
    return DEVICES.conform(pl.DataFrame([{"device_id": 0, "type": "cpu", "index": None, "name": None}, *npus], schema))


def _side_tables(run: _Run, rows: pl.DataFrame, origin_ns: int) -> dict[str, pl.DataFrame]:
    """All tables that add to spans, and those of samples."""
    chains, stacks = _stacks(run)
    calls = rows.filter(pl.col("recorded") == "cpu_op")
    ops = calls.select(
        "span_id",
        "stack",
        input_shapes=rules.map_names(calls["shapes"], torch_npu_arguments, pl.String()),
        input_types=rules.map_names(calls["types"], torch_npu_arguments, pl.String()),
        sequence=pl.when(pl.col("sequence") >= 0).then("sequence"),
        forward_thread=pl.when(pl.col("forward") > 0).then("forward"),
    )
    kernels = rows.filter(pl.col("category") == "kernel", pl.col("device").is_not_null())
    tensor_core = rules.map_names(kernels["name"], rules.is_tensor_core, pl.Boolean())
    copies = rows.filter(pl.col("category").is_in(["memcpy", "memset"]))
    way = rules.map_names(copies["name"], rules.transfer_kind, pl.String())
    talks = rows.filter(pl.col("kind") == "collective")
    kind = rules.map_names(talks["name"], lambda name: kind_of(name) or name, pl.String())
    return {
        "stacks": stacks,
        "ops": OPS.conform(ops.join(chains, on="stack", how="left", maintain_order="left")),
        "kernels": KERNELS.conform(kernels.select("span_id").with_columns(tensor_core=tensor_core)),
        "transfers": TRANSFERS.conform(copies.select("span_id").with_columns(kind=way)),
        "collectives": COLLECTIVES.conform(
            talks.select(
                "span_id",
                "dtype",
                "group",
                collective=kind,
                in_elements=pl.when(kind != "reduce_scatter").then("n_elements"),
                out_elements=pl.when(kind == "reduce_scatter").then("n_elements"),
            )
        ),
        "counters": _counters(run, origin_ns),
    }


def _stacks(run: _Run) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The number of each chain of calls (`stack`) among the stacks, and the `stacks` table."""
    frames = run.db.frame("PYTORCH_CALLCHAINS", {"stack": "id", "frame": "stack", "depth": "stackDepth"})
    frames = run.named(frames, "frame").drop_nulls().sort("stack", "depth", descending=[False, True])
    chains = frames.group_by("stack", maintain_order=True).agg(frames=pl.col("frame")).with_row_index("stack_id")
    text = pl.col("frames").list.reverse().list.join(";\r\n")
    return chains.select("stack", "stack_id"), STACKS.conform(chains.with_columns(text=text))


def _counters(run: _Run, origin_ns: int) -> pl.DataFrame:
    """Samples of the device under the names of the text export."""
    db, frames = run.db, [COUNTERS.empty()]
    at = {"ts_ns": "timestampNs", "number": "deviceId"}

    def add(table: str, device: str, ids: dict[str, str], metric: pl.Expr, column: str, scale: float) -> None:
        frame = run.named(db.frame(table, at | ids), *("word" for word in ids if word == "word"))
        if frame.is_empty() or column not in db.columns_of(table):
            return
        value = pl.Series("value", db.column(table, column), pl.Float64, strict=False)
        frame = frame.with_columns(value * scale, pl.lit(device).alias("device"), metric.alias("metric"))
        frame = frame.with_columns(pl.col("ts_ns") - origin_ns, device_id=pl.col("number").replace_strict(
            run.devices, default=None, return_dtype=pl.UInt32()
        ))  # fmt: skip
        frames.append(COUNTERS.conform(frame.drop_nulls(["ts_ns", "metric"])))

    way = pl.col("word").str.to_titlecase()
    owner = pl.when(pl.col("word") == "app").then(pl.lit("APP")).otherwise(way)
    add("AICORE_FREQ", "AI Core Freq", {}, pl.lit("AI Core Freq MHz"), "freq", 1)
    for memory in ("ddr", "hbm"):
        add("NPU_MEM", "NPU MEM", {"word": "type"}, pl.format(f"{{}}/{memory.upper()} KB", owner), memory, 1 / 1024)
    names = {"word": "type", "id": "hbmId"}
    add("HBM", "HBM", names, pl.format("HBM {}/{} {}(MB/s)", "id", way, way), "bandwidth", 1e-6)
    names = {"word": "mode", "id": "llcId"}
    add("LLC", "LLC", names, pl.format("LLC {} {}/Hit Rate Hit Rate(%)", "id", way), "hitRate", 0.01)
    add("LLC", "LLC", names, pl.format("LLC {} {}/Throughput Throughput(MB/s)", "id", way), "throughput", 1e-6)
    return pl.concat(frames).sort("ts_ns", maintain_order=True)


def _with_details(run: _Run, rows: pl.DataFrame, trace: Trace) -> Trace:
    """The trace with the counters and arguments of kernels."""
    kernels = rows.filter(pl.col("category") == "kernel", pl.col("kind") == "task")
    values = run.named(run.db.frame("TASK_PMU_INFO", {"task": "globalTaskId", "metric": "name"}), "metric")
    column = run.db.column("TASK_PMU_INFO", "value") if "value" in run.db.columns_of("TASK_PMU_INFO") else []
    if len(column) != values.height:
        values, column = values.clear(), []
    values = values.with_columns(pl.Series("value", column, pl.Float64, strict=False))
    by_task = kernels.select("task", "span_id").drop_nulls().unique("task", keep="first")
    values = values.join(by_task, on="task", maintain_order="left")
    is_time = pl.col("metric").str.ends_with("_time")
    values = values.with_columns(
        metric=pl.col("metric").str.replace("^aic_total_time$", "aicore_time").str.replace("^aiv_total_", "aiv_"),
        value=pl.when(is_time).then(pl.col("value") / 1000).otherwise("value"),
    )
    wait = kernels.select("span_id", metric=pl.lit("wait_time"), value=pl.col("wait").cast(pl.Float64) / 1000)
    metrics = pl.concat([values.select("span_id", "metric", "value"), wait]).drop_nulls()
    return with_kernels(trace, kernels, metrics.with_columns(unit=unit_of("metric")))


def _with_memory(run: _Run, trace: Trace) -> Trace:
    """The trace with the life of each block of memory, and the memory of each component over time."""
    blocks = run.named(run.db.frame("OP_MEMORY", {
        "name": "name", "bytes": "size", "number": "deviceId", "ts_ns": "allocationTime",
        "held": "allocationTotalAllocated", "reserved": "allocationTotalReserved", "freed_ns": "releaseTime",
        "freed_held": "releaseTotalAllocated", "freed_reserved": "releaseTotalReserved",
    }), "name")  # fmt: skip
    totals = {"allocated": "totalAllocated", "reserved": "totalReserved", "active": "totalActive"}
    shared = {"component": "component", "number": "deviceId", "ts_ns": "timestamp"}
    records = run.named(run.db.frame("MEMORY_RECORD", shared | totals), "component")
    modules = run.db.frame("NPU_MODULE_MEM", {
        "component": "moduleId", "number": "deviceId", "ts_ns": "timestampNs", "reserved": "totalReserved",
    })  # fmt: skip
    names = dict(run.db.frame("ENUM_MODULE", {"id": "id", "text": "name"}, ["text"]).drop_nulls().rows())
    modules = modules.with_columns(pl.col("component").replace_strict(names, default=None, return_dtype=pl.String()))
    process = run.db.frame("NPU_MEM", {
        "component": "type", "number": "deviceId", "ts_ns": "timestampNs", "ddr": "ddr", "hbm": "hbm",
    })  # fmt: skip
    process = run.named(process, "component").filter(pl.col("component") == "app")
    process = process.with_columns(component=pl.lit("APP"), reserved=pl.col("ddr") + pl.col("hbm"))
    levels = [frame.unpivot(on, index=list(shared), variable_name="kind") for frame, on in (
        (records, list(totals)), (process, ["reserved"]), (of_modules(modules), ["reserved"]),
    )]  # fmt: skip
    return with_memory(trace, blocks, pl.concat(levels))
