"""Reports and tables as Markdown, for an issue or a wiki. Names are escaped: they never become markup or a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars.selectors as cs

from stepscope.core import units
from stepscope.core.patterns import regex
from stepscope.core.report import printable, whole_command
from stepscope.renderers import Renderer, Screen
from stepscope.renderers.cells import cells, labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.report import Bar, Block, Finding, Report

#: Punctuation that means something wherever it stands; an underscore does only at the edge of a word.
_SPECIAL = regex(r"([\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_]))")
_LEADING = regex(r"^(\s*)([#+=-]|\d+(?=[.)]))")


def escape(text: str) -> str:
    """The text so that Markdown draws it literally."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def report(report: Report, screen: Screen) -> str:  # noqa: ARG001  Markdown is set by whoever shows it
    """Headline, bars as a list, findings as a numbered list, tables."""
    sections = [
        f"# stepscope {escape(report.title)}",
        _LEADING.sub(r"\1\\\2", escape(report.headline)),
        *(_section(report.first, report) if report.first is not None else []),
        *(_bar(bar) for bar in report.bars),
    ]
    if report.findings:
        items = "\n".join(_finding(i, finding, report) for i, finding in enumerate(report.findings, 1))
        sections += [f"## {escape(report.findings_title)}", items]
    for block in report.tables:
        sections += _section(block, report)
    if report.quality:
        sections += ["## Data", "\n".join(f"- {escape(sentence)}" for sentence in report.quality)]
    if report.issues is not None and not report.issues.is_empty():
        codes = report.issues.select("code", "count").iter_rows()
        sections.append("Issues: " + ", ".join(f"{escape(code)} ({units.count(count)})" for code, count in codes))
    return "\n\n".join(sections) + "\n"


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  Markdown is set by whoever shows it
    """A pipe table with numbers by unit, names in full."""
    note = f"\n{escape(block.note)}\n" if block.note else ""
    note += f"\n{_code(whole_command(block.command, ()))}\n" if block.command else ""
    return "\n".join(_rows(block)) + "\n" + note


def _section(block: Block, report: Report) -> list[str]:
    below = [escape(block.note)] if block.note else []
    below += [f"More: {_code(report.whole(block.command))}"] if block.command else []
    return [f"## {escape(block.title)}", "\n".join(_rows(block)), *([" · ".join(below)] if below else [])]


def _bar(bar: Bar) -> str:
    parts = ", ".join(f"{escape(part.name)} {units.percent(part.ratio)}" for part in bar.parts)
    lines = [f"**{escape(bar.label)}** {escape(bar.value)}" + (f": {parts}" if parts else "")]
    return "\n".join([*lines, *(f"- {escape(note.text)}" for note in bar.notes)])


def _finding(number: int, finding: Finding, report: Report) -> str:
    figures = []
    if finding.value_ns is not None:
        figures.append(f"{units.duration(finding.value_ns)} {escape(finding.value_label)}".rstrip())
    if finding.share_ratio is not None:
        figures.append(units.percent(finding.share_ratio))
    figures += [_code(report.whole(finding.command))] if finding.command else []
    lines = [f"{number}. **{escape(finding.title)}**" + (f" ({', '.join(figures)})" if figures else "")]
    return "\n".join([*lines, *(f"   - {escape(detail)}" for detail in finding.details)])


def _code(command: str) -> str:
    return f"`{printable(command).replace('`', '')}`"


def _rows(block: Block) -> Iterator[str]:
    numbers = set(block.frame.select(cs.numeric()).columns)
    yield "| " + " | ".join(map(escape, labels(block.frame.columns))) + " |"
    yield "|" + "|".join(" ---: " if name in numbers else " --- " for name in block.frame.columns) + "|"
    for row in zip(*cells(block.frame, block.table), strict=True):
        yield "| " + " | ".join(map(escape, row)) + " |"


RENDERER = Renderer("markdown", "Markdown", (".md", ".markdown"), report=report, table=table)
