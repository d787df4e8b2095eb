"""A report as HTML: plain elements without scripts, for a notebook, a mail, a wiki. All text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import polars.selectors as cs

from stepscope.core import units
from stepscope.renderers.cells import cells, labels, printable
from stepscope.renderers.figures.bars import colour_of

if TYPE_CHECKING:
    from stepscope.core.report import Bar, Block, Finding, Report
    from stepscope.renderers.renderer import Screen

_STYLE = (
    "<style>.stepscope{font:14px/1.45 system-ui,sans-serif;max-width:70rem}.stepscope table{border-collapse:collapse}"
    ".stepscope td,.stepscope th{padding:2px 9px;text-align:left;border-bottom:1px solid #8884}"
    ".stepscope .n{text-align:right;font-variant-numeric:tabular-nums}.stepscope .q{opacity:.72}"
    ".stepscope svg{display:block;width:100%;height:20px}.stepscope p{margin:3px 0}</style>"
)


def fragment(report: Report) -> str:
    """The report as an element that a page (a notebook's cell) can take in."""
    parts = [f"<h3>{_text(report.headline)}</h3>", *map(_bar, report.bars)]
    if report.findings:
        parts += [f"<h4>{_text(report.findings_title)}</h4>", "<ol>", *map(_finding, report.findings), "</ol>"]
    for block in report.tables:
        parts += [f"<h4>{_text(block.title)}</h4>", _rows(block)]
    if report.quality:
        parts.append("".join(f'<p class="q">{_text(sentence)}</p>' for sentence in report.quality))
    return f'<div class="stepscope">{_STYLE}{"".join(parts)}</div>'


def report(report: Report, screen: Screen) -> str:  # noqa: ARG001  a page is set by the browser
    """The report as a page."""
    return _page(f"stepscope {report.title}", fragment(report))


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title></head><body>{body}</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _bar(bar: Bar) -> str:
    head = f"<p><b>{_text(bar.label)}</b> {_text(bar.value)}</p>"
    whole = max(1.0, sum(part.ratio for part in bar.parts))
    drawn, at = "", 0.0
    for i, part in enumerate(bar.parts):
        width = max(part.ratio, 0.0) / whole * 100
        colour = colour_of(part.name, i)
        drawn += f'<rect x="{at:.3f}%" width="{width:.3f}%" height="20" fill="{colour}"></rect>'
        at += width
    words = ", ".join(f"{_text(part.name)} {units.percent(part.ratio)}" for part in bar.parts)
    picture = f'<svg role="img" aria-label="{words}">{drawn}</svg><p>{words}</p>' if bar.parts else ""
    notes = f'<p class="q">{" · ".join(_text(note.text) for note in bar.notes)}</p>' if bar.notes else ""
    return head + picture + notes


def _finding(finding: Finding) -> str:
    cost = [] if finding.value_ns is None else [f"{units.duration(finding.value_ns)} {_text(finding.value_label)}"]
    cost += [] if finding.share_ratio is None else [units.percent(finding.share_ratio)]
    lines = "".join(f'<p class="q">{_text(line)}</p>' for line in finding.details)
    more = f'<p class="q"><code>stepscope {_text(finding.command)}</code></p>' if finding.command else ""
    return f"<li><b>{_text(finding.title)}</b> {' '.join(cost)}{lines}{more}</li>"


def _rows(block: Block) -> str:
    frame = block.frame
    numbers = set(frame.select(cs.numeric()).columns)
    kinds = [' class="n"' if name in numbers else "" for name in frame.columns]
    heads = "".join(f"<th{k}>{_text(label)}</th>" for k, label in zip(kinds, labels(frame.columns), strict=True))
    rows = zip(*cells(frame, block.table), strict=True) if frame.width else ()
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{_text(text)}</td>" for k, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    note = f'<p class="q">{_text(block.note)}</p>' if block.note else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{note}"
