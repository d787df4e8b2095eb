"""For people at a terminal: one screen of a report, or a table that fits its width. Plain strings, as rich costs 70 ms.

Names are drawn literally: control characters become escapes, nothing in them is markup. Where the encoding has no
block characters, ASCII stands in.
"""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec
import polars as pl
from msgspec.structs import replace

from stepscope.core import names, units
from stepscope.core.patterns import regex
from stepscope.core.report import printable, whole_command
from stepscope.renderers import Renderer, Screen
from stepscope.renderers.cells import cells, labels, width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.report import Bar, Block, Finding, Part, Report


#: What fills a bar, in order of appearance, with its stand-in and colour; idle is always the lightest.
_FILLS = (
    ("█", "#", "32"), ("▒", "=", "35"), ("▓", "%", "33"), ("▚", "+", "34"), ("▞", "*", "36"), ("▖", "-", "31"),
    ("▘", "~", "37"),
)  # fmt: skip
_IDLE = ("░", ".", "90")
_BOLD, _DIM = "1", "2"
_UNIT = regex(r"(\d) (%|[nµm]?s\b|[KMGT]?i?B(?:/s)?\b)")
_ASCII = {"→": "->", "·": "|", "±": "+-", "–": "-", "—": "-", "×": "x", "…": "~", "µ": "u", "─": "-", "≥": ">=",
          "≤": "<=", "\u00a0": " ", "\u202f": " ", "\u2009": " "}  # fmt: skip
_TO_ASCII = str.maketrans(_ASCII | {fill[0]: fill[1] for fill in (*_FILLS, _IDLE)})
#: Columns of sentences, which are broken into lines; other texts are names, which are shortened.
_PROSE = frozenset({"costs_most", "doc", "example", "provides", "scenario", "text"})
#: How much of the width the numbers of a report's table take.
FIGURES_WIDTH = 40
FIRST_MEASURES = 4
BAR_WIDTH, WIDE_BAR = 25, 60
_UNINKED = regex("\x1b\\[[0-9;]*m")
GAP = 2
MIN_TEXT = 14
_THEN = " → "
_APPLIED = regex(r"_kernel\w*<(\w+)>?")
_NOISE = regex(r"^CUDAFunctor(?:OnSelf|OnOther)?_|^triton_(?=\w)|(?:_kernel)?(?:_cuda|_impl)$|Functor$|_kernel$|Ops$")
_LONGEST = 20_000  # letters of a sequence that are looked at


def report(report: Report, screen: Screen) -> str:
    """One screen: what was recorded, bars, what costs most, top tables, what the data lacks."""
    sections = [
        _wrap(report.headline, screen.width),
        _block(report.first, report, screen) if report.first is not None else [],
        _bars(report.bars, screen),
        _findings(report, screen),
        *(_block(block, report, screen) for block in report.tables),
        _quality(report, screen),
    ]
    text = "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"
    return text if screen.unicode else text.translate(_TO_ASCII)


def table(block: Block, screen: Screen) -> str:
    """The whole frame, with a note below on columns for which there is no room, and commands whole on their lines."""
    commands: list[str] = []
    if "command" in block.frame.columns[1:]:
        about = "rule" if "rule" in block.frame.columns else block.frame.columns[0]
        for row in block.frame.select(about, "command").cast(pl.String).iter_rows():
            commands += [f"{printable(row[0] or '')}:", f"  {printable(row[1] or '')}"]
        block = replace(block, frame=block.frame.drop("command"))
    columns = _grid(block, screen.width, screen.width)
    lines = [*(_ink(line, _BOLD, screen) for line in columns.head), *columns.body]
    if block.frame.is_empty():
        lines.append("no rows")
    if columns.left_out:
        left_out = f"no room for: {', '.join(columns.left_out)} (choose with --columns, or see all with --format csv)"
        lines += ["", *(_ink(line, _DIM, screen) for line in _wrap(left_out, screen.width))]
    if block.note:
        lines += ["", *(_ink(line, _DIM, screen) for line in _wrap(block.note, screen.width))]
    if commands:
        lines += ["", *(_ink(command, _DIM, screen) for command in commands)]
    if block.command:
        lines.append(_ink(printable(whole_command(block.command, ())), _DIM, screen))
    text = "\n".join(lines) + "\n"
    return text if screen.unicode else text.translate(_TO_ASCII)


def _bars(bars: Sequence[Bar], screen: Screen) -> list[str]:
    """Bars of one length, each with its legend on the same line if all fit, else below wider bars."""
    fills = _fills(bars)
    heads = [(_letters(bar.label, screen), _letters(bar.value, screen)) for bar in bars]
    label_room = max((width(label) for label, _ in heads), default=0)
    value_room = max((width(value) for _, value in heads), default=0)
    indent = label_room + 2 + value_room + 3
    room = max(screen.width - indent, 20)
    legends = [_flow([_legend(part, fills[part.name], screen) for part in bar.parts], 10**6) for bar in bars]
    is_inline = all(width(_UNINKED.sub("", line)) <= room - BAR_WIDTH - 3 for lines in legends for line in lines)
    length = BAR_WIDTH if is_inline else min(room, WIDE_BAR)
    lines = []
    for bar, (label, value), legend in zip(bars, heads, legends, strict=True):
        head = f"{_ink(pad(label, label_room), _BOLD, screen)}  {pad(value, value_room)}"
        if bar.parts:
            head += "   " + _drawn(bar, fills, length, screen) + ("   " + legend[0] if is_inline else "")
        lines.append(head.rstrip())
        below = [] if is_inline else _flow([_legend(part, fills[part.name], screen) for part in bar.parts], room)
        texts = [line for note in bar.notes for line in _wrap(str(note), room)]
        below_all = _flow([(width(text), text) for text in texts], room)
        lines += [" " * indent + line for line in (*below, *(_ink(note, _DIM, screen) for note in below_all))]
    return lines


def _fills(bars: Sequence[Bar]) -> Mapping[str, tuple[str, str, str]]:
    """The same name is drawn the same in every bar."""
    names = dict.fromkeys(part.name for bar in bars for part in bar.parts)
    busy = [name for name in names if name != "idle"]
    return {name: _FILLS[i % len(_FILLS)] for i, name in enumerate(busy)} | {"idle": _IDLE}


def _legend(part: Part, fill: tuple[str, str, str], screen: Screen) -> tuple[int, str]:
    text = f"{printable(part.name)} {units.percent(part.ratio)}"
    return width(text) + 2, f"{_ink(fill[0], fill[2], screen)} {text}"


def _drawn(bar: Bar, fills: Mapping[str, tuple[str, str, str]], length: int, screen: Screen) -> str:
    """Blocks in proportion. Edges are rounded, not lengths, so that parts that make a whole fill the bar exactly."""
    ratios = [part.ratio if part.ratio > 0 else 0.0 for part in bar.parts]  # NaN counts as nothing too
    scale = bar.length * length / max(1.0, sum(ratios))
    drawn, edge, reach = "", 0, 0.0
    for part, ratio in zip(bar.parts, ratios, strict=True):
        reach += ratio * scale
        fill = fills[part.name]
        drawn += _ink(fill[0] * (round(reach) - edge), fill[2], screen)
        edge = round(reach)
    return drawn + " " * (length - edge)


def _flow(pieces: Sequence[tuple[int, str]], room: int) -> list[str]:
    """Pieces (their width, their text) set side by side, three blanks apart, in as few lines as fit."""
    lines: list[str] = []
    used = 0
    for wide, text in pieces:
        if lines and used + 3 + wide <= room:
            lines[-1] += "   " + text
            used += 3 + wide
        else:
            lines.append(text)
            used = wide
    return lines


def _findings(report: Report, screen: Screen) -> list[str]:
    findings, heading = report.findings, printable(report.findings_title)
    if not findings:
        return []
    shared = {finding.value_label for finding in findings if finding.value_ns is not None}
    label = shared.pop() if len(shared) == 1 else ""
    values = [_value(finding, label) for finding in findings]
    shares = ["" if f.share_ratio is None else units.percent(f.share_ratio) for f in findings]
    value_room = max(map(width, [*values, label]))
    share_room = max(map(width, shares))
    indent = len(str(len(findings))) + 2
    room = max(screen.width - indent - value_room - share_room - 2 * 3, 20)
    lines = [_ink(heading, _BOLD, screen) + pad(label, room + indent + 3 + value_room - width(heading), right=True)]
    for i, finding in enumerate(findings):
        title, *rest = _wrap(finding.title, room)
        figures = f"{pad(values[i], value_room, right=True)}   {pad(shares[i], share_room, right=True)}"
        lines.append(f"{_ink(pad(str(i + 1), indent), _BOLD, screen)}{pad(title, room)}   {figures}")
        for detail in finding.details:
            rest += _wrap(detail, screen.width - indent, hang=2)
        if finding.command:
            rest = _with_right(rest, printable(report.whole(finding.command)), screen.width - indent, screen)
        lines += [" " * indent + line for line in rest]
    return [line.rstrip() for line in lines]


def _with_right(lines: Sequence[str], text: str, room: int, screen: Screen) -> list[str]:
    """The text to the right of the first line that has room for it, else whole on a line of its own."""
    widths = [width(_UNINKED.sub("", line)) for line in lines]
    at = next((i for i, wide in enumerate(widths) if wide + 3 + width(text) <= room), len(lines))
    if at == len(lines):
        return [*lines, _ink(text, _DIM, screen)]
    line = lines[at] + " " * (room - widths[at] - width(text))
    return [*lines[:at], line + _ink(text, _DIM, screen), *lines[at + 1 :]]


def _value(finding: Finding, shared_label: str) -> str:
    if finding.value_ns is None:
        return ""
    text = units.duration(finding.value_ns)
    return text if shared_label or not finding.value_label else f"{text} {printable(finding.value_label)}"


def _block(block: Block, report: Report, screen: Screen) -> list[str]:
    title, command = printable(block.title), printable(report.whole(block.command))
    columns = _grid(block, screen.width, screen.width - FIGURES_WIDTH)
    lines = _with_right([_ink(title, _BOLD, screen)], command, screen.width, screen) if command else []
    lines = lines or [_ink(title, _BOLD, screen)]
    lines += [_ink(line, _DIM, screen) for line in columns.head]
    lines += columns.body
    if block.note:
        lines += [_ink(line, _DIM, screen) for line in _wrap(block.note, screen.width)]
    return [line.rstrip() for line in lines]


def _grid(block: Block, room: int, name_room: int) -> Grid:
    """The frame's columns: numbers to the right, names no wider than `name_room`."""
    frame = block.frame
    kinds = frame.schema.items()
    texts = {name for name, dtype in kinds if isinstance(dtype, pl.String | pl.Categorical | pl.Enum | pl.List)}
    numbers = {name for name, dtype in kinds if dtype.is_numeric()}
    keys = {column.name for column in block.table.columns if column.key}
    columns: list[Column] = []
    n_measures = 0
    for header, name, texts_of in zip(labels(frame.columns), frame.columns, cells(frame, block.table), strict=True):
        prose = name in texts and name in _PROSE
        named = name in texts and not prose
        n_measures += name in numbers and name not in keys
        # Keys and the first measures matter most, then texts, then further measures.
        spare = 0 if name in keys or prose else 1 if name not in numbers else 2 * (n_measures > FIRST_MEASURES)
        if frame[name].null_count() == frame.height or (name == "device_id" and "device" in frame.columns):
            spare = 3  # empty, or said better by the column `device`
        most = name_room if named else None
        head = printable(header)
        columns.append(Column(head, texts_of, name in numbers, squeeze=named, wrap=prose, spare=spare, most=most))
    return grid(columns, room)


def _quality(report: Report, screen: Screen) -> list[str]:
    sentences = list(report.quality)
    if not sentences and report.issues is not None:
        loud = report.issues.filter(pl.col("severity") != "info")
        sentences = [f"{units.count(count)} × {code}." for code, count in loud.select("code", "count").iter_rows()]
    if not sentences:
        return []
    command = report.quality_command or ("" if report.issues is None else "show issues")
    first, *rest = _wrap(" ".join(sentences), screen.width - 6)
    lines = [f"{_ink('Data:', _BOLD, screen)} {first}", *("      " + line for line in rest)]
    return _with_right(lines, printable(report.whole(command)), screen.width, screen) if command else lines


def _wrap(text: str, room: int, *, hang: int = 0) -> list[str]:
    """The text in lines of `room`; breaks a word only if it is longer than a line, and drops none."""
    text = _UNIT.sub("\\1\u00a0\\2", printable(text))  # a number and its unit stay on one line
    lines = textwrap.wrap(text, max(room, 20), subsequent_indent=" " * hang, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _letters(text: str, screen: Screen) -> str:
    """Text whose width matters, in the letters that will be drawn."""
    return printable(text) if screen.unicode else printable(text).translate(_TO_ASCII)


def _ink(text: str, code: str, screen: Screen) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if screen.colour and text.strip() else text


class Column(msgspec.Struct, frozen=True):
    """A header, its cells, and how they fit if there is little room: `squeeze` shortens texts, `wrap` breaks lines.

    The higher `spare`, the sooner the column is left out; among equals the one furthest right goes first. Texts are
    not wider than `most`.
    """

    header: str
    cells: Sequence[str]
    right: bool = False
    squeeze: bool = False
    wrap: bool = False
    spare: int = 0
    most: int | None = None


class Grid(msgspec.Struct, frozen=True):
    """Lines of the header, lines of the body, and the headers of columns for which there is no room."""

    head: tuple[str, ...]
    body: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def fit(text: str, room: int) -> str:
    """The text in at most `room` columns. Names of kernels (one, or a sequence) keep their most informative part."""
    return fit_column([text], room)[0]


def fit_column(texts: Sequence[str], room: int) -> list[str]:
    """The texts of one column in no more than `room`; different names stay different if the room is enough."""
    if all(width(text) <= room for text in texts):
        return list(texts)
    sequences = {text: _sequence(text[:_LONGEST].split(_THEN), room) for text in texts if _THEN in text}
    singles = [text for text in texts if text not in sequences]
    short = {**sequences, **dict(zip(singles, names.shorten_column(singles, room), strict=True))}
    return [_clipped(text if width(text) <= room and _THEN in text else short[text], room) for text in texts]


def _clipped(text: str, room: int) -> str:
    """The text without its end: letters may be wider than one column."""
    while width(text) > room:
        text = text[: max(len(text) - max(width(text) - room, 1) - 1, 0)].rstrip("…") + "…"
        if text == "…":
            break
    return text


def _sequence(parts: Sequence[str], room: int) -> str:
    """Names of kernels in a sequence, each perhaps several times (×3): shortened, or one word each if too long."""
    split = [part.partition(" ×") for part in parts]
    short = [(names.shorten(name, 4 * room), times + n) for name, times, n in split]
    text = _THEN.join(name + times for name, times in short)
    return text if width(text) <= room else _THEN.join(_gist(name) + times for name, times in short)


def _gist(name: str) -> str:
    """What a kernel does, in a word: of a generic kernel the function that it applies."""
    inner = _APPLIED.search(name)
    word = inner[1] if inner else name.rpartition("::")[2]
    return _NOISE.sub("", word) or word


def pad(text: str, room: int, *, right: bool = False) -> str:
    """The text filled with blanks up to `room` columns."""
    blanks = " " * (room - width(text))
    return blanks + text if right else text + blanks


def grid(columns: Sequence[Column], room: int) -> Grid:
    """The columns side by side in `room`. Text shrinks before columns are left out; the first stays in any case."""
    remaining, left_out = list(columns), []
    widths = [_natural(column) for column in remaining]
    while not _squeeze(remaining, widths, room) and len(remaining) > 1:
        _, at = max((column.spare, i) for i, column in enumerate(remaining) if i > 0)
        left_out.append(remaining.pop(at).header)
        widths = [_natural(column) for column in remaining]
    heads = [_wrapped(c.header, w) for c, w in zip(remaining, widths, strict=True)]
    height = max((len(h) for h in heads), default=0)
    raised = [[""] * (height - len(h)) + h for h in heads]
    head = [_line(remaining, widths, texts) for texts in zip(*raised, strict=True)]
    broken = [_broken(column, w) for column, w in zip(remaining, widths, strict=True)]
    rows = [texts for row in zip(*broken, strict=True) for texts in zip_longest(*row, fillvalue="")]
    body = [_line(remaining, widths, texts) for texts in rows]
    return Grid(tuple(head), tuple(body), tuple(c.header for c in columns if c.header in left_out))


def _broken(column: Column, room: int) -> list[list[str]]:
    """The lines of each cell."""
    if not column.wrap:
        return [[text] for text in fit_column(column.cells, room)]
    return [textwrap.wrap(text, room, break_on_hyphens=False) or [""] for text in column.cells]


def _natural(column: Column) -> int:
    """The widest cell or the widest word of the header, which may wrap at blanks."""
    cells = column.cells if column.most is None else fit_column(column.cells, column.most)
    return max((width(text) for text in [*cells, *column.header.split()]), default=0)


def _squeeze(columns: Sequence[Column], widths: list[int], room: int) -> bool:
    """Narrow the widest texts in place until all fits; False if it cannot."""
    over = sum(widths) + GAP * (len(widths) - 1) - room
    least = max(MIN_TEXT, room // 4)  # a shorter name says less than a column further right
    while over > 0:
        able = [(widths[i], i) for i, c in enumerate(columns) if (c.squeeze or c.wrap) and widths[i] > least]
        if not able:
            return False
        wide, at = max(able)
        # Down to the next widest at once, so that texts of like width end alike.
        next_wide = max([w for w, i in able if i != at] + [least])
        less = min(over, max(wide - next_wide, 1))
        widths[at] -= less
        over -= less
    return True


def _wrapped(header: str, room: int) -> list[str]:
    lines = [""]
    for word in header.split():
        joined = f"{lines[-1]} {word}".strip()
        if width(joined) <= room or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    return [fit(line, room) for line in lines]


def _line(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> str:
    cells = (pad(text, w, right=c.right) for text, w, c in zip(texts, widths, columns, strict=True))
    return (" " * GAP).join(cells).rstrip()


RENDERER = Renderer("terminal", "text for people", (".txt",), report=report, table=table)
