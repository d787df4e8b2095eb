"""The compiled decoder of events (`scan.c`), where this installation has it: plain events go from text to arrays.

It takes what is plainly as `Event` and `Args` declare it, and leaves everything else, from the element in which it
stands, to the decoder of `json`, which also says what is damaged. So what a file holds never depends on it.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from stepscope.core import arrays
from stepscope.readers.chrome.events import Args

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIBRARY = Path(__file__).with_name("_scan.so")
_VERSION = 1
#: Text that is decoded at once. The columns of its events, 300 bytes each, should stay in the processor's cache.
BLOCK = 1 << 21
_MOST_EVENTS = 1 << 14
#: Phases whose events become rows: complete ones, ends of arrows, instants.
PHASES = b"XstfiI"

_SKIP, _INTEGER, _FLOAT, _NANOSECONDS, _TEXT, _VALUE, _SCALAR, _PHASE, _OBJECT, _LEAVE = range(10)
_DTYPES: dict[int, type[np.generic]] = {_INTEGER: np.int64, _NANOSECONDS: np.int64, _FLOAT: np.float64}
_NO_COLUMN = -1
_END = 1  # status: the array was closed

#: Tables of texts: names and words of `str | None`, numbers or words, JSON as it is written.
NAMES, CATS, SCALARS, TEXTS, STACKS, VALUES, DIMS, TRACKS = range(8)
_TABLE_OF = {"grid": DIMS, "block": DIMS, "call_stack": STACKS, "kernel": NAMES, "device": SCALARS, "stream": SCALARS}
#: Scalars whose combinations are numbered, since a track is made of them.
_OF_TRACK = ("pid", "tid", "device", "stream")
#: Arguments that only the slow decoder reads, of accelerators that few traces are of.
_LEFT_KEYS = ("alg_type", "kernel type", "tasktopo", "tasktopo_node")
_SKIPPED = {"algorithm", "elements", "element_type", "kind"}
#: Arguments of events that are no rows. Here only their types are checked, as `json` does it too.
_CHECKED = {"name", "labels"}
_KINDS: dict[Any, tuple[int, int, bool]] = {
    int: (_INTEGER, 0, False), int | None: (_INTEGER, 0, True), int | str | None: (_INTEGER, 0, True),
    float | None: (_FLOAT, 0, True), float | str | None: (_FLOAT, 0, True),
    str: (_TEXT, TEXTS, False), str | None: (_TEXT, TEXTS, True), msgspec.Raw: (_VALUE, VALUES, True),
}  # fmt: skip


class NotPlainError(Exception):
    """The file holds damage, or what only the slow decoder reads: it has to be read by that alone."""


class _Wanted(NamedTuple):
    """A field: its key, the name of its column (None: it has none), its type, its table, whether null is allowed.

    A `bare` number is not plain if it is in quotes, as others may be.
    """

    key: str
    column: str | None
    kind: int
    table: int = 0
    nullable: bool = False
    bare: bool = False


class _Field(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char_p), ("key_size", ctypes.c_int32), ("type", ctypes.c_int32), ("table", ctypes.c_int32),
        ("column", ctypes.c_int32), ("is_nullable", ctypes.c_int32), ("is_bare", ctypes.c_int32),
    )  # fmt: skip


class _Result(ctypes.Structure):
    _fields_ = (
        ("n_events", ctypes.c_int64), ("n_rest", ctypes.c_int64), ("border", ctypes.c_int64),
        ("status", ctypes.c_int32), ("unused", ctypes.c_int32),
    )  # fmt: skip


class Batch(msgspec.Struct, frozen=True):
    """Plain events of a piece of text in order: `n` rows of each field, and the texts of `n_rest` other events.

    Numbers are ABSENT or NaN where there are none, texts are numbers (0: absent) of the scanner's tables, `phase` is
    the code of the character, and `track` the number of a combination. `used` are the fields that any row has. The
    arrays are valid until the next batch. The text was read up to the comma or the bracket at `border`.
    """

    n: int
    fields: dict[str, NDArray[Any]]
    used: frozenset[str]
    rest: bytes
    n_rest: int
    border: int
    is_end: bool


@cache
def _library() -> ctypes.CDLL | None:
    library = arrays.library(LIBRARY, "scan", _VERSION)
    if library is None:
        return None
    pointer, number, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.scan_new.restype = library.scan_texts.restype = pointer
    library.scan_new.argtypes = [pointer, number, pointer, number, pointer, pointer, number, size, pointer, number]
    library.scan_free.argtypes = [pointer]
    library.scan_free.restype = None
    library.scan_count.argtypes = library.scan_has.argtypes = [pointer, number]
    library.scan_count.restype = ctypes.c_uint32
    library.scan_texts.argtypes = [pointer, number, ctypes.c_uint32, pointer, pointer]
    library.scan.argtypes = [pointer, pointer, size, size, ctypes.c_char_p, pointer, pointer]
    library.scan.restype = None
    return library


def is_there() -> bool:
    """Whether this installation has the compiled decoder."""
    return _library() is not None


@cache
def _wanted(*, exact: bool) -> tuple[list[_Wanted], list[_Wanted]]:
    """The fields of an event, the phase first, and those of its arguments."""
    time = _NANOSECONDS if exact else _FLOAT
    event = [
        _Wanted("ph", "phase", _PHASE),
        _Wanted("cat", "cat", _TEXT, CATS, nullable=True),
        _Wanted("name", "name", _TEXT, NAMES, nullable=True),
        _Wanted("pid", "pid", _SCALAR, SCALARS, nullable=True),
        _Wanted("tid", "tid", _SCALAR, SCALARS, nullable=True),
        _Wanted("ts", "ts", time, nullable=True),
        _Wanted("dur", "dur", time, nullable=True),
        _Wanted("id", "id", _INTEGER, nullable=True, bare=True),
        _Wanted("args", None, _OBJECT),
    ]
    arguments = [_Wanted(key, None, _LEAVE) for key in _LEFT_KEYS]
    for one in msgspec.structs.fields(Args):
        if one.encode_name in _LEFT_KEYS:
            continue
        kind, table, nullable = _KINDS[one.type]
        if one.name in ("device", "stream"):
            kind = _SCALAR
        column = None if one.name in _CHECKED or one.name in _SKIPPED else one.name
        kind = _SKIP if one.name in _SKIPPED else kind
        arguments.append(_Wanted(one.encode_name, column, kind, _TABLE_OF.get(one.name, table), nullable))
    return event, arguments


class Scanner:
    """The decoder with its columns and tables of texts: one for each file, or part of a file."""

    def __init__(self, *, exact: bool) -> None:
        library = _library()
        if library is None:
            raise RuntimeError("this installation has no compiled decoder")
        self._library = library
        groups = _wanted(exact=exact)
        kinds = {one.column: one.kind for group in groups for one in group if one.column} | {"track": _TEXT}
        self._names = list(kinds)
        at: dict[str | None, int] = {None: _NO_COLUMN, **{name: i for i, name in enumerate(self._names)}}
        self._columns = {name: np.empty(_MOST_EVENTS, _DTYPES.get(kind, np.uint32)) for name, kind in kinds.items()}
        self._rest = np.empty((_MOST_EVENTS, 2), np.int64)
        plans = [
            (_Field * len(group))(*(
                _Field(f'"{one.key}"'.encode(), len(one.key.encode()) + 2, one.kind, one.table, at[one.column],
                       one.nullable, one.bare)
                for one in group
            ))
            for group in groups
        ]  # fmt: skip
        pointers = (ctypes.c_void_p * len(kinds))(*(self._columns[name].ctypes.data for name in kinds))
        types = (ctypes.c_int32 * len(kinds))(*kinds.values())
        combined = (ctypes.c_int32 * 5)(*(at[name] for name in (*_OF_TRACK, "track")))
        self._handle = library.scan_new(
            plans[0],
            len(plans[0]),
            plans[1],
            len(plans[1]),
            pointers,
            types,
            len(kinds),
            _MOST_EVENTS,
            combined,
            TRACKS,
        )
        if not self._handle:
            raise MemoryError
        self._keys = plans  # the library points to them
        weakref.finalize(self, library.scan_free, self._handle)

    def scan(self, text: bytearray, start: int) -> Batch:
        """The plain events from byte `start` of the text on, up to one that is not plain or not whole."""
        result = _Result()
        buffer = (ctypes.c_char * len(text)).from_buffer(text)
        self._library.scan(self._handle, buffer, len(text), start, PHASES, self._rest.ctypes.data, ctypes.byref(result))
        del buffer  # else the text could not be cut
        n, n_rest = result.n_events, result.n_rest
        rest = b"[" + b",".join([bytes(text[low:high]) for low, high in self._rest[:n_rest].tolist()]) + b"]"
        return Batch(
            n,
            {name: column[:n] for name, column in self._columns.items()},
            frozenset(name for i, name in enumerate(self._names) if self._library.scan_has(self._handle, i)),
            rest,
            n_rest,
            result.border,
            result.status == _END,
        )

    def texts(self, table: int, first: int) -> list[bytes]:
        """The JSON values of a table that have the numbers from `first` + 1 on."""
        n = self._library.scan_count(self._handle, table) - first
        if n <= 0:
            return []
        sizes, n_bytes = np.empty(n, np.uint32), ctypes.c_uint64()
        place = self._library.scan_texts(self._handle, table, first, sizes.ctypes.data, ctypes.byref(n_bytes))
        text = ctypes.string_at(place, n_bytes.value)
        ends = np.cumsum(sizes, dtype=np.int64)
        return [text[low:high] for low, high in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
