"""A table as Parquet: exact values and types, for other tools."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from stepscope.renderers import Renderer, Screen

if TYPE_CHECKING:
    from stepscope.core.report import Block


def table(block: Block, screen: Screen) -> bytes:  # noqa: ARG001  binary: nothing of a screen applies
    """The frame as one Parquet file."""
    buffer = io.BytesIO()
    block.frame.write_parquet(buffer)
    return buffer.getvalue()


RENDERER = Renderer("parquet", "Parquet: exact values and types", (".parquet",), table=table)
