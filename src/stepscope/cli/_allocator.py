"""The C library's memory allocator, set for a process that reads one big file and ends."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt, from <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Let freed memory be used again instead of going back to the system block by block.

    A reader takes and frees the same few megabytes for each block of the file. glibc would give them back each time,
    and each return costs page faults: a tenth of the time that reading takes. Does nothing without glibc.
    """
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_MMAP_THRESHOLD, 32 << 20)
            tune(_TRIM_THRESHOLD, 512 << 20)
            tune(_TOP_PAD, 16 << 20)
