from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import GEMM, NORM, POINTWISE, percents, spans_of

from stepscope.analyses.kernels.utilisation import ANALYSIS, UTILISATION, utilisation, with_limits
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import KERNEL_METRICS
from stepscope.core.trace import Meta, Trace

SPANS_4 = spans_of((GEMM, 60_000), (POINTWISE, 20_000), (POINTWISE, 15_000), (NORM, 5_000))
METRICS_4 = percents(tensor=[60, 0, 0, 0], dram=[20, 50, 9, 5])


def only(frame: pl.DataFrame) -> dict[str, object]:
    assert frame.height == 1
    return frame.row(0, named=True)


def test_ratios_are_weighted_by_time_and_the_plain_means_stand_beside() -> None:
    got = only(utilisation(SPANS_4, METRICS_4))
    assert (got["calls"], got["n_names"], got["total_ns"], got["share_ratio"]) == (4, 3, 100_000, 1.0)
    assert got["tensor_ratio"] == pytest.approx(0.36)
    assert got["dram_ratio"] == pytest.approx(0.6 * 0.2 + 0.2 * 0.5 + 0.15 * 0.09 + 0.05 * 0.05)
    assert got["max_ratio"] == pytest.approx(0.6 * 0.6 + 0.2 * 0.5 + 0.15 * 0.09 + 0.05 * 0.05)
    assert (got["plain_tensor_ratio"], got["plain_dram_ratio"]) == (pytest.approx(0.15), pytest.approx(0.21))
    assert (got["sm_ratio"], got["plain_sm_ratio"]) == (None, None)


def test_time_in_which_nothing_is_used() -> None:
    got = only(utilisation(SPANS_4, METRICS_4))
    assert (got["low_calls"], got["low_ratio"]) == (2, 0.2)
    assert only(utilisation(SPANS_4, METRICS_4, low=0.09))["low_calls"] == 1
    assert [got[f"thirds_{name}_ratio"] for name in ("low", "dram_low", "tensor_low", "high")] == [0.2, 0.6, 0.2, 0.0]
    assert (got["tensor_half_ratio"], got["dram_half_ratio"], got["both_half_calls"]) == (0.6, 0.2, 0)


def test_durations() -> None:
    got = only(utilisation(SPANS_4, METRICS_4))
    names = ("mean_ns", "min_ns", "p10_ns", "p50_ns", "p90_ns", "max_ns")
    assert [got[name] for name in names] == [25_000, 5_000, 5_000, 17_500, 60_000, 60_000]
    assert (got["under_10us_calls"], got["under_10us_ratio"]) == (1, 0.05)
    assert (got["under_20us_calls"], got["under_20us_ratio"]) == (2, 0.2)


def test_the_utilisation_that_most_of_the_time_stays_below() -> None:
    got = only(utilisation(SPANS_4, METRICS_4))
    assert [got[f"max_{q}_ratio"] for q in (50, 60, 70, 80, 90)] == [0.6] * 5
    short = spans_of((GEMM, 40), (POINTWISE, 20), (POINTWISE, 20), (NORM, 20))
    got = only(utilisation(short, METRICS_4))
    assert [got[f"max_{q}_ratio"] for q in (50, 60, 70)] == [0.5, 0.5, 0.6]


def test_by_class_and_name() -> None:
    got = utilisation(SPANS_4, METRICS_4, by="class")
    assert got.select("kernel_class", "total_ns", "tensor_ratio").rows() == [
        ("gemm", 60_000, 0.6), ("elementwise", 35_000, 0.0), ("norm", 5_000, 0.0),
    ]  # fmt: skip
    assert utilisation(SPANS_4, METRICS_4, by="name")["name"].to_list() == [GEMM, POINTWISE, NORM]


def test_the_curve_goes_by_whole_percents() -> None:
    got = utilisation(SPANS_4, METRICS_4, by="curve")
    assert got.height == 101
    assert got.filter(pl.col("share_ratio").diff() > 0).select("up_to_ratio", "calls", "share_ratio").rows() == [
        (0.05, 1, 0.05), (0.09, 2, 0.2), (0.5, 3, 0.4), (0.6, 4, 1.0),
    ]  # fmt: skip
    assert got["share_ratio"].to_list()[:5] == [0.0] * 5


def test_what_was_not_measured_is_unknown_and_not_zero() -> None:
    got = only(utilisation(SPANS_4, percents(sm=[50, None, None, None])))
    assert (got["sm_ratio"], got["max_ratio"]) == (0.5, 0.5)
    assert [got[c] for c in ("tensor_ratio", "low_ratio", "low_calls", "tensor_half_ratio", "thirds_low_ratio")] == [
        None
    ] * 5


def test_wrong_options_and_lacking_data_are_refused() -> None:
    with pytest.raises(StepscopeError, match="low is 10"):
        utilisation(SPANS_4, METRICS_4, low=10)
    with pytest.raises(MissingTable, match="utilisation needs utilisation of kernels"):
        utilisation(SPANS_4, KERNEL_METRICS.empty())


def test_the_analysis_returns_what_its_table_declares_without_a_clock() -> None:
    trace = Trace(Meta("x", "ncu-csv"), {"spans": SPANS_4, "kernel_metrics": METRICS_4})
    for by in ("all", "class", "name", "curve"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: UTILISATION.dtypes[name] for name in got.columns}


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=30))
def test_the_curve_agrees_with_counting(rows) -> None:
    spans = spans_of(*[(GEMM, duration) for duration, _, _ in rows])
    metrics = percents(tensor=[t for _, t, _ in rows], dram=[d for _, _, d in rows])
    curve = utilisation(spans, metrics, by="curve")
    whole = sum(duration for duration, _, _ in rows)
    expected = [sum(duration for duration, t, d in rows if max(t, d) <= percent) / whole for percent in range(101)]
    assert curve["share_ratio"].to_list() == pytest.approx(expected)


def test_over_time_kernels_lie_end_to_end_in_stretches_of_one_length() -> None:
    got = utilisation(SPANS_4, METRICS_4, by="time", stretches=4)
    assert got.columns == [
        "from_ns", "kernel_class", "calls", "total_ns", "tensor_ratio", "dram_ratio", "sm_ratio", "max_ratio",
    ]  # fmt: skip
    assert got.select("from_ns", "total_ns", "calls", "kernel_class").rows() == [
        (0, 25_000, 1, "gemm"), (25_000, 25_000, 0, "gemm"), (50_000, 25_000, 1, "elementwise"),
        (75_000, 25_000, 2, "elementwise"),
    ]  # fmt: skip
    assert got["tensor_ratio"].to_list() == pytest.approx([0.6, 0.6, 0.6 * 10 / 25, 0.0])
    assert got["dram_ratio"].to_list() == pytest.approx([0.2, 0.2, (2 + 7.5) / 25, (2.5 + 0.09 * 15 + 0.25) / 25])
    assert got["sm_ratio"].null_count() == 4


def test_over_time_what_was_not_measured_is_left_out_of_means() -> None:
    spans = spans_of((GEMM, 10), (POINTWISE, 10), (POINTWISE, 0), (POINTWISE, None), (NORM, 20))
    got = utilisation(spans, percents(tensor=[50, None, 90, 90, None], dram=[10] * 5), by="time", stretches=2)
    assert got.select("tensor_ratio", "dram_ratio").rows() == [(0.5, 0.1), (None, 0.1)]


def test_more_stretches_than_nanoseconds_are_not_made() -> None:
    assert utilisation(spans_of((GEMM, 3)), percents(dram=[10]), by="time")["total_ns"].to_list() == [1, 1, 1]
    assert utilisation(spans_of((GEMM, 0)), percents(dram=[10]), by="time").is_empty()
    for n in (0, 2_000_000):
        with pytest.raises(StepscopeError, match=f"stretches is {n}"):
            utilisation(SPANS_4, METRICS_4, by="time", stretches=n)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0, 40, 100])), min_size=1, max_size=12).filter(
        lambda rows: sum(t for t, _ in rows) > 0 and any(v is not None for _, v in rows)
    ),
    st.integers(1, 12),
)
def test_over_time_agrees_with_a_count_of_nanoseconds(rows, n) -> None:
    spans = spans_of(*((GEMM, t) for t, _ in rows))
    got = utilisation(spans, percents(dram=[v for _, v in rows]), by="time", stretches=n)
    each = [v for t, v in rows for _ in range(t)]
    for start, length, mean in got.select("from_ns", "total_ns", "dram_ratio").rows():
        known = [v / 100 for v in each[start : start + length] if v is not None]
        assert mean == (pytest.approx(sum(known) / len(known)) if known else None)
    assert got["total_ns"].sum() == len(each)


@pytest.mark.parametrize(
    ("tensor", "dram", "sm", "limit"),
    [
        (None, 0.9, 0.3, ("memory", True)), (0.1, 0.6, 0.5, ("memory", False)), (0.85, 0.4, 0.2, ("compute", True)),
        (None, 0.4, 0.6, ("compute", False)), (0.2, 0.59, 0.59, ("latency", False)), (None, None, 0.9, (None, False)),
        (None, 0.9, None, (None, False)),
    ],
)  # fmt: skip
def test_what_limits_a_kernel_is_its_busiest_unit_or_waiting(tensor, dram, sm, limit) -> None:
    columns = ("tensor_ratio", "dram_ratio", "sm_ratio")
    row = pl.DataFrame([(tensor, dram, sm)], dict.fromkeys(columns, pl.Float64), orient="row")
    assert with_limits(row).select("limit", "near_limit").row(0) == limit
