"""A table as one page that needs nothing else: its figure where it has one, the rows below, all names escaped.

Plotly's script is part of a page with a figure (some 5 MB), so that it works offline; nothing is fetched from anywhere,
which the page itself forbids.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import polars.selectors as cs

from stepscope import figures
from stepscope.renderers._record import Renderer, Screen
from stepscope.renderers.cells import cells, labels, printable
from stepscope.renderers.report_html import report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.reports.model import Block

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.3rem; margin: 0; }
p { margin: .3rem 0 1rem; color: #555; max-width: 60rem; }
.rows { overflow-x: auto; }
table { border-collapse: collapse; }
th { position: sticky; top: 0; background: #fff; text-align: left; vertical-align: bottom; cursor: help; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; }
td { vertical-align: top; white-space: nowrap; }
td.text div { width: max-content; max-width: 34rem; white-space: normal; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:hover { background: #f5f8fb; }
"""


def escape(text: str) -> str:
    """The text so that a browser draws it literally."""
    return html.escape(printable(text), quote=True)


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  a page has the reader's width
    """A whole page: title, figure, rows with numbers by unit and names in full, what each column means."""
    chart = _chart(block)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="generator" content="stepscope">',
        f"<title>{escape(block.title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(block.title)}</h1>",
        f"<p>{escape(block.table.doc)}</p>",
        *chart,
        *([f"<p>{escape(block.note)}</p>"] if block.note else []),
        '<div class="rows">',
        *_rows(block),
        "</div>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _chart(block: Block) -> list[str]:
    """The script of Plotly and the figure of this table, if there is one for its columns."""
    if block.title not in figures.names():
        return []
    figure = figures.find(block.title)
    frame = block.frame if block.drawn is None else block.drawn
    if not figure.fits(frame) or frame.is_empty():
        return []
    from plotly.offline import get_plotlyjs

    drawn = figure(frame).to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{figure.name}", config={"displaylogo": False}
    )
    return [f"<script>{get_plotlyjs()}</script>", drawn]


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
