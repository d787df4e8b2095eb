from __future__ import annotations

import json
import re

import polars as pl
import pytest
from web_traces import document, event, training, written
from windows_of import unpacked

from stepscope import load
from stepscope.core.errors import MissingTable
from stepscope.web.timeline.drawing import draw_window
from stepscope.web.timeline.scene import DRAWN, KINDS, LEGEND, layout, scene_of, without


@pytest.fixture
def trace(tmp_path):
    return load(written(tmp_path / "t.json", training()))


def test_every_span_keeps_its_name_and_category(trace):
    scene = scene_of(trace)
    names = [scene.names[code] for code in scene.codes]
    assert names == trace.spans["name"].cast(pl.String).to_list()
    assert scene.lanes.row.size == trace.spans.height


def test_collectives_and_calls_that_wait_are_drawn_as_the_bars_call_them(tmp_path):
    content = training(("aten::mm",), steps=1, kernel="ncclDevKernel_AllReduce")
    content["traceEvents"].append(event("cudaStreamSynchronize", 2_000, 5, "cuda_runtime"))
    scene = scene_of(load(written(tmp_path / "t.json", content)))
    drawn = {scene.names[code]: DRAWN[kind] for code, kind in zip(scene.codes, scene.categories, strict=True)}
    assert drawn["ncclDevKernel_AllReduce_aten::mm"] == "communication"
    assert drawn["cudaStreamSynchronize"] == "sync"
    assert drawn["cudaLaunchKernel"] == "runtime"
    labels = [kind["label"] for kind in layout(scene)["legend"]]
    assert {"communication", "synchronisation", "launches and runtime", "operators"} <= set(labels)
    assert "computation" not in labels


def test_every_category_has_one_place_in_the_legend():
    assert sorted(DRAWN) == sorted(one for _, _, categories in LEGEND for one in categories)


def test_what_is_hidden_leaves_its_lanes_to_the_rest(trace):
    scene = scene_of(trace)
    rest = without(scene, {"launches and runtime", "computation"})
    spans = trace.spans
    gone = spans.filter(pl.col("category").is_in(["runtime", "kernel"]))["span_id"]
    assert sorted(rest.lanes.row.tolist()) == sorted(set(range(spans.height)) - set(gone))
    assert len(rest.lanes) < len(scene.lanes)
    assert layout(rest)["legend"] == layout(scene)["legend"]
    assert not [group for group in layout(rest)["groups"] if group["label"].startswith("cuda")]


def test_nothing_is_left_where_all_is_hidden(trace):
    rest = without(scene_of(trace), KINDS)
    assert len(rest.lanes) == 0
    assert layout(rest)["groups"] == []
    assert unpacked(draw_window(rest, 0, 10**9, 100, [0, 1, 2], []))[0]["lanes"] == []


def test_tracks_of_a_group_have_names_of_their_own(tmp_path):
    content = training(steps=1)
    content["traceEvents"] += [
        event("forward", 1_000, 400, "gpu_user_annotation", 7, 0),
        *[event("f", 1_000, 5, tid=tid) for tid in (21, 22)],
        *[{"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": "pool"}} for tid in (21, 22)],
    ]
    groups = layout(scene_of(load(written(tmp_path / "t.json", content))))["groups"]
    for group in groups:
        labels = [track["label"] for track in group["tracks"]]
        assert len(set(labels)) == len(labels)
    assert [track["label"] for track in groups[0]["tracks"]] == ["stream 7", "stream 7 · ranges"]


def test_tracks_are_grouped_by_device_and_process_devices_first(trace):
    groups = layout(scene_of(trace))["groups"]
    assert groups[0]["label"] == "cuda:0 · NVIDIA <b>H100</b>"
    assert [track["label"] for track in groups[0]["tracks"]] == ["stream 7"]
    assert sum(track["spans"] for group in groups for track in group["tracks"]) == trace.spans.height


def test_labels_hold_nothing_that_changes_the_direction_of_text(tmp_path):
    content = training(("\u202eevil\x1b",))
    content["traceEvents"] += [
        {"ph": "M", "name": what, "pid": 1, "tid": 1, "args": {"name": "\u202eevil"}}
        for what in ("process_name", "thread_name")
    ]
    scene = scene_of(load(written(tmp_path / "\u202et.json", content)))
    drawn = json.dumps(layout(scene)) + str(unpacked(draw_window(scene, 0, 10**9, 100, [0, 1, 2], []))[0]["short"])
    assert "\\\\u202eevil" in drawn
    assert not re.search(r"(?<!\\)\\u202e", drawn)


def test_steps_bounds_and_memory_are_told(trace):
    shape = layout(scene_of(trace))
    assert [step[0] for step in shape["steps"]] == [0, 1, 2]
    assert shape["first_ns"] < shape["last_ns"]
    assert [line["label"] for line in shape["lines"]] == ["memory allocated, cuda:0", "memory reserved, cuda:0"]
    assert shape["lines"][1]["max"] == 4096


def test_spans_without_times_are_passed_over(trace):
    spans = trace.spans.with_columns(ts_ns=pl.when(pl.col("span_id") != 1).then("ts_ns"))
    scene = scene_of(trace.with_tables(spans=spans))
    assert sorted(scene.lanes.row.tolist()) == [i for i in range(trace.spans.height) if i != 1]


def test_counters_become_lines(trace):
    from stepscope.core.schema import COUNTERS

    rows = pl.DataFrame(
        {
            "ts_ns": [5, 1, 9],
            "device": ["gpu0"] * 3,
            "metric": ["power"] * 3,
            "unit": ["W"] * 3,
            "value": [2.0, 1.0, None],
        }
    )
    shape = scene_of(trace.with_tables(counters=COUNTERS.conform(rows), allocations=trace.allocations.clear())).lines
    assert [(line.label, line.unit, line.times.tolist(), line.values.tolist()) for line in shape] == [
        ("power, gpu0", "W", [1, 5], [1.0, 2.0])
    ]


def test_a_trace_without_spans_or_clock_is_refused(trace):
    with pytest.raises(MissingTable):
        scene_of(trace.with_tables(spans=trace.spans.clear()))
    with pytest.raises(MissingTable):
        scene_of(trace.with_tables(spans=trace.spans.with_columns(ts_ns=pl.lit(None, pl.Int64))))


def test_a_trace_of_one_instant_has_a_window(tmp_path):
    scene = scene_of(load(written(tmp_path / "t.json", document([event("a", 5, 0)]))))
    assert scene.last_ns > scene.first_ns
