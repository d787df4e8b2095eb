"""The layout of a record in a pickle: which operations make its keys and values, and which differ between records.

Records with the same kinds of operations have one layout, whatever numbers, texts and references they consist of.
"""

from __future__ import annotations

from enum import IntEnum, auto
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Kind(IntEnum):
    """What operations do; those of one kind can stand for each other. An ATOM is a number, a constant, a reference."""

    ATOM = auto()
    TEXT = auto()
    BIG = auto()
    FLOAT = auto()
    EMPTY_TUPLE = auto()
    LIST = auto()
    DICT = auto()
    MARK = auto()
    APPENDS = auto()
    SETITEMS = auto()
    APPEND = auto()
    SETITEM = auto()
    TUPLE = auto()
    TUPLE1 = auto()
    TUPLE2 = auto()
    TUPLE3 = auto()
    PUT = auto()
    OTHER = auto()


_SINGLE = (Kind.ATOM, Kind.TEXT, Kind.BIG, Kind.FLOAT, Kind.EMPTY_TUPLE)
_SIZES = {Kind.TUPLE1: 1, Kind.TUPLE2: 2, Kind.TUPLE3: 3}


class Layout(NamedTuple):
    """The operations of a record: the ranges of its keys and values, and what they consist of."""

    keys: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]
    #: For each value, its operations that differ between records, and those that put the whole value into the memo.
    atoms: tuple[tuple[int, ...], ...]
    texts: tuple[tuple[int, ...], ...]
    floats: tuple[tuple[int, ...], ...]
    whole: tuple[tuple[int, ...], ...]
    #: How many operations before each one put something into the memo, and how many do at all.
    n_puts: NDArray[np.int64]
    total_puts: int


class _Item(NamedTuple):
    """A value on the stack: its first operation, and its kind if that makes a new collection."""

    begin: int
    kind: int = 0


@lru_cache(4096)
def layout_of(kinds: bytes) -> Layout | None:
    """The layout of a record with these kinds of operations; None for what is no single dict, newly made."""
    stack = _Stack()
    if not kinds.endswith(bytes([Kind.SETITEMS])) or not all(stack.take(i, kind) for i, kind in enumerate(kinds)):
        return None
    # Its keys follow the dict, what puts it into the memo, and a mark.
    if stack.marks or [(one.begin, one.kind) for one in stack.items] != [(0, Kind.DICT)]:
        return None
    if stack.n_fills != 1 or (stack.taken and stack.taken[0].begin > 2 + (kinds[1] == Kind.PUT)):
        return None
    end = len(kinds) - 1
    parts = tuple(pairwise([*(item.begin for item in stack.taken), end]))
    if any(kinds[low] not in (Kind.ATOM, Kind.TEXT) for low, _ in parts[::2]):
        return None

    def of_kind(*wanted: Kind) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(i for i in range(low, high) if kinds[i] in wanted) for low, high in parts[1::2])

    is_put = np.frombuffer(kinds, np.uint8) == Kind.PUT
    return Layout(
        parts[::2],
        parts[1::2],
        of_kind(Kind.ATOM),
        of_kind(Kind.TEXT, Kind.BIG),
        of_kind(Kind.FLOAT),
        tuple(tuple(i for i, put in stack.puts if put is item) for item in stack.taken[1::2]),
        np.cumsum(is_put) - is_put,
        len(stack.puts),
    )


class _Stack:
    """The stack of the machine, of which only the shape is known.

    `taken` are the last items of a collection; `n_fills` says how often the first one was filled.
    """

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.marks: list[tuple[int, int]] = []
        self.puts: list[tuple[int, _Item]] = []
        self.taken: list[_Item] = []
        self.n_fills = 0

    def take(self, i: int, kind: int) -> bool:
        """Run the i-th operation. False if it does what a new value needs not."""
        n = len(self.items) - (self.marks[-1][0] if self.marks else 0)
        size = _SIZES.get(Kind(kind), n + 1)
        if kind in _SINGLE:
            self.items.append(_Item(i))
        elif kind in (Kind.LIST, Kind.DICT):
            self.items.append(_Item(i, kind))
        elif kind == Kind.MARK:
            self.marks.append((len(self.items), i))
        elif kind == Kind.PUT and n:
            self.puts.append((i, self.items[-1]))
        elif size <= n:
            self.items[-size:] = [_Item(self.items[-size].begin)]
        elif kind == Kind.TUPLE and self.marks:
            self.items.append(_Item(self._since_mark()))
        else:
            return self._fill(kind, n)
        return True

    def _since_mark(self) -> int:
        height, begin = self.marks.pop()
        self.taken = self.items[height:]
        del self.items[height:]
        return begin

    def _fill(self, kind: int, n: int) -> bool:
        """Put items into the new collection that is below them."""
        if kind in (Kind.APPENDS, Kind.SETITEMS) and self.marks:
            self._since_mark()
        elif kind in (Kind.APPEND, Kind.SETITEM):
            size = 1 if kind == Kind.APPEND else 2
            if n <= size:
                return False
            self.taken = self.items[-size:]
            del self.items[-size:]
        else:
            return False
        self.n_fills += len(self.items) == 1
        wanted = Kind.LIST if kind in (Kind.APPEND, Kind.APPENDS) else Kind.DICT
        floor = self.marks[-1][0] if self.marks else 0
        is_whole = wanted == Kind.LIST or len(self.taken) % 2 == 0
        return is_whole and len(self.items) > floor and self.items[-1].kind == wanted
