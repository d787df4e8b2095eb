from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.schema import STEP_COSTS, STEPS
from stepscope.exports.paddle_summary._perf import costs_of_ranges, perf_summary


def costs(steps, readers=(), samples=None, source="timer"):
    rows = [("step", i, cost, samples, source) for i, cost in enumerate(steps)]
    rows += [("reader", n, cost, None, source) for cost, n in readers]
    return pl.DataFrame(rows, schema=dict(STEP_COSTS.dtypes), orient="row")


def cells(text, name):
    line = next(line for line in text.splitlines() if f" {name} " in line)
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_ten_steps_are_too_few():
    assert perf_summary(costs([1.0] * 10)) == ""


def test_one_value_more_is_summed_than_is_divided_by():
    text = perf_summary(costs([9.0] * 9 + [0.25, 0.5, 0.125]))
    assert cells(text, "batch_cost") == ["0.43750", "0.50000", "0.12500"]
    assert cells(text, "ips") == ["2.28571", "8.00000", "2.00000"]
    assert "IPS Unit: steps/s" in text
    assert "reader" not in text.lower()
    assert text.startswith("=" * 44 + "Perf Summary" + "=" * 44 + "\n")


def test_the_first_value_is_never_a_minimum():
    text = perf_summary(costs([9.0] * 9 + [0.25, 0.5, 0.75]))
    assert cells(text, "batch_cost")[1:] == ["0.75000", "inf"]
    assert cells(text, "ips")[1:] == ["4.00000", "1.33333"]


def test_samples_are_told_if_every_step_has_them():
    rows = costs([1.0] * 9 + [0.25, 0.75], samples=8)
    assert cells(perf_summary(rows), "ips") == ["16.00000", "32.00000", "10.66667"]
    assert "IPS Unit: samples/s" in perf_summary(rows)
    assert "IPS Unit: images/s" in perf_summary(rows, "images")
    some = rows.with_columns(n_samples=pl.when(pl.col("n_before") > 0).then("n_samples"))
    assert "IPS Unit: steps/s" in perf_summary(some)


def test_reading_counts_from_the_tenth_step_on():
    text = perf_summary(costs([1.0] * 12, readers=[(5.0, 9), (0.25, 10), (0.125, 11)]))
    assert cells(text, "reader_cost") == ["0.18750", "0.25000", "0.12500"]
    assert text.splitlines()[1] == "Reader Ratio: 12.500%"


def test_no_time_at_all_divides_by_nothing():
    assert cells(perf_summary(costs([0.0] * 12)), "ips") == ["0.00000", "0.00000", "inf"]


def test_ranges_of_steps_stand_in_and_it_is_said():
    steps = pl.DataFrame({"step": range(12), "ts_ns": [i * 10**9 for i in range(12)], "dur_ns": [9 * 10**8] * 12})
    found = costs_of_ranges(STEPS.conform(steps))
    assert found["cost_s"].to_list() == [1.0] * 11 + [pytest.approx(0.9)]
    assert "Approximated" in perf_summary(found)
    assert "Approximated" not in perf_summary(costs([1.0] * 12))
