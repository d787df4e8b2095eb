"""For people at a terminal: one screen of a report, or a table set to its width. Plain strings, as rich costs 70 ms.

Names are drawn literally: control characters become escapes, nothing in them is markup. Where the encoding has no
block characters, ASCII stands in.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stepscope.core import units
from stepscope.renderers._grid import Column, Grid, fit, grid, pad
from stepscope.renderers.cells import cells, labels, printable, width
from stepscope.renderers.renderer import Renderer, Screen

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
_UNIT = re.compile(r"(\d) (%|[nµm]?s\b|[KMGT]?i?B(?:/s)?\b)")
_ASCII = {"→": "->", "·": "|", "±": "+-", "–": "-", "—": "-", "×": "x", "…": "~", "µ": "u", "─": "-", "≥": ">=",
          "≤": "<=", "\u00a0": " ", "\u202f": " ", "\u2009": " "}  # fmt: skip
_TO_ASCII = str.maketrans(_ASCII | {fill[0]: fill[1] for fill in (*_FILLS, _IDLE)})
#: Columns of sentences, which are broken into lines; other texts are names, which are shortened.
_PROSE = frozenset({"doc", "example", "provides", "text"})
NAME_WIDTH = 60
#: A longer command goes one line below, to leave the titles their room.
SHORT_COMMAND = 16
FIRST_MEASURES = 4
BAR_WIDTH, WIDE_BAR = 25, 60
_UNINKED = re.compile("\x1b\\[[0-9;]*m")


def report(report: Report, screen: Screen) -> str:
    """One screen: what was recorded, bars, what costs most, top tables, what the data lacks."""
    sections = [
        _wrap(report.headline, screen.width),
        _bars(report.bars, screen),
        _findings(report, screen),
        *(_block(block, screen) for block in report.tables),
        _quality(report, screen),
    ]
    text = "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"
    return text if screen.unicode else text.translate(_TO_ASCII)


def table(block: Block, screen: Screen) -> str:
    """The whole frame, with a note below on columns that found no room."""
    found = _grid(block, screen.width, screen.width)
    lines = [*(_ink(line, _BOLD, screen) for line in found.head), *found.body]
    if block.frame.is_empty():
        lines.append("no rows")
    if found.left_out:
        left_out = f"no room for: {', '.join(found.left_out)} (choose with --columns, or see all with --format csv)"
        lines += ["", *(_ink(line, _DIM, screen) for line in _wrap(left_out, screen.width))]
    if block.note:
        lines += ["", *(_ink(line, _DIM, screen) for line in _wrap(block.note, screen.width))]
    text = "\n".join(lines) + "\n"
    return text if screen.unicode else text.translate(_TO_ASCII)


def _bars(bars: Sequence[Bar], screen: Screen) -> list[str]:
    """Bars of one length, each with its legend beside it if all find room there, else below wider bars."""
    fills = _fills(bars)
    heads = [(_letters(bar.label, screen), _letters(bar.value, screen)) for bar in bars]
    label_room = max((width(label) for label, _ in heads), default=0)
    value_room = max((width(value) for _, value in heads), default=0)
    indent = label_room + 2 + value_room + 3
    room = max(screen.width - indent, 20)
    legends = [_flow([_legend(part, fills[part.name], screen) for part in bar.parts], 10**6) for bar in bars]
    beside = all(width(_UNINKED.sub("", line)) <= room - BAR_WIDTH - 3 for lines in legends for line in lines)
    length = BAR_WIDTH if beside else min(room, WIDE_BAR)
    lines = []
    for bar, (label, value), legend in zip(bars, heads, legends, strict=True):
        head = f"{_ink(pad(label, label_room), _BOLD, screen)}  {pad(value, value_room)}"
        if bar.parts:
            head += "   " + _drawn(bar, fills, length, screen) + ("   " + legend[0] if beside else "")
        lines.append(head.rstrip())
        below = [] if beside else _flow([_legend(part, fills[part.name], screen) for part in bar.parts], room)
        notes = _flow([(width(note), note) for note in map(printable, map(str, bar.notes))], room)
        lines += [" " * indent + line for line in (*below, *(_ink(note, _DIM, screen) for note in notes))]
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
    scale = length / max(1.0, sum(ratios))
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
    commands = [printable(finding.command) for finding in findings]
    value_room = max(map(width, [*values, label]))
    share_room = max(map(width, shares))
    command_room = max((width(command) for command in commands if width(command) <= SHORT_COMMAND), default=0)
    indent = len(str(len(findings))) + 2
    room = max(screen.width - indent - value_room - share_room - command_room - 3 * 3, 20)
    lines = [_ink(heading, _BOLD, screen) + pad(label, room + indent + 3 + value_room - width(heading), right=True)]
    for i, finding in enumerate(findings):
        title, *rest = _wrap(finding.title, room)
        figures = f"{pad(values[i], value_room, right=True)}   {pad(shares[i], share_room, right=True)}"
        number = _ink(pad(str(i + 1), indent), _BOLD, screen)
        is_short = width(commands[i]) <= SHORT_COMMAND
        lines.append(f"{number}{pad(title, room)}   {figures}   {_ink(commands[i] if is_short else '', _DIM, screen)}")
        for detail in finding.details:
            rest += _wrap(detail, screen.width - indent, hang=2)
        if not is_short:
            rest = _with_right(rest, commands[i], screen.width - indent, screen)
        lines += [" " * indent + line for line in rest]
    return [line.rstrip() for line in lines]


def _with_right(lines: Sequence[str], text: str, room: int, screen: Screen) -> list[str]:
    """The text to the right of the first line that has room for it, else on a line of its own."""
    at = next((i for i, line in enumerate(lines) if width(line) + 3 + width(text) <= room), len(lines))
    line = lines[at] if at < len(lines) else ""
    return [*lines[:at], pad(line, room - width(text)) + _ink(text, _DIM, screen), *lines[at + 1 :]]


def _value(finding: Finding, shared_label: str) -> str:
    if finding.value_ns is None:
        return ""
    text = units.duration(finding.value_ns)
    return text if shared_label or not finding.value_label else f"{text} {printable(finding.value_label)}"


def _block(block: Block, screen: Screen) -> list[str]:
    title, command = printable(block.title), printable(block.command)
    found = _grid(block, screen.width, NAME_WIDTH)
    lines = [_ink(pad(title, screen.width - width(command)), _BOLD, screen) + _ink(command, _DIM, screen)]
    lines += [_ink(line, _DIM, screen) for line in found.head]
    lines += found.body
    if block.note:
        lines += [_ink(line, _DIM, screen) for line in _wrap(block.note, screen.width)]
    return [line.rstrip() for line in lines]


def _grid(block: Block, room: int, name_room: int) -> Grid:
    """The frame's columns: numbers to the right, texts to the left and no wider than `name_room`."""
    frame = block.frame
    texts = set(frame.select(cs.string() | cs.categorical() | cs.enum() | cs.nested()).columns)
    numbers = set(frame.select(cs.numeric()).columns)
    keys = {column.name for column in block.table.columns if column.key}
    columns: list[Column] = []
    n_measures = 0
    for header, name, found in zip(labels(frame.columns), frame.columns, cells(frame, block.table), strict=True):
        prose = name in texts and name in _PROSE
        named = name in texts and not prose
        n_measures += name in numbers and name not in keys
        # What tells most: keys and the first measures, then texts beside them, then further measures.
        spare = 0 if name in keys or prose else 1 if name not in numbers else 2 * (n_measures > FIRST_MEASURES)
        if frame[name].null_count() == frame.height or (name == "device_id" and "device" in frame.columns):
            spare = 3  # says nothing, or what the column beside it says better
        fitted = [fit(text, name_room) for text in found] if named else found
        columns.append(Column(printable(header), fitted, name in numbers, squeeze=named, wrap=prose, spare=spare))
    return grid(columns, room)


def _quality(report: Report, screen: Screen) -> list[str]:
    sentences = list(report.quality)
    if not sentences and report.issues is not None:
        loud = report.issues.filter(pl.col("severity") != "info")
        sentences = [f"{units.count(count)} × {code}." for code, count in loud.select("code", "count").iter_rows()]
    if not sentences:
        return []
    command = "" if report.issues is None else "show issues"
    first, *rest = _wrap("Data: " + " ".join(sentences), screen.width - len(command) - 3)
    top = (pad(first, screen.width - len(command)) + _ink(command, _DIM, screen)).rstrip()
    lines = [top, *("      " + line for line in rest)]
    return [_ink("Data:", _BOLD, screen) + lines[0].removeprefix("Data:"), *lines[1:]]


def _wrap(text: str, room: int, *, hang: int = 0) -> list[str]:
    """The text in lines of `room`; words are kept whole where they fit, and are never thrown away."""
    text = _UNIT.sub("\\1\u00a0\\2", printable(text))  # a number and its unit stay on one line
    lines = textwrap.wrap(text, max(room, 20), subsequent_indent=" " * hang, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _letters(text: str, screen: Screen) -> str:
    """Text whose width matters, in the letters that will be drawn."""
    return printable(text) if screen.unicode else printable(text).translate(_TO_ASCII)


def _ink(text: str, code: str, screen: Screen) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if screen.colour and text.strip() else text


RENDERER = Renderer("terminal", "text for people", (".txt",), report=report, table=table)
