from __future__ import annotations

import polars as pl

from stepscope.readers.rocm.rocprof_records import AGENTS, COPIES, Records, stacked


def test_frames_are_stacked_with_the_tables_columns():
    frames = [pl.DataFrame({"agent": ["4"], "index": [0]}), pl.DataFrame({"agent": ["5"], "name": ["x"]})]
    assert stacked(AGENTS, frames).select("agent", "index", "name").rows() == [("4", 0, None), ("5", None, "x")]
    assert stacked(COPIES, []).equals(COPIES.empty())


def test_records_are_empty_unless_given():
    records = Records()
    assert all(
        f.is_empty() for f in (records.dispatches, records.calls, records.copies, records.metrics, records.agents)
    )
