"""Real files of AMD's recorders: launches, copies, calls and counters as csv, json and sqlite3 count them."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.analyses.steps.timeline import ANALYSIS as TIMELINE
from stepscope.core.errors import StepscopeError, UnknownFormat
from stepscope.core.trace import extent_ns
from stepscope.readers import expand, open_trace

JSON = "nsight/rocprof/mi350x-908_results.json.gz"
LLAMA = "traces/more/rocprofv3-csv/llamacpp-prefill-gfx1151"
#: Every file of rocprof and rocprof-compute: spans by category, counter values; an error where there is no text.
FILES: dict[str, tuple[dict[str, int], int] | type[StepscopeError]] = {
    "nsight/rocprof/MI100-vcopy-pmc_perf.csv": ({"kernel": 3}, 3 * 949),
    "nsight/rocprof/MI100-vcopy-sysinfo.csv": UnknownFormat,
    "nsight/rocprof/MI100-vcopy-timestamps.csv": ({"kernel": 3}, 0),
    "nsight/rocprof/MI200-roofline-ceilings.csv": UnknownFormat,
    "nsight/rocprof/MI200-vcopy-pmc_perf.csv": ({"kernel": 3}, 3 * 972),
    "nsight/rocprof/MI200-vcopy-sysinfo.csv": UnknownFormat,
    "nsight/rocprof/MI200-vcopy-timestamps.csv": ({"kernel": 3}, 0),
    JSON: ({"kernel": 43_915}, 0),
    "nsight/rocprof/sdkdocs-counter_collection.csv": ({"kernel": 7}, 7),
    "nsight/rocprof/sdkdocs-hip_api_stats.csv": UnknownFormat,
    "nsight/rocprof/sdkdocs-hip_runtime_trace.csv": ({"runtime": 8}, 0),
    "nsight/rocprof/sdkdocs-hsa_api_trace.csv": ({"driver": 10}, 0),
    "nsight/rocprof/sdkdocs-kernel_trace.csv": ({"kernel": 7}, 0),
    "nsight/rocprof/sdkdocs-marker_api_trace.csv": ({"user_range": 5}, 0),
    "nsight/rocprof/sdkdocs-memory_copy_trace.csv": ({"memcpy": 2}, 0),
    f"{LLAMA}/prefill_fetch_counter_collection.csv": ({"kernel": 54}, 54),
    f"{LLAMA}/prefill_hip_api_trace.csv": ({"kernel": 1128, "runtime": 5}, 0),
    f"{LLAMA}/prefill_kernel_trace.csv": ({"kernel": 1128, "runtime": 5}, 0),
    f"{LLAMA}/prefill_stall_counter_collection.csv": ({"kernel": 54}, 540),
    "traces/more/rocm-rpd/matmul_result.rpd": ({"kernel": 29, "memcpy": 55, "memset": 1, "runtime": 125}, 0),
    "traces/more/rocm-rpd/vllm-fp8-mytrace.rpd.gz": (
        {"kernel": 8948, "memcpy": 1176, "runtime": 2852, "operator": 11_102, "user_range": 782}, 0,
    ),
    "traces/tracelens/rocprof/908_results.json.gz": ({"kernel": 43_915}, 0),
}  # fmt: skip


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if any(row.values())]


@pytest.mark.parametrize("path", FILES)
def test_every_file_loads_or_gives_the_error_it_deserves(shared: Path, path: str) -> None:
    expected = FILES[path]
    if isinstance(expected, type):
        with pytest.raises(expected) as caught:
            open_trace(str(shared / path))
        assert path in caught.value.message
        return
    trace = open_trace(str(shared / path))
    assert (dict(trace.spans.group_by("category").len().rows()), trace.kernel_metrics.height) == expected


def test_every_file_is_listed(shared: Path) -> None:
    folders = ("nsight/rocprof", "traces/more/rocprofv3-csv", "traces/more/rocm-rpd", "traces/tracelens/rocprof")
    files = [path for folder in folders for path in (shared / folder).rglob("*.*") if path.is_file()]
    found = {str(path.relative_to(shared)) for path in files if path.suffix not in (".md", ".txt")}
    # Made from an .rpd by its own converter, in Chrome's format.
    assert found - {"traces/more/rocm-rpd/matmul_result.json.gz"} == set(FILES)


def test_json_dispatches_are_those_that_json_holds(shared: Path) -> None:
    trace = open_trace(str(shared / JSON))
    with gzip.open(shared / JSON) as file:
        tool = json.load(file)["rocprofiler-sdk-tool"][0]
    dispatches: list[dict[str, Any]] = tool["buffer_records"]["kernel_dispatch"]
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in tool["kernel_symbols"]}
    durations = [d["end_timestamp"] - d["start_timestamp"] for d in dispatches]
    assert trace.spans["dur_ns"].sum() == sum(durations) == 4_441_741_378
    first, last = extent_ns(trace.spans)
    assert (last - first) / 1e6 == pytest.approx(15_122.023, abs=1e-3)
    counted = Counter(names[d["dispatch_info"]["kernel_id"]] for d in dispatches)
    assert dict(trace.spans.select(pl.col("name").cast(pl.String)).group_by("name").len().rows()) == counted
    assert trace.tracks.height == len({d["stream_id"]["handle"] for d in dispatches}) == 567
    side = trace.kernels.join(trace.spans.select("span_id", "dur_ns"), on="span_id")
    groups = [
        (*(ceil(i["grid_size"][a] / i["workgroup_size"][a]) for a in "xyz"), i["workgroup_size"]["x"], duration)
        for i, duration in zip((d["dispatch_info"] for d in dispatches), durations, strict=True)
    ]
    ours = side.select("grid_x", "grid_y", "grid_z", "block_x", "dur_ns").rows()
    assert sorted(ours) == sorted(groups)
    assert trace.devices.select(pl.exclude("^recorded_.*$")).rows()[1:] == [
        (1, "rocm", 0, "AMD Instinct MI350X", 256, 309_220_868_096, "gfx950")
    ]


def test_csv_launches_are_those_that_csv_holds(shared: Path) -> None:
    folder = shared / LLAMA
    rows = rows_of(folder / "prefill_kernel_trace.csv")
    trace = open_trace(str(folder / "prefill_kernel_trace.csv"))
    kernels = trace.spans.filter(pl.col("category") == "kernel").with_columns(pl.col("name").cast(pl.String))
    ours = sorted(kernels.select("name", "dur_ns", "correlation").rows())
    assert ours == sorted(
        (r["Kernel_Name"], int(r["End_Timestamp"]) - int(r["Start_Timestamp"]), int(r["Correlation_Id"])) for r in rows
    )
    calls = {int(r["Correlation_Id"]) for r in rows_of(folder / "prefill_hip_api_trace.csv")}
    assert kernels["launch_id"].count() == sum(int(r["Correlation_Id"]) in calls for r in rows) == 1124
    grids = sorted(trace.kernels.select("grid_x", "grid_y", "grid_z").rows())
    size = [[int(r[f"{what}_Size_{a}"]) for a in "XYZ"] for r in rows for what in ("Grid", "Workgroup")]
    assert grids == sorted(
        tuple(ceil(g / w) for g, w in zip(*pair, strict=True)) for pair in zip(size[::2], size[1::2], strict=True)
    )


def test_counters_are_those_that_csv_holds(shared: Path) -> None:
    for name in ("prefill_fetch_counter_collection.csv", "prefill_stall_counter_collection.csv"):
        trace = open_trace(str(shared / LLAMA / name))
        spans = trace.spans.select("span_id", pl.col("name").cast(pl.String))
        ours = trace.kernel_metrics.join(spans, on="span_id").select("name", pl.col("metric").cast(pl.String), "value")
        theirs = [
            (r["Kernel_Name"], r["Counter_Name"], float(r["Counter_Value"])) for r in rows_of(shared / LLAMA / name)
        ]
        assert sorted(ours.rows()) == sorted(theirs)


def test_a_folder_stands_for_its_three_runs(shared: Path) -> None:
    names = [Path(path).name for path in expand([str(shared / LLAMA)])]
    assert names == [
        "prefill_fetch_counter_collection.csv", "prefill_kernel_trace.csv", "prefill_stall_counter_collection.csv",
    ]  # fmt: skip


def test_rpd_holds_what_its_own_views_count(shared: Path) -> None:
    path = shared / "traces/more/rocm-rpd/matmul_result.rpd"
    trace = open_trace(str(path))
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    theirs = db.execute("SELECT kernelName, duration, gridX, gridY, gridz, workgroupX FROM kernel").fetchall()
    kernels = trace.spans.filter(pl.col("category") == "kernel").select(
        "span_id", pl.col("name").cast(pl.String), "dur_ns"
    )
    side = kernels.join(trace.kernels, on="span_id")
    assert sorted(side.select("name", "dur_ns", "grid_x", "grid_y", "grid_z", "block_x").rows()) == sorted(theirs)
    copies = db.execute("SELECT count(*), sum(size) FROM copyop").fetchone()
    moved = trace.transfers.filter(pl.col("kind") != "memset")
    assert (moved.height, moved["bytes"].sum()) == copies
    tied = trace.spans.filter(pl.col("launch_id").is_not_null()).height
    assert tied == db.execute("SELECT count(*) FROM rocpd_api_ops").fetchone()[0]


def test_time_divides_as_tracelens_says(shared: Path) -> None:
    """Its total is the recording's, from start to end of the tool; ours that of the device work."""
    folder = shared / "golden/tracelens/generated/rocprof"
    theirs = {row["type"]: float(row["time ms"]) for row in rows_of(folder / "gpu_timeline.csv")}
    classes = {row["op category"]: row for row in rows_of(folder / "kernel_summary_by_category.csv")}
    ours = TIMELINE(open_trace(str(shared / JSON))).row(0, named=True)
    assert ours["busy_ns"] / 1e6 == pytest.approx(theirs["busy_time"], rel=1e-6)
    assert ours["memcpy_ns"] / 1e6 == theirs["memory"]
    communication_us = float(classes["COMM"]["total_direct_kernel_time_ms"])  # whatever the heading says
    assert ours["communication_ns"] / 1e3 == pytest.approx(communication_us, rel=1e-6)
