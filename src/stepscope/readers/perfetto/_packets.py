"""Perfetto's packets decoded into columns: track events, their names and arguments, tracks, clocks.

Format: perfetto_trace.proto of google/perfetto. A trace is a list of packets. Those of a sequence share a state: texts
that packets refer to by number, defaults, and clocks that count from the packet before. A flag clears it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.core.errors import StepscopeError
from stepscope.readers.common.columns import ABSENT, Column, Interned, columns_of
from stepscope.readers.common.protobuf import BYTES, DOUBLE, FIXED, INT, MANY, Wire
from stepscope.readers.perfetto._values import (
    A_DOUBLE,
    A_NEST,
    A_NUMBER,
    A_TEXT,
    AN_ID,
    Arguments,
    Snapshot,
    State,
    converted,
    nested_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from stepscope.readers.common.protobuf import Contents
    from stepscope.readers.common.source import IssueLog, Source

    Rows = NDArray[np.int64]

_PACKET = {
    8: ("ts", INT), 58: ("clock", INT), 10: ("sequence", INT), 13: ("flags", INT), 41: ("cleared", INT),
    11: ("event", BYTES), 60: ("track", BYTES), 12: ("interned", BYTES), 6: ("clocks", BYTES), 59: ("defaults", BYTES),
    50: ("deflated", BYTES), 133: ("zstandard", BYTES),
}  # fmt: skip
#: What says who wrote a packet, and packets about the recording itself.
_SILENT = (3, 42, 79, 87, 98, 33, 34, 35, 36, 45, 69, 89)
_KINDS = {
    1: "ftrace_events", 2: "process_tree", 7: "sys_stats", 43: "process_descriptor", 44: "thread_descriptor",
    52: "gpu_counter_event", 53: "gpu_render_stage_event", 62: "vulkan_memory_event", 66: "perf_sample",
}  # fmt: skip
_EVENT = {
    9: ("type", INT), 11: ("track", INT), 10: ("name_id", INT), 23: ("name", BYTES), 3: ("category_ids", INT + "*"),
    22: ("categories", MANY), 30: ("count", INT), 44: ("value", DOUBLE), 47: ("flows", FIXED + "*"),
    36: ("flows_old", INT + "*"), 48: ("last_flows", FIXED + "*"), 42: ("last_flows_old", INT + "*"),
    4: ("annotations", MANY),
}  # fmt: skip
_ANNOTATION = {
    1: ("name_id", INT), 10: ("name", BYTES), 4: ("int", INT), 3: ("uint", INT), 2: ("bool", INT), 7: ("pointer", INT),
    5: ("double", DOUBLE), 6: ("text", BYTES), 9: ("json", BYTES), 17: ("text_id", INT), 11: ("entries", MANY),
    12: ("values", MANY),
}  # fmt: skip
_TRACK = {
    1: ("uuid", INT), 5: ("parent", INT), 2: ("name", BYTES), 10: ("static_name", BYTES), 13: ("atrace_name", BYTES),
    3: ("process", BYTES), 4: ("thread", BYTES), 8: ("counter", BYTES),
}  # fmt: skip
_PROCESS = {1: ("pid", INT), 6: ("name", BYTES), 8: ("labels", MANY)}
_THREAD = {1: ("pid", INT), 2: ("tid", INT), 5: ("name", BYTES)}
_COUNTER = {4: ("multiplier", INT), 5: ("is_incremental", INT)}
_INTERNED = {1: ("categories", MANY), 2: ("names", MANY), 3: ("keys", MANY), 29: ("texts", MANY)}
_ENTRY = {1: ("id", INT), 2: ("text", BYTES)}
_DEFAULTS = {58: ("clock", INT), 11: ("event", BYTES)}
_CLOCKS = {1: ("clocks", MANY), 2: ("primary", INT)}
_CLOCK = {1: ("id", INT), 2: ("value", INT), 3: ("is_incremental", INT), 4: ("multiplier", INT)}

#: Types of events.
NO_EVENT, BEGIN, END, INSTANT, COUNT = range(5)
_CLEARED = 1
_BOOTTIME, _REALTIME = 6, 1
_OF_SEQUENCE = range(64, 128)  # clocks that mean something within their sequence only
_U32 = 2**32 - 1


@dataclass(slots=True)
class Track:
    """What descriptors say of a track. `kind` is `process`, `thread`, `counter` or empty."""

    parent: int = 0
    name: str = ""
    kind: str = ""
    pid: int | None = None
    tid: int | None = None
    process: str = ""
    labels: str = ""
    multiplier: int = 1
    is_incremental: bool = False


@dataclass(slots=True)
class Recording:
    """All events, in the order of the file, as columns; texts are codes into `texts`, of which 0 is empty.

    `events`: packet, sequence, ts (ns), type, track. The other tables name the row of their event: `named` name and
    category of all but ends, `values` of counters, `arguments` key, kind and value, `flows` id and whether it is
    the last of its arrow.
    """

    events: dict[str, NDArray[Any]]
    named: dict[str, NDArray[Any]]
    values: dict[str, NDArray[Any]]
    arguments: dict[str, NDArray[Any]]
    flows: dict[str, NDArray[Any]]
    tracks: dict[int, Track]
    texts: list[str]
    nested: list[Any]
    #: What to add to a time for Unix time; None if no clock says so.
    to_unix_ns: int | None

    def arguments_of(self, row_of_event: NDArray[np.int32], n: int) -> Arguments:
        """The arguments of `n` rows, of which events have the numbers given, −1 for none."""
        return Arguments(self.arguments, self.texts, self.nested, row_of_event, n)


class Decoder:
    """Decodes blocks of packets; `recording` gives the whole. `keys` are the arguments that are read."""

    def __init__(self, keys: Collection[bytes], source: Source, issues: IssueLog) -> None:
        i8, u4, u1 = np.int64, np.uint32, np.uint8
        self._source, self._issues = source, issues
        self.n_packets = 0
        self._events = columns_of({"packet": u4, "sequence": u4, "clock": np.int32, "ts": i8, "type": u1, "track": i8})
        self._named = columns_of({"event": u4, "name_id": i8, "name": u4, "category_id": i8, "category": u4})
        self._values = columns_of({"event": u4, "value": np.float64})
        self._arguments = columns_of({"event": u4, "key_id": i8, "key": u4, "kind": u1, "value": i8})
        self._flows = columns_of({"event": u4, "id": i8, "last": u1})
        self._clears = columns_of({"packet": u4, "sequence": u4})
        self._names, self._categories, self._keys, self._texts = (State() for _ in range(4))
        self._default_clock, self._default_track = State(), State()
        self._snapshots: list[Snapshot] = []
        self._primary = _BOOTTIME
        self._tracks: dict[int, Track] = {}
        self._n_wanted = len(keys)
        self._codes = Interned({text: code for code, text in enumerate((b"", *keys))})
        self._nested: dict[tuple[int, bytes], int] = {}  # code by sequence and bytes
        self._nested_at: list[tuple[int, int, bytes]] = []
        self._n_events = 0
        self._unknown: Counter[int] = Counter()

    def add(self, wire: Wire, *, is_outer: bool = True) -> None:
        """All packets of a document."""
        for messages in wire.messages(1):
            fields = wire.fields(messages)
            packets = wire.by_name(fields, messages[0].size, _PACKET)
            bundles = np.flatnonzero((packets["deflated"][0] >= 0) | (packets["zstandard"][0] >= 0))
            if bundles.size and is_outer:
                self.add(Wire(self._unbundled(wire, messages, packets)), is_outer=False)
                continue
            self._issues.add("nested_bundles", "error", bundles.size, "compressed packets within compressed packets")
            odd = np.isin(fields.number, (*_PACKET, *_SILENT), invert=True)
            self._unknown.update(fields.number[odd].tolist())
            self._packets(wire, packets, messages[0].size)
        self._issues.add("damaged_messages", "error", wire.damage.n_messages, _first(wire, is_outer=is_outer))
        self._issues.add("wrong_wire_types", "warning", wire.damage.n_wire_types, "fields of an unexpected type")

    def _unbundled(self, wire: Wire, messages: Contents, packets: dict[str, Any]) -> Iterator[bytes]:
        """The packets of a block as they are, and those that are compressed unpacked, in order."""
        deflated, standard = (wire.slices(packets[name]) for name in ("deflated", "zstandard"))
        plain = wire.slices(messages)
        for packet, deflate, zstandard in zip(plain, deflated, standard, strict=True):
            if deflate or zstandard:
                yield self._inflated(deflate) if deflate else self._decompressed(zstandard)
            else:
                yield b"\n" + _varint(len(packet)) + packet

    def _inflated(self, data: bytes) -> bytes:
        for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # zlib's header, or none
            inflate = zlib.decompressobj(bits)
            try:
                unpacked = inflate.decompress(data, self._source.n_left + 1)
            except zlib.error:
                continue
            self._source.count_unpacked(len(unpacked))
            self._issues.add("damaged_bundles", "error", not inflate.eof, "compressed packets that end early")
            return unpacked
        self._issues.add("damaged_bundles", "error", 1, "compressed packets that cannot be unpacked")
        return b""

    def _decompressed(self, data: bytes) -> bytes:
        import zstandard

        try:
            unpacked = zstandard.ZstdDecompressor().stream_reader(data).read(self._source.n_left + 1)
        except zstandard.ZstdError:
            self._issues.add("damaged_bundles", "error", 1, "compressed packets that cannot be unpacked")
            return b""
        self._source.count_unpacked(len(unpacked))
        return unpacked

    def _packets(self, wire: Wire, packets: dict[str, Any], n: int) -> None:
        number = np.arange(self.n_packets, self.n_packets + n)
        self.n_packets += n
        if self.n_packets > _U32:
            raise StepscopeError(f"{self._source.label} has more than {_U32:,} packets", "record a shorter time")
        sequence = np.where(packets["sequence"] == ABSENT, 0, packets["sequence"] & _U32)
        is_clear = (packets["cleared"] > 0) | ((packets["flags"] > 0) & (packets["flags"] & _CLEARED > 0))
        self._clears["packet"].extend(number[is_clear])
        self._clears["sequence"].extend(sequence[is_clear])

        def of(name: str) -> tuple[Rows, Contents]:
            starts, ends = packets[name]
            rows = np.flatnonzero(starts >= 0)
            return rows, (starts[rows], ends[rows])

        for name, add in (
            ("interned", self._add_interned),
            ("defaults", self._add_defaults),
            ("clocks", self._add_clocks),
        ):
            rows, contents = of(name)
            if rows.size:
                add(wire, contents, number[rows], sequence[rows])
        rows, contents = of("track")
        if rows.size:
            self._add_tracks(wire, contents)
        is_event = packets["event"][0] >= 0
        rows = np.flatnonzero(is_event | (packets["ts"] != ABSENT))
        _, contents = of("event")
        event = wire.columns(contents, _EVENT)
        first, self._n_events = self._n_events, self._n_events + rows.size
        place = first + np.flatnonzero(is_event[rows])  # of each event among all of them
        types, tracks = np.zeros(rows.size, np.int64), np.full(rows.size, ABSENT, np.int64)
        types[is_event[rows]] = np.where((event["type"] < 0) | (event["type"] > COUNT), NO_EVENT, event["type"])
        tracks[is_event[rows]] = event["track"]
        clock = np.where(packets["clock"][rows] == ABSENT, -1, packets["clock"][rows] & (2**31 - 1))
        columns = {
            "packet": number[rows], "sequence": sequence[rows], "clock": clock, "ts": packets["ts"][rows],
            "type": types, "track": tracks,
        }  # fmt: skip
        _extend(self._events, columns)
        self._add_events(wire, event, place, sequence[is_event], number[is_event])

    def _add_events(self, wire: Wire, event: dict[str, Any], place: Rows, sequence: Rows, number: Rows) -> None:
        types = event["type"]
        rows = np.flatnonzero((types == BEGIN) | (types == INSTANT))
        category, category_id = np.zeros(types.size, np.int64), np.full(types.size, ABSENT, np.int64)
        owner, starts, ends = event["categories"]
        category[owner[::-1]] = self._coded(wire, (starts[::-1], ends[::-1]))  # of several the first counts
        owner, ids = event["category_ids"]
        category_id[owner[::-1]] = ids[::-1]
        names = event["name"]
        columns = {
            "event": place[rows], "name_id": event["name_id"][rows],
            "name": self._coded(wire, (names[0][rows], names[1][rows])),
            "category_id": category_id[rows], "category": category[rows],
        }  # fmt: skip
        _extend(self._named, columns)
        rows = np.flatnonzero(types == COUNT)
        whole, fraction = event["count"][rows], event["value"][rows]
        value = np.where(np.isnan(fraction) & (whole != ABSENT), whole, fraction)
        _extend(self._values, {"event": place[rows], "value": value})
        for name, last in (("flows", 0), ("flows_old", 0), ("last_flows", 1), ("last_flows_old", 1)):
            owner, ids = event[name]
            _extend(self._flows, {"event": place[owner], "id": ids, "last": np.full(ids.size, last)})
        owner, starts, ends = event["annotations"]
        if owner.size:
            self._add_arguments(wire, (starts, ends), place[owner], sequence[owner], number[owner])

    def _add_arguments(self, wire: Wire, contents: Contents, event: Rows, sequence: Rows, number: Rows) -> None:
        given = wire.columns(contents, _ANNOTATION)
        key = self._coded(wire, given["name"])
        rows = np.flatnonzero(((key > 0) & (key <= self._n_wanted)) | (given["name_id"] != ABSENT))
        kind, value = np.full(rows.size, A_NUMBER), np.full(rows.size, ABSENT, np.int64)
        for name in ("pointer", "bool", "uint", "int"):
            numbers = given[name][rows]
            value = np.where(numbers != ABSENT, numbers, value)
        doubles = given["double"][rows]
        some = ~np.isnan(doubles)
        kind[some], value[some] = A_DOUBLE, doubles[some].view(np.int64)
        for name in ("json", "text"):
            starts, ends = given[name][0][rows], given[name][1][rows]
            some = starts >= 0
            kind[some], value[some] = A_TEXT, self._coded(wire, (starts[some], ends[some]))
        some = given["text_id"][rows] != ABSENT
        kind[some], value[some] = AN_ID, given["text_id"][rows][some]
        has_parts = np.zeros(key.size, np.bool_)
        for name in ("entries", "values"):
            has_parts[given[name][0]] = True
        some = has_parts[rows]
        inner = wire.slices((contents[0][rows][some], contents[1][rows][some]))
        kind[some] = A_NEST
        value[some] = self._nests(inner, sequence[rows][some].tolist(), number[rows][some].tolist())
        columns = {"event": event[rows], "key_id": given["name_id"][rows], "key": key[rows], "kind": kind}
        _extend(self._arguments, {**columns, "value": value})

    def _nests(self, inner: list[bytes], sequences: list[int], numbers: list[int]) -> list[int]:
        codes = []
        for data, sequence, number in zip(inner, sequences, numbers, strict=True):
            code = self._nested.setdefault((sequence, data), len(self._nested))
            if code == len(self._nested_at):
                self._nested_at.append((sequence, number, data))
            codes.append(code)
        return codes

    def _coded(self, wire: Wire, contents: Contents) -> NDArray[np.uint32]:
        """Codes of texts, 0 where missing."""
        return wire.codes(contents, self._codes)

    def _add_interned(self, wire: Wire, contents: Contents, number: Rows, sequence: Rows) -> None:
        tables = wire.columns(contents, _INTERNED)
        states = {"categories": self._categories, "names": self._names, "keys": self._keys, "texts": self._texts}
        for name, state in states.items():
            owner, starts, ends = tables[name]
            if owner.size:
                entry = wire.columns((starts, ends), _ENTRY)
                codes = self._coded(wire, entry["text"]).astype(np.int64)
                state.add(number[owner], sequence[owner], np.maximum(entry["id"], -1), codes)

    def _add_defaults(self, wire: Wire, contents: Contents, number: Rows, sequence: Rows) -> None:
        defaults = wire.columns(contents, _DEFAULTS)
        inner = tuple(np.maximum(side, 0) for side in defaults["event"])
        tracks = wire.columns((inner[0], inner[1]), {11: ("track", INT)})["track"]
        for state, values in ((self._default_clock, defaults["clock"]), (self._default_track, tracks)):
            some = values != ABSENT
            state.add(number[some], sequence[some], np.zeros(int(some.sum()), np.int64), values[some])

    def _add_clocks(self, wire: Wire, contents: Contents, number: Rows, sequence: Rows) -> None:
        snapshots = wire.columns(contents, _CLOCKS)
        owner, starts, ends = snapshots["clocks"]
        clock = wire.columns((starts, ends), _CLOCK)
        primary = snapshots["primary"][(snapshots["primary"] > 0) & (snapshots["primary"] < _OF_SEQUENCE.start)]
        self._primary = int(primary[0]) if primary.size else self._primary
        added = [Snapshot(*both) for both in zip(number.tolist(), sequence.tolist(), strict=True)]
        rows = zip(*(values.tolist() for values in (owner, *clock.values())), strict=True)
        for i, id_, value, incremental, multiplier in rows:
            if value != ABSENT and abs(value) < 2**62:
                added[i].clocks[id_] = value, incremental > 0, min(max(multiplier, 1), 10**9)
        self._snapshots += added

    def _add_tracks(self, wire: Wire, contents: Contents) -> None:
        given = wire.columns(contents, _TRACK)
        inside = {
            name: wire.columns((np.maximum(given[name][0], 0), np.maximum(given[name][1], 0)), schema)
            for name, schema in (("process", _PROCESS), ("thread", _THREAD), ("counter", _COUNTER))
        }

        def texts(contents: Contents) -> list[str]:
            return [text.decode("utf-8", "replace") for text in wire.slices(contents)]

        own = [texts(given[name]) for name in ("name", "static_name", "atrace_name")]
        processes, threads = texts(inside["process"]["name"]), texts(inside["thread"]["name"])
        owner, starts, ends = inside["process"]["labels"]
        labels = dict(zip(owner.tolist(), texts((starts, ends)), strict=True))
        for i, uuid in enumerate(given["uuid"].tolist()):
            track = self._tracks.setdefault(0 if uuid == ABSENT else uuid, Track())
            track.parent = track.parent if given["parent"][i] == ABSENT else int(given["parent"][i])
            track.name = next((names[i] for names in own if names[i]), track.name)
            for kind in ("process", "thread", "counter"):
                track.kind = kind if given[kind][0][i] >= 0 else track.kind
            for kind in ("process", "thread"):
                pid = int(inside[kind]["pid"][i])
                track.pid = track.pid if pid == ABSENT else _int32(pid)
            tid = int(inside["thread"]["tid"][i])
            track.tid = track.tid if tid == ABSENT else tid
            track.process, track.labels = processes[i] or track.process, labels.get(i, track.labels)
            track.name = threads[i] or track.name
            counter = inside["counter"]
            track.multiplier = max(int(counter["multiplier"][i]), track.multiplier)
            track.is_incremental |= int(counter["is_incremental"][i]) > 0

    def recording(self) -> Recording:
        """All that was added. Frees what it was made of."""
        issues = self._issues
        for state in (
            self._names, self._categories, self._keys, self._texts, self._default_clock, self._default_track,
        ):  # fmt: skip
            state.close()
        clears = (self._clears["packet"].join().astype(np.int64), self._clears["sequence"].join().astype(np.int64))
        events, named, values, arguments, flows = (
            _join(columns) for columns in (self._events, self._named, self._values, self._arguments, self._flows)
        )
        packet, sequence = events["packet"], events["sequence"]
        if self._default_track.id.size:
            zero = np.zeros(packet.size, np.int64)
            default, _ = self._default_track.find(clears, packet, sequence, zero)
            events["track"] = np.where(events["track"] == ABSENT, default, events["track"])
        to_unix = self._set_times(events, clears)

        def look_up(state: State, rows: NDArray[Any], ids: Rows, codes: NDArray[Any]) -> NDArray[Any]:
            values, n = state.find(clears, packet[rows], sequence[rows], ids)
            issues.add("texts_out_of_order", "info", n, "texts that are in packets of another part of their sequence")
            missing = int(((values == ABSENT) & (ids != ABSENT) & (codes == 0)).sum())
            issues.add("no_texts", "warning", missing, "names or arguments whose text is not in the file")
            return np.where(values == ABSENT, codes, values)

        named["name"] = look_up(self._names, named["event"], named.pop("name_id"), named["name"])
        named["category"] = look_up(self._categories, named["event"], named.pop("category_id"), named["category"])
        if arguments["event"].size:
            at = arguments["event"]
            arguments["key"] = look_up(self._keys, at, arguments.pop("key_id"), arguments["key"])
            by_id = np.flatnonzero(arguments["kind"] == AN_ID)
            ids = arguments["value"][by_id]
            arguments["value"][by_id] = look_up(self._texts, at[by_id], ids, np.zeros(by_id.size, np.int64))
            arguments["kind"][by_id] = A_TEXT
        no_track = np.flatnonzero(events["track"] == ABSENT)
        events["track"][no_track] = ABSENT + 1 + sequence[no_track].astype(np.int64)
        texts = [text.decode("utf-8", "replace") for text in self._codes]
        nested = [
            self._nested_value(data, clears, sequence, packet, texts) for sequence, packet, data in self._nested_at
        ]
        return Recording(events, named, values, arguments, flows, self._tracks, texts, nested, to_unix)

    def _nested_value(
        self, data: bytes, clears: tuple[Rows, Rows], sequence: int, packet: int, texts: list[str]
    ) -> Any:
        def text_by(state: State) -> Callable[[int], str]:
            def text_of(number: int) -> str:
                code = int(state.find(clears, np.array([packet]), np.array([sequence]), np.array([number]))[0][0])
                return "" if code == ABSENT else texts[code]

            return text_of

        try:
            return nested_value(data, text_by(self._keys), text_by(self._texts))[1]
        except ValueError:
            self._issues.add("damaged_messages", "error", 1, "incomplete arguments")
            return None

    def note_unknown(self) -> None:
        """Counts in the issues the packets that are not read."""
        for number, n in self._unknown.most_common(20):
            what = f"{_KINDS[number]} ({number})" if number in _KINDS else str(number)
            self._issues.add("unknown_packets", "info", n, f"packets of other kinds are not read: the first {what}")

    def _set_times(self, events: dict[str, NDArray[Any]], clears: tuple[Rows, Rows]) -> int | None:
        """Times in ns of the trace's own clock, in place. Gives what makes them Unix times, if that is known."""
        primary, packet, sequence = self._primary, events["packet"], events["sequence"]
        clock = events.pop("clock")
        if self._default_clock.id.size:
            default, _ = self._default_clock.find(clears, packet, sequence, np.zeros(packet.size, np.int64))
            clock = np.where((clock < 0) & (default != ABSENT), default, clock)
        clock[clock < 0] = primary
        for number in distinct_values(clock[clock != primary]).tolist():
            rows = np.flatnonzero((clock == number) & (events["ts"] != ABSENT))
            groups = [(0, rows)]
            if number in _OF_SEQUENCE:
                groups = [(s, rows[sequence[rows] == s]) for s in distinct_values(sequence[rows]).tolist()]
            for of_sequence, some in groups:
                marks = [
                    snapshot
                    for snapshot in self._snapshots
                    if number in snapshot.clocks and (number not in _OF_SEQUENCE or snapshot.sequence == of_sequence)
                ]
                if marks:
                    events["ts"][some] = converted(events["ts"][some], packet[some], marks, number, primary)
                else:
                    what = f"times of clock {number}, which no packet compares to the trace's"
                    self._issues.add("unknown_clocks", "warning", some.size, what)
        pairs = [s.clocks for s in self._snapshots if _REALTIME in s.clocks and primary in s.clocks]
        return pairs[0][_REALTIME][0] - pairs[0][primary][0] if pairs else None


def _extend(columns: dict[str, Column], values: dict[str, Any]) -> None:
    for name, column in columns.items():
        column.extend(values[name])


def _join(columns: dict[str, Column]) -> dict[str, NDArray[Any]]:
    return {name: column.join() for name, column in columns.items()}


def _int32(value: int) -> int:
    """A number that protobuf wrote as one of 32 bits."""
    return (value + 2**31) % 2**32 - 2**31


def _first(wire: Wire, *, is_outer: bool) -> str:
    at = wire.damage.first_at if is_outer else None
    return "incomplete messages" + ("" if at is None else f", first at byte {at:,}")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
