"""Data out of a pickle that nobody needs to trust: numbers, texts, lists, tuples, dicts; nothing is imported or called.

Pickle is a program for a small machine with a stack and a memo. This one knows the operations that build data and
refuses all others, so a pickle can do nothing but describe a value. Work and memory grow with the size of the file
alone. A value that a pickle refers to a thousand times is one value: whoever copies such values must bound that.

Long lists of records that are alike, as recorders write them, are decoded by column (`Rows`), many times as fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from stepscope.core.errors import CorruptInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_HINT = "this reader takes data only: it never imports or calls what a pickle names"
#: Numbers of more bytes than these are no measurements; converting them to text would take long.
_MOST_LONG = 16
_MARK, _STOP, _SETITEMS, _APPENDS, _EMPTY_DICT = 0x28, 0x2E, 0x75, 0x65, 0x7D
_PUTS = (0x71, 0x72, 0x94)
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
#: Whole numbers and references to the memo: the type of the argument, as NumPy and as struct call it.
_NUMBERS = {0x4B: "<u1", 0x4D: "<u2", 0x4A: "<i4"}
_GETS = {0x68: "<u1", 0x6A: "<u4"}
_STRUCTS = {
    "<u1": struct.Struct("<B"),
    "<u2": struct.Struct("<H"),
    "<i4": struct.Struct("<i"),
    "<u4": struct.Struct("<I"),
}
_LONG1, _LONG_BYTES = 0x8A, 8
_WITH_NUMBER = frozenset((*_NUMBERS, *_GETS, _LONG1))
_DOUBLE = struct.Struct(">d")
#: Records that are decoded one by one before those alike are searched for, and how many kinds of them there may be.
_FIRST, _LEAST_ROWS, _MOST_KINDS = 4, 64, 400


class Rows(Sequence[dict[Any, Any]]):
    """Records with the same fields, held by column."""

    def __init__(self, columns: dict[Any, list[Any]], n: int) -> None:
        self.columns, self._n = columns, n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> dict[Any, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[dict[Any, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[Any, Any] | Sequence[dict[Any, Any]]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._n))]
        return {name: values[at] for name, values in self.columns.items()}

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True))


def unpickled(data: bytes) -> tuple[Any, str]:
    """The value of a pickle, and what is wrong with it; a pickle that ends early gives what was whole by then.

    In a list, a `Rows` stands for many records that are alike. Raises CorruptInput: an operation that would import or
    call something, or that is unknown, or no value at all.
    """
    machine = _Machine(data, {})
    try:
        machine.run()
    except (IndexError, struct.error):
        if not machine.fold():
            raise CorruptInput("pickle ends early", offset=machine.at) from None
        return machine.stack[0], "pickle ends early"
    except (KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise CorruptInput(f"pickle damaged: {type(error).__name__}", offset=machine.at) from None
    if not machine.stack:
        raise CorruptInput("pickle without a value")
    return machine.stack[-1], ""


class _Machine:
    """The stack and the memo. Each mark on the stack is the place where the items of a collection begin."""

    def __init__(self, data: bytes, memo: dict[int, Any]) -> None:
        self.data, self.at, self.memo = data, 0, memo
        self.stack: list[Any] = []
        self.marks: list[int] = []

    def run(self) -> None:
        """Run to the operation that ends a pickle. Raises IndexError or struct.error where the data ends early."""
        stack, marks, data = self.stack, self.marks, self.data
        while data[self.at] != _STOP:
            code = self.step()
            # The marks are those of the document and of its list of records.
            if code == _SETITEMS and len(marks) == 2 and len(stack) - marks[-1] == _FIRST:
                self._records()

    def step(self) -> int:
        """Run one operation, and return it."""
        code = self.data[self.at]
        run = _OPERATIONS.get(code)
        if run is None:
            raise CorruptInput(f"a pickle with operation {code:#04x}, which is no plain data", _HINT, offset=self.at)
        self.at = run(self, self.at + 1)
        return code

    def bytes_at(self, at: int, n: int) -> bytes:
        """So many bytes. Raises IndexError where the data ends early."""
        if at + n > len(self.data):
            raise IndexError
        return self.data[at : at + n]

    def since_mark(self) -> list[Any]:
        """The items since the last mark, taken off the stack."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def fold(self) -> bool:
        """Put what is whole into the collections that are open. False if that leaves no collection.

        An open dict in a list is one of many records, and not whole.
        """
        stack, marks = self.stack, self.marks
        while marks:
            items = self.since_mark()
            if not stack:
                return False
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
            elif isinstance(stack[-1], dict) and not (marks and marks[-1] and isinstance(stack[marks[-1] - 1], list)):
                pairs = zip(items[::2], items[1::2], strict=False)
                stack[-1].update((key, value) for key, value in pairs if isinstance(key, str))
            else:
                stack.pop()
        return bool(stack) and isinstance(stack[0], dict | list)

    def _records(self) -> None:
        """Decode the rest of a list of records by kinds of the same layout, if there are many of them.

        Records that put something into the memo run in order. Of the others, the first of each layout runs, and tells
        where the values of all records of this layout are.
        """
        data, stack, began = self.data, self.stack, self.at
        first, owner = stack[-1], stack[self.marks[-1] - 1] if self.marks[-1] else None
        start = _start(data, began)
        if not start or not isinstance(first, dict) or not isinstance(owner, list):
            return
        places = _places(data, bytes([_SETITEMS]) + start, began)
        n = len(places) - 1
        if n < _LEAST_ROWS:
            return
        table = _Table(list(first), n)
        lengths = np.diff(places)
        todo = np.ones(n, bool)
        row = n_kinds = 0
        while row < n and n_kinds < _MOST_KINDS:
            self.at = int(places[row])
            kind = _Kind(self)
            if self.at != places[row + 1] or list(stack[-1]) != table.names:
                break  # these records differ in more than their values
            table.put(row, stack.pop())
            todo[row] = False
            if not kind.puts:
                n_kinds += 1
                alike = kind.matching(data, places, np.flatnonzero(todo & (lengths == kind.size)))
                table.columns_of(kind, self, places[alike], alike)
                todo[alike] = False
            rest = np.flatnonzero(todo[row:])
            row = row + int(rest[0]) if rest.size else n
        if row < n:  # run them one by one
            del stack[self.marks[-1] + _FIRST :]
            self.at = began
        else:
            self.at = int(places[-1])
            stack.append(table.rows())


def _start(data: bytes, at: int) -> bytes:
    """How a record with a memo reference or a text as its first key begins; empty for anything else."""
    code = data[at + 2 : at + 3]
    length = {b"h": 4, b"j": 7, b"X": 7}.get(code, 0)
    if code == b"X" and len(data) >= at + 7:
        length += int.from_bytes(data[at + 3 : at + 7], "little")
    return data[at : at + length] if length < 1 << 10 and data[at : at + 2] == b"}(" else b""


def _places(data: bytes, pattern: bytes, at: int) -> NDArray[np.int64]:
    """Where records begin, as the end of one and the start of the next tell; the first begins at `at`."""
    places, place = [at], data.find(pattern, at)
    while place >= 0:
        places.append(place + 1)
        place = data.find(pattern, place + 1)
    return np.array(places)


class _Kind:
    """The layout of one record, which the machine runs: where each value is, and which bytes are the same in all."""

    def __init__(self, machine: _Machine) -> None:
        begin, base, level = machine.at, len(machine.stack), len(machine.marks)
        operations: list[tuple[int, int, int]] = []
        starts: dict[int, int] = {}
        height, last = base, 0
        while True:
            at = machine.at - begin
            if machine.data[machine.at] == _SETITEMS and len(machine.marks) == level + 1:
                n_items = len(machine.stack) - machine.marks[-1]
                self.end = at
                operations.append((machine.step(), at, at + 1))
                break
            code = machine.step()
            operations.append((code, at, machine.at - begin))
            if len(machine.stack) == height + 1:
                starts[height] = at - (last == _MARK)  # the mark of a tuple belongs to it
            height, last = len(machine.stack), code
        bounds = [*(starts[base + 1 + i] for i in range(n_items)), self.end]
        self.size = machine.at - begin
        self.puts = any(code in _PUTS for code, _, _ in operations)
        self.model = machine.data[begin : begin + self.size]
        #: Of each value: where it begins and ends, and its operation if it is a single one.
        self.values = [(bounds[i], bounds[i + 1]) for i in range(1, n_items, 2)]
        whole, keys = set(self.values), set(bounds[:-1:2])
        single = {at: code for code, at, end in operations if (at, end) in whole}
        self.codes = [single.get(at) for at, _ in self.values]
        fixed = np.ones(self.size, bool)
        for code, at, end in operations:
            if code in _WITH_NUMBER and at not in keys:
                fixed[at + 1 + (code == _LONG1) : end] = False
        self.constants = [at for (at, _), code in zip(self.values, self.codes, strict=True) if code in _CONSTANTS]
        fixed[self.constants] = False
        self.fixed = np.flatnonzero(fixed)

    def matching(self, data: bytes, places: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the rows whose record has this layout."""
        if not rows.size:
            return rows
        taken = np.frombuffer(data, np.uint8)
        block = taken[places[rows][:, None] + np.arange(self.size)]
        model = np.frombuffer(self.model, np.uint8)
        good = (block[:, self.fixed] == model[self.fixed]).all(1)
        if self.constants:
            good &= np.isin(block[:, self.constants], list(_CONSTANTS)).all(1)
        chosen: NDArray[np.int64] = rows[good]
        return chosen


class _Table:
    """Columns of records, filled in any order."""

    def __init__(self, names: list[Any], n: int) -> None:
        self.names = names
        self._columns = [np.empty(n, object) for _ in names]

    def put(self, row: int, record: dict[Any, Any]) -> None:
        """Fill a row."""
        for column, value in zip(self._columns, record.values(), strict=True):
            column[row] = value

    def columns_of(self, kind: _Kind, machine: _Machine, places: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Fill the rows of a layout, whose records begin at the places."""
        if not rows.size:
            return
        taken = np.frombuffer(machine.data, np.uint8)
        for column, (low, high), code in zip(self._columns, kind.values, kind.codes, strict=True):
            block = taken[places[:, None] + np.arange(low, high)]
            column[rows] = _decoded(np.ascontiguousarray(block), code, machine)

    def rows(self) -> Rows:
        """All records."""
        columns = [column.tolist() for column in self._columns]
        return Rows(dict(zip(self.names, columns, strict=True)), len(columns[0]))


def _decoded(block: NDArray[np.uint8], code: int | None, machine: _Machine) -> NDArray[Any]:
    """The values whose bytes are the rows of a block."""
    made: list[Any]
    if code in _NUMBERS:
        made = np.ascontiguousarray(block[:, 1:]).view(_NUMBERS[code])[:, 0].tolist()
    elif code in _GETS:
        numbers = np.ascontiguousarray(block[:, 1:]).view(_GETS[code])[:, 0].tolist()
        made = [machine.memo[number] for number in numbers]
    elif code in _CONSTANTS:
        made = [_CONSTANTS[number] for number in block[:, 0].tolist()]
    elif code == _LONG1 and block.shape[1] == _LONG_BYTES + 2:
        made = np.ascontiguousarray(block[:, 2:]).view("<i8")[:, 0].tolist()
    else:
        known: dict[bytes, Any] = {}
        width, flat = block.shape[1], block.tobytes()
        made = []
        for at in range(0, len(flat), width):
            text = flat[at : at + width]
            if text not in known:
                inner = _Machine(text + b".", machine.memo)
                inner.run()
                known[text] = inner.stack[-1]
            made.append(known[text])
    values = np.empty(len(made), object)
    values[:] = made
    return values


def _pushed(read: Callable[[_Machine, int], tuple[Any, int]]) -> Callable[[_Machine, int], int]:
    """The operation that pushes what is read at its argument, and goes on after it."""

    def run(machine: _Machine, at: int) -> int:
        value, at = read(machine, at)
        machine.stack.append(value)
        return at

    return run


def _number(form: str) -> Callable[[_Machine, int], tuple[Any, int]]:
    kind = _STRUCTS[form]
    return lambda machine, at: (kind.unpack_from(machine.data, at)[0], at + kind.size)


def _got(form: str) -> Callable[[_Machine, int], tuple[Any, int]]:
    kind = _STRUCTS[form]
    return lambda machine, at: (machine.memo[kind.unpack_from(machine.data, at)[0]], at + kind.size)


def _same(value: object) -> Callable[[_Machine, int], tuple[Any, int]]:
    return lambda _, at: (value, at)


def _sized(n_size: int, make: Callable[[bytes], Any]) -> Callable[[_Machine, int], tuple[Any, int]]:
    """Reads a length of so many bytes, and then as many bytes."""

    def read(machine: _Machine, at: int) -> tuple[Any, int]:
        length = int.from_bytes(machine.bytes_at(at, n_size), "little")
        return make(machine.bytes_at(at + n_size, length)), at + n_size + length

    return read


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _whole(raw: bytes) -> int | None:
    """A whole number; None for one that is too large to be a measurement."""
    return int.from_bytes(raw, "little", signed=True) if len(raw) <= _MOST_LONG else None


def _tuple_of(n: int) -> Callable[[_Machine, int], int]:
    def run(machine: _Machine, at: int) -> int:
        if len(machine.stack) < n:
            raise ValueError
        machine.stack[-n:] = [tuple(machine.stack[-n:])]
        return at

    return run


def _put(form: str) -> Callable[[_Machine, int], int]:
    kind = _STRUCTS[form]

    def run(machine: _Machine, at: int) -> int:
        machine.memo[kind.unpack_from(machine.data, at)[0]] = machine.stack[-1]
        return at + kind.size

    return run


def _memoize(machine: _Machine, at: int) -> int:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return at


def _mark(machine: _Machine, at: int) -> int:
    machine.marks.append(len(machine.stack))
    return at


def _append(machine: _Machine, at: int) -> int:
    value = machine.stack.pop()
    machine.stack[-1].append(value)
    return at


def _appends(machine: _Machine, at: int) -> int:
    items = machine.since_mark()
    machine.stack[-1].extend(items)
    return at


def _set_item(machine: _Machine, at: int) -> int:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1][key] = value
    return at


def _set_items(machine: _Machine, at: int) -> int:
    items = machine.since_mark()
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))
    return at


def _tuple(machine: _Machine, at: int) -> int:
    items = machine.since_mark()
    machine.stack.append(tuple(items))
    return at


def _pop(machine: _Machine, at: int) -> int:
    machine.stack.pop()
    return at


#: The operations that build data, by their code: each gets the place after the code, and gives that of the next one.
_OPERATIONS: dict[int, Callable[[_Machine, int], int]] = {
    **{code: _pushed(_number(form)) for code, form in _NUMBERS.items()},
    **{code: _pushed(_got(form)) for code, form in _GETS.items()},
    **{code: _pushed(_same(value)) for code, value in _CONSTANTS.items()},
    _LONG1: _pushed(_sized(1, _whole)),
    0x8B: _pushed(_sized(4, _whole)),
    0x8C: _pushed(_sized(1, _text)),
    0x58: _pushed(_sized(4, _text)),
    0x8D: _pushed(_sized(8, _text)),
    0x43: _pushed(_sized(1, bytes)),
    0x42: _pushed(_sized(4, bytes)),
    0x8E: _pushed(_sized(8, bytes)),
    0x47: _pushed(lambda machine, at: (_DOUBLE.unpack_from(machine.data, at)[0], at + 8)),
    0x5D: _pushed(lambda _, at: ([], at)),
    _EMPTY_DICT: _pushed(lambda _, at: ({}, at)),
    0x29: _pushed(lambda _, at: ((), at)),
    0x32: _pushed(lambda machine, at: (machine.stack[-1], at)),
    0x71: _put("<u1"),
    0x72: _put("<u4"),
    0x94: _memoize,
    _MARK: _mark,
    0x61: _append,
    _APPENDS: _appends,
    0x73: _set_item,
    _SETITEMS: _set_items,
    0x74: _tuple,
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    0x30: _pop,
    0x80: lambda _, at: at + 1,
    0x95: lambda _, at: at + 8,
}
