"""What NumPy takes long for: distinct values, and how spans nest. It is compiled where this installation has it."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Row = TypeVar("_Row", bound=np.signedinteger)
    _T = TypeVar("_T", bound=np.generic)

NESTING = Path(__file__).with_name("_nesting.so")
_VERSION = 3
#: Of fewer values NumPy is as fast.
_FEW = 100
#: Numbers that lie in a range of so many are marked in it, and not sorted.
_SMALL_RANGE = 1 << 12
_PIECE = 1 << 17
#: Keys lie close together if their range is at most so many times their number.
_CLOSE = 16


def distinct_values(values: NDArray[_T]) -> NDArray[_T]:
    """The distinct values, ascending.

    `numpy.unique` puts whole numbers into a hash table. Of 30,000 and more it takes 6 to 30 times as long.

    >>> distinct_values(np.array([3, -1, 3])).tolist()
    [-1, 3]
    """
    if values.dtype.kind not in "iu" or values.size < _FEW:
        return np.unique(values)
    values = values.ravel()
    low, high = values.min(), values.max()
    width = int(high) - int(low) + 1
    if width <= max(_SMALL_RANGE, 2 * values.size):
        is_there = np.zeros(width, np.bool_)
        for begin in range(0, values.size, _PIECE):
            piece = values[begin : begin + _PIECE]
            # Signed numbers of few bits could not hold the difference.
            is_there[piece.astype(np.int64) - int(low) if values.dtype.kind == "i" else piece - low] = True
        in_range: NDArray[_T] = np.flatnonzero(is_there).astype(values.dtype) + low
        return in_range
    ordered = np.sort(values)
    first: NDArray[_T] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return first


def grouped(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each distinct key, in order, the row in which it comes first; and for each row the number of its key.

    As from `numpy.unique`, which sorts all rows. Here only the distinct keys are sorted if they lie close together.

    >>> [column.tolist() for column in grouped(np.array([7, 5, 7]))]
    [[1, 0], [1, 0, 1]]
    """
    low = int(keys.min()) if keys.size else 0
    if not keys.size or int(keys.max()) - low > max(_SMALL_RANGE, _CLOSE * keys.size):
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        return first, group
    first, number = numbered((keys - low).astype(np.uint32))
    order = np.argsort(keys[first])
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return first[order], place[number]


def numbered(values: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The rows in which distinct values come first, in order, and for each row the number of its value among them.

    >>> [column.tolist() for column in numbered(np.array([7, 5, 7], np.uint32))]
    [[0, 1], [0, 1, 0]]
    """
    if not values.size:
        return np.empty(0, np.int64), np.empty(0, np.uint32)
    low = int(values.min())
    width, nesting = int(values.max()) - low + 1, _nesting()
    place, number = np.zeros(width, np.uint32), np.empty(values.size, np.uint32)
    first = np.full(min(width, values.size), -1, np.int64)
    if nesting is not None:
        values = np.ascontiguousarray(values, np.uint32)
        columns = (column.ctypes.data for column in (place, number, first))
        return first[: nesting.nesting_numbered(values.size, values.ctypes.data, low, *columns)], number
    row_of = np.full(width, -1, np.int64)
    pieces = [slice(begin, begin + _PIECE) for begin in range(0, values.size, _PIECE)]
    for piece in pieces[::-1]:
        at = (values[piece] - low)[::-1]
        row_of[at] = np.arange(piece.start + at.size - 1, piece.start - 1, -1)  # the last one that is written stays
    first = np.sort(row_of[row_of >= 0])
    place[values[first] - low] = np.arange(first.size)
    for piece in pieces:
        number[piece] = place[values[piece] - low]
    return first, number


def library(path: Path, name: str, version: int) -> ctypes.CDLL | None:
    """The library of this file, whose function `name`_version returns that version; None if there is none of use."""
    if os.environ.get("STEPSCOPE_PURE_PYTHON") == "1" or not path.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    # One that was built of an older source has another number.
    return loaded if getattr(loaded, f"{name}_version")() == version else None


@cache
def _nesting() -> ctypes.CDLL | None:
    loaded = library(NESTING, "nesting", _VERSION)
    if loaded is not None:
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        loaded.nesting_enclosing.argtypes = [size, pointer, pointer, pointer, pointer]
        loaded.nesting_nearest_32.argtypes = loaded.nesting_nearest_64.argtypes = [size, pointer, pointer, pointer]
        loaded.nesting_around.argtypes = [size, pointer, size, *[pointer] * 5]
        for name in ("enclosing", "nearest_32", "nearest_64", "around"):
            getattr(loaded, f"nesting_{name}").restype = None
        loaded.nesting_numbered.argtypes = [size, pointer, ctypes.c_uint32, *[pointer] * 3]
        loaded.nesting_numbered.restype = size
        loaded.nesting_own.argtypes = [size, *[pointer] * 5]
        loaded.nesting_own.restype = ctypes.c_int32
    return loaded


def compiled_enclosing(
    starts: NDArray[np.int64], ends: NDArray[np.int64], groups: NDArray[np.integer]
) -> NDArray[np.int64] | None:
    """As `intervals.enclosing`; None if nothing is compiled."""
    nesting = _nesting()
    if nesting is None:
        return None
    columns = [np.ascontiguousarray(column, np.int64) for column in (starts, ends, groups)]
    parents = np.empty(starts.size, np.int64)
    nesting.nesting_enclosing(starts.size, *(column.ctypes.data for column in columns), parents.ctypes.data)
    return parents


def compiled_nearest(parents: NDArray[_Row], wanted: NDArray[np.bool_]) -> NDArray[_Row] | None:
    """As `intervals.nearest`; None if nothing is compiled, or if these are no row numbers of 32 or 64 bits."""
    nesting = _nesting()
    if nesting is None or parents.dtype not in (np.int32, np.int64):
        return None
    if parents.size != wanted.size or int(parents.max(initial=-1)) >= parents.size:  # as only damaged tables have them
        return None
    parents, wanted = np.ascontiguousarray(parents), np.ascontiguousarray(wanted, np.bool_)
    target = np.empty_like(parents)
    function = nesting.nesting_nearest_32 if parents.dtype == np.int32 else nesting.nesting_nearest_64
    function(parents.size, parents.ctypes.data, wanted.ctypes.data, target.ctypes.data)
    return target


def compiled_around(
    asked: NDArray[np.uint32],
    parents: NDArray[np.uint32],
    times: tuple[NDArray[np.int64], NDArray[np.int64]],
    wanted: NDArray[np.bool_],
) -> NDArray[np.uint32] | None:
    """As `intervals.innermost`; None if nothing is compiled, or if these columns are of different lengths."""
    nesting = _nesting()
    if nesting is None or len({parents.size, wanted.size, *(column.size for column in times)}) > 1:
        return None
    asked, parents = (np.ascontiguousarray(rows, np.uint32) for rows in (asked, parents))
    starts, lengths = (np.ascontiguousarray(column, np.int64) for column in times)
    wanted, target = np.ascontiguousarray(wanted, np.bool_), np.empty_like(asked)
    at = (column.ctypes.data for column in (parents, starts, lengths, wanted, target))
    nesting.nesting_around(asked.size, asked.ctypes.data, parents.size, *at)
    return target


def compiled_own_lengths(
    starts: NDArray[np.int64], ends: NDArray[np.int64], parents: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """As `intervals.own_lengths`; None if nothing is compiled, or if children of one row overlap."""
    nesting, n = _nesting(), parents.size
    if nesting is None or starts.size != n or ends.size != n or int(parents.max(initial=-1)) >= n:
        return None
    columns = [np.ascontiguousarray(column, np.int64) for column in (starts, ends, parents)]
    reach, own = np.empty(n, np.int64), np.empty(n, np.int64)
    is_done = nesting.nesting_own(n, *(column.ctypes.data for column in (*columns, reach, own)))
    return own if is_done else None
