"""stepscope against counts of the raw files that share no line with it, and against recorders' own summaries.

`STEPSCOPE_SURFACES=all` compares every recording of the collection; without it, those that are quickly read.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

import independent_checks as checks
import independent_counts
import polars as pl
import pytest
from raw_work import measure, union

import stepscope

pytestmark = pytest.mark.exhaustive

EVERYTHING = os.environ.get("STEPSCOPE_SURFACES") == "all"
SMALL_BYTES = 200_000
COLLECTION = Path(__file__).parents[3] / "shared" / "data"
FOLDERS = ("ascend", "faultlab", "nsight", "paddle", "reference", "traces", "xplane")
RECORDINGS = re.compile(
    r"\.(sqlite|rpd|hatchet|pb)(\.gz)?$|prof[^/]*\.db$|trace[^/]*\.json(\.gz)?$|^traces/.*\.json(\.gz)?$"
    r"|(ncu-(csv|raw-derived)|rocprof[^/]*)/.*\.(csv|json\.gz)$|ncu-text/.*\.txt$|kernel_table[^/]*\.txt$"
)
#: Files of these names hold no device work and no steps, or only what another program made of them.
NO_RECORDINGS = re.compile(
    r"megatron_et_|communication|profiler_(info|metadata)|execution_details|labels|sysinfo|ceilings|step_trace_time"
    r"|kernel_details|api_(trace|stats)|runtime_trace|postprocessed|nopermission|nokernels|malformed|_[2-6]\.json"
)


def recordings() -> list[str]:
    """Paths below the collection, the quickly read ones only unless everything is asked for."""
    files = (path for folder in FOLDERS for path in sorted((COLLECTION / folder).rglob("*")) if path.is_file())
    names = {path: path.relative_to(COLLECTION).as_posix() for path in files}
    held = {path: name for path, name in names.items() if RECORDINGS.search(name) and not NO_RECORDINGS.search(name)}
    return [name for path, name in held.items() if EVERYTHING or path.stat().st_size < SMALL_BYTES]


@cache
def counted(path: Path):
    """The independent counts of a file."""
    return independent_counts.count(path)


@pytest.mark.parametrize("path", recordings(), ids=str)
def test_stepscope_counts_what_the_raw_file_holds(shared, path):
    theirs = counted(shared / path)
    assert theirs is not None
    known = [row for row in checks.known_differences() if row.covers(path)]
    if any(row.is_about("recording") for row in known):
        with pytest.raises(stepscope.StepscopeError):
            stepscope.load(shared / path)
        return
    ours = checks.of_stepscope(stepscope.load(shared / path))
    differences = checks.differences(ours, checks.of_oracle(theirs))
    assert {q: v for q, v in differences.items() if not any(row.is_about(q) for row in known)} == {}


def small_traces() -> list[str]:
    """Traces of a few events, of NVIDIA and Cambricon devices, that tests of the TensorBoard plugin hold."""
    files = sorted((COLLECTION / "golden" / "tbplugin-units").glob("*.json"))
    return [path.relative_to(COLLECTION).as_posix() for path in files if "trace" in json.loads(path.read_bytes())]


@pytest.mark.parametrize("path", small_traces(), ids=str)
def test_stepscope_counts_what_small_traces_hold(shared, tmp_path, path):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(json.loads((shared / path).read_bytes())["trace"]), encoding="utf-8")
    ours, theirs = checks.of_stepscope(stepscope.load(trace)), checks.of_oracle(independent_counts.count(trace))
    assert checks.differences(ours, theirs) == {}


def of_recorder(*, of: str) -> list[str]:
    """Recordings beside which the recorder left a summary with this part, whatever their size."""
    names = {
        "step_trace_time": "**/ASCEND_PROFILER_OUTPUT/trace_view.json*",
        "merged": "paddle/**/trace.*.gz",
        "gpu time": "**/*.rpd*",
    }
    return sorted(path.relative_to(COLLECTION).as_posix() for path in COLLECTION.glob(names[of]))


@pytest.mark.parametrize("path", of_recorder(of="step_trace_time"), ids=str)
def test_ascend_parts_of_a_step_are_those_of_its_own_table(shared, path):
    summary = counted(shared / path)["recorder"]
    theirs, tasks = summary["step_trace_time"], summary["kernel_details"]
    trace = stepscope.load(shared / path)
    [ours] = trace.show("timeline", by="device").to_dicts()
    work = trace.spans.filter(pl.col("category").is_in(["kernel", "memcpy"])).sort("ts_ns")
    kernels = work.filter(pl.col("category") == "kernel").with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns"))
    stage = kernels["end_ns"].max() - kernels["ts_ns"].min()  # copies before and after are in no stage of theirs
    free = stage - ours["computation_ns"] - ours["exposed_communication_ns"]
    assert kernels.height == tasks["kernels"]
    assert ours["computation_ns"] == pytest.approx(theirs["Computing"], rel=0.01)
    assert ours["communication_ns"] == pytest.approx(theirs["Communication"], rel=0.01)
    assert ours["exposed_communication_ns"] == pytest.approx(theirs["Communication(Not Overlapped)"], rel=0.01)
    assert free == pytest.approx(theirs["Free"], rel=0.01)


@pytest.mark.parametrize("path", of_recorder(of="merged"), ids=str)
def test_paddle_device_times_and_counts_are_those_of_its_own_summary(shared, path):
    theirs = counted(shared / path)["recorder"]
    trace = stepscope.load(shared / path)
    places = trace.tracks.join(trace.devices, on="device_id").select("track_id", "index")
    work = trace.spans.join(places, on="track_id")
    for kind, name in (("kernel", "Kernel"), ("memcpy", "Memcpy"), ("memset", "Memset")):
        own = work.filter(pl.col("category") == kind)
        assert own.height == theirs["calls"].get(name, 0)
        for index, times in theirs["merged"].items():
            rows = own.filter(pl.col("index") == int(index)).select("ts_ns", end_ns=pl.col("ts_ns") + pl.col("dur_ns"))
            assert measure(union(rows.rows())) == pytest.approx(times.get(name, 0), abs=1_000)
    assert trace.steps.height == theirs["calls"]["ProfileStep"]


@pytest.mark.parametrize("path", of_recorder(of="gpu time"), ids=str)
def test_rocm_device_times_are_those_of_the_views_of_its_database(shared, path):
    theirs = counted(shared / path)["recorder"]
    table = stepscope.load(shared / path).show("kernels", include="device")
    assert table["total_ns"].sum() == sum(theirs["gpu time"].values())
    ours = dict(zip(table["name"].cast(str), table.select("calls", "total_ns").rows(), strict=True))
    for name, calls, total_us in theirs["top, us"]:
        assert ours[name][0] == calls
        assert ours[name][1] == pytest.approx(total_us * 1_000, abs=1_000)


@pytest.mark.parametrize("row", checks.known_differences(), ids=lambda row: row.recordings)
def test_a_known_difference_is_still_one(shared, row):
    sizes = {path: path.stat().st_size for path in sorted(shared.rglob("*")) if path.is_file()}
    paths = [path for path in sorted(sizes, key=sizes.get) if row.covers(path.relative_to(shared).as_posix())]
    assert any(differs(row, path) for path in paths)


def differs(row: checks.Known, path: Path) -> bool:
    """Whether the recording has the difference."""
    if row.is_about("recording"):
        with pytest.raises(stepscope.StepscopeError):
            stepscope.load(path)
        return True
    ours, theirs = checks.of_stepscope(stepscope.load(path)), checks.of_oracle(counted(path))
    if row.is_about("free"):
        ours["free"], theirs["free"] = ours["device 0 idle"], counted(path)["recorder"]["step_trace_time"]["Free"]
    return any(row.is_about(quantity) for quantity in checks.differences(ours, theirs))


def test_the_docs_list_every_known_difference():
    page = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert f"\n\n{checks.as_markdown(checks.known_differences())}\n\n" in page
