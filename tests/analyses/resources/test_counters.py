from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.resources.counters import ANALYSIS, COUNTER_SUMMARY, counters
from stepscope.core.errors import MissingTable
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace


def samples(*rows: tuple[int, str, str, float | None]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["ts_ns", "device", "metric", "value"], orient="row")
    return COUNTERS.conform(frame.with_columns(unit=pl.lit("%")))


def test_a_sample_holds_until_the_next() -> None:
    got = counters(samples((0, "gpu0", "busy", 100.0), (90, "gpu0", "busy", 0.0), (100, "gpu0", "busy", 50.0)))
    assert got.row(0, named=True) == {
        "device": "gpu0", "device_id": None, "pid": None, "metric": "busy", "unit": "%", "n_samples": 3,
        "mean": 90.0, "min": 0.0, "p50": 50.0, "p95": 95.0, "max": 100.0, "first": 100.0, "last": 50.0,
        "first_ts_ns": 0, "last_ts_ns": 100,
    }  # fmt: skip
    assert dict(got.schema) == dict(COUNTER_SUMMARY.dtypes)


def test_without_time_between_samples_the_mean_is_plain() -> None:
    got = counters(samples((5, "host", "load", 3.0), (5, "gpu0", "busy", 1.0), (5, "gpu0", "busy", 2.0)))
    assert got.select("device", "mean", "n_samples").rows() == [("gpu0", 1.5, 2), ("host", 3.0, 1)]


def test_samples_without_a_number_are_left_out_and_order_does_not_matter() -> None:
    got = counters(
        samples(
            (20, "host", "load", 1.0),
            (15, "host", "load", float("nan")),
            (0, "host", "load", 2.0),
            (5, "host", "load", None),
        )
    )
    assert got.select("n_samples", "mean", "first", "last").row(0) == (2, 2.0, 2.0, 1.0)


def test_a_trace_without_counters_says_so() -> None:
    with pytest.raises(MissingTable, match="counters"):
        ANALYSIS(Trace(Meta("x", "kineto"), {}))


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-10, 10)), min_size=1, max_size=20, unique_by=lambda r: r[0]))
def test_the_mean_lies_between_the_extremes_and_weighs_time(rows: list[tuple[int, float]]) -> None:
    got = counters(samples(*((ts, "d", "m", value) for ts, value in rows))).row(0, named=True)
    rows = sorted(rows)
    if len(rows) > 1:
        each_ns = [v for (a, v), (b, _) in pairwise(rows) for _ in range(b - a)]
        assert got["mean"] == pytest.approx(sum(each_ns) / len(each_ns), abs=1e-9)
    assert got["min"] - 1e-9 <= got["mean"] <= got["max"] + 1e-9
