from __future__ import annotations

import io

import polars as pl
from polars.testing import assert_frame_equal

from stepscope.renderers import Screen, find


def test_values_and_types_survive(block):
    frame = pl.read_parquet(io.BytesIO(find("parquet").table(block, Screen())))
    assert_frame_equal(frame, block.frame)
