"""Freed memory, handed back to the operating system once a big file has been read."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return what the C library keeps of freed memory. Does nothing where the library has no such call.

    Reading leaves more than half of its peak behind as free heap, which Polars, with an allocator of its own, cannot
    use: analyses would come on top of it.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
