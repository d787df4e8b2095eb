"""How Paddle's summary looks: cells, rules, titles, numbers. Every line of a table ends in blanks, as Paddle's do."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_UNIT = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
NO_TIMES = "- / - / - / - / -"
FIVE = "Total / Avg / Max / Min / Ratio(%)"
LEAST_CALLS, LEAST_TIMES = 6, 40


@dataclass(frozen=True, slots=True)
class Spread:
    """A sum over calls, its largest and its smallest part, in ns."""

    total: int = 0
    most: int = 0
    least: float = inf


@dataclass(frozen=True, slots=True)
class Item:
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
    """The text with signs on both sides, the odd one behind it."""
    left = max(width - len(text), 0) // 2
    return sign * left + text + sign * max(width - len(text) - left, 0)


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table in the making: columns of at least these widths, and its lines so far."""

    widths: Sequence[int]
    lines: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Signs in a line, the blanks behind it not counted."""
        return sum(self.widths) + 2 * (len(self.widths) - 1)

    def title(self, text: str) -> None:
        """The table's name in a line of dashes."""
        self.lines.append(centred(text, self.width))

    def row(self, *cells: str) -> None:
        """A line of cells. Longer ones move what follows."""
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
        """The table with the two empty lines behind it."""
        return "".join(f"{line}\n" for line in [*self.lines, "", ""])


def calls_width(items: Iterable[Item]) -> int:
    """How wide the column of calls must be."""
    return max([LEAST_CALLS, *(len(str(item.calls)) for item in items)])


def times_width(cells: Iterable[str]) -> int:
    """How wide a column of five numbers must be."""
    return max([LEAST_TIMES, *map(len, cells)])
