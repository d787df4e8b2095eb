"""The items of Paddle's summary and how they are printed: cells, rules, titles, numbers, order.

Every line of a table ends in blanks, as Paddle's do.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]


TimeUnit = Literal["s", "ms", "us", "ns"]
PER_UNIT = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
NO_TIMES = "- / - / - / - / -"
FIVE = "Total / Avg / Max / Min / Ratio(%)"
LEAST_CALLS, LEAST_TIMES = 6, 40


class Spread(msgspec.Struct, frozen=True):
    """A sum over calls, its largest and its smallest part, in ns."""

    total: int = 0
    most: int = 0
    least: float = inf


class Item(msgspec.Struct, frozen=True):
    """What events of a name (whose number is `key`) took on the host and on the device."""

    key: int
    name: str
    calls: int
    cpu: Spread
    gpu: Spread


def time(ns: float, unit: TimeUnit) -> str:
    """A time in that unit with two decimals; `-` for none."""
    return "-" if ns == inf else f"{ns / PER_UNIT[unit]:.2f}"


def ratio(part: float, whole: float) -> str:
    """A share in percent, without the sign; 0 of nothing."""
    return f"{(part / whole if whole else 0.0) * 100:.2f}"


def times(spread: Spread, calls: int, whole: float, unit: TimeUnit) -> str:
    """`Total / Avg / Max / Min / Ratio`."""
    mean = spread.total / calls if calls else 0.0
    cells = [time(value, unit) for value in (spread.total, mean, spread.most, spread.least)]
    return " / ".join([*cells, ratio(spread.total, whole)])


def centred(text: str, width: int, sign: str = "-") -> str:
    """The text with signs on both sides; an odd one comes after it."""
    left = max(width - len(text), 0) // 2
    return sign * left + text + sign * max(width - len(text) - left, 0)


class Sheet(msgspec.Struct, frozen=True):
    """A table that is being written: columns of at least these widths, and its lines so far."""

    widths: Sequence[int]
    lines: list[str] = msgspec.field(default_factory=list)

    @property
    def width(self) -> int:
        """Characters in a line, without the blanks at its end."""
        return sum(self.widths) + 2 * (len(self.widths) - 1)

    def title(self, text: str) -> None:
        """The table's name in a line of dashes."""
        self.lines.append(centred(text, self.width))

    def row(self, *cells: str) -> None:
        """A line of cells. Cells that are too long move the ones after them."""
        self.lines.append("".join(f"{cell:<{width}}  " for cell, width in zip(cells, self.widths, strict=True)))

    def rule(self) -> None:
        """A line of dashes under each column."""
        self.row(*("-" * width for width in self.widths))

    def head(self, *cells: str) -> None:
        """The names of the columns between two rules."""
        self.rule()
        self.row(*cells)
        self.rule()

    def note(self, text: str) -> None:
        """Paddle's explanation, and a line of dashes as wide as the table."""
        self.lines.extend(text.split("\n"))  # an empty line at the end stays
        self.lines.append("-" * self.width)

    def done(self) -> str:
        """The table with two empty lines after it."""
        return "".join(f"{line}\n" for line in [*self.lines, "", ""])


def calls_width(items: Iterable[Item]) -> int:
    """How wide the column of calls must be."""
    return max([LEAST_CALLS, *(len(str(item.calls)) for item in items)])


def times_width(cells: Iterable[str]) -> int:
    """How wide a column of five numbers must be."""
    return max([LEAST_TIMES, *map(len, cells)])


SortedBy = Literal["CPUTotal", "CPUAvg", "CPUMax", "CPUMin", "GPUTotal", "GPUAvg", "GPUMax", "GPUMin"]


def items(keys: Ints, names: list[str], cpu: Ints, gpu: Ints) -> list[Item]:
    """One item for each key in order of first appearance; its name is that of number key modulo the number of names."""
    if not keys.size:
        return []
    distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
    calls = np.bincount(group)
    spreads = [_spreads(group, values, distinct.size) for values in (cpu, gpu)]
    unordered = [
        Item(int(distinct[i]), names[int(distinct[i]) % len(names)], int(calls[i]), spreads[0][i], spreads[1][i])
        for i in range(distinct.size)
    ]
    return [unordered[i] for i in np.argsort(first, kind="stable").tolist()]


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
    for thread in distinct_values(tree.host.thread[rows]).tolist():
        yield str(tree.thread_ids[thread]), rows[tree.host.thread[rows] == thread]


def in_order(unsorted: list[Item], sorted_by: SortedBy) -> list[Item]:
    """The items in Paddle's order of operators and ranges: largest first, but the smallest minimum first."""
    side, what = sorted_by[:3], sorted_by[3:]

    def value(item: Item) -> float:
        spread = item.cpu if side == "CPU" else item.gpu
        known = {"Total": spread.total, "Avg": spread.total / item.calls, "Max": spread.most, "Min": spread.least}
        return known[what]

    return sorted(unsorted, key=value, reverse=what != "Min")


def _spreads(group: Ints, values: Ints, n: int) -> list[Spread]:
    total, most = np.zeros(n, np.int64), np.zeros(n, np.int64)
    least = np.full(n, np.iinfo(np.int64).max)
    np.add.at(total, group, values)
    np.maximum.at(most, group, values)
    np.minimum.at(least, group, values)
    return [Spread(*row) for row in zip(total.tolist(), most.tolist(), least.tolist(), strict=True)]
