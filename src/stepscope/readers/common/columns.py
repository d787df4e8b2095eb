"""Columns of a reader: growing ones, numbers for recurring values, and how absent values become null."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.machine import trim
from stepscope.core.patterns import regex
from stepscope.core.schema import DEVICES
from stepscope.core.table import Name, fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

#: An absent integer inside a reader; becomes null when a column of a table is made.
ABSENT = -(2**62)
#: Recorders have some dozens of categories, so 16 bits are enough.
MOST_CATS = 2**16
_PIECE = 1 << 16
#: Groups of rows are sorted one by one if they are so large.
_FEW_GROUPS_OF = 1 << 10
#: What columns of so many bytes leave as free memory goes back to the system at once.
_MANY_BYTES = 1 << 26
_WHOLE_OR_NONE = {int, type(None)}
_INTEGER = regex(r"\s*-?[0-9]{1,18}\s*")
_SHAPE = regex(r"[0-9]{1,18}(?:,[0-9]{1,18})*")


class Interned(dict[Any, int]):
    """Value to number, in order of first appearance."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number

    def codes(self, values: list[Any], most: int = 2**32) -> NDArray[np.uint32]:
        """Numbers of the values; those numbered `most` and up share the last one that is smaller."""
        known: list[Any] = list(map(self.get, values))
        try:  # Looking all up in C first, and numbering only what is new, halves the time.
            numbers = np.frombuffer(array("I", known), np.uint32)
        except TypeError:  # something is new: it came back as None
            numbers = np.frombuffer(array("I", list(map(self.__getitem__, values))), np.uint32)
        return np.minimum(numbers, most - 1) if len(self) > most else numbers


class Column:
    """Blocks of one column, joined at the end."""

    __slots__ = ("blocks", "dtype")

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = dtype
        self.blocks: list[NDArray[Any]] = []

    def extend(self, values: list[Any] | NDArray[Any]) -> None:
        """Append a block. Nulls and values that do not fit become ABSENT (0 if unsigned) or NaN (floats)."""
        if self.dtype is np.uint64 and isinstance(values, np.ndarray):
            values = np.maximum(values, 0)  # NumPy would make large numbers of negative ones
        try:
            block = np.asarray(values, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError):
            block = np.array(self._fitting(list(values)), dtype=self.dtype)
        self.blocks.append(block)

    def _fitting(self, values: list[Any]) -> list[Any]:
        kinds = set(map(type, values))
        if self.dtype is np.int64 and kinds <= _WHOLE_OR_NONE and all(abs(v) < 2**62 for v in values if v):
            return [ABSENT if value is None else value for value in values]  # as most often, in a third of the time
        return [fitting(value, self.dtype) for value in values]

    @property
    def size(self) -> int:
        """How many values there are."""
        return sum(block.size for block in self.blocks)

    def drain(self) -> Iterator[NDArray[Any]]:
        """The blocks one after the other, each of which is given up."""
        blocks, self.blocks = self.blocks[::-1], []
        while blocks:
            yield blocks.pop()

    def join(
        self, of: Callable[[NDArray[Any]], NDArray[Any]] | None = None, dtype: type[np.generic] | None = None
    ) -> NDArray[Any]:
        """The whole column, or what `of` makes of each block, of that type; frees the blocks on the way."""
        whole = np.empty(self.size, dtype or self.dtype)
        at = 0
        for block in self.drain():
            whole[at : at + block.size] = block if of is None else of(block)
            at += block.size
        if whole.nbytes >= _MANY_BYTES:
            trim()
        return whole


def columns_of(fields: dict[str, type[np.generic]]) -> dict[str, Column]:
    """Empty columns by name."""
    return {name: Column(dtype) for name, dtype in fields.items()}


def stable_order(*keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows in order of some keys, of which the first counts most. Equal rows stay in their order.

    As `numpy.lexsort`, but keys that fit 63 bits together are sorted as one number, with the row's own in the lowest
    bits, which is several times as fast. Where most rows are in order already, a stable sort is faster still.

    >>> stable_order(np.array([2, 1, 2]), np.array([5, 0, -5])).tolist()
    [1, 2, 0]
    """
    n = keys[0].size
    if not n:
        return np.empty(0, np.int64)
    ranges = [(int(key.min()), int(key.max())) for key in keys]
    widths = [(high - low).bit_length() for low, high in ranges]
    is_small = sum(widths) <= 16  # such numbers are sorted by counting
    if not is_small and sum(widths) + n.bit_length() > 63:
        if len(keys) == 1:
            return np.argsort(keys[0], kind="stable")
        if n >> widths[0] < _FEW_GROUPS_OF:
            order = stable_order(keys[-1])
            return order[stable_order(*(key[order] for key in keys[:-1]))]
        order, at = stable_order(keys[0]), 0
        for size in np.bincount(_packed(keys[:1], ranges, widths, np.uint16)).tolist():  # takes less memory
            rows = order[at : at + size]
            order[at : at + size] = rows[stable_order(*(key[rows] for key in keys[1:]))]
            at += size
        return order
    packed = _packed(keys, ranges, widths, np.uint16 if is_small else np.int64)
    if is_small:
        return np.argsort(packed, kind="stable")
    is_nearly_sorted = 64 * np.count_nonzero(packed[1:] < packed[:-1]) < n
    for at in range(0, n, _PIECE):
        piece = packed[at : at + _PIECE]
        piece <<= n.bit_length()
        piece |= np.arange(at, at + piece.size)
    packed.sort(kind="stable" if is_nearly_sorted else None)
    packed &= (1 << n.bit_length()) - 1
    return packed


def _packed(
    keys: Sequence[NDArray[np.integer]],
    ranges: Sequence[tuple[int, int]],
    widths: Sequence[int],
    dtype: type[np.integer],
) -> NDArray[Any]:
    """The keys of each row as one number."""
    packed = np.zeros(keys[0].size, dtype)
    for key, (low, _), width in zip(keys, ranges, widths, strict=False):
        for at in range(0, packed.size, _PIECE):  # at once, what is added would take as much memory again
            piece = packed[at : at + _PIECE]
            piece <<= width
            piece |= (key[at : at + _PIECE].astype(np.int64, copy=False) - low).astype(dtype, copy=False)
    return packed


def fitting(value: object, dtype: type[np.generic] = np.int64) -> float | int:
    """The value in the column's type: numbers in text are parsed, values that do not fit become absent."""
    if dtype is np.float64:
        try:
            return float(value) if isinstance(value, int | float | str) else float("nan")
        except (ValueError, OverflowError):
            return float("nan")
    if isinstance(value, str):
        value = number_in(value)
    if dtype is np.uint64:
        return value if isinstance(value, int) and 0 <= value < 2**64 else 0
    return value if isinstance(value, int) and abs(value) < 2**62 else ABSENT


def whole_number(value: object, bits: int = 62) -> int | None:
    """The value if it is a whole number below 2**bits, also written as text; else None."""
    if isinstance(value, str):
        value = number_in(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << bits else None


def device_table(rows: Iterable[Sequence[object]]) -> pl.DataFrame:
    """The `devices` table of rows in the order of its columns, of which the last ones may be left out.

    What is not of its column's type becomes null.
    """
    columns = {}
    for (name, dtype), values in zip(DEVICES.dtypes.items(), zip(*rows, strict=True), strict=False):
        if dtype.is_integer():
            columns[name] = pl.Series([whole_number(value) for value in values], dtype=pl.Int64)
        else:
            kinds = (int, float) if dtype.is_numeric() else str
            known = [value if isinstance(value, kinds) else None for value in values]
            columns[name] = pl.Series(known).cast(dtype, strict=False)
    return DEVICES.conform(pl.DataFrame(columns))


def number_in(text: str) -> int | None:
    """The integer in the text; None if it is not one or does not fit 64 bits."""
    return int(text) if _INTEGER.fullmatch(text) else None


def nullable(values: NDArray[Any], dtype: pl.DataType, absent: int = ABSENT) -> pl.Series:
    """A column with nulls for `absent` (integers) and NaN (floats)."""
    series = pl.Series(values)
    missing = np.isnan(values) if values.dtype.kind == "f" else values == absent
    return fitted(series.set(pl.Series(missing), None) if missing.any() else series, dtype)


def text_column(codes: NDArray[Any], texts: Iterable[str | None], dtype: pl.DataType = Name) -> pl.Series:
    """A categorical column from codes into texts (empty text: null). Only the texts in use become categories."""
    counts = np.bincount(codes)
    used = np.flatnonzero(counts)
    place = np.zeros(counts.size, np.uint32)
    place[used] = np.arange(used.size)
    all_texts = list(texts)
    distinct = pl.Series([all_texts[i] or None for i in used.tolist()], dtype=dtype)
    return distinct[pl.Series(place[codes])]


def torch_npu_arguments(text: str) -> str:
    r"""Shapes or types of an operator's arguments, as compact JSON, from the text that torch_npu writes.

    >>> torch_npu_arguments("32,3;\r\n;\r\n"), torch_npu_arguments("float;\r\nScalar")
    ('[[32,3],[],[]]', '["float","Scalar"]')
    """
    parts = [part.strip() for part in text.split(";")]
    whole = [[int(n) for n in p.split(",")] if _SHAPE.fullmatch(p) else p or [] for p in parts]
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
