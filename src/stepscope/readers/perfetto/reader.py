"""Perfetto's protobuf traces: PyTorch's, rocprofv3's, and what other recorders write as track events.

Begins and ends become spans, whatever their order in the file. Spans, arguments and arrows then go through the same
steps as those of a Chrome trace. Where a recorder writes no categories (PyTorch), its arguments and names say them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.core.errors import CorruptInput
from stepscope.core.files import rank_in
from stepscope.core.patterns import regex
from stepscope.core.trace import Meta, Trace
from stepscope.readers.chrome.event_columns import SIDE_COLUMNS, TABLES_OF, Columns
from stepscope.readers.chrome.events import CALL, DEVICE, LANE, METRICS, kind_of
from stepscope.readers.chrome.kineto import build_tables, framework_of
from stepscope.readers.chrome.spans import joined_edges
from stepscope.readers.common.columns import ABSENT, MOST_CATS, stable_order
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog, give_back
from stepscope.readers.common.span_builder import unique
from stepscope.readers.perfetto._packets import (
    BEGIN,
    END,
    INSTANT,
    NO_EVENT,
    Decoder,
    Recording,
    Track,
)
from stepscope.readers.perfetto._values import ATTRIBUTES_OF, Arguments, as_json, as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.readers.common.source import Source

    Rows = NDArray[np.int64]
    Codes = NDArray[Any]
    Flags = NDArray[np.bool_]

#: Arguments that say what an event of PyTorch's is.
_SYNC, _COPY, _FILL, _CALL = "cuda_sync_kind", "copy kind", "memory kind", "cbid"
_OF_OPERATORS = ("External id", "Record function id", "Ev Idx", "Sequence number", "Input Dims")
_KEYS = tuple(key.encode() for key in (*ATTRIBUTES_OF, _SYNC, _COPY, _FILL, _CALL, *_OF_OPERATORS))
_GPU = regex(r"GPU (\d+)")
_STREAM = regex(r"(?i)stream\s*#?(-?\d+)")
#: rocprofv3's tracks of a device: its number, and that of the stream, queue or thread.
_ROCM = regex(
    r"(?:COMPUTE|COPY to) \w+ \[(?P<device>\d+)\] (?:STREAM|QUEUE|THREAD) \[(?P<stream>\d+)\] *\(?(?P<type>\w+)"
)
_RUNTIME, _DRIVER = regex(r"(?:cuda|hip|cnrt|musa|sycl)[A-Z]"), regex(r"cu[A-Z]|cnInvoke|cnMem")
_PYTHON = regex(r"<built-in |nn\.Module: |.*\.py\(\d+\): ")
#: Operators whose names are of no library, and a collective's range, as in `nccl:all_reduce`, which has inputs too.
_NAMED_OPERATOR = regex(
    r"record_param_comms|detach_?\Z|triton_|Torch-Compiled Region|TorchDynamo |AOTDispatcher |Pregraph "
    r"|\w+Backward\d*\Z"
)
_COLLECTIVE = regex(r"\w+:\w+")
#: Side columns that are fractions.
_FRACTIONS = ("blocks_sm", "warps_sm", "occupancy", "bandwidth")
_YEAR_2001_NS, _YEAR_2100_NS = 10**18, 41 * 10**17


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: the unpacked file and the columns.

    Raises CorruptInput (no event can be read of a file that is damaged), StepscopeError (size limit); lesser damage is
    counted in `issues`.
    """
    issues = IssueLog()
    decoder = Decoder(tuple(dict.fromkeys(_KEYS)), source, issues)
    decoder.add(Wire(source.chunks()))
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    decoder.note_unknown()
    recording = decoder.recording()
    del decoder
    give_back(source.n_bytes)
    n_events = int(np.isin(recording.events["type"], (NO_EVENT, END), invert=True).sum())
    if not n_events and issues.has("error"):
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the trace again", path=source.label, offset=source.n_bytes)
    columns = _columns(recording, issues)
    to_unix = recording.to_unix_ns
    del recording
    rank = rank_in(source.path)
    tables, origin_ns = build_tables(columns, {}, issues, rank=rank, host=None, path=source.path)
    give_back()
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the trace holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    unix = origin_ns if to_unix is None else origin_ns + to_unix
    meta = Meta(
        path=source.label,
        format="perfetto",
        n_events=n_events,
        size_bytes=source.n_bytes,
        rank=rank,
        framework=framework_of({}, columns),
        origin_unix_ns=unix if _YEAR_2001_NS < unix < _YEAR_2100_NS else None,
        origin_recorded_ns=origin_ns,
    )
    return Trace(meta, tables)


def _columns(recording: Recording, issues: IssueLog) -> Columns:
    """Everything as the columns of a Chrome trace."""
    columns = Columns(issues, exact=True)
    begin, end = _pairs(recording, issues)
    of_event = np.full(recording.events["type"].size, -1, np.int32)
    of_event[begin] = np.arange(begin.size)
    n = begin.size
    arguments = recording.arguments_of(of_event, n)
    lanes = _Lanes(recording)
    track = lanes.of(recording.events["track"][begin])
    device, stream = lanes.device[track], lanes.stream[track]
    for values, attribute in ((device, "device"), (stream, "stream")):
        given = arguments.numbers(attribute)
        np.copyto(values, given, where=given != ABSENT)
    _copies_to_hosts(arguments, device)
    name, category = (np.zeros(of_event.size, np.uint32) for _ in range(2))
    name[recording.named["event"]] = recording.named["name"]
    category[recording.named["event"]] = recording.named["category"]
    codes = _recoded(name[begin], lambda code: recording.texts[code], columns.names.codes)
    cats = _recoded(
        category[begin], lambda code: recording.texts[code] or None, lambda v: columns.cats.codes(v, MOST_CATS)
    )
    bare = np.flatnonzero(category[begin] == 0)
    is_device = lanes.is_gpu[track] | ((device != ABSENT) & (stream != ABSENT))
    inferred = _inferred(arguments, name[begin], recording.texts, is_device, lanes.is_known[track])
    cats[bare] = _recoded(inferred, lambda code: _INFERRED[code], columns.cats.codes)[bare]
    kind = np.array([kind_of(cat) for cat in columns.cats] or [0], np.uint8)[cats]
    keys = _track_keys(columns, lanes, track, np.where(is_device, kind, CALL), device, stream)
    start = recording.events["ts"]
    spans = {"ts": start[begin], "dur": start[end] - start[begin], "name": codes, "cat": cats, "track": keys}
    del begin, end, category, codes, cats, keys, device, stream, inferred, bare
    for column, values in spans.items():
        columns.spans[column].extend(values)
    columns.n_events, columns.n_spans, columns.phases = of_event.size, n, {"X"}
    columns.has_correlations = True  # arrows name spans, not places
    _add_side_tables(columns, arguments, kind)
    _add_flows(columns, recording, of_event, arguments, spans, is_device, kind)
    _add_counters(columns, recording, lanes)
    _add_instants(columns, recording, lanes, name, issues)
    return columns


def _recoded(codes: Codes, text_of: Callable[[int], str | None], codes_of: Callable[[list[Any]], Any]) -> Any:
    """Codes of one list of texts as codes of another."""
    used, place = unique(codes)
    return codes_of([text_of(code) for code in used.tolist()])[place]


def _pairs(recording: Recording, issues: IssueLog) -> tuple[Rows, Rows]:
    """Events that begin a span and those that end it, in the order of the begins in the file."""
    events = recording.events
    is_edge = (events["type"] == BEGIN) | (events["type"] == END)
    rows = np.flatnonzero(is_edge & (events["ts"] != ABSENT))
    issues.add("incomplete_events", "warning", int(is_edge.sum()) - rows.size, "begins or ends without a time")
    sign = np.where(events["type"][rows] == BEGIN, 1, -1).astype(np.int8)
    begin, end = joined_edges(events["ts"][rows], unique(events["track"][rows])[1], sign, issues)
    by_begin = stable_order(begin)
    return rows[begin[by_begin]], rows[end[by_begin]]


def _add_side_tables(columns: Columns, arguments: Arguments, kind: NDArray[np.uint8]) -> None:
    """The side columns of spans, each from the argument that a Chrome trace has them from."""
    codes_of: dict[str, list[int]] = {}
    for code, tables in TABLES_OF.items():
        for table in tables:
            codes_of.setdefault(table, []).append(code)
    rows = {table: np.flatnonzero(np.isin(kind, codes)) for table, codes in codes_of.items()}
    rows["calls"] = np.flatnonzero(np.isin(kind, (CALL, DEVICE)) | arguments.has_attribute("correlation"))
    is_device = kind == DEVICE
    marks = {
        "kernels": ("grid", "registers", "blocks_per_sm", "occupancy"),
        "transfers": ("size_bytes",),
        "event_waits": ("awaited_stream",),
    }
    for table, attributes in marks.items():
        has_any = np.any([arguments.has_attribute(attribute) for attribute in attributes], axis=0)
        rows[table] = np.flatnonzero(is_device & has_any)
    rows["collectives"] = np.flatnonzero(arguments.has_attribute("collective"))
    for table, some in rows.items():
        cols = getattr(columns, table)
        cols["row"].extend(some)
        for column, attribute in SIDE_COLUMNS[table].items():
            cols[column].extend(_column(columns, arguments, column, attribute)[some])


def _column(columns: Columns, arguments: Arguments, column: str, attribute: str) -> NDArray[Any]:
    """An argument of all spans as a side column has it."""
    if column in columns.json_of:
        return arguments.codes(attribute, columns.json_of[column], b"", as_json)
    if column in columns.texts_of:
        nothing = "" if column == "stack" else None
        return arguments.codes(attribute, columns.texts_of[column], nothing, as_text)
    return arguments.fractions(attribute) if column in _FRACTIONS else arguments.numbers(attribute)


class _Lane(msgspec.Struct, frozen=True):
    """Where the events of a track are shown: the keys of process and thread, and their names."""

    pid: int | str | None
    tid: int | str | None
    process: str
    label: str


class _Lanes:
    """All tracks that events are on: `lanes`, device and stream (ABSENT: none) as their names say them.

    `is_known` says where a device's lane is of a recorder whose events have arguments that say which kernels they are.
    """

    def __init__(self, recording: Recording) -> None:
        self.tracks = recording.tracks
        self.ids = distinct_values(recording.events["track"])
        self._by_pid = {t.pid: t for t in self.tracks.values() if t.kind == "process" and t.pid is not None}
        self._names: dict[int, str] = {}
        self._taken: set[tuple[Any, Any]] = set()
        self.lanes = [self._lane(uuid) for uuid in self.ids.tolist()]
        places = [_place(lane) for lane in self.lanes]
        self.device, self.stream = (
            np.array([ABSENT if place[i] is None else place[i] for place in places] or [ABSENT], np.int64)
            for i in range(2)
        )
        self.is_gpu = self.device != ABSENT
        type_ = recording.events["type"]
        has_ids = np.zeros(self.ids.size + 1, np.bool_)
        correlated = np.isin(
            recording.arguments["key"],
            [i for i, text in enumerate(recording.texts[: len(_KEYS) + 1]) if ATTRIBUTES_OF.get(text) == "correlation"],
        )
        at = recording.arguments["event"][correlated] if type_.size else np.empty(0, np.int64)
        has_ids[self.of(recording.events["track"][at])] = True
        self.is_known = has_ids

    def of(self, uuids: Rows) -> Rows:
        """The number of each track."""
        return np.searchsorted(self.ids, uuids)

    def _lane(self, uuid: int) -> _Lane:
        track = self.tracks.get(uuid) or Track(name=f"sequence {uuid - ABSENT - 1}" if uuid < ABSENT // 2 else "")
        owner, passed = track, {uuid}
        while owner.kind != "process" and owner.parent in self.tracks and owner.parent not in passed:
            passed.add(owner.parent)
            owner = self.tracks[owner.parent]
        if owner.kind != "process":
            owner = self._by_pid.get(track.pid or 0, Track(pid=track.pid))
        name = owner.process or owner.name
        pid: int | str | None = owner.pid
        if pid is not None and self._names.setdefault(owner.pid or 0, name) != name:
            pid = name  # another process has the number: processes of devices are numbered as these are
        own = "" if track.kind == "process" else track.name
        tid: int | str | None = track.tid if track.kind == "thread" else own or None
        if (pid, tid) in self._taken and track.kind not in ("process", "thread"):
            tid = f"{own} #{sum(key[0] == pid for key in self._taken)}"
        self._taken.add((pid, tid))
        label = "GPU" if _GPU.fullmatch(owner.labels) else ""
        return _Lane(pid, tid, owner.labels if label else name, own)


def _place(lane: _Lane) -> tuple[int | None, int | None]:
    """Device and stream of a lane, as its names say them."""
    if rocm := _ROCM.match(lane.label):
        return None if rocm["type"] == "CPU" else int(rocm["device"]), int(rocm["stream"])
    gpu, stream = _GPU.fullmatch(lane.process), _STREAM.match(lane.label)
    if gpu is None or (lane.label and stream is None and not isinstance(lane.tid, int)):
        return None, None
    return int(gpu[1]), int(stream[1]) if stream else lane.tid if isinstance(lane.tid, int) else None


def _copies_to_hosts(arguments: Arguments, device: Rows) -> None:
    """Copies to a host (rocprofv3) are work of the device that they come from."""
    rows, place, values = arguments.objects("src_agent")
    if rows.size:
        numbers = np.array([int(m[0]) if (m := re.search(r"\d+", str(v))) else ABSENT for v in values])
        device[rows] = np.where(device[rows] == ABSENT, numbers[place], device[rows])


#: Categories in Kineto's words, as codes.
_INFERRED = (
    None, "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy",
    "gpu_memset", "cuda_sync", "gpu_user_annotation", "overhead",
)  # fmt: skip
(
    _OTHER, _OPERATOR, _RANGE, _FRAME, _RUNTIME_CALL, _DRIVER_CALL, _KERNEL, _MEMCPY, _MEMSET, _WAIT, _DEVICE_RANGE,
    _OVERHEAD,
) = range(len(_INFERRED))  # fmt: skip


def _by_host_name(name: str) -> int:
    if _RUNTIME.match(name):
        return _RUNTIME_CALL
    if _DRIVER.match(name):
        return _DRIVER_CALL
    if _PYTHON.match(name):
        return _FRAME
    return _OPERATOR if "::" in name or _NAMED_OPERATOR.match(name) else _OTHER


def _by_device_name(name: str) -> int:
    return _MEMCPY if name.startswith("Memcpy") else _MEMSET if name.startswith("Memset") else _KERNEL


def _inferred(arguments: Arguments, name: Codes, texts: list[str], is_device: Flags, is_known: Flags) -> Rows:
    """What each span is, by its arguments, its track and its name, as codes of `_INFERRED`."""
    used, place = unique(name)
    on_host = np.array([_by_host_name(texts[code]) for code in used.tolist()] or [0])[place]
    on_device = np.array([_by_device_name(texts[code]) for code in used.tolist()] or [0])[place]
    of_range = np.array([_COLLECTIVE.fullmatch(texts[code]) is not None for code in used.tolist()] or [False])[place]
    has_inputs = arguments.has("Sequence number", "Fwd thread id") | arguments.has("Input Dims", "Collective name")
    ranges = np.where(has_inputs & ~of_range, _OPERATOR, _RANGE)
    host = np.where((on_host == _OTHER) & arguments.has(*_OF_OPERATORS), ranges, on_host)
    host = np.where((host == _OTHER) & arguments.has(_CALL), _RUNTIME_CALL, host)
    host = np.where(arguments.has_attribute("python_id"), _FRAME, host)
    bare = is_known & ~arguments.has_attribute("correlation") & ~arguments.has_attribute("stream")
    device = np.where(bare, _DEVICE_RANGE, on_device)
    for key, code in ((_FILL, _MEMSET), (_COPY, _MEMCPY), (_SYNC, _WAIT)):
        device = np.where(arguments.has(key), code, device)
    inferred: Rows = np.where(is_device & ~arguments.has_attribute("python_id"), device, host)
    return inferred


def _track_keys(
    columns: Columns, lanes: _Lanes, track: Rows, kind: NDArray[Any], device: Rows, stream: Rows
) -> NDArray[np.uint32]:
    """Codes of the tracks' keys, as those of a Chrome trace."""
    what = np.where(kind == DEVICE, 1, np.where(np.isin(kind, (LANE, METRICS)), 2, 0))
    devices, of_device = unique(np.where(what == 1, device, ABSENT))
    streams, of_stream = unique(np.where(what == 1, stream, ABSENT))
    pairs, place = unique(((track * devices.size + of_device) * streams.size + of_stream) * 3 + what)
    keys: list[tuple[Any, ...]] = []
    for code in pairs.tolist():
        rest, of_what = divmod(code, 3)
        rest, at_stream = divmod(rest, streams.size)
        at, at_device = divmod(rest, devices.size)
        lane = lanes.lanes[at]
        texts = columns.threads.setdefault((lane.pid, lane.tid), {})
        texts |= {"process_name": lane.process} | ({"thread_name": lane.label} if lane.label else {})
        ids = [None if number == ABSENT else number for number in (int(devices[at_device]), int(streams[at_stream]))]
        more: tuple[tuple[Any, ...], ...] = ((), tuple(ids), ("range",))
        keys.append((lane.pid, lane.tid, *more[of_what]))
    codes: NDArray[np.uint32] = columns.tracks.codes(keys)[place] if keys else np.empty(0, np.uint32)
    return codes


def _add_flows(
    columns: Columns,
    recording: Recording,
    of_event: Codes,
    arguments: Arguments,
    spans: dict[str, Any],
    is_device: Flags,
    kind: NDArray[np.uint8],
) -> None:
    """Arrows: the events of one id, in order of time, each from the one before, work of a device from the first."""
    row = of_event[recording.flows["event"]] if of_event.size else np.empty(0, np.int64)
    some = np.flatnonzero(row >= 0)
    order = some[stable_order(recording.flows["id"][some], spans["ts"][row[some]])]
    row, ids, last = row[order], recording.flows["id"][order], recording.flows["last"][order] > 0
    follows = np.flatnonzero((ids[1:] == ids[:-1]) & ~last[:-1]) + 1
    if not follows.size:
        return
    heads_of = np.flatnonzero(np.concatenate(([True], (ids[1:] != ids[:-1]) | last[:-1])))
    first = np.repeat(heads_of, np.diff([*heads_of, ids.size]))
    tails = np.where(is_device[row[follows]], row[first[follows]], row[follows - 1])
    heads = row[follows]
    correlation = arguments.numbers("correlation")
    is_launch = (kind[tails] == CALL) & is_device[heads] & (correlation[tails] > 0)
    is_launch &= correlation[tails] == correlation[heads]
    if is_launch.any():
        columns.has_launch_flows = True
        columns.launch_flows.extend(distinct_values(correlation[tails[is_launch]]))
    plain = ~is_launch & ~is_device[tails]
    nothing = columns.cats.codes([None], MOST_CATS)[0]
    numbers = np.arange(plain.sum())
    for side, start in ((tails[plain], 1), (heads[plain], 0)):
        values = {
            "ts": spans["ts"][side], "track": spans["track"][side], "id": numbers,
            "cat": np.full(side.size, nothing, np.uint16), "start": np.full(side.size, start),
        }  # fmt: skip
        for name, column in columns.flows.items():
            column.extend(values[name])


def _add_counters(columns: Columns, recording: Recording, lanes: _Lanes) -> None:
    """Samples of counters: a track for each, whose name is the metric."""
    at, value = recording.values["event"], recording.values["value"]
    if not at.size:
        return
    used, place = unique(lanes.of(recording.events["track"][at]))
    keys, values = [], value.copy()
    ids = lanes.ids[used].tolist()
    for i, (uuid, lane) in enumerate(zip(ids, (lanes.lanes[n] for n in used.tolist()), strict=True)):
        track = lanes.tracks.get(uuid, Track())
        keys.append((lane.pid, lane.label, "counter"))
        columns.threads.setdefault((lane.pid, lane.tid), {})["process_name"] = lane.process
        mine = np.flatnonzero(place == i)
        if track.is_incremental:
            mine = mine[np.argsort(recording.events["ts"][at[mine]], kind="stable")]
            values[mine] = np.cumsum(value[mine])
        values[mine] *= track.multiplier
    columns.samples["ts"].extend(recording.events["ts"][at])
    columns.samples["track"].extend(columns.tracks.codes(keys)[place])
    columns.samples["metric"].extend(np.full(at.size, columns.texts["value"]))
    columns.samples["value"].extend(values)
    columns.phases.add("C")


def _add_instants(columns: Columns, recording: Recording, lanes: _Lanes, name: Codes, issues: IssueLog) -> None:
    """Instant events: those of memory, as PyTorch writes them; others have no duration and are counted."""
    instants = np.flatnonzero(recording.events["type"] == INSTANT)
    is_memory = np.array([recording.texts[code] == "[memory]" for code in name[instants].tolist()], np.bool_)
    rows = instants[is_memory]
    issues.add("instants_dropped", "info", int((~is_memory).sum()), "instant events other than memory have no duration")
    if not rows.size:
        return
    of_event = np.full(name.size, -1, np.int32)
    of_event[rows] = np.arange(rows.size)
    arguments = recording.arguments_of(of_event, rows.size)
    track = lanes.of(recording.events["track"][rows])
    nothing = np.full(rows.size, ABSENT, np.int64)
    columns.memory["ts"].extend(recording.events["ts"][rows])
    columns.memory["track"].extend(_track_keys(columns, lanes, track, np.zeros(rows.size), nothing, nothing))
    for column, attribute in SIDE_COLUMNS["memory"].items():
        values = _column(columns, arguments, column, attribute)
        columns.memory[column].extend(np.where(values == ABSENT, 0, values) if column == "address" else values)
