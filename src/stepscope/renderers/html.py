"""Reports and tables as HTML pages that need nothing else, light or dark as the reader's system. All text is escaped.

A table comes with its figure, if it has one. Plotly's script is then part of the page (packed, some 2 MB), so that it
works offline. Nothing is fetched from anywhere, and the page itself forbids every other script. A report is plain
elements without scripts, for a notebook, a mail or a wiki.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import polars.selectors as cs

from stepscope.core import units
from stepscope.core.report import printable, whole_command
from stepscope.renderers import Renderer, Screen, figures
from stepscope.renderers.cells import cells, labels
from stepscope.renderers.figures.stacked import colour_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.report import Bar, Block, Finding, Report
    from stepscope.renderers import Screen


_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --quiet: #555; --back: #fff; --line: #e4e4e4; --hover: #f5f8fb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e8ee; --quiet: #9ba8b6; --back: #161b21; --line: #323c47; --hover: #243040; }
}
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: var(--text); background: var(--back); }
h1 { font-size: 1.3rem; margin: 0; }
p { margin: .3rem 0 1rem; color: var(--quiet); max-width: 60rem; }
.figure { margin: 0 0 1rem; }
.rows { overflow-x: auto; }
table { border-collapse: collapse; }
th { position: sticky; top: 0; background: var(--back); text-align: left; vertical-align: bottom; cursor: help; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); }
td { vertical-align: top; white-space: nowrap; }
td.text div { width: max-content; max-width: 34rem; white-space: normal; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:hover { background: var(--hover); }
"""
_REPORT_STYLE = (
    "<style>.stepscope{font:14px/1.45 system-ui,sans-serif;max-width:70rem}.stepscope table{border-collapse:collapse}"
    ".stepscope td,.stepscope th{padding:2px 9px;text-align:left;border-bottom:1px solid #8884}"
    ".stepscope .n{text-align:right;font-variant-numeric:tabular-nums}.stepscope .q{opacity:.72}"
    ".stepscope svg{display:block;width:100%;height:20px}.stepscope p{margin:3px 0}</style>"
)
#: Draws the figure in the colours of the page, again when they change.
_SCRIPT = """
const element = document.querySelector(".figure");
const figure = JSON.parse(document.getElementById("data").textContent);
const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
const script = document.createElement("script");
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
script.textContent = await new Response(stream).text();
document.head.append(script);
const draw = () => {
  const style = getComputedStyle(document.body), text = style.color, back = style.backgroundColor;
  const layout = { ...figure.layout, autosize: true, font: { color: text, family: "system-ui, sans-serif", size: 12 } };
  layout.hoverlabel = { ...layout.hoverlabel, bgcolor: back, font: { color: text } };
  Plotly.react(element, figure.data, layout, { displaylogo: false, responsive: true });
};
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
"""


def escape(text: str) -> str:
    """The text so that a browser draws it literally."""
    return html.escape(printable(text), quote=True)


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  a page has the reader's width
    """A whole page: title, figure, rows with numbers by unit and names in full, what each column means."""
    drawn = figures.drawn(block.title, block.frame if block.drawn is None else block.drawn)
    plotly, packed = ("", "") if drawn is None else figures.plotly_script()
    policy = _policy([] if drawn is None else [plotly, _SCRIPT])
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="generator" content="stepscope">',
        f"<title>{escape(block.title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(block.title)}</h1>",
        f"<p>{escape(block.table.doc)}</p>",
        *([] if drawn is None else _figure(block.title, drawn, packed)),
        *([f"<p>{escape(block.note)}</p>"] if block.note else []),
        *([f"<p><code>{escape(whole_command(block.command, ()))}</code></p>"] if block.command else []),
        '<div class="rows">',
        *_rows(block),
        "</div>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _policy(scripts: Sequence[str]) -> str:
    """Only our own scripts run. Plotly puts styles of its own into the page."""
    own = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts) or "'none'"
    return f"default-src 'none'; script-src {own}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


def _figure(name: str, drawn: figures.Drawn, packed: str) -> list[str]:
    """A place for the figure, its data, Plotly's script, and ours that unpacks that one and draws."""
    data = json.dumps(drawn, allow_nan=False).replace("<", "\\u003c")
    return [
        f'<div class="figure" id="figure-{escape(name)}"></div>',
        f'<script type="application/json" id="data">{data}</script>',
        f'<script type="application/octet-stream" id="plotly">{packed}</script>',
        f'<script type="module">{_SCRIPT}</script>',
    ]


def _rows(block: Block) -> Iterator[str]:
    numbers = set(block.frame.select(cs.numeric()).columns)
    docs = {column.name: column.doc for column in block.table.columns}
    kinds = ["number" if name in numbers else "text" for name in block.frame.columns]
    yield "<table>"
    heads = zip(block.frame.columns, labels(block.frame.columns), kinds, strict=True)
    cells_of_head = (
        f'<th class="{kind}" title="{escape(docs.get(name, name))}">{escape(label)}</th>' for name, label, kind in heads
    )
    yield f"<thead><tr>{''.join(cells_of_head)}</tr></thead>"
    yield "<tbody>"
    for row in zip(*cells(block.frame, block.table), strict=True):
        yield f"<tr>{''.join(_cell(text, kind) for text, kind in zip(row, kinds, strict=True))}</tr>"
    yield "</tbody>"
    yield "</table>"


def _cell(text: str, kind: str) -> str:
    inner = escape(text)
    return f'<td class="{kind}">{f"<div>{inner}</div>" if kind == "text" else inner}</td>'


def fragment(report: Report) -> str:
    """The report as an element that a page (a notebook's cell) can take in."""
    parts = [f"<h3>{escape(report.headline)}</h3>"]
    if report.first is not None:
        parts += [f"<h4>{escape(report.first.title)}</h4>", _report_table(report.first)]
        parts.append(f'<p class="q">{escape(report.first.note)}</p>')
    parts += map(_bar, report.bars)
    if report.findings:
        parts += [
            f"<h4>{escape(report.findings_title)}</h4>",
            "<ol>",
            *(_finding(finding, report) for finding in report.findings),
            "</ol>",
        ]
    for block in report.tables:
        parts += [f"<h4>{escape(block.title)}</h4>", _report_table(block)]
    if report.quality:
        parts.append("".join(f'<p class="q">{escape(sentence)}</p>' for sentence in report.quality))
    return f'<div class="stepscope">{_REPORT_STYLE}{"".join(parts)}</div>'


def report(report: Report, screen: Screen) -> str:  # noqa: ARG001  a page is set by the browser
    """The report as a page, without scripts."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(f'stepscope {report.title}')}</title></head><body>{fragment(report)}</body></html>\n"
    )


def _bar(bar: Bar) -> str:
    head = f"<p><b>{escape(bar.label)}</b> {escape(bar.value)}</p>"
    whole = max(1.0, sum(part.ratio for part in bar.parts)) / bar.length
    drawn, at = "", 0.0
    for i, part in enumerate(bar.parts):
        width = max(part.ratio, 0.0) / whole * 100
        colour = colour_of(part.name, i)
        drawn += f'<rect x="{at:.3f}%" width="{width:.3f}%" height="20" fill="{colour}"></rect>'
        at += width
    shares = ", ".join(f"{escape(part.name)} {units.percent(part.ratio)}" for part in bar.parts)
    picture = f'<svg role="img" aria-label="{shares}">{drawn}</svg><p>{shares}</p>' if bar.parts else ""
    remarks = f'<p class="q">{" · ".join(escape(note.text) for note in bar.notes)}</p>' if bar.notes else ""
    return head + picture + remarks


def _finding(finding: Finding, report: Report) -> str:
    cost = [] if finding.value_ns is None else [f"{units.duration(finding.value_ns)} {escape(finding.value_label)}"]
    cost += [] if finding.share_ratio is None else [units.percent(finding.share_ratio)]
    lines = "".join(f'<p class="q">{escape(line)}</p>' for line in finding.details)
    more = f'<p class="q"><code>{escape(report.whole(finding.command))}</code></p>' if finding.command else ""
    return f"<li><b>{escape(finding.title)}</b> {' '.join(cost)}{lines}{more}</li>"


def _report_table(block: Block) -> str:
    frame = block.frame
    numbers = set(frame.select(cs.numeric()).columns)
    kinds = [' class="n"' if name in numbers else "" for name in frame.columns]
    heads = "".join(f"<th{k}>{escape(label)}</th>" for k, label in zip(kinds, labels(frame.columns), strict=True))
    rows = zip(*cells(frame, block.table), strict=True) if frame.width else ()
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(text)}</td>" for k, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    remark = f'<p class="q">{escape(block.note)}</p>' if block.note else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{remark}"


RENDERER = Renderer("html", "a page with figure and table", (".html", ".htm"), report=report, table=table)
