from __future__ import annotations

import polars as pl

from stepscope.readers.common.issues import IssueLog
from stepscope.readers.rocm.rocprof_build import build
from stepscope.readers.rocm.rocprof_records import AGENTS, CALLS, COPIES, DISPATCHES, METRICS, Records


def records(**given):
    tables = {"dispatches": DISPATCHES, "calls": CALLS, "copies": COPIES, "metrics": METRICS, "agents": AGENTS}
    return Records(**{name: tables[name].conform(pl.DataFrame(rows)) for name, rows in given.items()})


LAUNCH = {
    "start": 100, "end": 150, "name": "k", "agent": "4", "queue": 2, "dispatch": 1, "correlation": 9,
    "group_x": 256, "group_y": 1, "group_z": 1, "grid_x": 1000, "grid_y": 2, "grid_z": 1,
}  # fmt: skip


def test_grids_in_work_items_become_groups_with_a_last_one_that_is_not_full():
    tables, origin, timed = build(
        records(dispatches=[LAUNCH], agents=[{"agent": "4", "index": 1, "cu_count": 4}]), IssueLog()
    )
    assert tables["kernels"].select("grid_x", "grid_y", "block_x", "blocks_per_sm").rows() == [(4, 2, 256, 2.0)]
    assert (origin, timed) == (100, True)
    assert tables["devices"].select("device_id", "type", "index").rows() == [(0, "cpu", None), (1, "rocm", 1)]


def test_an_unknown_group_gives_an_unknown_grid():
    tables, _, _ = build(records(dispatches=[LAUNCH | {"group_x": 0, "group_y": None}]), IssueLog())
    assert tables["kernels"].select("grid_x", "grid_y", "grid_z").rows() == [(None, None, 1)]


def test_streams_are_tracks_and_queues_where_there_are_none():
    rows = [LAUNCH, LAUNCH | {"start": 200, "end": 210, "stream": 7, "dispatch": 2}]
    tables, _, _ = build(records(dispatches=rows), IssueLog())
    assert tables["tracks"].select("stream", "label").rows() == [(7, "stream 7"), (2, "queue 2")]


def test_copies_fills_and_calls_have_their_categories():
    given = records(
        copies=[
            {"start": 10, "end": 20, "kind": "CopyDeviceToHost", "agent": "4", "bytes": 8},
            {"start": 30, "end": 40, "kind": "FillBuffer", "agent": "4"},
        ],
        calls=[
            {"start": 1, "end": 2, "name": "a", "domain": "HIP_RUNTIME_API_EXT", "tid": 1},
            {"start": 3, "end": 4, "name": "b", "domain": "HSA_CORE_API", "tid": 1},
            {"start": 5, "end": 6, "name": "c", "domain": "ROCTX", "tid": 1},
            {"start": 7, "end": 8, "name": "aten::mm", "domain": "operator", "tid": 1, "shapes": "[[1]]"},
            {"start": 9, "end": 9, "name": "e", "domain": "RCCL_API", "tid": 1},
        ],
    )
    tables, _, _ = build(given, IssueLog())
    assert sorted(tables["spans"].select("name", "category").rows()) == [
        ("CopyDeviceToHost", "memcpy"), ("FillBuffer", "memset"), ("a", "runtime"), ("aten::mm", "operator"),
        ("b", "driver"), ("c", "user_range"), ("e", "other"),
    ]  # fmt: skip
    assert tables["transfers"].select("bytes", "kind").rows() == [(8, "DtoH"), (None, "memset")]
    assert tables["ops"]["input_shapes"].to_list() == ["[[1]]"]


def test_counters_of_launches_that_are_not_there_are_counted():
    log = IssueLog()
    metrics = [{"dispatch": 1, "metric": "X", "value": 1.0}, {"dispatch": 5, "metric": "X", "value": 2.0}]
    tables, _, _ = build(records(dispatches=[LAUNCH], metrics=metrics), log)
    assert tables["kernel_metrics"].select("span_id", "metric", "value").rows() == [(0, "X", 1.0)]
    assert ("unknown_dispatch", 1) in log.table().select("code", "count").rows()
