"""XPlane files against what XProf computes from them: kernels, operations of XLA, steps."""

from __future__ import annotations

import json
import math
from collections import Counter

import polars as pl
import pytest

import stepscope

TRACES, GOLDENS = "traces/tracelens/jax", "golden/tracelens/generated/xprof"
RUNS = ("jax_conv_minimal_08", "jax_conv_minimal_legacy", "te_fused_attn")
FILES = ("jax_conv_minimal_08_mi300", "jax_te_fused_attn_mi300", "tf_gpu_multiworker_179")


def rows_of(table):
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, [cell and cell["v"] for cell in row["c"]], strict=True)) for row in table["rows"]]


def of_xprof(path, folder, tool):
    """What XProf itself computes from a file; it writes next to what it reads."""
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    return json.loads(convert.xspace_to_tool_data([str(copy)], tool, {"use_saved_result": False})[0])


@pytest.fixture(params=RUNS + FILES)
def pair(request, shared, tmp_path):
    """A trace, and what gives the rows of a tool of XProf for it: as it once computed them, or does now."""
    if request.param in FILES:
        path = shared / "xplane" / f"{request.param}.xplane.pb"
        return stepscope.load(path), lambda tool: rows_of(of_xprof(path, tmp_path, tool))
    [path] = (shared / TRACES / request.param).glob("*.xplane.pb")
    folder = shared / GOLDENS / request.param
    return stepscope.load(path), lambda tool: rows_of(json.loads((folder / f"{tool}.json").read_bytes()))


def test_kernels_are_as_many_and_take_as_long_as_in_xprof(pair):
    trace, theirs_of = pair
    calls, times = Counter(), Counter()
    for row in theirs_of("kernel_stats"):  # a row for each kernel, launch and operation
        calls[row["kernel_name"]] += int(row["occurrences"])
        times[row["kernel_name"]] += row["total_duration_us"]
    kernels = trace.spans.filter(pl.col("category") == "kernel").group_by(pl.col("name").cast(pl.String))
    ours = {name: (n, ns / 1e3) for name, n, ns in kernels.agg(pl.len(), pl.col("dur_ns").sum()).rows()}
    assert {name: n for name, (n, _) in ours.items()} == dict(calls)
    assert all(math.isclose(ours[name][1], time, abs_tol=0.01) for name, time in times.items())


def test_operations_have_xprofs_counts_times_and_categories(pair):
    trace, theirs_of = pair
    work = trace.hlo_ops.join(trace.spans.filter(pl.col("category") == "kernel"), on="span_id")
    text = pl.col("operation", "recorded_category", "framework_op", "source").cast(pl.String)
    by_operation = work.with_columns(text).group_by("program_id", "operation")
    ours = {
        (str(row["program_id"]), row["operation"]): row
        for row in by_operation.agg(
            pl.len(), pl.col("dur_ns").sum(), pl.col("recorded_category", "framework_op", "source").first()
        ).to_dicts()
    }
    theirs = {(row["program_id"], row["hlo_op_name"]): row for row in theirs_of("hlo_stats")}
    assert set(ours) == set(theirs)
    for key, row in theirs.items():
        own = ours[key]
        assert (own["len"], own["recorded_category"]) == (row["occurrences"], row["category"])
        assert own["dur_ns"] / 1e3 == pytest.approx(row["total_time"], abs=0.01)
        if row["tf_op_name"]:
            assert own["framework_op"] == row["tf_op_name"].rstrip(":")
        if row["source_info"]:
            assert f">{own['source']}<" in row["source_info"]


def test_operators_of_tensorflow_take_as_long_as_in_xprof(shared, tmp_path):
    """Of the five hundred that XProf lists. It counts many calls twice, each of which is one event in the file."""
    path = shared / "xplane" / "tf_gpu_multiworker_179.xplane.pb"
    rows = rows_of(of_xprof(path, tmp_path, "framework_op_stats")[0])
    theirs = {row["operation"]: row for row in rows if row["host_or_device"] == "Host" and row["type"] != "IDLE"}
    spans = stepscope.load(path).spans.filter(pl.col("category").is_in(("operator", "dataloader")))
    name = pl.col("name").cast(pl.String).str.replace(r":\w+$", "")
    by_name = {n: row for n, *row in spans.group_by(name).agg(pl.len(), pl.col("dur_ns").sum() / 1e3).rows()}
    shared_names = theirs.keys() & by_name.keys()
    assert len(shared_names) >= len(theirs) - 2  # it strips what is behind the colons of `Iterator::Prefetch`
    for operation in shared_names:
        assert by_name[operation][1] == pytest.approx(theirs[operation]["total_time"], abs=0.01)
        assert theirs[operation]["occurrences"] in (by_name[operation][0], 2 * by_name[operation][0])


def test_steps_are_those_of_xprof(shared, tmp_path):
    checked = 0
    for path in sorted((shared / "xplane").glob("*.xplane.pb")):
        tables = of_xprof(path, tmp_path, "overview_page")
        steps = [row for table in tables if "cols" in table for row in rows_of(table) if "stepnum" in row]
        ours = stepscope.load(path).steps["dur_ns"].to_list()
        assert [ns / 1e6 for ns in ours] == pytest.approx([row["stepTimeMs"] for row in steps], abs=1e-5)
        checked += len(steps)
    assert checked
