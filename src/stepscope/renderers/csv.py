"""A table as CSV: raw numbers (ns, bytes, ratios 0..1), nothing shortened. Unknown is an empty field.

Text in `csv` is safe to show in a terminal and to open in a spreadsheet: control characters are escaped, and an
apostrophe stands before text that a spreadsheet would run as a formula. `csv-raw` writes every name as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stepscope.core.patterns import regex
from stepscope.core.report import printable
from stepscope.core.table import map_names
from stepscope.renderers import Renderer, Screen

if TYPE_CHECKING:
    from stepscope.core.report import Block

#: A number stays as it is, and so does a sign alone. Source: OWASP, CSV injection.
_FORMULA = regex(r"(?![+-]((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)?$)[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001  wide signs count too


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  exact: nothing of a screen applies
    """The frame with a header line; lists are JSON text, NaN is empty as null is. Text is made safe as said above."""
    frame = _flat(block)
    texts = frame.select(cs.string() | cs.categorical() | cs.enum())
    safe = frame.with_columns(map_names(series, _safe, pl.String()) for series in texts.iter_columns())
    head = pl.DataFrame([[_safe(name)] for name in safe.columns])  # not by renaming: two names may become the same
    return head.write_csv(include_header=False) + safe.write_csv(include_header=False)


def raw_table(block: Block, screen: Screen) -> str:  # noqa: ARG001  exact: nothing of a screen applies
    """The same with text as it is."""
    return _flat(block).write_csv()


def _flat(block: Block) -> pl.DataFrame:
    frame = block.frame.with_columns(cs.float().fill_nan(None))
    return frame.with_columns(_json_text(name) for name in frame.select(cs.nested()).columns)


def _json_text(name: str) -> pl.Expr:
    wrapped = pl.struct(pl.col(name).alias("v")).struct.json_encode()
    text = wrapped.str.strip_prefix('{"v":').str.head(-1)
    return pl.when(pl.col(name).is_not_null()).then(text).alias(name)


def _safe(text: str) -> str:
    return printable(f"'{text}" if _FORMULA.match(text) else text)


RENDERER = Renderer("csv", "CSV with raw numbers, safe in a spreadsheet", (".csv",), table=table)
RAW = Renderer("csv-raw", "CSV with raw numbers and exact text, for programs", table=raw_table, exact=True)
