from __future__ import annotations

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.device_utilisation import ANALYSIS, DEVICE_UTILISATION, device_utilisation
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import DEVICES, KERNELS, STEPS
from stepscope.core.trace import Meta, Trace

NO_STEPS, NO_LAUNCHES = STEPS.empty(), KERNELS.empty()
TENSOR_CORE = "ampere_s16816gemm"


def launches_of(*rows: tuple[int, float | None, float | None]) -> pl.DataFrame:
    """The table of launches from (span_id, blocks_per_sm, est_occupancy_ratio)."""
    schema = {"span_id": pl.UInt32, "blocks_per_sm": pl.Float64, "est_occupancy_ratio": pl.Float64}
    return KERNELS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def steps_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=("step", "ts_ns", "dur_ns"), orient="row")
    return STEPS.conform(frame.with_columns(rank=3, source=pl.lit("annotation")))


TWO_AT_ONCE = spans_of(
    kernel(STREAM_7, 0, 40, TENSOR_CORE),
    kernel(STREAM_7, 60, 20),
    (STREAM_7, 80, 20, "Memcpy HtoD", "memcpy"),
    kernel(STREAM_8, 20, 40),
)
LAUNCHES = launches_of((0, 0.5, 0.2), (1, 2.0, 0.6), (3, 0.75, None))


def only(frame: pl.DataFrame) -> dict[str, object]:
    assert frame.height == 1
    return frame.row(0, named=True)


def test_the_device_is_busy_while_any_kernel_runs() -> None:
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES))
    assert (got["device"], got["window_ns"], got["n_kernels"], got["busy_ratio"]) == ("cuda:0", 100, 3, 0.8)


def test_launches_at_the_same_time_fill_no_more_than_the_device() -> None:
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES))
    # 20 ns of one half, 20 of all (0.5 + 0.75), 20 of three quarters, 20 of all
    assert got["est_sm_efficiency_ratio"] == pytest.approx((20 * 0.5 + 20 + 20 * 0.75 + 20) / 100)


def test_occupancy_is_weighted_by_duration_over_kernels_that_have_one() -> None:
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES))
    assert got["est_occupancy_ratio"] == pytest.approx((40 * 0.2 + 20 * 0.6) / 60)


def test_time_on_matrix_units_is_a_part_of_the_summed_time_of_kernels() -> None:
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES))
    assert got["tensor_core_ratio"] == 0.4


def test_what_kernels_do_not_carry_is_unknown() -> None:
    mlu = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["mlu"], "index": [0]}))
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, mlu, NO_STEPS, NO_LAUNCHES))
    assert got["busy_ratio"] == 0.8
    for column in ("est_sm_efficiency_ratio", "est_occupancy_ratio", "tensor_core_ratio"):
        assert got[column] is None, column
    zeros = launches_of((0, 0.0, 0.0), (1, 0.0, 0.0))
    got = only(device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, zeros))
    assert (got["est_sm_efficiency_ratio"], got["est_occupancy_ratio"]) == (None, None)


def test_the_window_is_that_of_the_steps_on_the_side_of_the_device() -> None:
    steps = steps_of((1, 10, 40), (2, 50, 10))
    spans = TWO_AT_ONCE.with_columns(step=pl.lit(2, pl.Int32), launch_id=pl.lit(0, pl.UInt32))
    got = only(device_utilisation(spans, TRACKS_5, DEVICES_2, steps, LAUNCHES))
    assert (got["window_ns"], got["n_kernels"], got["busy_ratio"]) == (90, 2, 70 / 90)


def test_by_step_kernels_count_with_their_part_within_the_step() -> None:
    steps = steps_of((1, 0, 30), (2, 30, 30))
    got = device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, steps, LAUNCHES, by="step")
    assert got.select("step", "window_ns", "n_kernels").rows() == [(1, 30, 2), (2, 30, 0)]
    assert got["tensor_core_ratio"].to_list() == [30 / 40, 10 / 40]


def test_devices_have_rows_of_their_own_whatever_is_known_of_each() -> None:
    rows = (*((r[0], r[1], r[2], r[3], "kernel") for r in ((STREAM_7, 0, 10, "a"), (OTHER_DEVICE, 0, 40, "b"))),)
    one = DEVICES_2.filter(pl.col("device_id") == 0)
    got = device_utilisation(spans_of(*rows), TRACKS_5, one, NO_STEPS, launches_of((0, 1.0, 0.5)))
    assert got.select("device_id", "device", "busy_ratio", "est_occupancy_ratio", "tensor_core_ratio").rows() == [
        (0, "cuda:0", 0.25, 0.5, 0.0),
        (1, None, 1.0, None, None),
    ]


def test_the_curve_has_at_most_a_hundred_stretches_of_a_power_of_ten() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 1_000), kernel(STREAM_7, 250_000, 30_000))
    got = device_utilisation(spans, TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES, by="time")
    assert (got.height, got["window_ns"].unique().to_list()) == (28, [10_000])
    assert got["ts_ns"].to_list() == list(range(0, 280_000, 10_000))
    assert got["busy_ratio"].to_list() == [0.1, *[0.0] * 24, 1.0, 1.0, 1.0]
    assert got["tensor_core_ratio"].null_count() == 24


def test_the_length_of_stretches_can_be_chosen_within_reason() -> None:
    got = device_utilisation(TWO_AT_ONCE, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES, by="time", bucket_ns=40)
    assert got.select("ts_ns", "window_ns").rows() == [(0, 40), (40, 40), (80, 20)]
    long = spans_of(kernel(STREAM_7, 0, 10**12))
    with pytest.raises(StepscopeError, match="1,000,000") as caught:
        device_utilisation(long, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES, by="time", bucket_ns=1_000)
    assert caught.value.hint == "choose --bucket-ns of at least 1000000"
    with pytest.raises(StepscopeError, match="1,000,000"):
        device_utilisation(long, TRACKS_5, DEVICES_2, NO_STEPS, LAUNCHES, by="time", bucket_ns=0)


def test_windows_without_length_have_no_ratios() -> None:
    spans = spans_of(kernel(STREAM_7, 5, 0))
    got = only(device_utilisation(spans, TRACKS_5, DEVICES_2, NO_STEPS, launches_of((0, 1.0, 0.5))))
    assert (got["window_ns"], got["busy_ratio"], got["est_sm_efficiency_ratio"]) == (0, None, None)
    assert device_utilisation(spans, TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES, by="time").height == 1


def test_missing_kernels_and_unknown_groupings_are_refused() -> None:
    copies = spans_of((STREAM_7, 0, 5, "Memcpy HtoD", "memcpy"))
    with pytest.raises(MissingTable, match="device-utilisation needs kernels"):
        device_utilisation(copies, TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES)
    with pytest.raises(MissingTable, match="device work"):
        device_utilisation(spans_of((HOST, 0, 5, "a", "operator")), TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES)


@pytest.mark.parametrize("by", ["device", "step", "time"])
def test_the_analysis_returns_what_its_table_declares(by: str) -> None:
    tables = {"spans": TWO_AT_ONCE, "tracks": TRACKS_5, "devices": DEVICES_2, "kernels": LAUNCHES}
    got = ANALYSIS(Trace(Meta("x", "kineto"), tables), by=by)
    assert dict(got.schema) == {name: DEVICE_UTILISATION.dtypes[name] for name in got.columns}


some_kernels = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.sampled_from([0.25, 0.5, 3.0]), st.sampled_from([0.25, 0.75])),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@given(some_kernels, st.integers(0, 40), st.integers(1, 20))
def test_measures_equal_counting_each_nanosecond(
    some: list[tuple[int, int, float, float]], low: int, length: int
) -> None:
    some = sorted(some)
    spans = spans_of(*(kernel(STREAM_7, ts, dur, TENSOR_CORE if blocks > 1 else "b") for ts, dur, blocks, _ in some))
    launches = launches_of(*((i, blocks, share) for i, (_, _, blocks, share) in enumerate(some)))
    steps = steps_of((1, low, length))
    got = only(device_utilisation(spans, TRACKS_5, DEVICES_2, steps, launches, by="step"))
    high = low + int(str(got["window_ns"]))
    open_ = [[k for k in some if k[0] <= t < k[0] + k[1]] for t in range(low, high)]
    n = len(open_)
    assert got["busy_ratio"] == pytest.approx(sum(1 for at in open_ if at) / n)
    assert got["est_sm_efficiency_ratio"] == pytest.approx(sum(min(sum(k[2] for k in at), 1) for at in open_) / n)
    every = sum(len(at) for at in open_)
    if not every:
        assert (got["est_occupancy_ratio"], got["tensor_core_ratio"]) == (None, None)
        return
    assert got["est_occupancy_ratio"] == pytest.approx(sum(k[3] for at in open_ for k in at) / every)
    assert got["tensor_core_ratio"] == pytest.approx(sum(1 for at in open_ for k in at if k[2] > 1) / every)


@pytest.mark.slow
@given(some_kernels, st.integers(1, 30))
def test_the_curve_adds_up_to_the_whole(some: list[tuple[int, int, float, float]], bucket: int) -> None:
    spans = spans_of(*(kernel(STREAM_7, *k[:2]) for k in sorted(some)), (STREAM_8, 0, 60, "copy", "memcpy"))
    whole = only(device_utilisation(spans, TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES))
    curve = device_utilisation(spans, TRACKS_5, DEVICES_2, NO_STEPS, NO_LAUNCHES, by="time", bucket_ns=bucket)
    assert curve["window_ns"].sum() == whole["window_ns"]
    busy = (curve["busy_ratio"] * curve["window_ns"]).sum() / curve["window_ns"].sum()
    assert busy == pytest.approx(whole["busy_ratio"])
    assert curve["n_kernels"].sum() == whole["n_kernels"]
