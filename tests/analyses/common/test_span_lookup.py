"""Values of spans by their ids, and the innermost span of some kind around another."""

from __future__ import annotations

import polars as pl
from device_traces import HOST, STREAM_7, kernel, spans_of

from stepscope.analyses.common.span_lookup import nearest_span, of_spans

SPANS_6 = spans_of(
    (HOST, 0, 5, "cudaLaunchKernel", "runtime"),
    kernel(STREAM_7, 10, 5, "gemm", 0),
    (STREAM_7, 15, 5, "Stream Sync", "sync"),
    (STREAM_7, 20, 5, "Memcpy HtoD (Pageable -> Device)", "memcpy"),
    (STREAM_7, 30, 5, "Memset (Device)", "memset"),
    kernel(STREAM_7, 40, 5, "gemm"),
)


def test_values_of_spans_are_found_in_whole_and_in_filtered_tables() -> None:
    ids = pl.Series([5, None, 3, 0], dtype=pl.UInt32)
    assert of_spans(SPANS_6, ids, "ts_ns").to_list() == [40, None, 20, 0]
    assert of_spans(SPANS_6.filter(pl.col("span_id") != 0), ids, "ts_ns").to_list() == [40, None, 20, None]
    assert of_spans(SPANS_6.head(0), ids, "ts_ns").to_list() == [None] * 4


def test_the_nearest_span_is_that_span_or_one_around_it() -> None:
    spans = spans_of(
        (HOST, 0, 9, "outer", "operator"),
        (HOST, 1, 7, "wanted", "operator"),
        (HOST, 2, 2, "inner", "operator"),
        (HOST, 5, 2, "wanted", "operator"),
        parent_id=[None, 0, 1, 1],
    )
    ids = pl.Series([2, 3, 0, None], dtype=pl.UInt32)
    wanted = nearest_span(spans, ids, lambda at: of_spans(spans, at, "name") == "wanted")
    assert wanted.to_list() == [1, 3, None, None]
