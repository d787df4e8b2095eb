from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import host, thread

from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.trace import Run
from stepscope.exports.export import Context
from stepscope.exports.paddle_summary import EXPORT, VIEWS, approximate_costs, paddle_summary, summary
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
