"""Records of the kernel's perf buffers: switches of threads, their starts and names, records lost.

Format: type (u32), flags (u16), bytes (u16); what the type has; then process, thread (u32 each), time (u64), core and
a spare (u32 each). Source: include/uapi/linux/perf_event.h of Linux.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["COMM", "EXIT", "FORK", "IS_OUT", "IS_PREEMPTED", "LOST", "SWITCH", "record_starts", "words_at"]

Ints = NDArray[np.int64]

LOST, COMM, EXIT, FORK, SWITCH = 2, 3, 4, 7, 14
IS_OUT, IS_PREEMPTED = 1 << 13, 1 << 14
_UNIT = 8


def record_starts(content: bytes) -> Ints:
    """Where each record begins, in bytes. A last one that is cut is left out.

    Records follow one another, so that each tells where the next is. Where records could be is known: every eight
    bytes. From each such place it is known where the next record would be, thence where the second, the fourth …
    """
    n = len(content) // _UNIT
    sizes = np.frombuffer(content, np.uint16, n * _UNIT // 2)[3 :: _UNIT // 2].astype(np.int64) // _UNIT
    # A size of 0, which no record has, would stand still: it ends the walk. Place n stands for the end.
    jump = np.append(np.where(sizes > 0, np.minimum(np.arange(n) + sizes, n + 1), n + 1), [n, n + 1])
    whole = jump[:n] <= n
    on_way = np.zeros(n + 2, np.bool_)
    on_way[0] = True
    reached = np.zeros(1, np.int64)
    while True:
        more = np.unique(jump[reached])
        more = more[~on_way[more]]
        if not more.size:
            break
        on_way[more] = True
        reached = np.concatenate((reached, more))
        jump = jump[jump]
    starts = np.flatnonzero(on_way[:n])
    found: Ints = starts[whole[starts]] * _UNIT
    return found


def words_at(content: bytes, places: Ints) -> NDArray[np.uint32]:
    """Words of four bytes at places (bytes, multiples of four)."""
    found: NDArray[np.uint32] = np.frombuffer(content, np.uint32, len(content) // 4)[places // 4]
    return found
