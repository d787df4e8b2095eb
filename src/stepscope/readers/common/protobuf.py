"""Protobuf's wire format on whole columns: fields of many messages at once, without a schema compiler or a package.

Format: https://protobuf.dev/programming-guides/encoding: a field is a key (number × 8 + wire type) and a value, numbers
are varints (seven bits a byte, lowest first, the high bit set on all but the last).

A message may hold a million others, and a million messages a handful of fields each. Messages are therefore walked in
lockstep, a field of each at a time, and so are pieces of a long one; where few are left that have more, one by one.
"""

from __future__ import annotations

import io
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.readers.common.columns import ABSENT, stable_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from stepscope.readers.common.columns import Interned
    from stepscope.readers.common.source import IssueLog

    Ints = NDArray[np.int64]
    U64s = NDArray[np.uint64]
    #: Where messages, or other contents, begin and end in the document; −1 means missing.
    Contents = tuple[Ints, Ints]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
INT, FIXED, DOUBLE, FLOAT, BYTES = "int", "fixed", "double", "float", "bytes"
MANY = BYTES + "*"
_WIRE_OF = {INT: VARINT, FIXED: FIXED64, DOUBLE: FIXED64, FLOAT: FIXED32, BYTES: LENGTH}

_SIZES = {FIXED64: 8, FIXED32: 4}
_MOST = 2**29 - 1  # of field numbers
_RARE = 100  # from so high numbers on fields are looked for without a count of each number's
_NONE = np.empty(0, np.int64)
_NO_WIRE = np.array([False, False, False, True, True, False, True, True])  # groups, which ended with proto2, and none
_PAD = 16  # zero bytes behind the data, so that eight or sixteen can be looked at wherever a value begins
_BLOCK = 1 << 15  # messages walked together: temporary arrays stay in the cache
_REPEATED = 8  # contents that are looked for by comparing all with one
_FEW = 128  # below so many a turn of the lockstep costs more than looking at each
_LONG, _PIECE, _SAMPLE = 1 << 20, 1 << 14, 64  # bytes of a message that is cut into pieces, bytes of these; fields


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


_STOPS, _SEVEN = _u64(0x8080808080808080), _u64(0x7F7F7F7F7F7F7F7F)
#: Mask of the groups that stay and shift of those that move down beside them: 8 × 7 bits to 4 × 14, 2 × 28, 1 × 56.
_PACK = (
    (_u64(0x007F007F007F007F), _u64(0x7F007F007F007F00), _u64(1)),
    (_u64(0x00003FFF00003FFF), _u64(0x3FFF00003FFF0000), _u64(2)),
    (_u64(0x000000000FFFFFFF), _u64(0x0FFFFFFF00000000), _u64(4)),
)
#: Of so many low bytes of eight.
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_ONE, _LOW7, _LOW8, _EIGHT, _GOES_ON = _u64(1), _u64(0x7F), _u64(0xFF), _u64(8), _u64(0x80)


@dataclass(slots=True)
class Damage:
    """What did not decode: messages given up, where the first was, and fields with the wrong wire type."""

    n_messages: int = 0
    first_at: int | None = None
    n_wire_types: int = 0

    def give_up(self, at: int, n: int = 1) -> None:
        """Count messages that end in something that is not a field, the first of them at that offset."""
        self.n_messages += n
        self.first_at = at if self.first_at is None else min(self.first_at, at)

    def note(self, issues: IssueLog) -> None:
        """Count it in a reader's issues."""
        example = "" if self.first_at is None else f"incomplete messages, first at byte {self.first_at:,}"
        issues.add("damaged_messages", "error", self.n_messages, example)
        issues.add("wrong_wire_types", "warning", self.n_wire_types, "fields of an unexpected type were left out")


class Fields(msgspec.Struct, frozen=True):
    """Fields of many messages, row by row: the message's index, number, wire type, value.

    Of varints `value` is the 64 bits, of fixed ones their bits, of length-delimited ones where the content begins;
    `end` is where that ends. Fields of one message are in order, those of different messages are not.
    """

    owner: Ints
    number: Ints
    wire: Ints
    value: Ints
    end: Ints


class Wire:
    """A document in protobuf's wire format, and its damage."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        whole = io.BytesIO()
        for chunk in chunks:
            whole.write(chunk)
        self.n_bytes = whole.tell()
        whole.write(bytes(_PAD))
        self.damage = Damage()
        self._data = whole.getvalue()  # which hands out what it holds, and copies nothing
        # The eight bytes from each offset on as a number: overlapping, unaligned, and without a copy.
        self._u64s: U64s = np.ndarray((self.n_bytes + _PAD - 7,), "<u8", self._data, 0, (1,))

    def whole(self) -> Contents:
        """The document as one message: its start and its end."""
        return np.zeros(1, np.int64), np.array([self.n_bytes])

    def columns(
        self, messages: Contents, schema: Mapping[int, tuple[str, str]], *, clip: bool = False
    ) -> dict[str, Any]:
        """The known fields of the messages [start, end) by name; `schema` gives number → (name, kind).

        INT and FIXED (64 bits) give int64 (ABSENT where missing), DOUBLE and FLOAT float64 (NaN where missing), BYTES
        the pair of starts and ends (−1 where missing). A kind with `*` behind it is repeated: for BYTES (owner, starts,
        ends) in order of the document, for INT and FIXED (owner, values). Of several values of a single field the last
        counts.
        """
        return self.by_name(self.fields(messages, clip=clip), messages[0].size, schema)

    def by_name(self, fields: Fields, n: int, schema: Mapping[int, tuple[str, str]]) -> dict[str, Any]:
        """As `columns`, of the fields of `n` messages."""
        return _columns(fields, n, schema, self.damage)

    def messages(self, number: int) -> Iterator[Contents]:
        """The contents of a repeated field of the document, in order and in blocks. Other messages are passed over."""
        for numbers, wires, starts, ends in self._walked(0, self.n_bytes, clip=True):
            mine = (numbers == number) & (wires == LENGTH)
            self.damage.n_wire_types += int((wires != LENGTH).sum())
            if mine.any():
                yield starts[mine], ends[mine]

    def _walked(self, at: int, stop: int, *, clip: bool) -> Iterator[tuple[Ints, ...]]:
        """The fields of one message in order, in blocks: number, wire type, value, end."""
        starts, at = self._field_starts(at, stop)
        for low in range(0, starts.size, _BLOCK):
            block = starts[low : low + _BLOCK]
            _, (number, wire, value, end, _) = self._turn(block, np.full(block.size, stop))
            yield number, wire, value, end
        if at < stop:
            yield self._one(at, stop, clip=clip)

    def _field_starts(self, at: int, stop: int) -> tuple[Ints, int]:
        """Where the fields of one message begin that are walked together, and where those begin that are left to do.

        A long message of small fields is cut into pieces. Each begins where four fields like the most frequent one seem
        to follow each other. A piece counts if the fields before it end where it begins; else they go on into it.
        """
        known = [at]
        while len(known) <= _SAMPLE and at < stop <= self.n_bytes and at - known[0] < _PIECE:
            known.append(at := self._after(at, stop))
        n_bytes = stop - known[0]
        if n_bytes < _LONG or known[-1] > known[0] + _PIECE:
            return np.empty(0, np.int64), known[0]
        keys = [self._data[place : _varint(self._data, place)[1]] for place in known[:-1]]
        key = max(set(keys), key=keys.count)
        lows = range(known[0] + _PIECE, stop, _PIECE)
        guesses = (self._likely(key, low, min(low + _PIECE, stop), stop) for low in lows)
        begins = np.array([known[0], *(guess for guess in guesses if guess >= 0)])
        lane, place, limit = np.arange(begins.size), begins.copy(), np.append(begins[1:], stop)
        ends, lanes, places = begins.copy(), [], []
        while lane.size:
            is_whole, (*_, after) = self._turn(place, np.full(place.size, stop))
            lane, place, after, limit = (column[is_whole] for column in (lane, place, after, limit))
            lanes.append(lane)
            places.append(place)
            ends[lane] = after
            lane, place, limit = (column[after < limit] for column in (lane, after, limit))
        counts, between, at = np.zeros(begins.size, np.bool_), [], known[0]
        for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            while at < begin and (after_one := self._after(at, stop)) <= stop:
                between.append(at)
                at = after_one
            if at == begin:
                counts[i], at = True, end
        sound = counts[np.concatenate(lanes)]
        return np.sort(np.concatenate((np.concatenate(places)[sound], np.array(between, np.int64)))), at

    def _likely(self, key: bytes, low: int, high: int, stop: int) -> int:
        """The first offset from `low` at which four fields of that key seem to follow each other, else −1."""
        while (low := self._data.find(key, low, high)) >= 0:
            at = low
            for _ in range(4):
                if not self._data.startswith(key, at) or (at := self._after(at, stop)) >= stop:
                    break
            else:
                return low
            low += 1
        return -1

    def _after(self, at: int, stop: int) -> int:
        """Where the field that begins there ends; behind `stop` if it is none, or is not whole."""
        key, at = _varint(self._data, at)
        wire = key & 7
        if wire == LENGTH and at < stop:
            length, at = _varint(self._data, at)
            at += length
        elif wire == VARINT and at < stop:
            at = _varint(self._data, at)[1]
        else:
            at += _SIZES.get(wire, stop + 1)
        return at if 8 <= key < 8 * _MOST + 8 else stop + 1

    def fields(self, messages: Contents, *, clip: bool = False) -> Fields:
        """All fields of the messages [start, end). A message is given up at the first bytes that are not a field.

        With `clip`, content that claims to end after its message ends with the message. Use it for messages that are
        few and long.
        """
        starts, ends = messages
        parts: list[tuple[Any, ...]] = []
        for low in range(0, starts.size, _BLOCK):
            block = np.arange(low, min(low + _BLOCK, starts.size))
            at, stop = starts[block], ends[block]
            if not (at < stop).all():  # empty messages have no fields
                block, at, stop = (column[at < stop] for column in (block, at, stop))
            while block.size >= _FEW and not clip:
                is_whole, ahead = self._turn(at, stop)
                if not is_whole.all():
                    self.damage.give_up(int(at[~is_whole].min()), int((~is_whole).sum()))
                number, wire, value, end, after = (column[is_whole] for column in ahead)
                block, stop = block[is_whole], stop[is_whole]
                parts.append((block, number, wire, value, end))
                more = after < stop
                block, at, stop = block[more], after[more], stop[more]
            for owner, first, last in zip(block.tolist(), at.tolist(), stop.tolist(), strict=True):
                walked = self._walked(first, last, clip=clip)
                parts += [(np.full(columns[0].size, owner), *columns) for columns in walked]
        columns = [np.concatenate([np.asarray(p[i], np.int64) for p in parts]) for i in range(5)] if parts else []
        return Fields(*columns) if columns else Fields(*(np.empty(0, np.int64) for _ in range(5)))

    def _turn(self, at: Ints, stop: Ints) -> tuple[NDArray[np.bool_], tuple[Ints, ...]]:
        """The next field of each message: whether there is one, and number, wire, value, end, start of what follows."""
        key, n_key = self._varints(at)
        number, wire = (key >> 3).astype(np.int64), (key & _u64(7)).astype(np.int64)
        content = at + n_key
        value, n_value = self._varints(np.minimum(content, self.n_bytes))
        size = n_value.copy()
        size[wire == FIXED64] = 8
        size[wire == FIXED32] = 4
        after = content + size
        is_length = wire == LENGTH
        length = value.view(np.int64)
        bad = (n_key == 0) | (number < 1) | (number > _MOST) | (size == 0) | _NO_WIRE[wire] | (after > stop)
        bad |= is_length & ((length < 0) | (length > stop - after))
        end = np.where(is_length & ~bad, after + length, 0)
        numbers = value.view(np.int64)
        fixed = np.flatnonzero(((wire == FIXED64) | (wire == FIXED32)) & ~bad)
        if fixed.size:
            raw = self._u64s[content[fixed]]
            half = wire[fixed] == FIXED32
            numbers[fixed] = np.where(half, raw & _u64(0xFFFFFFFF), raw).view(np.int64)
        return ~bad, (
            number, wire, np.where(is_length, after, numbers), end, np.where(is_length, end, after)
        )  # fmt: skip

    def _varints(self, at: Ints) -> tuple[U64s, Ints]:
        """The varint at each offset and its length in bytes; length 0 where none ends within ten bytes."""
        raw = self._u64s[at]
        if not (raw & _GOES_ON).any():
            return raw & _LOW7, np.ones(at.size, np.int64)
        stops = ~raw & _STOPS
        lowest = stops & (~stops + _ONE)
        below = lowest - _ONE  # all ones where no byte of the eight is the last
        length = ((np.bitwise_count(below).astype(np.int64)) + 1) >> 3
        value = raw & (lowest | below) & _SEVEN
        for keep, move, shift in _PACK:
            value = (value & keep) | ((value & move) >> shift)
        long = np.flatnonzero(stops == 0)
        if long.size:
            rest = self._u64s[at[long] + 8]
            ninth, tenth = rest & _LOW8, (rest >> _EIGHT) & _LOW8
            value[long] |= (ninth & _LOW7) << _u64(56)
            is_ten = ninth > _LOW7
            value[long] |= np.where(is_ten, (tenth & _ONE) << _u64(63), _u64(0))
            length[long] = np.where(is_ten, np.where(tenth > _LOW7, 0, 10), 9)
        return value, length

    def _one(self, at: int, stop: int, *, clip: bool) -> tuple[Ints, ...]:
        """The fields of one message from `at` on, one by one: number, wire type, value, end."""
        data = self._data
        numbers, wires, values, ends = array("q"), array("q"), array("q"), array("q")
        while at < stop:
            began = at
            key, at = _varint(data, at)
            if at > stop or not 8 <= key < 8 * _MOST + 8:
                self.damage.give_up(began)
                break
            wire, end = key & 7, 0
            if wire == LENGTH:
                length, value = _varint(data, at)
                at = end = value + length
                if clip and value <= stop < end:
                    self.damage.give_up(began)
                    at = end = stop
            elif wire == VARINT:
                value, at = _varint(data, at)
                value = value - (1 << 64) if value >> 63 else value
            elif wire in (FIXED64, FIXED32):
                size = 8 if wire == FIXED64 else 4
                value = int.from_bytes(data[at : at + size], "little", signed=wire == FIXED64)
                at += size
            else:
                at = stop + 1
            if at > stop:
                self.damage.give_up(began)
                break
            numbers.append(key >> 3)
            wires.append(wire)
            values.append(value)
            ends.append(end)
        columns = (numbers, wires, values, ends)
        return tuple(np.frombuffer(a, np.int64) if a else np.empty(0, np.int64) for a in columns)

    def codes(self, contents: Contents, interned: Interned) -> NDArray[np.uint32]:
        """The number of each content among its distinct ones, 0 where the start is −1 (a missing field).

        What a recorder repeats a million times, such as a key, is compared as two numbers, of up to 16 bytes.
        """
        codes = np.zeros(contents[0].size, np.uint32)
        rows = np.flatnonzero(contents[0] >= 0)
        starts, size = contents[0][rows], contents[1][rows] - contents[0][rows]
        low, high = (
            self._u64s[np.minimum(starts + at, self.n_bytes)] & _MASKS[np.clip(size - at, 0, 8)] for at in (0, 8)
        )
        for _ in range(_REPEATED):
            if rows.size < _FEW or size[0] > 16:
                break
            one = (low == low[0]) & (high == high[0]) & (size == size[0])
            codes[rows[one]] = interned[self._data[starts[0] : starts[0] + size[0]]]
            rows, starts, size, low, high = (column[~one] for column in (rows, starts, size, low, high))
        if rows.size:
            codes[rows] = interned.codes(self.slices((contents[0][rows], contents[1][rows])))
        return codes

    def slices(self, contents: Contents) -> list[bytes]:
        """The bytes of each content [start, end); empty where the start is −1 (a missing field)."""
        data, (starts, ends) = self._data, contents
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def plain_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of one small message; of fixed ones their bytes. Raises ValueError at damage."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire, value = key & 7, 0
        if wire == VARINT and at < len(data):
            value, at = _varint(data, at)
            if at <= len(data):
                yield key >> 3, value - (1 << 64) if value >> 63 else value
                continue
        elif wire in _SIZES or (wire == LENGTH and at < len(data)):
            size, at = (_SIZES[wire], at) if wire in _SIZES else _varint(data, at)
            if at + size <= len(data):
                yield key >> 3, data[at : at + size]
                at += size
                continue
        raise ValueError(f"no field at byte {at:,}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at that offset and where it ends; far after any end if none ends within ten bytes."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    for i in range(at + 1, min(at + 10, len(data))):
        byte = data[i]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), i + 1
        shift += 7
    return 8, 1 << 62


def _columns(fields: Fields, n: int, schema: Mapping[int, tuple[str, str]], damage: Damage) -> dict[str, Any]:
    values: dict[str, Any] = {}
    counts = np.bincount(np.minimum(fields.number, _RARE), minlength=_RARE + 1)
    for number, (name, kind) in schema.items():
        single = kind.removesuffix("*")
        mine = np.flatnonzero(fields.number == number) if counts[min(number, _RARE)] else _NONE
        fits = fields.wire[mine] == _WIRE_OF[single]
        if not fits.all():
            damage.n_wire_types += int((~fits).sum())
            mine = mine[fits]
        owner, value, end = fields.owner[mine], fields.value[mine], fields.end[mine]
        if kind.endswith("*"):
            order = stable_order(value if single == BYTES else owner)
            values[name] = (owner[order], value[order], end[order]) if single == BYTES else (owner[order], value[order])
        elif single in (INT, FIXED):
            values[name] = np.full(n, ABSENT, np.int64)
            values[name][owner] = value
        elif single == BYTES:
            values[name] = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
            values[name][0][owner], values[name][1][owner] = value, end
        else:
            values[name] = np.full(n, np.nan)
            values[name][owner] = (
                value.view(np.float64) if single == DOUBLE else value.astype(np.uint32).view(np.float32)
            )
    return values
