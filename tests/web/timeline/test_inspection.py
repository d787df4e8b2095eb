from __future__ import annotations

import pytest
from web_traces import document, event, training, written

from stepscope import load
from stepscope.core.errors import UnknownName
from stepscope.web.timeline.drawing import shortened
from stepscope.web.timeline.inspection import matching_spans, span_details, statistics
from stepscope.web.timeline.scene import scene_of


@pytest.fixture
def scene(tmp_path):
    return scene_of(load(written(tmp_path / "t.json", training())))


def one(scene, category):
    return int(scene.trace.spans.filter(scene.trace.spans["category"] == category)["span_id"][0])


def test_details_of_a_kernel_lead_to_its_launch_and_operator(scene):
    details = span_details(scene, one(scene, "kernel"))
    assert {link["how"]: link["name"] for link in details["links"]} == {
        "launched by": "cudaLaunchKernel",
        "operator": "aten::mm",
    }
    facts = dict(details["facts"])
    assert facts["grid_x"] == "4"
    assert details["duration"] == "51 µs"
    assert details["stack"][-1] == "cudaLaunchKernel"


def test_details_of_an_operator_lead_to_its_kernels(scene):
    details = span_details(scene, one(scene, "operator"))
    assert [link["name"] for link in details["links"] if link["how"] == "device work"] == ["gemm_aten::mm"]
    assert dict(details["facts"])["input_shapes"] == "[[4,8],[8,2]]"
    assert all(link["depth"] is not None for link in details["links"])


@pytest.mark.parametrize("span", [-1, 10**9])
def test_details_of_no_span_are_refused(scene, span):
    with pytest.raises(UnknownName):
        span_details(scene, span)


def test_sums_over_a_range_are_cut_at_its_bounds(scene):
    spans = scene.trace.spans
    low, high = scene.first_ns + 30_000, scene.first_ns + 95_000
    details = statistics(scene, low, high)
    expected = {}
    for name, ts, dur in spans.select("name", "ts_ns", "dur_ns").rows():
        inside = min(ts + dur, high) - max(ts, low)
        if inside > 0:
            expected[name] = expected.get(name, 0) + inside
    from stepscope.core.units import duration

    assert {row["name"]: row["total"] for row in details["names"]} == {
        name: duration(ns) for name, ns in expected.items()
    }
    assert details["device_busy"] is not None
    assert details["names"][0]["own"] == details["names"][0]["total"]
    step = next(row for row in details["names"] if row["name"].startswith("ProfilerStep"))
    assert step["own"] == "–"
    only = statistics(scene, low, high, [int(spans["track_id"][0])])
    assert only["n_spans"] < details["n_spans"]
    assert statistics(scene, scene.last_ns + 5, scene.last_ns + 6)["n_spans"] == 0


def test_names_are_found_in_order_of_time(scene):
    details = matching_spans(scene, "GEMM_ATEN::mm")
    assert details["count"] == 3
    assert details["longest"] == 2
    times = [hit[2] for hit in details["hits"]]
    assert times == sorted(times)
    assert matching_spans(scene, "mm", exact=True)["count"] == 0
    assert matching_spans(scene, "aten::mm", exact=True)["count"] == 3
    assert matching_spans(scene, "gemm_aten::mm", exact=True)["n_names"] == 1
    assert matching_spans(scene, "nothing like it")["hits"] == []


def test_names_too_long_for_a_screen_are_cut():
    assert len(shortened("x" * 500)) == 400


def test_stacks_metrics_and_the_other_half_of_autograd_are_told(scene):
    import polars as pl

    from stepscope.core.schema import KERNEL_METRICS, STACKS

    trace, operator, kernel = scene.trace, one(scene, "operator"), one(scene, "kernel")
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [5], "frames": [["main.py(1)", "model.py(2)"]]}))
    ops = trace.ops.with_columns(stack_id=pl.lit(5, pl.UInt32), sequence=pl.lit(1, pl.Int64))
    metrics = KERNEL_METRICS.conform(
        pl.DataFrame({"span_id": [kernel], "metric": ["sm__busy"], "unit": ["%"], "value": [12.5]})
    )
    made = scene_of(trace.with_tables(stacks=stacks, ops=ops, kernel_metrics=metrics))
    details = span_details(made, operator)
    assert details["stack"] == ["main.py(1)", "model.py(2)"]
    assert "same autograd node" in {link["how"] for link in details["links"]}
    told = span_details(made, kernel)
    assert dict(told["facts"])["sm__busy"] == "12.5 %"
    assert told["stack"] == ["main.py(1)", "model.py(2)"]


def test_a_name_of_a_report_without_its_number_stands_for_all_that_have_one(tmp_path):
    content = training()
    kernels = [one for one in content["traceEvents"] if one.get("cat") == "kernel"]
    for i, kernel in enumerate(kernels):
        kernel["name"] = f"loop_fusion.{i % 2}"
    made = scene_of(load(written(tmp_path / "t.json", content)))
    assert matching_spans(made, "loop_fusion", exact=True)["n_names"] == 2
    assert matching_spans(made, "loop_fusion.1", exact=True)["n_names"] == 1


def test_nested_spans_of_a_category_count_once_on_each_track(tmp_path):
    events = [event("outer", 0, 100), event("inner", 10, 50), event("other thread", 20, 30, tid=2)]
    trace = load(written(tmp_path / "t.json", document(events)))
    made = scene_of(trace)
    row = statistics(made, made.first_ns, made.last_ns)["categories"][0]
    assert (row["name"], row["count"], row["total"]) == ("operator", 3, "130 µs")
