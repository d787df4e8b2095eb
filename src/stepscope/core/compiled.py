"""What is compiled, where this installation has it: everything here has a way without, which gives the same."""

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

NESTING = Path(__file__).with_name("_nesting.so")
_VERSION = 1


def library(path: Path, name: str, version: int) -> ctypes.CDLL | None:
    """The library of this file, whose function `name`_version returns that version; None if there is none of use."""
    if os.environ.get("STEPSCOPE_PURE_PYTHON") == "1" or not path.exists():
        return None
    try:
        found = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    # One that was built of an older source has another number.
    return found if getattr(found, f"{name}_version")() == version else None


@cache
def _nesting() -> ctypes.CDLL | None:
    found = library(NESTING, "nesting", _VERSION)
    if found is not None:
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        found.nesting_enclosing.argtypes = [size, pointer, pointer, pointer, pointer]
        found.nesting_nearest_32.argtypes = found.nesting_nearest_64.argtypes = [size, pointer, pointer, pointer]
        for function in (found.nesting_enclosing, found.nesting_nearest_32, found.nesting_nearest_64):
            function.restype = None
    return found


def enclosing(
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


def nearest(parents: NDArray[_Row], wanted: NDArray[np.bool_]) -> NDArray[_Row] | None:
    """As `intervals.nearest`; None if nothing is compiled, or for row numbers of another type than 32 or 64 bits."""
    nesting = _nesting()
    if nesting is None or parents.dtype not in (np.int32, np.int64):
        return None
    parents, wanted = np.ascontiguousarray(parents), np.ascontiguousarray(wanted, np.bool_)
    target = np.empty_like(parents)
    function = nesting.nesting_nearest_32 if parents.dtype == np.int32 else nesting.nesting_nearest_64
    function(parents.size, parents.ctypes.data, wanted.ctypes.data, target.ctypes.data)
    return target
