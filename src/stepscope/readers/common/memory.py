"""Memory while a big file is read: no searching for cycles, and what was freed goes back to the operating system."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the cyclic garbage collector: what is decoded holds no cycles, and looking for them costs a third."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


#: Reading less leaves less behind than fetching it again would cost.
_LEAST_BYTES = 50_000_000


def give_back(n_bytes: int | None = None) -> None:
    """Return what the C library keeps of freed memory, after a file of so many bytes (if known) was read.

    Does nothing where the library has no such call, or the file is small.

    Reading leaves more than half of its peak behind as free heap, which Polars, with an allocator of its own, cannot
    use: analyses would come on top of it.
    """
    if sys.platform == "linux" and (n_bytes is None or n_bytes >= _LEAST_BYTES):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
