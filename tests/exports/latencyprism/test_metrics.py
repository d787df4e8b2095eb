from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from stepscope.core.schema import COUNTERS
from stepscope.exports.latencyprism._metrics import cores_of, instanced, metrics

WINDOWS = pl.DataFrame({"cycle": [1, 2], "low": [0, 1000], "high": [1000, 2000]})


def event(start, end, *, cycle=1, kind="gpu_memcpy_h2d", device="gpu0", name="f", weight=None):
    weight = end - start if weight is None else weight
    return {
        "cycle": cycle, "pid": 42, "device": device, "name": name, "type": kind, "start": start, "end": end,
        "weight": weight,
    }  # fmt: skip


def samples(*values, metric="gpu_pcie_transmit", device="gpu0", pid=None):
    frame = pl.DataFrame(values, schema={"ts_ns": pl.Int64, "value": pl.Float64}, orient="row")
    return instanced(
        COUNTERS.conform(frame.with_columns(metric=pl.lit(metric), device=pl.lit(device), pid=pl.lit(pid, pl.Int64)))
    )


def only(events, sampled):
    found = metrics(pl.DataFrame(events), sampled, WINDOWS)
    assert found.height == 1
    row = found.row(0, named=True)
    return row["recorded_mu"] / 100, row["recorded_sigma"] / 100, row["sampled"]


def test_three_samples_during_an_event_give_their_mean():
    mu, sigma, sampled = only([event(100, 300)], samples((50, 9), (100, 1), (200, 2), (300, 6), (400, 9)))
    assert (mu, sampled) == (3, "all")
    assert sigma == pytest.approx(math.sqrt(14 / 3))


def test_else_the_line_through_the_samples_is_read_at_both_ends():
    assert only([event(100, 300)], samples((0, 0), (200, 20), (400, 0))) == (10, 0, "none")
    assert only([event(100, 200)], samples((0, 0), (200, 20))) == (15, 5, "none")


def test_beyond_the_samples_the_nearest_holds():
    assert only([event(100, 300)], samples((500, 7))) == (7, 0, "none")
    assert only([event(600, 900)], samples((500, 7), (550, 9))) == (9, 0, "none")
    assert only([event(600, 900)], samples((500, 7), (500, 9))) == (9, 0, "none")


def test_events_weigh_as_much_as_they_last():
    line = samples((0, 0), (1000, 100))
    mu, sigma, _ = only([event(0, 200), event(600, 1000, weight=600)], line)
    assert mu == pytest.approx((10 * 200 + 80 * 600) / 800)
    assert sigma == pytest.approx(math.sqrt((10**2 * 200 + 20**2 * 600) / 800))
    assert only([event(100, 100), event(300, 300)], line)[0] == pytest.approx(20)


def test_events_with_and_without_samples_of_their_own_are_told():
    line = samples((0, 0), (100, 1), (200, 2), (900, 9))
    assert only([event(0, 250), event(800, 900)], line)[2] == "some"


def test_only_samples_of_the_cycle_count():
    found = metrics(pl.DataFrame([event(100, 200), event(1100, 1200, cycle=2)]), samples((50, 7), (2500, 1)), WINDOWS)
    assert found.select("cycle", "recorded_mu").rows() == [(1, 700)]
    assert metrics(pl.DataFrame([event(1, 2)]), samples(), WINDOWS).is_empty()


def test_a_gpu_has_its_own_samples_or_those_of_no_one():
    mine = samples((0, 1.0))
    pooled = samples((0, 5.0), device="host")
    assert only([event(1, 2)], pl.concat([mine, pooled]))[0] == 1
    assert only([event(1, 2, device="gpu1")], pl.concat([mine, pooled]))[0] == 5
    assert metrics(pl.DataFrame([event(1, 2, device="gpu1")]), mine, WINDOWS).is_empty()


def test_a_process_has_its_own():
    both = [samples((0, pid), metric="process_cpu_usage", device=f"pid:{pid}", pid=pid) for pid in (42, 43)]
    found = metrics(pl.DataFrame([event(1, 2, kind="runq", device="host")]), pl.concat(both), WINDOWS)
    assert found.select("metric", "recorded_mu").rows() == [("process_cpu_usage", 42 / 8)]


@pytest.mark.parametrize(
    ("kind", "metric", "scale"),
    [
        ("gpu_compute", "gpu_usage", 1), ("gpu_compute", "gpu_sm_util", 1), ("gpu_compute", "gpu_frequency", 100),
        ("gpu_comm", "gpu_sm_occupancy", 1), ("gpu_comm", "gpu_frequency", None), ("cpu_sync", "gpu_usage", None),
        ("gpu_memcpy_d2d", "gpu_link_receive", 100), ("oncpu", "cpu_frequency", 100), ("runq", "cpu_frequency", None),
        ("disk_read_and_write", "disk_usage", 1),
    ],
)  # fmt: skip
def test_which_metric_goes_with_which_type(kind, metric, scale):
    found = metrics(pl.DataFrame([event(1, 2, kind=kind)]), samples((0, 7.0), metric=metric, device="host"), WINDOWS)
    assert found["recorded_mu"].to_list() == ([] if scale is None else [7.0 * scale])


@pytest.mark.parametrize(("used", "cores"), [([], 1), ([160.5], 8), ([1500.0, 900.0], 24), ([6400.0], 64)])
def test_cores_are_guessed_from_what_processes_used(used, cores):
    both = [samples((0, v), metric="process_cpu_usage", device=f"pid:{i}", pid=i) for i, v in enumerate(used)]
    assert cores_of(pl.concat([samples((0, 1.0)), *both])) == cores


def test_values_are_those_of_a_loop_over_events():
    rng = np.random.default_rng(3)
    starts = rng.integers(0, 900, 60)
    events = [event(int(s), int(s + rng.integers(0, 100)), name=f"f{i % 4}") for i, s in enumerate(starts)]
    times, values = np.sort(rng.choice(1000, 40, replace=False)), rng.normal(50, 20, 40)
    found = metrics(pl.DataFrame(events), samples(*zip(times.tolist(), values.tolist(), strict=True)), WINDOWS)
    for row in found.to_dicts():
        mine = [e for e in events if e["name"] == row["name"]]
        mus, sigmas = zip(*(slow(e["start"], e["end"], times, values) for e in mine), strict=True)
        weights = [e["weight"] for e in mine]
        assert row["recorded_mu"] == pytest.approx(100 * np.average(mus, weights=weights))
        assert row["recorded_sigma"] == pytest.approx(100 * math.sqrt(np.average(np.square(sigmas), weights=weights)))


def slow(start, end, times, values):
    inside = values[(times >= start) & (times <= end)]
    if inside.size >= 3:
        return inside.mean(), inside.std()
    ends = np.interp([start, end], times, values)
    return ends.mean(), abs(ends[1] - ends[0]) / 2
