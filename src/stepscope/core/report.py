"""What a report is: a frozen value of words and raw numbers, which every renderer sees and none computes.

Numbers stay raw (ns, ratios 0..1, rows of frames); renderers round and give units. Text is as recorded: renderers
escape it. A Report knows no renderer either: `stepscope.report` hands it some in `to_text`, `to_html` and `to_figure`,
so that it prints as the terminal shows it and a notebook draws it, while this module imports none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from stepscope.core.schema import Table


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: `name` says what fills it, `ratio` how much of the whole (0..1)."""

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Note:
    """A short fact below a bar: `about` is its subject in a word, `command` shows more, as words after `stepscope`."""

    text: str
    about: str
    command: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Bar:
    """A whole and its pieces: `label` ('Step'), `value` in words ('431 ms ±2.1 %'), parts in drawing order.

    The parts need not reach 1: what is left is drawn empty. `notes` are short facts set below the bar, side by side.
    """

    label: str
    value: str
    parts: tuple[Part, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time, in one line; `details` are the lines below: evidence, '→ what to do'.

    `value_ns` is what it costs, `value_label` of what ('per step', 'in all'), `share_ratio` the same as a share of that
    whole; null where unknown. `command` looks further, as words after `stepscope`: 'show idle'.
    """

    title: str
    details: tuple[str, ...] = ()
    value_ns: float | None = None
    value_label: str = ""
    share_ratio: float | None = None
    command: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A small table of the report: the frame's columns are shown as they stand, `table` says their units.

    Give the few columns and rows that help at a glance (5 to 8 rows); `command` shows the rest, `note` is one line.
    `drawn` are rows that a figure of this table is made from, where those are not the rows shown.
    """

    title: str
    table: Table
    frame: pl.DataFrame
    command: str = ""
    note: str = ""
    drawn: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """One screen about one trace or run.

    `headline` is one line: what was recorded. `quality` are sentences on what the data lacks, `issues` the table of
    that name (`schema.ISSUES`) of all traces. `meta` are facts that JSON can hold, for machines: paths, ranks, counts.
    `title` is the kind of report in a word, `findings_title` the heading of the findings. `document` is what JSON says
    in place of the report's own shape, where a kind of report has a shape of its own.
    """

    headline: str
    bars: tuple[Bar, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Block, ...] = ()
    quality: tuple[str, ...] = ()
    issues: pl.DataFrame | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    title: str = "report"
    findings_title: str = "What costs most"
    document: Mapping[str, object] | None = field(default=None, repr=False)
    to_text: Callable[[Report], str] | None = field(default=None, repr=False)
    to_html: Callable[[Report], str] | None = field(default=None, repr=False)
    to_figure: Callable[[Report], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    def __str__(self) -> str:
        return self.headline if self.to_text is None else self.to_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Report({self.headline!r}, {len(self.findings)} findings, {len(self.tables)} tables)"

    def plot(self) -> Any:
        """The bars, or what a comparison accounts for, as a Plotly figure; None of a report made by other means."""
        return None if self.to_figure is None else self.to_figure(self)

    def _repr_html_(self) -> str | None:
        return None if self.to_html is None else self.to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001, ARG002  IPython's own signature
        printer.text(str(self))
