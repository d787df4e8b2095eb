from __future__ import annotations

import paddle_profiles as made
import polars as pl
import pytest
from paddle_profiles import host, thread

from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.schema import STEP_COSTS, STEPS
from stepscope.core.trace import Run
from stepscope.exports import Context
from stepscope.exports.paddle_summary import (
    EXPORT,
    VIEWS,
    approximate_costs,
    costs_of_ranges,
    paddle_summary,
    perf_summary,
    summary,
)
from stepscope.readers import open_trace

TITLES = {
    "DeviceView": "Device Summary", "OverView": "Overview Summary", "ModelView": "Model Summary",
    "DistributedView": "Distribution Summary", "KernelView": "Kernel Summary", "OperatorView": "Operator Summary",
    "MemoryView": "Memory Summary", "MemoryManipulationView": "Memory Manipulation Summary",
    "UDFView": "UserDefined Summary",
}  # fmt: skip


def test_all_tables_in_paddles_order(trace):
    text = summary(trace())
    order = [text.index(f"-{TITLES[view]}") for view in (
        "DeviceView", "OverView", "ModelView", "DistributedView", "OperatorView", "KernelView",
        "MemoryManipulationView", "UDFView", "MemoryView",
    )]  # fmt: skip
    assert order == sorted(order)
    assert text.endswith("\n\n\n")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_alone(trace, view):
    text = summary(trace(), views=[view])
    assert [title for title in TITLES.values() if f"-{title}" in text] == [TITLES[view]]


@pytest.mark.parametrize("name", ["UDFView", "udf", "UDF_view", "memory_manipulation"])
def test_views_have_short_names_too(trace, name):
    assert "Summary--" in summary(trace(), views=[name])


@pytest.mark.parametrize("options", [{"time_unit": "min"}, {"sorted_by": "Name"}, {"views": ["pie"]}])
def test_unknown_options_are_named(trace, options):
    with pytest.raises(UnknownName):
        summary(trace(), **options)


def test_without_steps_only_devices_are_told(trace):
    found = trace(thread((0, host("op", made.OPERATOR, 0, 9))))
    assert summary(found).count("Summary") == 1
    assert summary(found, views=["operator"]) == "\n"
    with pytest.raises(MissingTable):
        approximate_costs(found)


def test_costs_of_steps_go_before_all_else(trace):
    nodes = [(0, host(f"ProfileStep#{i}", made.STEP, i * 10**9, (i + 1) * 10**9)) for i in range(12)]
    found = trace(thread(*nodes))
    text = summary(found, steps=approximate_costs(found))
    assert text.startswith("=" * 44 + "Perf Summary")
    assert text.endswith(summary(found))


def exported(run, **options):
    return paddle_summary(run, Context(lambda path: Run((path,), open_trace), print), **options)


def test_the_export_is_the_text_of_each_profile(trace):
    found = trace()
    run = Run(("a", "b"), lambda _: found)
    assert EXPORT.name == "paddle-summary"
    assert exported(run, time_unit="us") == 2 * summary(found, time_unit="us")
    assert exported(run, views="OverView, udf") == 2 * summary(found, views=["OverView", "UDFView"])


def test_the_export_takes_costs_of_steps_from_a_file_or_from_the_ranges(trace):
    found = trace()
    run = Run(("a",), lambda _: found)
    assert exported(run, approximate=True) == summary(found, steps=approximate_costs(found))
    costs = found.with_tables(step_costs=approximate_costs(found))
    run_of_costs = Run(("c",), lambda _: costs)
    text = paddle_summary(run, Context(lambda _: run_of_costs, print), steps="c")
    assert text == summary(found, steps=costs.step_costs)


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
