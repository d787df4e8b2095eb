"""Settings of the C library's memory allocator for a process that reads one big file."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's mallopt, from <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system block by block.

    A reader takes and frees the same few megabytes for each block of the file. glibc would return them each time, which
    costs page faults: a tenth of the reading time. Does nothing without glibc.
    """
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_MMAP_THRESHOLD, 32 << 20)
            tune(_TRIM_THRESHOLD, 512 << 20)
            tune(_TOP_PAD, 16 << 20)
