"""The report: a frozen value of texts and raw numbers. Renderers show it and compute nothing.

Numbers stay raw (ns, ratios 0..1, rows of frames); renderers round and give units. Text is as recorded: renderers
escape it with `printable`. This module imports no renderer: `stepscope.report` sets `to_text`, `to_html` and
`to_figure`, so that a report prints as in the terminal and draws itself in a notebook.
"""

from __future__ import annotations

import json
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stepscope.core.patterns import regex
from stepscope.core.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def whole_command(command: str, arguments: Sequence[str]) -> str:
    """The words after `stepscope` with these paths and options, quoted for a shell; empty if there is no command.

    >>> whole_command("show idle --by gap", ["my trace.json"])
    "stepscope show idle --by gap 'my trace.json'"
    """
    return " ".join(["stepscope", command, *map(shlex.quote, arguments)]) if command else ""


class Part(msgspec.Struct, frozen=True):
    """A piece of a bar: `name` says what fills it, `ratio` how much of the whole (0..1)."""

    name: str
    ratio: float


class Note(msgspec.Struct, frozen=True):
    """A short fact below a bar: `about` is its subject, `command` the arguments of `stepscope` that show more."""

    text: str
    about: str
    command: str = ""

    def __str__(self) -> str:
        return self.text


class Bar(msgspec.Struct, frozen=True):
    """A whole and its pieces: `label` ('Step'), `value` in words ('431 ms ±2.1 %'), parts in drawing order.

    The parts may add up to less than 1: the rest is drawn empty. `notes` are short facts below the bar. `length` is
    this whole's size over that of the longest bar (0..1), for bars that are drawn to one scale.
    """

    label: str
    value: str
    parts: tuple[Part, ...] = ()
    notes: tuple[Note, ...] = ()
    length: float = 1.0


#: The reason of a gain that is sure only if the loader makes batches at the faster pace too.
PACE_UNKNOWN = "the step never waited for the data loader, so the loader's pace is not known"


class Gain(msgspec.Struct, frozen=True):
    """What a change is worth: a step of `step_ns` would take `predicted_ns`, and between `low_ns` and `high_ns`.

    `question` is the change as `stepscope predict --if` takes it, one a line. Of a bound (`basis`) the prediction is
    its better end, and `reason` says what is not known. `binds_next` takes most of the changed step's critical path.
    Of the saved time, `slowdown_ns` is computation that communication beside it slows no longer.
    """

    question: str
    step_ns: float
    predicted_ns: float
    gain_ratio: float
    low_ns: float
    high_ns: float
    basis: str
    reason: str | None = None
    binds_next: str | None = None
    slowdown_ns: float = 0.0


class Finding(msgspec.Struct, frozen=True):
    """Something that costs time, in one line; `details` are the lines below: evidence, '→ what to do'.

    `value_ns` is what it costs, `value_label` of what ('per step', 'in all'), `share_ratio` the same as a share of that
    whole; null where unknown. `command` are words after `stepscope` that show more: 'show idle'; see `Report.whole`.
    `gain` is what it is worth to mend it, if that can be said.
    """

    title: str
    details: tuple[str, ...] = ()
    value_ns: float | None = None
    value_label: str = ""
    share_ratio: float | None = None
    command: str = ""
    gain: Gain | None = None


class Block(msgspec.Struct, frozen=True, eq=False):
    """A small table of the report: the frame's columns are shown as they are, `table` has their units.

    Give the few columns and rows that help at a glance (5 to 8 rows); `command` shows the rest, `note` is one line.
    `drawn` are the rows for a figure of this table, if they differ from the rows shown.
    """

    title: str
    table: Table
    frame: pl.DataFrame
    command: str = ""
    note: str = ""
    drawn: pl.DataFrame | None = None


class Report(msgspec.Struct, frozen=True, eq=False):
    """One screen about one trace or run.

    `headline` is one line: what was recorded. `first` is a table that must be read before the bars. `quality` are
    sentences on what the data lacks, `issues` the table of that name (`schema.ISSUES`) of all traces. `meta` are facts
    for JSON: paths, ranks, counts. `title` is the kind of report in a word, `findings_title` the heading of the
    findings. `document` replaces the report in JSON, for kinds of report with their own JSON shape; `more` are further
    members of the usual shape. `quality_command` shows more of the quality; `arguments` are the paths and options that
    whole commands have.
    """

    headline: str
    bars: tuple[Bar, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Block, ...] = ()
    quality: tuple[str, ...] = ()
    issues: pl.DataFrame | None = None
    meta: Mapping[str, object] = msgspec.field(default_factory=dict)
    title: str = "report"
    findings_title: str = "What costs most"
    quality_command: str = ""
    arguments: tuple[str, ...] = ()
    first: Block | None = None
    document: Mapping[str, object] | None = None
    more: Mapping[str, object] = msgspec.field(default_factory=dict)
    to_text: Callable[[Report], str] | None = None
    to_html: Callable[[Report], str] | None = None
    to_figure: Callable[[Report], Any] | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "meta", MappingProxyType(dict(self.meta)))

    def __reduce__(self) -> tuple[type[Report], tuple[object, ...]]:
        """Worker processes hand reports back, and what makes facts read-only cannot be pickled."""
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return type(self), tuple(dict(one) if isinstance(one, MappingProxyType) else one for one in fields)

    def __str__(self) -> str:
        return self.headline if self.to_text is None else self.to_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Report({self.headline!r}, {len(self.findings)} findings, {len(self.tables)} tables)"

    def whole(self, command: str) -> str:
        """A command as it can be pasted into a shell: 'stepscope show idle rank0.json'; empty if there is none."""
        return whole_command(command, self.arguments)

    def plot(self) -> Any:
        """The bars, or the parts of a comparison, as a Plotly figure; None if no verb made the report."""
        return None if self.to_figure is None else self.to_figure(self)

    def _repr_html_(self) -> str | None:
        return None if self.to_html is None else self.to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001, ARG002  IPython's own signature
        printer.text(str(self))


#: Line separators, and marks that hide or reorder what is drawn: soft hyphen, zero width, direction, tags.
_HIDDEN = "\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_IN_A_LINE = regex(f"[\x00-\x1f{_HIDDEN}]")
_IN_LINES = regex(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")
#: As the one above, but for sequences that set colours.
_IN_COLOURS = regex(f"[\x00-\x08\x0b-\x1a\x1c-\x1f{_HIDDEN}]|\x1b(?!\\[[0-9;]*m)")


def printable(text: str) -> str:
    r"""The text in one line, with an escape for every character that a terminal would obey instead of draw.

    >>> print(printable("a\x1b[31mb\n"))
    a\x1b[31mb\n
    """
    return _IN_A_LINE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def printable_lines(text: str, *, colours: bool = False) -> str:
    """The same for many lines: line ends and tabs stay, and with `colours` our sequences for colours too.

    The escapes are those of JSON, so that JSON keeps its meaning.
    """
    return (_IN_COLOURS if colours else _IN_LINES).sub(lambda match: json.dumps(match.group())[1:-1], text)


def printable_text(text: str) -> str:
    """Many lines for people: line ends and tabs stay, and the escapes are those of `printable`."""
    return _IN_LINES.sub(lambda match: printable(match.group()), text)
