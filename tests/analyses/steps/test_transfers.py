from __future__ import annotations

import polars as pl
import pytest
from device_traces import STREAM_7, TRACKS_5, spans_of

from stepscope.analyses.steps.transfers import ANALYSIS, TRANSFER_SUMMARY, transfers
from stepscope.core.errors import MissingTable
from stepscope.core.schema import TRANSFERS
from stepscope.core.trace import Meta, Trace

SPANS_6 = spans_of(
    (STREAM_7, 0, 1_000, "Memcpy HtoD (Pageable -> Device)", "memcpy"),
    (STREAM_7, 2_000, 3_000, "Memcpy HtoD (Pinned -> Device)", "memcpy"),
    (STREAM_7, 6_000, 0, "Memcpy HtoD (Pinned -> Device)", "memcpy"),
    (STREAM_7, 7_000, 500, "Memset (Device)", "memset"),
    (STREAM_7, 8_000, 500, "CopyDeviceToHost", "memcpy"),
    (STREAM_7, 9_000, 500, "gemm", "kernel"),
)
SIZES = TRANSFERS.conform(
    pl.DataFrame(
        {
            "span_id": [0, 1, 2, 3, 4],
            "bytes": [1_000, 9_000, 50, 100, None],
            "kind": ["HtoD", "HtoD", "HtoD", "memset", "DtoH"],
            "src": ["Pageable", "Pinned", "Pinned", None, None],
            "dst": ["Device", "Device", "Device", None, None],
        }
    )
)


def test_bandwidth_is_bytes_by_time_of_transfers_that_have_both() -> None:
    got = transfers(SPANS_6, SIZES).row(0, named=True)
    assert (got["kind"], got["calls"], got["total_ns"], got["bytes"]) == ("HtoD", 3, 4_000, 10_050)
    assert got["bytes_per_s"] == pytest.approx(10_000 / 4e-6)
    assert got["min_bytes_per_s"] == pytest.approx(1e9)
    assert (got["max_bytes_per_s"], got["p50_bytes_per_s"]) == pytest.approx((3e9, 2e9))
    assert (got["mean_bytes"], got["max_bytes"], got["max_ns"]) == (3350.0, 9_000, 3_000)
    assert got["share_ratio"] == 0.8


def test_a_recorded_rate_is_preferred_for_single_transfers() -> None:
    recorded = SIZES.with_columns(recorded_bytes_per_s=pl.Series([5e9, None, 7e9, None, 0.0]))
    got = transfers(SPANS_6, recorded).row(0, named=True)
    assert (got["min_bytes_per_s"], got["max_bytes_per_s"], got["bytes_per_s"]) == pytest.approx((3e9, 7e9, 2.5e9))


def test_unknown_sizes_stay_unknown() -> None:
    got = transfers(SPANS_6, SIZES).row(by_predicate=pl.col("kind") == "DtoH", named=True)
    assert (got["bytes"], got["bytes_per_s"], got["max_bytes_per_s"], got["total_ns"]) == (None, None, None, 500)


def test_by_memory_tells_pageable_from_pinned() -> None:
    got = transfers(SPANS_6, SIZES, by="memory")
    assert got.select("kind", "src", "calls").rows() == [
        ("HtoD", "Pinned", 2),
        ("HtoD", "Pageable", 1),
        ("DtoH", None, 1),
        ("memset", None, 1),
    ]


def test_what_is_missing_or_unknown_is_said() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": SPANS_6, "tracks": TRACKS_5})
    with pytest.raises(MissingTable, match="transfers"):
        ANALYSIS(trace)
    got = ANALYSIS(trace.with_tables(transfers=SIZES))
    assert dict(got.schema) == {name: TRANSFER_SUMMARY.dtypes[name] for name in got.columns}
