from __future__ import annotations

import polars as pl
import pytest
from cycle_traces import GPU, MAIN, PID, STREAM, TRACKS_4, samples_of, spans_of, steps_of, trace_of

from stepscope import analyses
from stepscope.analyses.cycles.attribution import attribution
from stepscope.core.result_tables import ATTRIBUTION
from stepscope.core.schema import COUNTERS

SPANS = spans_of(
    (MAIN, 0, 400, "aten::mm", "operator"),
    (MAIN, 100, 10, "launch", "runtime"),
    (STREAM, 500, 600, "gemm", "kernel", "launch"),
    (MAIN, 1000, 100, "aten::mm", "operator"),
    (MAIN, 1200, 10, "launch", "runtime"),
    (STREAM, 1300, 100, "ncclAllReduce", "kernel", "launch"),
    (MAIN, 1500, 100, "read", "io"),
)
STEPS = steps_of((0, 1000), (1000, 1000))


def attributed(*samples, **options):
    counters = samples_of(*samples) if samples else COUNTERS.empty()
    return attribution(SPANS, TRACKS_4, STEPS, GPU, counters, **options)


def mu(frame, **keys):
    rows = frame.filter(pl.col(k) == v for k, v in keys.items())
    return rows["mu"].to_list()


def clock(*values, device="gpu3", metric="gpu_sm_frequency", unit="MHz"):
    return [(200 * i, device, metric, value, unit) for i, value in enumerate(values)]


def test_without_samples_each_function_has_one_row_without_a_metric():
    frame = attributed()
    assert frame.schema == ATTRIBUTION.empty().schema
    columns = ("cycle", "device", "name", "metric", "mu", "calls", "total_ns", "beta_ratio", "pid", "host", "category")
    assert frame.select(columns).rows() == [
        (0, "gpu3", "gemm", None, None, 1, 600, 0.6, PID, "box", "kernel"),
        (0, "host", "aten::mm", None, None, 1, 400, 0.4, PID, "box", "operator"),
        (0, "host", "launch", None, None, 1, 10, 0.01, PID, "box", "runtime"),
        (1, "gpu3", "ncclAllReduce", None, None, 1, 100, 0.1, PID, "box", "kernel"),
        (1, "host", "aten::mm", None, None, 1, 100, 0.1, PID, "box", "operator"),
        (1, "host", "read", None, None, 1, 100, 0.1, PID, "box", "io"),
        (1, "host", "launch", None, None, 1, 10, 0.01, PID, "box", "runtime"),
    ]


def test_mu_is_weighted_by_time_and_crosses_the_border_of_the_cycle():
    # Levels: 1000 at 600, 2000 at 800, 3000 at 1000, 4000 at 1200; the kernel runs from 500 to 1100.
    frame = attributed(*clock(0, 0, 0, 1000, 2000, 3000, 4000))
    row = frame.filter(pl.col("name") == "gemm").row(0, named=True)
    assert row["mu"] == pytest.approx((200 * 1000 + 200 * 2000 + 200 * 3000) / 600)
    assert row["sigma"] == pytest.approx(200 * (2 / 3) ** 0.5 * 5)
    assert (row["sampled"], row["resource"], row["unit"]) == ("all", "gpu3", "MHz")
    assert row["beta_ratio"] == 0.6


def test_a_function_that_no_sample_stands_for_has_no_value():
    frame = attributed(*clock(1000, 1000))
    assert frame.filter(pl.col("name") == "ncclAllReduce").select("metric", "mu").rows() == [(None, None)]
    assert mu(frame, name="gemm") == [None]


def test_events_between_samples_take_those_around_them():
    frame = attributed(*clock(5.0, 7.0, 9.0, device="host", metric="host_mem_available", unit="bytes"))
    launch = frame.filter(name="launch", cycle=0).row(0, named=True)
    assert (launch["mu"], launch["sampled"]) == (7.0, "none")
    assert frame.filter(name="aten::mm", cycle=0)["sampled"].to_list() == ["all"]


def test_some_events_with_samples_and_some_without():
    spans = spans_of((MAIN, 0, 50, "f", "operator"), (MAIN, 100, 50, "f", "operator"))
    samples = samples_of(*clock(1.0, 2.0, device="host", metric="m"))
    frame = attribution(spans, TRACKS_4, steps_of((0, 200)), GPU, samples)
    assert frame["sampled"].to_list() == ["some"]


def test_gpus_are_not_pooled():
    frame = attributed(*clock(*[1000] * 8), *clock(*[210] * 8, device="gpu4"))
    assert mu(frame, name="gemm") == [1000]
    assert frame.filter(pl.col("resource") == "gpu4").is_empty()


@pytest.mark.parametrize(
    ("device", "metric", "names"),
    [
        ("host", "host_cpu_usage", {"aten::mm", "launch", "read"}),
        (f"pid:{PID}", "process_cpu_usage", {"aten::mm", "launch", "read"}),
        (f"pid:{PID}", "process_gpu_usage", {"gemm", "ncclAllReduce"}),
        ("pid:9", "process_cpu_usage", set()),
        ("eth0", "net_recv_bytes_rate", {"ncclAllReduce"}),
        ("vda", "disk_read_bytes_rate", {"read"}),
        ("cpu1", "cpu_frequency", {"aten::mm", "launch", "read"}),
        ("gpu3", "gpu_temp", {"gemm", "ncclAllReduce"}),
        ("sensor", "room_temp", set()),
    ],
)
def test_functions_go_with_the_resources_that_bear_on_them(device, metric, names):
    frame = attributed(*clock(*[1.0] * 10, device=device, metric=metric))
    assert set(frame.filter(pl.col("metric").is_not_null())["name"]) == names


def test_processors_count_by_their_mean_unless_the_host_has_a_value():
    cores = [*clock(*[1.0] * 8, device="cpu0", metric="load"), *clock(*[3.0] * 8, device="cpu1", metric="load")]
    assert set(mu(attributed(*cores), name="aten::mm")) == {2.0}
    frame = attributed(*cores, *clock(*[9.0] * 8, device="host", metric="load"))
    assert set(mu(frame, name="aten::mm")) == {9.0}
    assert frame.height == 7


def test_rows_are_those_of_cycles_then_of_long_functions_then_of_metrics():
    frame = attributed(*clock(*[1.0] * 9, device="host", metric="b"), *clock(*[2.0] * 9, device="host", metric="a"))
    assert frame.filter(pl.col("cycle") == 0, pl.col("device") == "host").select("name", "metric", "mu").rows() == [
        ("aten::mm", "a", 2.0), ("aten::mm", "b", 1.0), ("launch", "a", 2.0), ("launch", "b", 1.0),
    ]  # fmt: skip


def test_samples_far_away_and_of_a_single_reading_give_nothing():
    frame = attributed((10**12, "host", "m", 1.0, "%"))
    assert frame["metric"].null_count() == frame.height


def test_the_analysis_takes_the_tables_of_a_trace():
    trace = trace_of(SPANS, steps=STEPS, counters=samples_of(*clock(*[1000] * 9)))
    analysis = analyses.find("attribution")
    assert analysis(trace).filter(pl.col("metric").is_not_null()).height == 2
    assert set(analysis(trace, anchor="aten::mm")["cycle"]) == {1, 2}
    assert attribution(SPANS, TRACKS_4, anchor="launch").height > 0
