"""Many records of a pickle at once: their operations are read in step, and their values by column.

Recorders write long lists of records with the same few layouts. All records of such a list take one operation at a
time together, as arrays; records with the same operations then have their values at the same places. What is the same
in many records is decoded once, by the machine for single values. Anything unusual is left to that machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.readers.common.record_columns import ABSENT, CONSTANTS, NUMBER, Column, Rows
from stepscope.readers.common.unpickle_layout import Kind, Layout, layout_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_CONSTANT_CODES = {0x4E: CONSTANTS.index(None), 0x88: CONSTANTS.index(True), 0x89: CONSTANTS.index(False)}
_LONG1, _MEMOIZE, _SETITEMS, _LONGEST = 0x8A, 0x94, 0x75, 8
#: How many records are worth it, in how many bytes they must be, and how many are read at once.
FAR, _WINDOW = 1 << 20, 1 << 22
LEAST_ROWS, MOST_ROWS, _MOST_OPERATIONS = 64, 1 << 14, 512
_OPERATIONS: dict[int, tuple[Kind, int]] = {  # kind and length; of a negative length, so many bytes say the rest
    **dict.fromkeys((0x4E, 0x88, 0x89), (Kind.ATOM, 1)),
    **dict.fromkeys((0x4B, 0x68), (Kind.ATOM, 2)),
    **dict.fromkeys((0x4A, 0x6A), (Kind.ATOM, 5)),
    0x4D: (Kind.ATOM, 3), _LONG1: (Kind.ATOM, -1), 0x58: (Kind.TEXT, -4), 0x8C: (Kind.TEXT, -1), 0x47: (Kind.FLOAT, 9),
    0x5D: (Kind.LIST, 1), 0x7D: (Kind.DICT, 1), 0x29: (Kind.EMPTY_TUPLE, 1), 0x28: (Kind.MARK, 1),
    0x65: (Kind.APPENDS, 1), _SETITEMS: (Kind.SETITEMS, 1), 0x61: (Kind.APPEND, 1), 0x73: (Kind.SETITEM, 1),
    0x74: (Kind.TUPLE, 1), 0x85: (Kind.TUPLE1, 1), 0x86: (Kind.TUPLE2, 1), 0x87: (Kind.TUPLE3, 1),
    0x71: (Kind.PUT, 2), 0x72: (Kind.PUT, 5), _MEMOIZE: (Kind.PUT, 1),
}  # fmt: skip
#: Longer keys are no names of fields; more layouts are no records that are alike.
_LONGEST_KEY, _MOST_LAYOUTS = 128, 200
#: By how many operations of each record the arrays grow.
_GROWTH = 64
#: Numbers that are this close to each other are counted in an array.
_MOST_SPREAD = 1 << 15
#: Stands for a number of more than eight bytes.
_BIG_CODE = 1


def _table(values: dict[int, int], other: int) -> Ints:
    table = np.full(256, other, np.int64)
    table[list(values)] = list(values.values())
    return table


_KIND = _table({code: kind for code, (kind, _) in _OPERATIONS.items()}, Kind.OTHER).astype(np.uint8)
_KIND[0], _KIND[_BIG_CODE] = 0, Kind.BIG  # 0: after the end of a record
_LENGTH = _table({0: 0, **{code: length for code, (_, length) in _OPERATIONS.items()}}, 1 << 40)
_PUT_LENGTH = _table({0x71: 2, 0x72: 5, 0x94: 1}, 0)
#: What to shift a word of eight bytes by, and which bits remain, to have the argument of an operation.
_SHIFT = _table({0x4B: 56, 0x68: 56, 0x71: 56, 0x4D: 48, 0x4A: 32, 0x6A: 32, 0x72: 32}, 0)
_BITS = _table({0x4B: 0xFF, 0x68: 0xFF, 0x71: 0xFF, 0x4D: 0xFFFF, 0x6A: 0xFFFFFFFF, 0x72: 0xFFFFFFFF}, -1)
#: How values begin: as numbers, as references to the memo, or with the code of a constant.
_GET = -3
_CODE = _table({0x68: _GET, 0x6A: _GET, **_CONSTANT_CODES}, NUMBER).astype(np.int32)


class Machine(Protocol):
    """What is needed of the machine for single values."""

    data: bytes

    @property
    def next_put(self) -> int:
        """The number that the next value of the memo has, above all others."""

    def get(self, number: int) -> Any:
        """A value of the memo. Raises KeyError."""

    def add_puts(self, puts: Puts) -> None:
        """Take note of values of the memo that are made when they are asked for."""

    def value_of(self, begin: int, end: int, next_put: int) -> Any:
        """The value that the operations in a part of the data make."""


class Puts(NamedTuple):
    """What records put into the memo: the numbers; and of each record begin, end, and the place of its first number."""

    numbers: Ints
    begins: Ints
    ends: Ints
    first: Ints


class Block(NamedTuple):
    """Records that were read at once, and where they end."""

    rows: Rows
    end: int


class Unusual(Exception):
    """The records cannot be read at once."""


class Pool:
    """Distinct values of the records of a list, by code; and the codes of values in the memo."""

    def __init__(self) -> None:
        self.values: list[Any] = list(CONSTANTS)
        self.of_memo = np.zeros(0, np.int32)
        self._texts: dict[bytes, int] = {}

    def grow(self, n: int) -> None:
        """Make room for so many numbers of the memo."""
        if n > len(self.of_memo):
            more = np.full(max(n, 2 * len(self.of_memo)) - len(self.of_memo), -1, np.int32)
            self.of_memo = np.concatenate([self.of_memo, more])

    def add(self, value: Any) -> int:
        """The code of a further value."""
        self.values.append(value)
        return len(self.values) - 1

    def of_parts(self, parts: list[bytes], decoded: Any) -> NDArray[np.int32]:
        """The codes of values by the bytes that make them; `decoded` makes the value of the part at a place."""
        known = self._texts
        for i, part in enumerate(parts):
            if part not in known:
                known[part] = self.add(decoded(i))
        return np.fromiter(map(known.__getitem__, parts), np.int32, len(parts))


def block_at(machine: Machine, begin: int, limit: int, pool: Pool) -> Block:
    """The records of a list from `begin` on, at most so many, as far as they can be read at once. Raises Unusual."""
    starts, ends = _bounds(machine.data, begin, limit)
    reading = _Reading(machine, pool, starts, ends)
    return reading.block()


def _bounds(data: bytes, begin: int, limit: int) -> tuple[Ints, Ints]:
    """Where records may begin and end, as the one at `begin` begins, after the end of another one."""
    part = data[begin : begin + _WINDOW] + bytes(16)
    taken, eights = _views(part)
    at = _key_at(taken, np.zeros(1, np.int64))
    if not at.size:
        raise Unusual
    length = {b"h": 2, b"j": 5, b"X": 5, b"\x8c": 2}.get(part[at[0] : at[0] + 1], 0)
    if length and part[at[0]] in (0x58, 0x8C):
        length += int.from_bytes(part[at[0] + 1 : at[0] + length], "little")
    if not 0 < length < _LONGEST_KEY:
        raise Unusual
    ends = np.flatnonzero(taken[: -(17 + _LONGEST_KEY)] == _SETITEMS) + 1
    starts = np.where((taken[ends] == 0x65) & (taken[ends + 1] == 0x28), ends + 2, ends)  # a further batch of items
    key = _key_at(taken, starts)
    for offset in range(0, length, 8):
        bits = -1 if length - offset >= 8 else (1 << 8 * (length - offset)) - 1
        good = (eights[key + offset] ^ eights[at[0] + offset]) & bits == 0
        good &= key > 0
        starts, ends, key = starts[good], ends[good], key[good]
    if len(ends) < LEAST_ROWS or ends[LEAST_ROWS - 1] > FAR:
        raise Unusual
    return begin + np.concatenate([[0], starts[: limit - 1]])[: len(ends)], begin + ends[:limit]


def _views(part: bytes) -> tuple[NDArray[np.uint8], Ints]:
    """The bytes, and the eight bytes at each place as a number."""
    return np.frombuffer(part, np.uint8), np.ndarray(len(part) - 8, "<i8", part, strides=(1,))


def _key_at(taken: NDArray[np.uint8], starts: Ints) -> Ints:
    """Where the first key of each record is; 0 where no record starts."""
    is_dict = taken[starts] == 0x7D
    at = starts + 1
    at += _PUT_LENGTH[taken[at]]
    is_dict &= taken[at] == 0x28
    return np.where(is_dict, at + 1, 0)


def _sorted_bylayout_of(
    kinds: NDArray[np.uint8], is_whole: NDArray[np.bool_]
) -> tuple[list[tuple[Layout, int, Ints]], int]:
    """The layouts with the number of their operations and their records; and how many records there are.

    The records end before the first that has no layout.
    """
    wide = kinds.view(np.int64)
    n = int(np.argmin(is_whole)) if not is_whole.all() else len(kinds)
    layouts: list[tuple[Layout, int, Ints]] = []
    rest = np.arange(n)
    while rest.size and len(layouts) < _MOST_LAYOUTS:
        operations = kinds[rest[0]].tobytes().rstrip(b"\0")
        layout = None if b"\0" in operations else layout_of(operations)
        if layout is None:
            break
        same = (wide[rest] == wide[rest[0]]).all(1)
        layouts.append((layout, len(operations), rest[same]))
        rest = rest[~same]
    if rest.size:
        n = int(rest[0])
        layouts = [(layout, length, mine) for layout, length, rows in layouts if (mine := rows[rows < n]).size]
    if n < LEAST_ROWS:
        raise Unusual
    return layouts, n


class _Reading:
    """One block of records while it is read. Places count from the start of the block."""

    def __init__(self, machine: Machine, pool: Pool, starts: Ints, ends: Ints) -> None:
        self.machine, self.pool, self.base = machine, pool, int(starts[0])
        self.part = machine.data[self.base : int(ends[-1])] + bytes(16)
        self.taken, self.eights = _views(self.part)
        self.first_put = machine.next_put
        if self.first_put > len(machine.data):
            raise Unusual  # no pickler counts so
        self.operations, self.at, is_whole = self._in_step(starts - self.base, ends - self.base)
        kinds = np.ascontiguousarray(_KIND[self.operations].T)
        self.layouts, n = _sorted_bylayout_of(kinds, is_whole)
        self.operations, self.at = self.operations[:, :n], self.at[:, :n]
        self.starts, self.ends = starts[:n] - self.base, ends[:n] - self.base
        self.put_base = np.zeros(n, np.int64)
        self.put_numbers = self.put_at = self.put_base[:0]
        if any(layout.total_puts for layout, _, _ in self.layouts):
            self._find_puts(kinds[:n])

    def _in_step(self, place: Ints, ends: Ints) -> tuple[NDArray[np.uint8], Ints, NDArray[np.bool_]]:
        """The operations of all records, one of each in a row, 0 after their end; their places; which end well."""
        operations, at, after = np.zeros((0, len(ends)), np.uint8), np.zeros((0, len(ends)), np.int64), ends + 1
        for i in range(_MOST_OPERATIONS):
            if i == len(at):
                operations = np.concatenate([operations, np.zeros((_GROWTH, len(ends)), np.uint8)])
                at = np.concatenate([at, np.empty((_GROWTH, len(ends)), np.int64)])
            codes = operations[i]
            np.multiply(self.taken[place], place < ends, out=codes)
            at[i] = place
            lengths = _LENGTH[codes]
            if lengths.min() < 0:
                self._measure(codes, lengths, place)
            elif not lengths.any():
                break
            place = np.minimum(place + lengths, after)
        else:
            i = len(at)
        return operations[: -(-i // 8) * 8], at[: -(-i // 8) * 8], place == ends

    def _measure(self, codes: NDArray[np.uint8], lengths: Ints, place: Ints) -> None:
        """Put in the lengths of operations that say them in their first bytes."""
        which = np.flatnonzero(lengths < 0)
        head = -lengths[which]
        eights = self.eights[place[which] + 1]
        n = np.where(head == 4, eights & 0xFFFFFFFF, eights & 0xFF)
        lengths[which] = 1 + head + n
        long = (codes[which] == _LONG1) & (n > _LONGEST)
        if long.any():
            codes[which[long]] = _BIG_CODE

    def _find_puts(self, kinds: NDArray[np.uint8]) -> None:
        """The numbers and places of what the records put into the memo, in the order of the file."""
        for layout, _, rows in self.layouts:
            self.put_base[rows] = layout.total_puts
        self.put_base = np.cumsum(self.put_base) - self.put_base
        rows, which = np.divmod(np.flatnonzero(kinds.ravel() == Kind.PUT), kinds.shape[1])
        at, codes = self.at[which, rows], self.operations[which, rows]
        is_counted = codes == _MEMOIZE
        if is_counted.all():
            numbers = self.first_put + np.arange(len(at))
        elif is_counted.any():
            raise Unusual
        else:
            numbers = self.eights[at + 1] & _BITS[codes]
            if (np.diff(numbers) <= 0).any() or numbers[0] < self.first_put or numbers[-1] > len(self.machine.data):
                raise Unusual
        self.put_numbers, self.put_at = numbers, at

    def block(self) -> Block:
        """All records by column."""
        n, numbers = len(self.starts), self.put_numbers
        self.pool.grow(max(self.first_put, int(numbers[-1]) + 1 if len(numbers) else 0))
        first = np.append(numbers, numbers[-1] + 1)[self.put_base] if len(numbers) else self.put_base
        self.machine.add_puts(Puts(numbers, self.starts + self.base, self.ends + self.base, first))
        self.columns: dict[Any, Column] = {}
        for layout, length, chosen in self.layouts:
            rows = chosen
            while rows.size:
                rows = self._take(layout, length, rows, n)
        return Block(Rows(self.columns, n), self.base + int(self.ends[-1]))

    def _take(self, layout: Layout, length: int, rows: Ints, n: int) -> Ints:
        """Read the records of a layout that have the keys of the first of them, and return the other ones."""
        at, operations = self.at[:length], self.operations[:length]
        if len(rows) < n:
            at, operations = at[:, rows], operations[:, rows]
        same = np.ones(len(rows), bool)
        for low, _ in layout.keys:
            same &= self._has_the_same(at[low], int(at[low + 1, 0] - at[low, 0]))
        rest = rows[:0]
        if not same.all():
            rest, rows, at, operations = rows[~same], rows[same], at[:, same], operations[:, same]
        single = [
            low
            for (low, high), atoms in zip(layout.values, layout.atoms, strict=True)
            if (low, high) == (*atoms, low + 1)
        ]
        atoms = dict(zip(single, zip(*self._atoms(operations[single], at[single]), strict=True), strict=True))
        for i, (low, high) in enumerate(layout.values):
            name = self._name(int(at[layout.keys[i][0], 0]), int(at[layout.keys[i][0] + 1, 0]))
            if low in atoms:
                codes, numbers = self._resolved(*atoms[low], at[low])
            else:
                codes, numbers = self._column(layout, i, at, operations, rows, low, high), np.zeros(1, np.int64)
            if name not in self.columns:
                self.columns[name] = Column.empty(n, self.pool.values)
            column = self.columns[name]
            if column.codes[rows[0]] != ABSENT:
                raise Unusual  # a key that comes twice
            column.codes[rows], column.numbers[rows] = codes, numbers
        return rest

    def _name(self, begin: int, end: int) -> Any:
        """The key that a part of the block makes."""
        part = [self.part[begin:end]]
        code = self.pool.of_parts(part, lambda _: self.machine.value_of(self.base + begin, self.base + end, 0))
        return self.pool.values[int(code[0])]

    def _has_the_same(self, at: Ints, length: int) -> NDArray[np.bool_]:
        """Where so many bytes are those of the first place."""
        same = np.ones(len(at), bool)
        for offset in range(0, length, 8):
            bits = -1 if length - offset >= 8 else (1 << 8 * (length - offset)) - 1
            eights = self.eights[np.minimum(at + offset, len(self.eights) - 1)] & bits
            same &= eights == eights[0]
        return same

    def _value(self, layout: Layout, at: Ints, rows: Ints, i: int, low: int, high: int) -> Any:
        """The value that a range of operations of the i-th of the records makes."""
        put = self.put_base[rows[i]] + layout.n_puts[low]
        first = int(self.put_numbers[put]) if put < len(self.put_numbers) else 0
        return self.machine.value_of(self.base + int(at[low, i]), self.base + int(at[high, i]), first)

    def _column(
        self, layout: Layout, i: int, at: Ints, operations: NDArray[np.uint8], rows: Ints, low: int, high: int
    ) -> NDArray[np.int32]:
        """The codes of the i-th value of records, which takes several operations."""
        facts: list[NDArray[Any]] = []
        for atom in layout.atoms[i]:
            facts += self._resolved(*self._atoms(operations[atom], at[atom]), at[atom])
        texts = [self._texts(at[text], at[text + 1]) for text in layout.texts[i]]
        whole = layout.whole[i]
        if layout.texts[i] == (low,) and high - low == 1 + len(whole):
            codes = texts[0]
        else:
            floats = [self.eights[at[one] + 1] for one in layout.floats[i]]
            first, inverse = _classes([*facts, *texts, *floats], len(rows))
            made = [self.pool.add(self._value(layout, at, rows, int(k), low, high)) for k in first]
            codes = np.array(made, np.int32)[inverse]
        for put in whole:
            numbers = self.put_numbers[self.put_base[rows] + layout.n_puts[put]]
            self.pool.of_memo[numbers] = codes
        return codes

    def _texts(self, begins: Ints, ends: Ints) -> NDArray[np.int32]:
        """The codes of texts."""
        pairs = list(zip(begins.tolist(), ends.tolist(), strict=True))

        def text(i: int) -> Any:
            begin, end = pairs[i]
            return self.machine.value_of(self.base + begin, self.base + end, 0)

        return self.pool.of_parts([self.part[begin:end] for begin, end in pairs], text)

    def _atoms(self, operations: NDArray[np.uint8], at: Ints) -> tuple[NDArray[np.int32], Ints]:
        """Codes and numbers of single operations: whole numbers, constants, references to the memo."""
        numbers = self.eights[at + 1]
        shift = _SHIFT[operations]
        long = np.nonzero(operations == _LONG1)
        long_sizes = numbers[long] & 0xFF
        numbers <<= shift
        numbers >>= shift
        numbers &= _BITS[operations]
        if long_sizes.size:
            shift = 64 - 8 * long_sizes
            wide = self.eights[at[long] + 2]
            numbers[long] = np.where(shift < 64, (wide << (shift & 63)) >> (shift & 63), 0)
        return _CODE[operations], numbers

    def _resolved(self, codes: NDArray[np.int32], numbers: Ints, at: Ints) -> tuple[NDArray[np.int32], Ints]:
        """The codes with those of values in the memo, and the numbers with 0 where there is a code."""
        if (codes == NUMBER).all():
            return codes, numbers
        gets = codes == _GET
        if gets.all():
            codes = self._codes_of(numbers, at)
        elif gets.any():
            codes = codes.copy()
            codes[gets] = self._codes_of(numbers[gets], at[gets])
        return codes, np.where(codes == NUMBER, numbers, 0)

    def _codes_of(self, numbers: Ints, at: Ints) -> NDArray[np.int32]:
        """The codes of values in the memo, asked for at these places."""
        if numbers.max() >= self.first_put:
            asked = np.flatnonzero(numbers >= self.first_put)
            put = np.searchsorted(self.put_numbers, numbers[asked])
            if put.max(initial=0) >= len(self.put_numbers):
                raise Unusual
            if (self.put_numbers[put] != numbers[asked]).any() or (self.put_at[put] >= at[asked]).any():
                raise Unusual
        known = self.pool.of_memo
        codes = known[numbers]
        if codes.min() < 0:
            for number in distinct_values(numbers[codes < 0]).tolist():
                known[number] = self.pool.add(self.machine.get(number))
            codes = known[numbers]
        return codes


def _classes(facts: list[NDArray[Any]], n: int) -> tuple[Ints, Ints]:
    """A record of each distinct combination of facts, and the combination of each record."""
    facts = [one for one in facts if (one != one[0]).any()]
    if not facts:
        return np.zeros(1, np.int64), np.zeros(n, np.int64)
    examples, classes = _ranked(facts[0])
    for one in facts[1:]:
        more, mine = _ranked(one)
        examples, classes = _ranked(classes * len(more) + mine)
    return examples, classes


def _ranked(values: NDArray[Any]) -> tuple[Ints, Ints]:
    """A place of each distinct value, and the number of the value at each place."""
    low, high = int(values.min()), int(values.max())
    if high - low >= _MOST_SPREAD:
        _, places, ranks = np.unique(values, return_index=True, return_inverse=True)
        return places, ranks
    shifted = values - low
    place_of = np.full(high - low + 1, -1)
    place_of[shifted] = np.arange(len(values))
    known = np.flatnonzero(place_of >= 0)
    rank_of = np.empty(high - low + 1, np.int64)
    rank_of[known] = np.arange(len(known))
    return place_of[known], rank_of[shifted]
