"""Which runtime call queued which device work, by correlation id, as the plugin ties them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard._events import KERNEL, MEMCPY, MEMSET, RUNTIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Launches:
    """`calls` and `work` are rows of runtime calls and of device work, by time; `call_of` indexes `calls`, −1: none.

    `by_call` orders `work` by call; those of call i are at `first[i] : first[i + 1]` of it.
    """

    calls: Ints
    work: Ints
    call_of: Ints
    by_call: Ints
    first: Ints

    def work_of(self, calls: Ints) -> tuple[Ints, Ints]:
        """All pairs of the calls (indices, repeats allowed) with their work: places in `calls` given, and in `work`."""
        counts = self.first[calls + 1] - self.first[calls]
        place = np.repeat(np.arange(calls.size), counts)
        start = np.repeat(self.first[calls] - (np.cumsum(counts) - counts), counts)
        return place, self.by_call[start + np.arange(place.size)]

    def summed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Per call the sum of a value of its work."""
        total = np.zeros(self.calls.size, values.dtype)
        tied = self.call_of >= 0
        np.add.at(total, self.call_of[tied], values[tied])
        return total


def find_launches(events: Events) -> Launches:
    """Device work belongs to the latest call with its correlation id so far, or, if none was, to the next one."""
    both = events.rows(RUNTIME, KERNEL, MEMCPY, MEMSET)
    is_call = events.kind[both] == RUNTIME
    calls, work = both[is_call], both[~is_call]
    number = np.cumsum(is_call) - 1
    order = np.argsort(events.correlation[both], kind="stable")
    ids, is_call, number = events.correlation[both][order], is_call[order], number[order]
    is_first = np.ones(order.size, bool)
    is_first[1:] = ids[1:] != ids[:-1]
    start = np.maximum.accumulate(np.where(is_first, np.arange(order.size), 0))
    before = np.maximum.accumulate(np.where(is_call, np.arange(order.size), -1))
    before[before < start] = -1
    # The first call of each id takes what came before any.
    nothing = order.size
    after = np.minimum.accumulate(np.where(is_call, np.arange(order.size), nothing)[::-1])[::-1]
    is_last = np.roll(is_first, -1)
    stop = np.minimum.accumulate(np.where(is_last, np.arange(order.size), nothing)[::-1])[::-1]
    at = np.where(before >= 0, before, np.where(after <= stop, after, -1))
    owner = np.where(at >= 0, number[at], -1)
    call_of = np.full(both.size, -1, np.int64)
    call_of[order] = owner
    call_of = call_of[events.kind[both] != RUNTIME]
    by_call = np.argsort(call_of, kind="stable")
    first = np.searchsorted(call_of[by_call], np.arange(calls.size + 1))
    return Launches(calls, work, call_of, by_call, first)
