"""Waits for the device that a recorder does not note, found by their ends: the device runs dry, and the thread goes on.

Some recorders write the calls that queue work and no call that waits for it. Between two calls of such a thread nothing
is known: it may have computed, or waited. That it begins again just when everything queued has ended, after a long time
in which nothing was recorded, is a wait; computing ends at any time.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyses.critical_path.threads import LONG_GAP_NS, Threads, last_ended, latest
from stepscope.analyses.critical_path.work import Work
from stepscope.core.intervals import Ints, union

#: A thread goes on so soon after the last work, and within this part of its silence: by chance few would.
_SOON_NS, _SOON_RATIO = 1_000_000, 0.02


def unrecorded_waits(threads: Threads, process: Ints, work: Work) -> tuple[Ints, Ints, Ints, Ints]:
    """Thread, start, end and awaited work of the stretches in which a thread waited, and nothing was recorded of it.

    `process` is the number of each thread's process. A stretch counts if all work that the process is known to have
    queued before has ended in it, the last of it shortly before its end. Units: ns.
    """
    thread, start, end = _silences(threads)
    lasting = np.flatnonzero((work.end > work.start) & (work.thread >= 0))
    owner, called, ended = process[work.thread[lasting]], work.called[lasting], work.end[lasting]
    place = last_ended((owner, ended, called), (process[thread], start, end, start))
    after = end - np.append(ended, 0)[place]
    is_wait = (place >= 0) & (after <= np.minimum(_SOON_NS, _SOON_RATIO * (end - start)))
    is_wait &= _all_done(owner, called, ended, process[thread], start) <= end
    return thread[is_wait], start[is_wait], end[is_wait], lasting[place[is_wait]]


def _silences(threads: Threads) -> tuple[Ints, Ints, Ints]:
    """Thread, start and end of the long stretches between two spans of a thread in which it has none."""
    lanes, begins, stops = ([np.empty(0, np.int64)] for _ in range(3))
    for thread in range(threads.track.size):
        mine = threads.of(thread)
        starts, ends = union(threads.start[mine], threads.end[mine])
        is_long = starts[1:] - ends[:-1] >= LONG_GAP_NS
        lanes.append(np.full(int(is_long.sum()), thread, np.int64))
        begins.append(ends[:-1][is_long])
        stops.append(starts[1:][is_long])
    return np.concatenate(lanes), np.concatenate(begins), np.concatenate(stops)


def _all_done(owner: Ints, called: Ints, ended: Ints, process: Ints, at: Ints) -> Ints:
    """When all work that each process had queued before each time has ended."""
    order = np.lexsort((called, owner))
    reach = np.empty(order.size, np.int64)
    heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
    for mine in np.split(np.arange(order.size), heads[1:]) if order.size else ():
        reach[mine] = np.maximum.accumulate(ended[order[mine]])
    last = latest(owner[order], called[order], process, at)
    return np.append(reach, np.iinfo(np.int64).min)[last]
