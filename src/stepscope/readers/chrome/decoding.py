"""From the text of a trace to columns: by one process, block for block.

Blocks are events, which `event_columns` collects, or batches of the compiled decoder, which are collected here in
whole arrays. Both give the same columns, but for the order in which recurring values are numbered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.readers.chrome import scanner
from stepscope.readers.chrome.event_columns import (
    FLOW_TO_DEVICE,
    MARK,
    MEMORY,
    OLD_SPELLING,
    OTHER,
    SIDE_COLUMNS,
    TABLES_OF,
    Columns,
    add_incomplete,
    drop_instants,
    instant_of,
)
from stepscope.readers.chrome.events import CALL, DEVICE, LANE, METRICS, Event, ExactEvent, kind_of
from stepscope.readers.chrome.json import Document
from stepscope.readers.chrome.salvage import FAILS
from stepscope.readers.chrome.scanner import Batch, NotPlainError
from stepscope.readers.common.columns import ABSENT, MOST_CATS, Interned
from stepscope.readers.common.source import IssueLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.chrome.json import Text
    from stepscope.readers.chrome.scanner import Scanner

    Rows = NDArray[np.intp]

_WORD = msgspec.json.Decoder(str | None, strict=False)
_SCALAR = msgspec.json.Decoder(int | str | None, strict=False)
_EVENTS: dict[bool, msgspec.json.Decoder[Any]] = {
    False: msgspec.json.Decoder(list[Event], strict=False),
    True: msgspec.json.Decoder(list[ExactEvent], strict=False),
}
#: How a track is numbered: by process and thread alone, with device and stream, as a lane.
_PLAIN, _OF_DEVICE, _RANGE = range(3)
_STAGE = {DEVICE: _OF_DEVICE, LANE: _RANGE}
_COMPLETE, _START = ord("X"), ord("s")
_INSTANT = [ord("i"), ord("I")]


class Decoded(msgspec.Struct):
    """The columns of a document, or of a part of it, and its other fields.

    `has_decimals` says whether the first duration has any; None without durations. Elements that are not valid JSON are
    lost, the first one at byte `lost_at`.
    """

    columns: Columns
    meta: dict[str, Any]
    has_decimals: bool | None
    kind: type[AnyEvent]
    is_bare: bool
    n_lost: int
    lost_at: int | None


def decode(text: Text, issues: IssueLog, kind: type[AnyEvent] | None = None) -> Decoded:
    """The whole text, in columns. Memory: one block of events and the columns so far.

    Where there is a compiled decoder it is tried first; what it makes of a text that is damaged, or has to be repaired,
    is thrown away. Raises UnknownFormat, CorruptInput, StepscopeError (size limit).
    """
    if scanner.is_there():
        log = IssueLog()
        try:
            decoded = _decode(text, log, kind, scans=True)
        except NotPlainError:
            pass
        else:
            if is_sound(text, decoded, log):
                issues.extend(log)
                return decoded
    return _decode(text, issues, kind, scans=False)


def is_sound(text: Text, decoded: Decoded, issues: IssueLog) -> bool:
    """Whether nothing of the text was damaged or repaired."""
    return not (issues.has("error") or issues.has("warning") or text.damage or decoded.n_lost)


def _decode(text: Text, issues: IssueLog, kind: type[AnyEvent] | None, *, scans: bool) -> Decoded:
    document = Document(text, issues, kind, scans=scans)
    columns: Columns | None = None
    scanned: _Scanned | None = None
    for block in document.blocks():
        if columns is None:
            columns = Columns(issues, exact=document.kind is ExactEvent)
        if isinstance(block, Batch):
            if scanned is None and document.scanner is not None:
                scanned = _Scanned(columns, document.scanner)
            if scanned is not None:
                scanned.add(block)
        else:
            columns.add(*block)
    return Decoded(
        columns or Columns(issues, exact=False),
        document.meta,
        document.has_decimals,
        document.kind,
        document.bare,
        document.n_lost,
        document.lost_at,
    )


class _Numbered:
    """The numbers, in a table of the columns, of texts that the decoder numbered; and what stands for an absent one.

    The decoder also numbers texts of events that are no rows: those are never numbered here.
    """

    def __init__(self, table: Interned, texts: int, absent: object, value: Callable[[bytes], Any]) -> None:
        self._table, self._number, self._absent, self._value = table, texts, absent, value
        self._texts: list[bytes] = [b""]
        self._known = np.full(1, -1, np.int64)

    def of(self, decoder: Scanner, codes: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The numbers of a column."""
        if new := decoder.texts(self._number, len(self._texts) - 1):
            self._texts += new
            self._known = np.append(self._known, np.full(len(new), -1, np.int64))
        numbers: NDArray[np.int64] = self._known[codes]
        is_new = numbers < 0
        if is_new.any():
            for code in distinct_values(codes[is_new]).tolist():
                self._known[code] = self._table[self._value(self._texts[code]) if code else self._absent]
                self._texts[code] = b""
            numbers = self._known[codes]
        return numbers


class _Scanned:
    """Fills the columns of a file from batches, as decoded events do; only the order of numbers may be another."""

    def __init__(self, columns: Columns, decoder: Scanner) -> None:
        self.columns, self._decoder = columns, decoder
        self._scalars: list[Any] = [None]
        self._combinations: list[tuple[Any, ...]] = []
        self._tracks = np.full((3, 0), -1, np.int64)
        word = _WORD.decode
        self._names = _Numbered(columns.names, scanner.NAMES, "", word)
        self._kernels = _Numbered(columns.names, scanner.NAMES, None, word)
        self._cats = _Numbered(columns.cats, scanner.CATS, None, word)
        kinds = Interned({kind: kind for kind in (MEMORY, MARK, OTHER)})
        self._instants = _Numbered(kinds, scanner.NAMES, OTHER, lambda text: instant_of(word(text)))
        texts = _Numbered(columns.texts, scanner.TEXTS, None, word)
        values = _Numbered(columns.texts, scanner.VALUES, b"", bytes)
        dims = _Numbered(columns.dims, scanner.DIMS, b"", bytes)
        self._numbered = {
            **dict.fromkeys(("shapes", "types", "concrete"), values), "grid": dims, "block": dims,
            **dict.fromkeys(("collective", "dtype", "group", "ranks", "description"), texts),
            "stack": _Numbered(columns.stacks, scanner.STACKS, "", word), "kernel": self._kernels,
        }  # fmt: skip

    def add(self, batch: Batch) -> None:
        """Append a batch. Raises NotPlainError; the columns are then of no use."""
        columns = self.columns
        columns.n_events += batch.n + batch.n_rest
        if batch.n_rest:
            try:
                events: list[AnyEvent] = _EVENTS[columns.exact].decode(batch.rest)
            except FAILS:
                raise NotPlainError from None
            columns.phases |= add_incomplete(columns, events, batch.rest)
        if not batch.n:
            return
        phase = batch.fields["phase"]
        is_span = phase == _COMPLETE
        spans = np.flatnonzero(is_span)
        if spans.size:
            columns.phases.add("X")
            self._add_spans(batch, spans)
        if spans.size < batch.n:
            moments = np.flatnonzero(~is_span)
            columns.phases |= {chr(code) for code in distinct_values(phase[moments]).tolist()}
            timed = moments[~_is_absent(batch.fields["ts"][moments])]
            is_instant = np.isin(phase[timed], _INSTANT)
            if is_instant.any():
                self._add_instants(batch, timed[is_instant])
            if not is_instant.all():
                self._add_arrows(batch, timed[~is_instant])

    def _add_spans(self, batch: Batch, rows: Rows) -> None:
        columns, fields = self.columns, batch.fields
        first = columns.n_spans
        columns.n_spans += rows.size
        cats = self._category(fields["cat"][rows])
        kinds = np.array([kind_of(cat) for cat in columns.cats], np.uint8)[cats]
        has = set(np.flatnonzero(np.bincount(kinds)).tolist())
        if METRICS in has:
            raise NotPlainError
        columns.spans["ts"].extend(fields["ts"][rows])
        columns.spans["dur"].extend(fields["dur"][rows])
        columns.spans["name"].extend(self._names.of(self._decoder, fields["name"][rows]))
        columns.spans["cat"].extend(cats)
        stages = np.array([_STAGE.get(kind, _PLAIN) for kind in range(int(kinds.max()) + 1)], np.intp)[kinds]
        columns.spans["track"].extend(self._track(fields["track"][rows], stages))
        for kind in sorted(has):
            own = np.flatnonzero(kinds == kind)
            self._add_side_columns(kind, first, own, rows[own], batch)
        if "awaited_stream" in batch.used:
            waits = np.flatnonzero(fields["awaited_stream"][rows] != ABSENT)
            self._add_rows("event_waits", waits + first, rows[waits], batch)
        if "collective" in batch.used:
            codes = fields["collective"][rows]
            known = self._numbered["collective"].of(self._decoder, codes) != self.columns.texts.get(None, -1)
            self._add_rows("collectives", np.flatnonzero(known) + first, rows[known], batch)

    def _add_side_columns(self, kind: int, first: int, own: Rows, rows: Rows, batch: Batch) -> None:
        """Side tables of the spans of a kind: `own` are their numbers among the spans, `rows` those in the batch."""
        columns, fields = self.columns, batch.fields
        for table in TABLES_OF.get(kind, ()):
            self._add_arguments(table, own + first, rows, batch)
        if kind in (CALL, DEVICE) and not columns.has_correlations:
            columns.has_correlations = bool((fields["correlation"][rows] > 0).any())
        if kind == CALL and "kernel" in batch.used:
            names = self._kernels.of(self._decoder, fields["kernel"][rows])
            is_named = ~np.isin(names, [columns.names.get(None, -1), columns.names.get("", -1)])
            self._add_rows("kernels_of_calls", own[is_named] + first, rows[is_named], batch)
        if kind == DEVICE:
            launched = fields["grid"][rows] != 0
            launched |= fields["registers"][rows] != ABSENT
            launched |= ~np.isnan(fields["blocks_per_sm"][rows]) | ~np.isnan(fields["occupancy"][rows])
            self._add_rows("kernels", own[launched] + first, rows[launched], batch)
            sized = fields["size_bytes"][rows] != ABSENT
            self._add_rows("transfers", own[sized] + first, rows[sized], batch)

    def _add_rows(self, table: str, numbers: Rows, rows: Rows, batch: Batch) -> None:
        if rows.size:
            self._add_arguments(table, numbers, rows, batch)

    def _add_arguments(self, table: str, numbers: Rows, rows: Rows, batch: Batch) -> None:
        cols = getattr(self.columns, table)
        if "row" in cols:
            cols["row"].extend(numbers)
        for column, attribute in SIDE_COLUMNS[table].items():
            values = batch.fields[attribute][rows]
            old = OLD_SPELLING.get(attribute)
            if old in batch.used:
                before = batch.fields[old][rows]
                values = np.where(values == (0 if column in self._numbered else ABSENT), before, values)
            numbered = self._numbered.get(column)
            cols[column].extend(values if numbered is None else numbered.of(self._decoder, values))

    def _category(self, codes: NDArray[np.uint32]) -> NDArray[np.int64]:
        return np.minimum(self._cats.of(self._decoder, codes), MOST_CATS - 1)

    def _track(self, codes: NDArray[np.uint32], stages: Rows) -> NDArray[np.int64]:
        """The tracks of rows, by the numbers of their combinations and how their tracks are numbered."""
        known = self._tracks.shape[1]
        self._scalars += [_SCALAR.decode(text) for text in self._decoder.texts(scanner.SCALARS, len(self._scalars) - 1)]
        new = self._decoder.texts(scanner.TRACKS, max(known - 1, 0))
        if new or not known:
            if not known:
                self._combinations.append(())  # the numbers begin with 1
            parts = np.frombuffer(b"".join(new), np.uint32).reshape(-1, 4).tolist()
            self._combinations += [tuple(self._scalars[i] for i in four) for four in parts]
            more = np.full((3, len(self._combinations) - known), -1, np.int64)
            self._tracks = np.concatenate((self._tracks, more), axis=1)
        tracks: NDArray[np.int64] = self._tracks[stages, codes]
        if (tracks < 0).any():
            for stage, code in set(zip(stages[tracks < 0].tolist(), codes[tracks < 0].tolist(), strict=True)):
                self._tracks[stage, code] = self.columns.tracks[_key(stage, self._combinations[code])]
            tracks = self._tracks[stages, codes]
        return tracks

    def _add_instants(self, batch: Batch, rows: Rows) -> None:
        columns, fields = self.columns, batch.fields
        kinds = self._instants.of(self._decoder, fields["name"][rows])
        memory = rows[kinds == MEMORY]
        if memory.size:
            columns.memory["ts"].extend(fields["ts"][memory])
            columns.memory["track"].extend(self._track(fields["track"][memory], np.full(memory.size, _PLAIN)))
            self._add_arguments("memory", memory, memory, batch)
        drop_instants(columns, int(np.count_nonzero(kinds == OTHER)))

    def _add_arrows(self, batch: Batch, rows: Rows) -> None:
        """Ends of arrows, as `event_columns` adds them: all starts first, then all between_hosts."""
        columns, fields = self.columns, batch.fields
        phases = fields["phase"][rows]
        for phase in dict.fromkeys(phases.tolist()):
            some = rows[phases == phase]
            cats = self._category(fields["cat"][some])
            is_launch = np.isin(cats, [n for cat in FLOW_TO_DEVICE if (n := columns.cats.get(cat)) is not None])
            ids, launches = fields["id"][some], some[is_launch]
            if launches.size:
                columns.has_launch_flows = True
                if phase == _START:
                    columns.launch_flows.extend(ids[is_launch])
                if not columns.has_correlations:
                    cols = columns.launch_ends
                    cols["ts"].extend(fields["ts"][launches])
                    cols["lane"].extend(columns.lanes.codes(self._lanes(fields["track"][launches])))
                    cols["id"].extend(ids[is_launch])
            between_hosts = some[~is_launch]
            if between_hosts.size:
                cols = columns.flows
                cols["ts"].extend(fields["ts"][between_hosts])
                cols["track"].extend(self._track(fields["track"][between_hosts], np.full(between_hosts.size, _PLAIN)))
                known = [None if i == ABSENT else i for i in ids[~is_launch].tolist()]
                cols["id"].extend(columns.flow_ids.codes(known))
                cols["cat"].extend(cats[~is_launch])
                cols["start"].extend(np.full(between_hosts.size, int(phase == _START)))

    def _lanes(self, codes: NDArray[np.uint32]) -> list[tuple[Any, Any]]:
        self._track(codes[:0], np.empty(0, np.intp))  # what is new
        return [self._combinations[code][:2] for code in codes.tolist()]


def _key(stage: int, combination: tuple[Any, ...]) -> tuple[Any, ...]:
    if stage == _OF_DEVICE:
        return combination
    return (*combination[:2], "range") if stage == _RANGE else combination[:2]


def _is_absent(times: NDArray[Any]) -> NDArray[np.bool_]:
    is_absent: NDArray[np.bool_] = times == ABSENT if times.dtype == np.int64 else np.isnan(times)
    return is_absent
