"""Columns of big tables in files instead of memory: the system reads what is used, and drops it if memory is short.

A trace of 10 GB makes tables of 2.6 GB, and no question needs all of their columns. The files are in the folder of the
cache, or else of the system's temporary files. They have no names, so nothing is left of them once the columns are
gone, even if the process is killed. Where there is no room for such a file, columns stay in memory.

Polars takes the memory over by the C interface of Arrow (https://arrow.apache.org/docs/format/CDataInterface.html).
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import sys
import tempfile
import weakref
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from stepscope.core.machine import cache_folder, trim

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
#: Columns with fewer rows are not worth a file.
LEAST_ROWS = 2_000_000
#: The disk must have room for this many such columns.
_ROOM = 20
_FORMATS: dict[pl.DataType, bytes] = {
    pl.Int8(): b"c", pl.UInt8(): b"C", pl.Int16(): b"s", pl.UInt16(): b"S", pl.Int32(): b"i", pl.UInt32(): b"I",
    pl.Int64(): b"l", pl.UInt64(): b"L", pl.Float32(): b"f", pl.Float64(): b"g",
}  # fmt: skip
_NULLABLE = 2
_files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_ALIGNED = 64


def mapped(column: pl.Series) -> pl.Series:
    """The same column, in a file if it has many numbers or categories."""
    if column.len() < LEAST_ROWS:
        return column
    physical = column.to_physical()
    if physical.dtype not in _FORMATS:
        return column
    validity, values = b"", physical
    if physical.null_count():
        validity = np.packbits(physical.is_not_null().to_numpy(), bitorder="little").tobytes()
        values = physical.fill_null(0)
    begin = len(validity) + -len(validity) % _ALIGNED
    memory = _file(validity.ljust(begin, b"\0"), values.to_numpy().data)
    if memory is None:
        return column
    of_file = pl.Series(_Buffers(memory, begin, physical.dtype, column.len(), physical.null_count()))
    of_file = of_file.alias(column.name)
    of_file = of_file if column.dtype == physical.dtype else of_file.cat.to(column.dtype)
    return of_file.set_sorted() if column.flags["SORTED_ASC"] else of_file


def mapped_table(table: pl.DataFrame) -> pl.DataFrame:
    """The same table, with its columns in files if it has many rows."""
    return pl.DataFrame([mapped(column) for column in table]) if table.height >= LEAST_ROWS else table


def on_file(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The same values, in a file if they are many; then they cannot be changed, as `forget` would undo it."""
    memory = _file(values.data) if values.size >= LEAST_ROWS else None
    if memory is None:
        return values
    of_file = np.frombuffer(memory, values.dtype)
    of_file.flags.writeable = False
    return of_file


def _file(*parts: bytes | memoryview) -> mmap.mmap | None:
    """A file without a name that holds these bytes, as memory; None if there can be none."""
    if sys.platform != "linux":
        return None
    try:
        cache = cache_folder()
        folder = Path(tempfile.gettempdir()) if cache is None else cache.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if shutil.disk_usage(folder).free < _ROOM * sum(memoryview(part).nbytes for part in parts):
            return None
        with tempfile.TemporaryFile(dir=folder) as file:
            file.writelines(parts)
            file.flush()
            # A private copy: what writes into it by mistake does not end the process.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            _files.add(memory)
            return memory
    except OSError:
        return None


def forget() -> None:
    """Give back the memory of what was read of such columns so far: it is in the files."""
    for memory in tuple(_files):
        memory.madvise(mmap.MADV_DONTNEED)


def settle(n_rows: int) -> None:
    """Between steps of the work on so many rows, if these are many: give back all that the last one left in memory."""
    if n_rows >= LEAST_ROWS:
        trim()
        forget()


class _Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64), ("n_children", ctypes.c_int64), ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p), ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p),
    )  # fmt: skip


class _Array(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64), ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p), ("dictionary", ctypes.c_void_p), ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )  # fmt: skip


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
#: What columns in use lie in, by the number that their arrays carry.
_held: dict[int, object] = {}
_numbers = count(1)


def _release_schema(address: int) -> None:
    _Schema.from_address(address).release = None


def _release_array(address: int) -> None:
    array = _Array.from_address(address)
    _held.pop(array.private_data, None)
    array.release = None


_RELEASE_SCHEMA, _RELEASE_ARRAY = _Release(_release_schema), _Release(_release_array)


class _Buffers:
    """A file in memory with the validity of a column, if it has nulls, and its values, for one who takes them over."""

    def __init__(self, memory: mmap.mmap, begin: int, dtype: pl.DataType, length: int, null_count: int) -> None:
        self._start = np.frombuffer(memory, np.uint8).ctypes.data
        self._facts = (memory, begin, dtype, length, null_count)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        memory, begin, dtype, length, null_count = self._facts
        number = next(_numbers)
        buffers = (ctypes.c_void_p * 2)(self._start if null_count else None, self._start + begin)
        schema = _Schema(_FORMATS[dtype], b"", None, _NULLABLE)
        schema.release = ctypes.cast(_RELEASE_SCHEMA, ctypes.c_void_p)
        array = _Array(length, null_count, 0, 2, 0, ctypes.cast(buffers, ctypes.c_void_p))
        array.release, array.private_data = ctypes.cast(_RELEASE_ARRAY, ctypes.c_void_p), number
        _held[number] = (memory, buffers, schema, array)
        return _capsule(schema, b"arrow_schema"), _capsule(array, b"arrow_array")


def _capsule(struct: ctypes.Structure, name: bytes) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(struct), name, None)
