"""From decoded events to columns: the reader's only loops over events, each over one block.

The work per event is a list comprehension or a `map`; everything else works on whole columns.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import kind_of as kind_of_collective
from stepscope.readers.chrome.events import (
    CALL,
    DEVICE,
    FRAME,
    LANE,
    METRICS,
    NOTHING,
    OPERATOR,
    Args,
    RawEvent,
    kind_of,
)
from stepscope.readers.chrome.salvage import FAILS
from stepscope.readers.common.categories import HCCL_TYPES
from stepscope.readers.common.columns import ABSENT, MOST_CATS, Interned, columns_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.common.columns import Column
    from stepscope.readers.common.source import IssueLog
#: Words for a launch that only Cambricon's recorder writes.
_MLU_KEYS = (b'"kernel type"', b'"tasktopo"')
_NO_ROWS = np.empty(0, np.intp)
#: Times of this many digits and more, in µs, fit no column; multiplying them out could take hours.
_MOST_DIGITS = 16
#: Kineto's names, by age, for the arrow from a launch to the work it queued. Its id is the correlation.
FLOW_TO_DEVICE = frozenset({"ac2g", "async_cpu_to_gpu", "async"})
_EDGES = frozenset("BEbe")
#: Kinds of instant events. Those of the recorder mark where it began and ended.
MEMORY, MARK, OTHER = range(3)
#: Which of an event's arguments (attributes of `Args`) are in the columns of each side table.
SIDE_COLUMNS: dict[str, dict[str, str]] = {
    "calls": {"correlation": "correlation"},
    "ids": {"external": "external_id"},
    "ops": {
        "sequence": "sequence", "forward": "forward_thread", "shapes": "input_dims", "types": "input_types",
        "concrete": "concrete_inputs", "stack": "call_stack",
    },
    "frames": {"id": "python_id", "parent": "python_parent_id", "module": "module_id"},
    "kernels": {
        "grid": "grid", "block": "block", "registers": "registers", "shared": "shared_bytes",
        "blocks_sm": "blocks_per_sm", "warps_sm": "warps_per_sm", "occupancy": "occupancy",
    },
    "kernels_of_calls": {"kernel": "kernel"},
    "event_waits": {"stream": "awaited_stream", "record": "awaited_record"},
    "transfers": {"bytes": "size_bytes", "bandwidth": "bandwidth"},
    "collectives": {
        "collective": "collective", "dtype": "dtype", "in": "in_elements", "out": "out_elements", "group": "group",
        "size": "group_size", "ranks": "group_ranks", "description": "group_description", "src": "src_rank",
        "dst": "dst_rank", "seq": "seq",
    },
    "memory": {
        "type": "device_type", "index": "device_index", "address": "address", "bytes": "alloc_bytes",
        "allocated": "total_allocated", "reserved": "total_reserved",
    },
}  # fmt: skip
#: The side tables that have a row for each event of a kind.
TABLES_OF = {
    OPERATOR: ("ids", "ops"), CALL: ("ids", "calls"), DEVICE: ("ids", "calls"), LANE: ("ids",), FRAME: ("frames",),
}  # fmt: skip
_TEXTS = ("collective", "dtype", "group", "ranks", "description")
#: Arguments that older recorders spell otherwise, by the attribute of the new spelling.
OLD_SPELLING = {"input_dims": "input_dims_old", "external_id": "external_id_old"}


class Columns:
    """All columns of one file. Feed it blocks with `add`.

    Tracks are numbered by key: (pid, tid) for host threads, (pid, tid, lane) for lanes that are no threads, and
    (pid, tid, device, stream) for device work.
    """

    def __init__(self, issues: IssueLog, *, exact: bool) -> None:
        self.issues = issues
        self.exact = exact
        self.n_events = 0
        self.n_spans = 0
        self.phases: set[str] = set()
        self.names, self.cats, self.tracks, self.flow_ids = Interned(), Interned(), Interned(), Interned()
        self.texts, self.dims, self.stacks = Interned(), Interned(), Interned()
        i8, u4, u2, f8 = np.int64, np.uint32, np.uint16, np.float64
        time = i8 if exact else f8
        self.spans = columns_of({"ts": time, "dur": time, "name": u4, "cat": u2, "track": u4})
        self.calls = columns_of({"row": u4, "correlation": i8})
        self.kernels_of_calls = columns_of({"row": u4, "kernel": u4})
        self.ids = columns_of({"row": u4, "external": i8})
        self.ops = columns_of({
            "row": u4, "sequence": i8, "forward": i8,
            "shapes": u4, "types": u4, "concrete": u4, "stack": u4,
        })  # fmt: skip
        self.frames = columns_of({"row": u4, "id": i8, "parent": i8, "module": i8})
        self.kernels = columns_of({
            "row": u4, "grid": u4, "block": u4, "registers": i8,
            "shared": i8, "blocks_sm": f8, "warps_sm": f8, "occupancy": f8,
        })  # fmt: skip
        self.launches = columns_of({"row": u4, "kind": u4, "dims": u4, "graph": i8, "node": i8})
        self.event_waits = columns_of({"row": u4, "stream": i8, "record": i8})
        self.transfers = columns_of({"row": u4, "bytes": i8, "bandwidth": f8})
        self.collectives = columns_of({
            "row": u4, "collective": u4, "dtype": u4, "in": i8, "out": i8,
            "group": u4, "size": i8, "ranks": u4, "description": u4, "src": i8, "dst": i8, "seq": i8,
        })  # fmt: skip
        self.memory = columns_of({
            "ts": time, "track": u4, "type": i8, "index": i8,
            "address": np.uint64, "bytes": i8, "allocated": i8, "reserved": i8,
        })  # fmt: skip
        self.edges = columns_of({"ts": time, "name": u4, "cat": u2, "track": u4, "begin": i8})
        self.flows = columns_of({"ts": time, "track": u4, "id": u4, "cat": u2, "start": i8})
        self.samples = columns_of({"ts": time, "track": u4, "metric": u4, "value": f8})
        self.metrics = columns_of({"row": u4, "metric": u4, "value": f8})
        self.launch_flows = columns_of({"id": i8})["id"]
        self.has_launch_flows = False
        self.has_correlations = False  # then the ends of these arrows say nothing more
        self.launch_ends = columns_of({"ts": time, "lane": u4, "id": i8})
        self.lanes = Interned()
        #: In which order tracks are numbered; else that of their keys.
        self.track_order: list[int] = []
        self.threads: dict[tuple[Any, Any], dict[str, str]] = {}
        json_texts = dict.fromkeys(("shapes", "types", "concrete"), self.texts)
        #: The texts that the columns of codes are codes of: arguments as they are, and as JSON.
        self.texts_of = {**dict.fromkeys(_TEXTS, self.texts), "stack": self.stacks, "kernel": self.names}
        self.json_of = {**json_texts, "grid": self.dims, "block": self.dims}
        self._raw = msgspec.json.Decoder(list[RawEvent])

    def times(self, values: list[Any]) -> list[Any]:
        """µs as doubles; in exact files, whose times are decimals, whole ns."""
        if not self.exact:
            return values
        try:
            return [None if v is None else round(v * 1000) if v.adjusted() < _MOST_DIGITS else None for v in values]
        except (ArithmeticError, ValueError):  # text that spells infinity or not-a-number
            sound = [v if v is not None and v.is_finite() else None for v in values]
            return self.times(sound)

    def add(self, events: list[AnyEvent], block: bytes) -> None:
        """Append one block of events; `block` is the JSON they came from."""
        self.n_events += len(events)
        spans = [e for e in events if e.ph == "X"]
        if len(spans) < len(events):
            self.phases |= add_incomplete(self, events, block)
        if spans:
            self.phases.add("X")
            self._add_spans(spans, events, block)

    def _add_spans(self, events: list[AnyEvent], whole: list[AnyEvent], block: bytes) -> None:
        first, cols = self.n_spans, self.spans
        self.n_spans += len(events)
        cats = self.cats.codes([e.cat for e in events], MOST_CATS)
        kind = np.array([kind_of(c) for c in self.cats], np.uint8)[cats]
        cols["ts"].extend(self.times([e.ts for e in events]))
        cols["dur"].extend(self.times([e.dur for e in events]))
        cols["name"].extend(self.names.codes([e.name for e in events]))
        cols["cat"].extend(cats)
        args = [e.args for e in events]
        keys: list[tuple[Any, ...]] = [(e.pid, e.tid) for e in events]
        groups = {k: np.flatnonzero(kind == k) for k in distinct_values(kind).tolist()}
        for i in groups.get(DEVICE, _NO_ROWS).tolist():
            keys[i] = (*keys[i], args[i].device, args[i].stream)
        for lane in (
            LANE,
            METRICS,
        ):  # ranges drawn on a device have a lane of their own, next to the stream of the same number
            for i in groups.get(lane, _NO_ROWS).tolist():
                keys[i] = (*keys[i], "range")
        cols["track"].extend(self.tracks.codes(keys))
        for kind_code, rows in groups.items():
            some = [args[i] for i in rows.tolist()] if rows.size < len(args) else args
            self._add_side_columns(kind_code, rows + first, some)
        if METRICS in groups:
            self._add_metrics(first, whole, block)
        if b'"wait_on_stream"' in block:
            self._add_rows("event_waits", [(first + i, a) for i, a in enumerate(args) if a.awaited_stream is not None])
        if DEVICE in groups and any(key in block for key in _MLU_KEYS):
            self._add_launches(first, whole, block)
        self._add_rows("collectives", [(first + i, a) for i, a in enumerate(args) if a.collective is not None])
        if b'"alg_type"' in block:
            self._add_collectives_of_hccl(first, events)

    def _add_side_columns(self, kind: int, rows: NDArray[np.intp], args: list[Args]) -> None:
        for table in TABLES_OF.get(kind, ()):
            self.add_arguments(table, rows, args)
        if kind in (CALL, DEVICE) and not self.has_correlations:
            self.has_correlations = any(a.correlation is not None and a.correlation > 0 for a in args)
        if kind == CALL and any(a.kernel for a in args):
            self._add_rows("kernels_of_calls", [(r, a) for r, a in zip(rows.tolist(), args, strict=True) if a.kernel])
        if kind == DEVICE:
            pairs = list(zip(rows.tolist(), args, strict=True))
            self._add_rows("kernels", [(r, a) for r, a in pairs if _is_launched(a)])
            self._add_rows("transfers", [(r, a) for r, a in pairs if a.size_bytes is not None])

    def add_arguments(self, table: str, rows: NDArray[np.intp] | list[int], args: list[Args]) -> None:
        """Rows of a side table."""
        cols: dict[str, Column] = getattr(self, table)
        if "row" in cols:
            cols["row"].extend(rows)
        for column, attribute in SIDE_COLUMNS[table].items():
            values: list[Any] = list(map(attrgetter(attribute), args))
            if column in self.json_of:
                values = [b"" if raw is NOTHING else bytes(raw) for raw in values]  # an absent one costs nothing
            if attribute in OLD_SPELLING and (b"" in values or ABSENT in values):
                old = map(attrgetter(OLD_SPELLING[attribute]), args)
                absent = (b"", ABSENT)
                values = [o if v in absent else v for v, o in zip(values, old, strict=True)]
                values = [bytes(v) for v in values] if column in self.json_of else values
            coded = self.json_of.get(column, self.texts_of.get(column))
            cols[column].extend(values if coded is None else coded.codes(values))

    def _add_rows(self, table: str, rows: list[tuple[int, Args]]) -> None:
        if rows:
            self.add_arguments(table, [r for r, _ in rows], [a for _, a in rows])

    def _add_collectives_of_hccl(self, first: int, events: list[AnyEvent]) -> None:
        """The sizes of HCCL's collectives: the elements that a rank sends, or of a reduce-scatter receives."""
        for row, event in enumerate(events, first):
            if event.args.algorithm == NOTHING:
                continue
            kind = bytes(event.args.element_type).decode("utf-8", "replace").strip('"')
            elements = bytes(event.args.elements)
            n = int(elements) if elements.isdigit() and len(elements) < 19 else None
            name = kind_of_collective(event.name or "") or event.name
            sent, got = (None, n) if name == "reduce_scatter" else (n, None)
            known = Args(collective=name, dtype=HCCL_TYPES.get(kind, kind), in_elements=sent, out_elements=got)
            self._add_rows("collectives", [(row, known)])

    def _add_launches(self, first: int, whole: list[AnyEvent], block: bytes) -> None:
        """Launch configurations of an MLU's kernels. Few traces have them, so the block is decoded a second time."""
        spans = [(e, args) for e, args in zip(whole, self.raw_args(whole, block), strict=True) if e.ph == "X"]
        cols = self.launches
        for row, (event, raw) in enumerate(spans, first):
            if kind_of(event.cat) == DEVICE and any(key in raw for key in _MLU_KEYS):
                args = _decoded(raw)
                cols["row"].extend([row])
                cols["kind"].extend([self.texts[args.get("kernel type")]])
                cols["dims"].extend([self.dims[msgspec.json.encode([args.get(f"dim{a}") for a in "xyz"])]])
                cols["graph"].extend([args.get("tasktopo")])
                cols["node"].extend([args.get("tasktopo_node")])

    def _add_metrics(self, first: int, whole: list[AnyEvent], block: bytes) -> None:
        """Hardware counters of profiled ranges."""
        spans = [(e, args) for e, args in zip(whole, self.raw_args(whole, block), strict=True) if e.ph == "X"]
        for row, (event, args) in enumerate(spans, first):
            if kind_of(event.cat) == METRICS:
                self.add_values(self.metrics, {"row": row}, args)

    def raw_args(self, events: list[AnyEvent], block: bytes) -> list[bytes]:
        """Arguments of each event in the block as JSON: where the keys are data, the block is decoded again."""
        try:
            return [bytes(e.args) for e in self._raw.decode(block)]
        except FAILS:
            self.issues.add("values_unreadable", "warning", 1, "values of counters that are not valid JSON")
            return [b""] * len(events)

    def add_values(self, cols: dict[str, Column], fixed: dict[str, Any], args: bytes) -> None:
        """A row of metric and value for each number in an event's arguments."""
        try:
            values = msgspec.json.decode(args) if args else None
        except FAILS:
            self.issues.add("values_unreadable", "warning", 1, "values of counters that are not valid JSON")
            return
        numbers = [(k, v) for k, v in values.items() if _is_number(v)] if isinstance(values, dict) else []
        for key, value in fixed.items():
            cols[key].extend([value] * len(numbers))
        cols["metric"].extend([self.texts[k] for k, _ in numbers])
        cols["value"].extend([v for _, v in numbers])


def _is_launched(args: Args) -> bool:
    """Whether the arguments say how a kernel was launched."""
    return bool(args.grid) or args.registers != ABSENT or args.blocks_per_sm is not None or args.occupancy is not None


def _decoded(raw: bytes) -> dict[str, Any]:
    """The arguments as a dictionary; empty if they are not one or cannot be read."""
    try:
        fields = msgspec.json.decode(raw)
    except FAILS:
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def add_incomplete(columns: Columns, events: list[AnyEvent], block: bytes) -> set[str]:
    """Append the events of one block, except the complete ones, to the columns of their phase. Returns the phases."""
    by_phase: dict[str, list[AnyEvent]] = {}
    for event in events:
        if event.ph != "X":
            by_phase.setdefault(event.ph, []).append(event)
    for phase, group in by_phase.items():
        timed = group if phase == "M" else [e for e in group if e.ts is not None]
        if phase in ("i", "I"):
            _instants(columns, timed)
        elif phase == "M":
            _metadata(columns, group)
        elif phase in ("s", "t", "f"):
            _arrows(columns, timed, start=phase == "s")
        elif phase in _EDGES:
            continue
        elif phase == "C":
            _samples(columns, events, block)
        else:
            columns.issues.add("unknown_events", "info", len(group), f"events of phase {phase!r} are not read")
    if by_phase.keys() & _EDGES:  # together, as recorded: an end and a begin may be of one instant
        _edges(columns, [e for e in events if e.ph in _EDGES and e.ts is not None])
    return {phase for phase in by_phase if phase}


def instant_of(name: str | None) -> int:
    """What an instant event of this name is: MEMORY, a MARK of the recorder, or OTHER."""
    if name == "[memory]":
        return MEMORY
    return MARK if str(name).startswith(("Iteration Start", "Record Window End")) else OTHER


def drop_instants(columns: Columns, n: int) -> None:
    """Note so many instant events that are in no column."""
    columns.issues.add("instants_dropped", "info", n, "instant events other than memory have no duration")


def _instants(columns: Columns, events: list[AnyEvent]) -> None:
    kinds = [instant_of(e.name) for e in events]
    memory = [e for e, kind in zip(events, kinds, strict=True) if kind == MEMORY]
    if memory:
        cols = columns.memory
        cols["ts"].extend(columns.times([e.ts for e in memory]))
        cols["track"].extend(columns.tracks.codes([(e.pid, e.tid) for e in memory]))
        columns.add_arguments("memory", [], [e.args for e in memory])
    drop_instants(columns, kinds.count(OTHER))


def _metadata(columns: Columns, events: list[AnyEvent]) -> None:
    for event in events:
        text = event.args.name or event.args.labels
        if text and event.name:
            columns.threads.setdefault((event.pid, event.tid), {})[event.name] = text


def _arrows(columns: Columns, events: list[AnyEvent], *, start: bool) -> None:
    launches = [e.id for e in events if e.cat in FLOW_TO_DEVICE]
    if launches:
        columns.has_launch_flows = True
        if start:
            columns.launch_flows.extend(launches)
        if not columns.has_correlations:
            ends, cols = [e for e in events if e.cat in FLOW_TO_DEVICE], columns.launch_ends
            cols["ts"].extend(columns.times([e.ts for e in ends]))
            cols["lane"].extend(columns.lanes.codes([(e.pid, e.tid) for e in ends]))
            cols["id"].extend(launches)
    if len(launches) == len(events):
        return
    between_hosts = [e for e in events if e.cat not in FLOW_TO_DEVICE]
    cols = columns.flows
    cols["ts"].extend(columns.times([e.ts for e in between_hosts]))
    cols["track"].extend(columns.tracks.codes([(e.pid, e.tid) for e in between_hosts]))
    cols["id"].extend(columns.flow_ids.codes([e.id for e in between_hosts]))
    cols["cat"].extend(columns.cats.codes([e.cat for e in between_hosts], MOST_CATS))
    cols["start"].extend([int(start)] * len(between_hosts))


def _edges(columns: Columns, events: list[AnyEvent]) -> None:
    cols = columns.edges
    cols["ts"].extend(columns.times([e.ts for e in events]))
    cols["name"].extend(columns.names.codes([e.name for e in events]))
    cols["cat"].extend(columns.cats.codes([e.cat for e in events], MOST_CATS))
    keys = [(e.pid, e.tid) if e.ph in "BE" else (e.pid, f"{e.cat}:{e.id}", "async") for e in events]
    cols["track"].extend(columns.tracks.codes(keys))
    cols["begin"].extend([int(e.ph in "Bb") for e in events])


def _samples(columns: Columns, events: list[AnyEvent], block: bytes) -> None:
    """Counter samples, from a whole block of events: the keys of their `args` are data."""
    for event, args in zip(events, columns.raw_args(events, block), strict=True):
        if event.ph == "C" and event.ts is not None:
            track = columns.tracks[(event.pid, event.name, "counter")]
            columns.add_values(columns.samples, {"ts": columns.times([event.ts])[0], "track": track}, args)
