from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.host_spans import computing_on_host, open_time
from stepscope.core.intervals import enclosing
from stepscope.core.schema import SPANS

ROW = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.booleans())


@given(st.lists(ROW, max_size=12))
def test_open_time_holds_each_nanosecond_of_wanted_spans(rows: list[tuple[int, int, int, bool]]) -> None:
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    frame = pl.DataFrame(rows, schema=("track_id", "ts_ns", "dur_ns", "wanted"), orient="row")
    track, start, length = (frame[c].cast(pl.Int64).to_numpy() for c in ("track_id", "ts_ns", "dur_ns"))
    parents = pl.Series("parent_id", enclosing(start, start + length, track)).replace(-1, None)
    spans = SPANS.conform(frame.with_row_index("span_id").with_columns(parents))
    lows, highs = open_time(spans, frame["wanted"].cast(pl.Boolean))
    got = [at for low, high in zip(lows, highs, strict=True) for at in range(low, high)]
    assert got == sorted({at for _, ts, dur, wanted in rows if wanted for at in range(ts, ts + dur)})
    assert np.all(lows[1:] > highs[:-1])


def test_the_host_computes_while_an_operator_is_open_and_no_collective_in_it() -> None:
    rows = [
        (0, 0, 20, "aten::mm", "operator"),
        (0, 5, 10, "c10d::allreduce_", "operator"),
        (0, 7, 3, "aten::add", "operator"),  # part of the collective
        (1, 30, 10, "## all2all:wait ##", "user_range"),
        (1, 32, 3, "aten::to", "operator"),  # computes in a range that only names one
        (2, 34, 11, "aten::mm", "operator"),  # while another thread waits
        (2, 50, 5, "my range", "user_range"),
    ]
    frame = pl.DataFrame(rows, schema=("track_id", "ts_ns", "dur_ns", "name", "category"), orient="row")
    lows, highs = computing_on_host(SPANS.conform(frame.with_row_index("span_id")))
    assert list(zip(lows, highs, strict=True)) == [(0, 5), (15, 20), (32, 45)]
