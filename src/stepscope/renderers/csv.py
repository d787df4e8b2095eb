"""A table as CSV: raw numbers (ns, bytes, ratios 0..1), nothing shortened. Unknown is an empty field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stepscope.renderers.renderer import Renderer, Screen

if TYPE_CHECKING:
    from stepscope.core.report import Block


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  exact: nothing of a screen applies
    """The frame with a header line; lists are JSON text, NaN is empty as null is."""
    frame = block.frame.with_columns(cs.float().fill_nan(None))
    return frame.with_columns(_json_text(name) for name in frame.select(cs.nested()).columns).write_csv()


def _json_text(name: str) -> pl.Expr:
    wrapped = pl.struct(pl.col(name).alias("v")).struct.json_encode()
    text = wrapped.str.strip_prefix('{"v":').str.head(-1)
    return pl.when(pl.col(name).is_not_null()).then(text).alias(name)


RENDERER = Renderer("csv", "CSV with raw numbers", (".csv",), table=table)
