"""Values of packets: those that a sequence shares (texts by number, defaults, clocks), and the arguments of events."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.readers.chrome.event_columns import OLD_SPELLING
from stepscope.readers.chrome.events import ATTRIBUTES
from stepscope.readers.common.columns import ABSENT, columns_of, whole_number
from stepscope.readers.common.protobuf import plain_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from stepscope.readers.common.columns import Interned

    Rows = NDArray[np.int64]
    Codes = NDArray[Any]
    Flags = NDArray[np.bool_]
    TextOf = Callable[[int], str]

#: Arguments by the names that rocprofv3 gives them, as attributes of `Args` where these have them.
_OTHER_NAMES = {
    "corr_id": "correlation", "copy_bytes": "size_bytes", "group_segment_size": "shared_bytes",
    "src_agent": "src_agent",
}  # fmt: skip
ATTRIBUTES_OF = {**ATTRIBUTES, **_OTHER_NAMES}
#: What the value of an argument is: a number, the bits of a double, a code of `texts` (also by number), of `nested`.
A_NUMBER, A_DOUBLE, A_TEXT, AN_ID, A_NEST = range(5)
#: Fields of arguments: keys, texts, numbers of either kind, and what others hold.
_KEY_ID, _KEY, _TEXT_ID, _BOOL, _DOUBLE, _ENTRIES, _VALUES = 1, 10, 17, 2, 5, 11, 12
_TEXTS, _NUMBERS = (6, 9), (2, 3, 4, 7)
_DEEPEST = 32


class State:
    """What packets set for those that follow on their sequence, until it is cleared: entries by a number."""

    def __init__(self) -> None:
        i8, u4 = np.int64, np.uint32
        self._cols = columns_of({"packet": u4, "sequence": u4, "id": i8, "value": i8})

    def add(self, packets: Rows, sequences: Rows, ids: Rows, values: Rows) -> None:
        """Set values."""
        for column, given in zip(self._cols.values(), (packets, sequences, ids, values), strict=True):
            column.extend(given)

    def close(self) -> State:
        """Joins the blocks. Call it once, before `find`."""
        self.packet, self.sequence, self.id, self.value = (c.join().astype(np.int64) for c in self._cols.values())
        return self

    def find(
        self, clears: tuple[Rows, Rows], packet: NDArray[Any], sequence: NDArray[Any], ids: Rows
    ) -> tuple[Rows, int]:
        """The value of each number at its packet, ABSENT where it is not set; and how many were taken out of order.

        The one set last counts; if none was before the packet, the first that follows; and if none is between two
        clearings, as where packets were shuffled, any of the sequence.
        """
        values = np.full(packet.size, ABSENT, np.int64)
        asked = np.flatnonzero(ids != ABSENT)
        if not asked.size or not self.id.size:
            return values, 0
        values[asked] = self._nearest(
            clears, packet[asked].astype(np.int64), sequence[asked].astype(np.int64), ids[asked]
        )
        missing = asked[values[asked] == ABSENT]
        if missing.size:
            none = (clears[0][:0], clears[1][:0])
            values[missing] = self._nearest(
                none, packet[missing].astype(np.int64), sequence[missing].astype(np.int64), ids[missing]
            )
        return values, int((values[missing] != ABSENT).sum())

    def _nearest(self, clears: tuple[Rows, Rows], packet: Rows, sequence: Rows, ids: Rows) -> Rows:
        known_ids, known_sequences = distinct_values(self.id), distinct_values(self.sequence)
        cleared = np.isin(clears[1], known_sequences)
        marks = np.sort(_rank(known_sequences, clears[1][cleared]) << 32 | clears[0][cleared])

        def group(packet: Rows, sequence: Rows, ids: Rows) -> Rows:
            of_sequence, of_id = _rank(known_sequences, sequence), _rank(known_ids, ids)
            period = np.searchsorted(marks, of_sequence << 32 | packet, "right") + of_sequence
            return np.where((of_sequence < 0) | (of_id < 0), -1, period * known_ids.size + of_id)

        groups, of_entry = np.unique(group(self.packet, self.sequence, self.id), return_inverse=True)
        keys = of_entry << 32 | self.packet
        order = np.argsort(keys, kind="stable")
        of_asked = _rank(groups, group(packet, sequence, ids))
        last = np.searchsorted(keys[order], of_asked << 32 | packet, "right") - 1
        values = np.full(packet.size, ABSENT, np.int64)
        for at in (np.minimum(last + 1, order.size - 1), np.maximum(last, 0)):
            fits = (of_asked >= 0) & (of_entry[order[at]] == of_asked)
            values[fits] = self.value[order[at[fits]]]
        return values


def _rank(known: Rows, values: Rows) -> Rows:
    """The place of each value among sorted ones, −1 if it is not among them."""
    if not known.size:
        return np.full(values.size, -1, np.int64)
    at = np.minimum(np.searchsorted(known, values), known.size - 1)
    return np.where(known[at] == values, at, -1)


@dataclass(slots=True)
class Snapshot:
    """What clocks showed at one moment: ns (or its units) by clock."""

    packet: int
    sequence: int
    clocks: dict[int, tuple[int, bool, int]] = field(default_factory=dict)


def converted(ts: Rows, packet: Rows, marks: list[Snapshot], clock: int, primary: int) -> Rows:
    """Times of a clock on the primary one, by the last snapshot before each packet, else the first."""
    at = np.clip(np.searchsorted([mark.packet for mark in marks], packet, "right") - 1, 0, None)
    shown, incremental, units = (np.array(column) for column in zip(*(m.clocks[clock] for m in marks), strict=True))
    value = ts * units[at]
    summed = np.cumsum(np.where(incremental[at], value, 0))
    heads = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])))
    before = np.repeat(summed[heads] - np.where(incremental[at[heads]], value[heads], 0), np.diff([*heads, at.size]))
    value = np.where(incremental[at], shown[at] * units[at] + summed - before, value)
    of_primary = np.array([mark.clocks.get(primary, (0, False, 1))[0] for mark in marks])
    offset = np.where([primary in mark.clocks for mark in marks], of_primary - shown * units, 0)
    on_primary: Rows = value + offset[at]
    return on_primary


def nested_value(data: bytes, key_of: TextOf, text_of: TextOf, depth: int = 0) -> tuple[str, Any]:
    """Key and value of an argument, whose dictionaries and lists become Python's; interned texts are asked for.

    Raises ValueError if the bytes are no argument.
    """
    key, value = "", None
    parts: dict[int, list[tuple[str, Any]]] = {}
    for number, raw in plain_fields(data):
        if isinstance(raw, bytes):
            if number in (_ENTRIES, _VALUES):
                if depth < _DEEPEST:
                    parts.setdefault(number, []).append(nested_value(raw, key_of, text_of, depth + 1))
            elif number == _KEY:
                key = raw.decode("utf-8", "replace")
            else:
                value = _plain(number, raw, value)
        elif number == _KEY_ID:
            key = key_of(raw)
        elif number == _TEXT_ID:
            value = text_of(raw)
        elif number in _NUMBERS:
            value = bool(raw) if number == _BOOL else raw
    if _ENTRIES in parts:
        return key, dict(parts[_ENTRIES])
    return key, [inner for _, inner in parts[_VALUES]] if _VALUES in parts else value


def _plain(number: int, raw: bytes, otherwise: Any) -> Any:
    """A text or a double."""
    if number == _DOUBLE and len(raw) == struct.calcsize("<d"):
        return struct.unpack("<d", raw)[0]
    return raw.decode("utf-8", "replace") if number in _TEXTS else otherwise


class Arguments:
    """The arguments of spans, by their names."""

    def __init__(
        self, arguments: Mapping[str, Codes], texts: list[str], nested: list[Any], of_event: Codes, n: int
    ) -> None:
        self._texts, self._nested, self.n = texts, nested, n
        row = of_event[arguments["event"]] if arguments["event"].size else np.empty(0, np.int64)
        order = np.argsort(arguments["key"], kind="stable")
        order = order[row[order] >= 0]
        keys = arguments["key"][order]
        heads = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if keys.size else np.empty(0, np.intp)
        self._by_key = {
            texts[int(keys[head])]: (row[some], arguments["kind"][some], arguments["value"][some])
            for head, some in zip(heads.tolist(), np.split(order, heads[1:]), strict=False)
        }

    def has(self, *keys: str) -> Flags:
        """Which spans have any of the arguments, with a value: empty lists are written as none."""
        flags = np.zeros(self.n, np.bool_)
        for key in keys:
            if key in self._by_key:
                rows, _, values = self._by_key[key]
                flags[rows[values != ABSENT]] = True
        return flags

    def has_attribute(self, attribute: str) -> Flags:
        """Which spans have the argument that an attribute of `Args` is."""
        return self.has(*_spellings(attribute))

    def objects(self, attribute: str) -> tuple[Rows, NDArray[np.intp], list[Any]]:
        """Spans that have an argument, the place of each one's value, and the distinct values."""
        rows, places = [np.empty(0, np.int64)], [np.empty(0, np.intp)]
        values: list[Any] = []
        for key in _spellings(attribute):
            some, kinds, raw = self._by_key.get(key, (None, None, None))
            if some is None or kinds is None or raw is None:
                continue
            for kind in distinct_values(kinds).tolist():
                mine = np.flatnonzero(kinds == kind)
                distinct, place = np.unique(raw[mine], return_inverse=True)
                rows.append(some[mine])
                places.append(place + len(values))
                values += [self._object(kind, value) for value in distinct.tolist()]
        return np.concatenate(rows), np.concatenate(places), values

    def _object(self, kind: int, value: int) -> Any:
        if kind == A_NUMBER:
            return None if value == ABSENT else value
        if kind == A_DOUBLE:
            return float(np.int64(value).view(np.float64))
        if value == ABSENT:
            return None
        return self._texts[value] if kind == A_TEXT else self._nested[value]

    def numbers(self, attribute: str) -> Rows:
        """An argument of every span, ABSENT where that is no whole number."""
        numbers = np.full(self.n, ABSENT, np.int64)
        for key in _spellings(attribute):
            if key in self._by_key:
                rows, kinds, values = self._by_key[key]
                numbers[rows] = np.where(kinds == A_NUMBER, values, ABSENT)
                for i in np.flatnonzero(kinds == A_TEXT).tolist():
                    number = whole_number(self._object(A_TEXT, int(values[i])))
                    numbers[rows[i]] = ABSENT if number is None else number
        return numbers

    def fractions(self, attribute: str) -> NDArray[np.float64]:
        """An argument of every span, NaN where that is no number."""
        fractions = np.full(self.n, np.nan)
        rows, place, values = self.objects(attribute)
        numbers = [float(v) if isinstance(v, int | float) else np.nan for v in values]
        fractions[rows] = np.array(numbers)[place] if numbers else np.nan
        return fractions

    def codes(self, attribute: str, interned: Interned, nothing: Any, form: Callable[[Any], Any]) -> NDArray[np.uint32]:
        """An argument of every span in some form, as codes; spans without it have the code of `nothing`."""
        codes = np.full(self.n, interned[nothing], np.uint32)
        rows, place, values = self.objects(attribute)
        if values:
            codes[rows] = interned.codes([form(value) for value in values])[place]
        return codes


def _spellings(attribute: str) -> Iterable[str]:
    wanted = (OLD_SPELLING.get(attribute), attribute)
    return [key for key, name in ATTRIBUTES_OF.items() if name in wanted]


def as_json(value: Any) -> bytes:
    """A value as JSON. Empty lists are written as nothing, and null as a text."""
    if value == "null":
        return b"null"
    return msgspec.json.encode(_with_empty_lists(value))


def _with_empty_lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_empty_lists(one) for one in value]
    return [] if value is None else value


def as_text(value: Any) -> str | None:
    """A value as text: what is none as JSON."""
    return value if isinstance(value, str) or value is None else as_json(value).decode()
