"""Events summed by name in the order in which they are first met, and the orders in which Paddle sorts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from stepscope.exports.paddle_summary._text import Item, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]

SortedBy = Literal["CPUTotal", "CPUAvg", "CPUMax", "CPUMin", "GPUTotal", "GPUAvg", "GPUMax", "GPUMin"]


def items(keys: Ints, names: list[str], cpu: Ints, gpu: Ints) -> list[Item]:
    """One item for each key in order of first appearance; its name is that of number key modulo the number of names."""
    if not keys.size:
        return []
    distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
    calls = np.bincount(group)
    spreads = [_spreads(group, values, distinct.size) for values in (cpu, gpu)]
    found = [
        Item(int(distinct[i]), names[int(distinct[i]) % len(names)], int(calls[i]), spreads[0][i], spreads[1][i])
        for i in range(distinct.size)
    ]
    return [found[i] for i in np.argsort(first, kind="stable").tolist()]


def host_items(tree: Tree, rows: Ints) -> list[Item]:
    """Host events of these rows by name; device time is that of everything launched below them."""
    rows = rows[np.argsort(tree.visit[rows], kind="stable")]
    name = tree.host.name
    return items(name.codes[rows], name.texts, tree.host.dur[rows], tree.device_ns[rows])


def by_thread(tree: Tree, rows: Ints, *, thread_sep: bool) -> Iterator[tuple[str, Ints]]:
    """Host events of these rows all together, or those of each thread with its id; nothing if there are none."""
    if not thread_sep:
        if rows.size:
            yield "All threads merged", rows
        return
    for thread in np.unique(tree.host.thread[rows]).tolist():
        yield str(tree.thread_ids[thread]), rows[tree.host.thread[rows] == thread]


def in_order(found: list[Item], sorted_by: SortedBy) -> list[Item]:
    """The items as Paddle sorts operators and ranges: largest first, but by the minimum smallest first."""
    side, what = sorted_by[:3], sorted_by[3:]

    def value(item: Item) -> float:
        spread = item.cpu if side == "CPU" else item.gpu
        known = {"Total": spread.total, "Avg": spread.total / item.calls, "Max": spread.most, "Min": spread.least}
        return known[what]

    return sorted(found, key=value, reverse=what != "Min")


def _spreads(group: Ints, values: Ints, n: int) -> list[Spread]:
    total, most = np.zeros(n, np.int64), np.zeros(n, np.int64)
    least = np.full(n, np.iinfo(np.int64).max)
    np.add.at(total, group, values)
    np.maximum.at(most, group, values)
    np.minimum.at(least, group, values)
    return [Spread(*row) for row in zip(total.tolist(), most.tolist(), least.tolist(), strict=True)]
