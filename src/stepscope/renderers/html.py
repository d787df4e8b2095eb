"""A table as one page that needs nothing else: its figure where it has one, the rows below, all names escaped.

Plotly's script is part of a page with a figure (packed, some 2 MB), so that it works offline; nothing is fetched from
anywhere and no other script is run, which the page itself forbids. Light or dark as the reader's system.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import polars.selectors as cs

from stepscope.renderers import figures
from stepscope.renderers.cells import cells, labels, printable
from stepscope.renderers.renderer import Renderer, Screen
from stepscope.renderers.report_html import report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.report import Block

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
    data = json.dumps(drawn, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
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


RENDERER = Renderer("html", "a page with figure and table", (".html", ".htm"), report=report, table=table)
