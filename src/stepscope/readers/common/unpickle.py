"""Data out of a pickle that nobody needs to trust: numbers, texts, lists, tuples, dicts; nothing is imported or called.

Pickle is a program for a small machine with a stack and a memo. This one knows the operations that build data and
refuses all others, so a pickle can do nothing but describe a value. Work and memory grow with the size of the file
alone. A value that a pickle refers to a thousand times is one value: whoever copies such values must bound that.

Long lists of records, as recorders write them, are read by column (`unpickle_rows`), many times as fast.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.unpickle_rows import FAR, LEAST_ROWS, MOST_ROWS, Pool, Puts, Unusual, block_at

if TYPE_CHECKING:
    from collections.abc import Callable

_HINT = "this reader takes data only: it never imports or calls what a pickle names"
#: Numbers of more bytes than these are no measurements; converting them to text would take long.
_MOST_LONG = 16
_MARK, _STOP, _SETITEMS, _APPENDS, _EMPTY_DICT, _FRAME = 0x28, 0x2E, 0x75, 0x65, 0x7D, 0x95
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
#: Whole numbers and references to the memo: the type of the argument, as struct calls it.
_NUMBERS = {0x4B: struct.Struct("<B"), 0x4D: struct.Struct("<H"), 0x4A: struct.Struct("<i")}
_GETS = {0x68: struct.Struct("<B"), 0x6A: struct.Struct("<I")}
_LONG1 = 0x8A
_DOUBLE = struct.Struct(">d")
#: Records that are read one by one before those that follow are read at once, and how deep in other collections.
_FIRST, _MOST_MARKS = 4, 3


def unpickled(data: bytes) -> tuple[Any, str]:
    """The value of a pickle, and what is wrong with it; a pickle that ends early gives what was whole by then.

    In a list, a `Rows` stands for many records that are alike. Raises CorruptInput: an operation that would import or
    call something, or that is unknown, or no value at all.
    """
    machine = _Machine(_without_frames(data))
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


def _without_frames(data: bytes) -> bytes:
    """The pickle without the heads of its frames, which say nothing of its values."""
    parts, at = [data[:2]], 2
    while data[at : at + 1] == bytes([_FRAME]) and at + 9 <= len(data):
        end = at + 9 + int.from_bytes(data[at + 1 : at + 9], "little")
        parts.append(data[at + 9 : end])
        at = min(end, len(data))
    return b"".join([*parts, data[at:]]) if len(parts) > 1 else data


class _Machine:
    """The stack and the memo. Each mark on the stack is the place where the items of a collection begin."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.next_put = 0
        #: The machine for the whole file, if this one reads a part of it.
        self.whole: _Machine | None = None
        #: What records that were read at once have put into the memo, which is made when it is asked for.
        self.puts: list[Puts] = []
        self.pool: Pool | None = None
        self.level, self.limit, self.quiet_until = -1, MOST_ROWS, 0

    def run(self) -> None:
        """Run to the operation that ends a pickle. Raises IndexError or struct.error where the data ends early."""
        stack, marks, data = self.stack, self.marks, self.data
        while data[self.at] != _STOP:
            # The marks are those of the document, of its lists and of its list of records.
            if self.step() == _SETITEMS and 0 < len(marks) <= _MOST_MARKS:
                n = len(stack) - marks[-1]
                if n == _FIRST or (n > _FIRST and self.level == marks[-1]):
                    self._records()

    def get(self, number: int) -> Any:
        """A value of the memo. Raises KeyError."""
        if number not in self.memo:
            for puts in self.puts:
                if puts.numbers[0] <= number <= puts.numbers[-1]:
                    i = int(np.searchsorted(puts.first, number, "right")) - 1
                    (self.whole or self).value_of(int(puts.begins[i]), int(puts.ends[i]), int(puts.first[i]))
        return self.memo[number]

    def add_puts(self, puts: Puts) -> None:
        """Take note of values of the memo that are made when they are asked for."""
        if len(puts.numbers):
            self.puts.append(puts)
            self.next_put = int(puts.numbers[-1]) + 1

    def value_of(self, begin: int, end: int, next_put: int) -> Any:
        """The value that the operations in a part of the data make."""
        part = _Machine(self.data[begin:end] + b".")
        part.whole, part.memo, part.puts, part.next_put, part.quiet_until = (
            self,
            self.memo,
            self.puts,
            next_put,
            len(self.data),
        )
        part.run()
        return part.stack[-1]

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
        """Read the records that follow at once, as far as they can be."""
        stack, mark = self.stack, self.marks[-1]
        if self.at < self.quiet_until or not mark or type(stack[mark - 1]) is not list or type(stack[-1]) is not dict:
            return
        if self.pool is None or self.level != mark:
            self.pool, self.level, self.limit = Pool(), mark, MOST_ROWS
        n_puts, next_put = len(self.puts), self.next_put
        try:
            block = block_at(self, self.at, self.limit, self.pool)
        except (Unusual, IndexError, KeyError, TypeError, ValueError, AttributeError, RecursionError, CorruptInput):
            # Records that are damaged are read one by one, up to the damage.
            self.quiet_until, self.level = self.at + FAR, -1
            del self.puts[n_puts:]
            self.next_put = next_put
            for number in [number for number in self.memo if number >= next_put]:
                del self.memo[number]
            return
        self.limit = min(max(2 * len(block.rows), LEAST_ROWS), MOST_ROWS)
        self.stack.append(block.rows)
        self.at = block.end


def _pushed(read: Callable[[_Machine, int], tuple[Any, int]]) -> Callable[[_Machine, int], int]:
    """The operation that pushes what is read at its argument, and goes on after it."""

    def run(machine: _Machine, at: int) -> int:
        value, at = read(machine, at)
        machine.stack.append(value)
        return at

    return run


def _number(kind: struct.Struct) -> Callable[[_Machine, int], tuple[Any, int]]:
    return lambda machine, at: (kind.unpack_from(machine.data, at)[0], at + kind.size)


def _got(kind: struct.Struct) -> Callable[[_Machine, int], tuple[Any, int]]:
    return lambda machine, at: (machine.get(kind.unpack_from(machine.data, at)[0]), at + kind.size)


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


def _put(kind: struct.Struct) -> Callable[[_Machine, int], int]:
    def run(machine: _Machine, at: int) -> int:
        number = kind.unpack_from(machine.data, at)[0]
        machine.memo[number] = machine.stack[-1]
        machine.next_put = max(machine.next_put, number + 1)
        return at + kind.size

    return run


def _memoize(machine: _Machine, at: int) -> int:
    machine.memo[machine.next_put] = machine.stack[-1]
    machine.next_put += 1
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
    0x71: _put(_GETS[0x68]),
    0x72: _put(_GETS[0x6A]),
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
