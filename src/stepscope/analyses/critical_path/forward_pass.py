"""The earliest time of every node of a graph of dependencies, in one pass in topological order.

Chains of work on a stream are contracted: their times follow from two nodes, and are computed in NumPy.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.intervals import Bools, Ints

Floats = NDArray[np.float64]
#: The node at the beginning.
SOURCE = 0


class Shape(msgspec.Struct, frozen=True):
    """The graph without the work of chains, whose times follow from two nodes.

    Work in a *chain* follows the work before it on its stream, or a call that follows the same node of the host as the
    calls of all work of the chain. So it begins a certain time after the *head* of the chain, or after that node.
    """

    is_chained: Bools
    head: Ints  # of each node's chain; 0 for others
    host: Ints
    in_chain: Ints  # edges from work to the next one in its chain
    of_call: Ints  # edges from the host to work in a chain
    rows: Ints  # edges that stay: between nodes in no chain
    chain_starts: Ints  # where the following ones start
    by_chain: Ints  # edges from chained work to a node in no chain: each is one from the head and one from the host
    order: Ints  # of all these edges, topological; their ends follow
    from_: list[int]
    to: list[int]

    def chains(self, after: Floats) -> tuple[Floats, Floats]:
        """How long after the head of its chain, and after its host's node, each node happens at the earliest, in ns."""
        n = self.is_chained.size
        steps, called = np.zeros(n), np.full(n, -np.inf)
        steps[1:][self.is_chained[1:]] = after[self.in_chain]
        along = np.cumsum(steps)
        since_head = along - along[self.head]
        calls = np.flatnonzero(self.of_call >= 0)
        called[calls] = after[self.of_call[calls]] - since_head[calls]
        order = np.argsort(called)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        first = np.cumsum(~self.is_chained) * n
        best = np.maximum.accumulate(np.where(self.is_chained, place, -1) + first) - first
        latest_call = np.where(best >= 0, called[order[best]], -np.inf)
        return np.where(self.is_chained, since_head, 0.0), np.where(self.is_chained, since_head + latest_call, -np.inf)

    def earliest(self, after: Floats, origin: float) -> Floats:
        """The earliest time of each node, in ns, if the edges take that long and the node SOURCE is at `origin`."""
        since_head, since_host = self.chains(after)
        times = [float("-inf")] * self.is_chained.size
        times[SOURCE] = origin
        stay, split = after[self.rows], self.by_chain
        split_lags = (since[self.chain_starts] + after[split] for since in (since_head, since_host))
        lags = np.concatenate((stay, *split_lags))[self.order].tolist()
        for one, other, lag in zip(self.from_, self.to, lags, strict=True):
            when = times[one] + lag
            if when > times[other]:  # noqa: PLR1730  calling max takes twice as long
                times[other] = when
        known = np.array(times)
        chained = np.maximum(known[self.head] + since_head, known[self.host] + since_host)
        return np.where(self.is_chained, chained, known)


def shape_of(from_: Ints, to: Ints, recorded: Ints, n_work: int) -> Shape:
    """The shape of a graph with these edges; `recorded` is when each node happened."""
    n, at = recorded.size, topological(from_, to, recorded)
    is_work = to <= n_work
    follows = is_work & (from_ == to - 1) & (from_ >= 1)
    of_host = is_work & ((from_ == SOURCE) | (from_ > n_work))
    n_follows, n_host = (np.bincount(to[some], minlength=n) for some in (follows, of_host))
    host = np.zeros(n, np.int64)
    host[to[of_host]] = from_[of_host]
    calls = np.flatnonzero(n_host == 1)
    changes = np.zeros(n, np.bool_)
    changes[calls] = np.append(True, host[calls][1:] != host[calls][:-1])[: calls.size]
    chained = (n_follows == 1) & (n_host <= 1) & (np.bincount(to, minlength=n) == n_follows + n_host) & ~changes
    head = np.maximum.accumulate(np.where(chained, 0, np.arange(n)))
    last_call = np.maximum.accumulate(np.where(n_host == 1, np.arange(n), 0))
    in_chain = np.flatnonzero(follows & chained[to])
    in_chain = in_chain[np.argsort(to[in_chain])]
    of_call = np.full(n, -1, np.int64)
    rows = np.flatnonzero(of_host & chained[to])
    of_call[to[rows]] = rows
    key = ~chained[to]
    plain, by_chain = np.flatnonzero(key & ~chained[from_]), np.flatnonzero(key & chained[from_])
    host = np.where(chained, host[last_call], 0)
    starts = np.concatenate((from_[plain], head[from_[by_chain]], host[from_[by_chain]]))
    ends = np.concatenate((to[plain], to[by_chain], to[by_chain]))
    order = np.argsort(at[ends], kind="stable")
    return Shape(
        chained, np.where(chained, head, 0), host, in_chain, of_call, plain, from_[by_chain], by_chain, order,
        starts[order].tolist(), ends[order].tolist(),
    )  # fmt: skip


def topological(from_: Ints, to: Ints, recorded: Ints) -> Ints:
    """The place of each node in an order in which every edge leads forward.

    It is that of recorded times where that is such an order. Nodes of a circle, which only events at one moment can
    form, come in the order of time.
    """
    at = np.empty(recorded.size, np.int64)
    at[np.argsort(recorded, kind="stable")] = np.arange(recorded.size)
    if (at[from_] < at[to]).all():
        return at
    heads = np.searchsorted(np.sort(from_), np.arange(recorded.size + 1)).tolist()
    follows = to[np.argsort(from_, kind="stable")].tolist()
    missing = np.bincount(to, minlength=recorded.size).tolist()
    rank = at.tolist()
    waiting = [(rank[node], node) for node, n in enumerate(missing) if not n]
    heapq.heapify(waiting)
    rest, done, n_done = iter(np.argsort(at).tolist()), [False] * recorded.size, 0
    while n_done < recorded.size:
        node = heapq.heappop(waiting)[1] if waiting else next(one for one in rest if not done[one])
        if done[node]:
            continue
        done[node] = True
        at[node] = n_done
        n_done += 1
        for other in follows[heads[node] : heads[node + 1]]:
            missing[other] -= 1
            if not missing[other] and not done[other]:
                heapq.heappush(waiting, (rank[other], other))
    return at
