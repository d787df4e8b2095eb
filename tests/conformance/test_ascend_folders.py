"""Folders of Ascend's profilers: what the tables say, against the vendor's own tables in the same folder."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from contextlib import closing
from itertools import pairwise

import polars as pl
import pytest

import stepscope

pytestmark = pytest.mark.conformance
RUNS = [f"{form}/level{level}/rank{rank}_ascend_pt" for form in ("text", "db") for level in (0, 1) for rank in (0, 1)]
KERNELS_ALONE = ["four-ranks/rank_0_ascend_pt", "four-ranks/rank_2_ascend_pt"]
TEXTS = [run for run in RUNS if run.startswith("text/level1")] + KERNELS_ALONE
#: Parts of a collective's time as communication.json calls them, and as the counters do.
PARTS = {"Elapse Time(ms)": "elapse", "Transit Time(ms)": "transit", "Wait Time(ms)": "wait", "Idle Time(ms)": "idle"}


def loaded(shared, run):
    return stepscope.load(shared / "ascend" / run)


def output(shared, run, name):
    return (shared / "ascend" / run / "ASCEND_PROFILER_OUTPUT" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("run", [*RUNS, *KERNELS_ALONE])
def test_the_report_finds_the_step_times_of_the_profiler_equal(shared, run):
    trace = loaded(shared, run)
    assert trace.show("step_trace_time").height == 1
    assert not [line for line in trace.report().quality if "own step times" in line]


def test_step_times_that_differ_are_named_in_one_line(shared, tmp_path):
    for name in ("trace_view.json", "step_trace_time.csv"):
        text = output(shared, "text/level1/rank0_ascend_pt", name).replace("25744.05", "26744.05")
        (tmp_path / name).write_text(text)
    (line,) = [line for line in stepscope.load(tmp_path).report().quality if "own step times" in line]
    assert "free time in step 50 26.7 ms; here it is 25.7 ms" in line


@pytest.mark.parametrize("run", TEXTS)
def test_kernels_by_type_are_the_rows_of_op_statistic(shared, run):
    theirs = {
        (row["OP Type"], row["Core Type"]): (int(row["Count"]), float(row["Total Time(us)"]))
        for row in csv.DictReader(output(shared, run, "op_statistic.csv").splitlines())
    }
    rows = loaded(shared, run).show("kernels", by="type").filter(~pl.col("communication"))
    ours = {(row["type"], row["core"]): (row["calls"], row["total_ns"] / 1000) for row in rows.iter_rows(named=True)}
    assert ours.keys() == theirs.keys()
    assert all(ours[key] == pytest.approx(theirs[key], abs=0.02) for key in theirs)


@pytest.mark.parametrize("run", TEXTS)
def test_collectives_have_the_times_and_links_of_communication_json(shared, run):
    trace = loaded(shared, run)
    spans = trace.spans.select("span_id", pl.col("name").cast(pl.String))
    counters = trace.kernel_metrics.join(spans, on="span_id").with_columns(pl.col("metric").cast(pl.String))
    ours = {(name, metric): value for name, metric, value in counters.select("name", "metric", "value").rows()}
    (step,) = json.loads(output(shared, run, "communication.json")).values()
    n_linked, moved = 0, {"HCCS": 0.0, "PCIE": 0.0, "RDMA": 0.0}
    totals = dict.fromkeys(PARTS.values(), 0.0)
    for key, record in (step["collective"] | step["p2p"]).items():
        name = key.partition("@")[0]
        if name == "Total Op Info":
            continue
        for part, metric in PARTS.items():
            value = record["Communication Time Info"][part] * 1e6
            assert ours[name, metric] == pytest.approx(value, abs=1)
            totals[metric] += value
        for link in moved:
            size = record["Communication Bandwidth Info"][link]["Transit Size(MB)"] * 1e6
            n_linked += size > 0
            moved[link] += size
            assert ours.get((name, f"{link} size"), 0) == pytest.approx(size, abs=1)
    assert n_linked
    table = trace.show("communication").select(pl.col("total_ns", "transit_ns", "wait_ns").sum()).row(0)
    assert table == pytest.approx((totals["elapse"], totals["transit"], totals["wait"]), abs=1000)
    by_link = trace.show("communication", by="link").group_by(pl.col("link").cast(pl.String)).agg(pl.col("bytes").sum())
    assert dict(by_link.rows()) == pytest.approx({link: size for link, size in moved.items() if size}, abs=10)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_database_of_results_gives_the_same_as_the_file(shared, rank):
    run = f"four-ranks/rank_{rank}_ascend_pt"
    path = shared / "ascend" / run / "ASCEND_PROFILER_OUTPUT"
    database, text = stepscope.load(path / "analysis.db"), stepscope.load(path / "communication.json")
    for name in ("communication_time", "communication_links", "communication_matrix"):
        rows = [trace.results[name].frame.drop("start_ns", strict=False) for trace in (database, text)]
        keys = [c for c in rows[0].columns if not c.endswith(("_ns", "_s", "bytes", "_ratio"))]
        mine, theirs = (frame.with_columns(pl.col(keys).cast(pl.String)).sort(keys) for frame in rows)
        assert mine.select(keys).equals(theirs.select(keys), null_equal=True), name
        numbers = [c for c in mine.columns if c.endswith(("_ns", "bytes"))]
        for column in numbers:
            assert mine[column].to_list() == pytest.approx(theirs[column].to_list(), abs=2), (name, column)
    with closing(sqlite3.connect(path / "analysis.db")) as db:
        (elapse,) = db.execute("SELECT sum(elapse_time) FROM CommAnalyzerTime").fetchone()
    assert database.show("communication_time")["elapse_ns"].sum() == pytest.approx(elapse * 1e6, abs=100)


@pytest.mark.parametrize(("level", "rank"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_both_forms_of_a_run_have_the_same_tables(shared, level, rank):
    text, database = (loaded(shared, f"{form}/level{level}/rank{rank}_ascend_pt") for form in ("text", "db"))
    for by in ("name", "type"):
        keys = ["name"] if by == "name" else ["type", "core"]
        mine, theirs = (set(trace.show("kernels", by=by).select(*keys, "calls").rows()) for trace in (text, database))
        assert mine == theirs
    operators = [dict(trace.show("operators").select("name", "calls").rows()) for trace in (text, database)]
    assert operators[0] == operators[1]
    talks = [trace.show("communication").select("collective", "calls", "in_bytes").rows() for trace in (text, database)]
    assert talks[0] == talks[1]
    components = [
        {re.sub(r"^(?:APP|Device)/.*", "", str(m)) for m in trace.counters.filter(pl.col("unit") == "bytes")["metric"]}
        for trace in (text, database)
    ]
    assert components[0] == components[1]
    blocks = [
        trace.show("memory").select("n_allocations", "n_frees", "requested_bytes").rows() for trace in (text, database)
    ]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("form", ["text", "db"])
def test_the_longest_part_of_the_critical_path_is_the_collective_that_the_host_waits_for(shared, form):
    path = loaded(shared, f"{form}/level1/rank0_ascend_pt").show("critical-path")
    assert path.row(0, named=True)["kind"] == "communication"
    assert path["share_ratio"][0] > 0.6


def test_four_folders_are_four_ranks(shared):
    run = stepscope.load_run(shared / "ascend" / "four-ranks")
    assert sorted(trace.rank for trace in run) == [0, 1, 2, 3]
    assert {trace.meta.world_size for trace in run} == {4}


@pytest.mark.parametrize("run", TEXTS)
def test_memory_of_components_is_that_of_the_profilers_tables(shared, run):
    counters = loaded(shared, run).counters.with_columns(pl.col("metric").cast(pl.String))
    ours = dict(counters.group_by("metric").agg(pl.col("value").max()).rows())
    kinds = {"allocated": "Total Allocated(MB)", "reserved": "Total Reserved(MB)", "active": "Total Active(MB)"}
    for file, suffix in (("memory_record.csv", ""), ("npu_module_mem.csv", " module")):
        theirs: dict[str, float] = {}
        for row in csv.DictReader(output(shared, run, file).splitlines()):
            for kind, column in kinds.items():
                name, value = f"{row['Component']}{suffix} {kind}", float(row.get(column) or 0) * (1 << 20)
                theirs[name] = max(theirs.get(name, 0), value)
        assert any(theirs.values())
        assert {name: ours.get(name, 0) for name in theirs} == pytest.approx(theirs, abs=1)


@pytest.mark.parametrize("run", TEXTS)
def test_time_on_cores_and_use_of_cubes_are_those_of_kernel_details(shared, run):
    columns = {"aicore_time(us)": "aicore_time", "aiv_time(us)": "aiv_time", "cube_utilization(%)": "cube_utilization"}
    theirs = dict.fromkeys(columns.values(), 0.0)
    for row in csv.DictReader(output(shared, run, "kernel_details.csv").splitlines()):
        for column, metric in columns.items():
            theirs[metric] += float(row[column]) if row[column].strip() not in ("", "N/A") else 0
    metrics = loaded(shared, run).kernel_metrics.group_by(pl.col("metric").cast(pl.String)).agg(pl.col("value").sum())
    assert {metric: value for metric, value in metrics.rows() if metric in theirs} == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("level", "rank"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_frequency_and_memory_of_a_database_are_those_of_its_tables(shared, level, rank):
    run = f"db/level{level}/rank{rank}_ascend_pt"
    counters = loaded(shared, run).counters.with_columns(pl.col("metric").cast(pl.String))
    ours = dict(counters.group_by("metric").agg(pl.col("value").max()).rows())
    path = shared / "ascend" / run / f"ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db"
    with closing(sqlite3.connect(path)) as db:
        samples = db.execute("SELECT timestampNs, freq FROM AICORE_FREQ ORDER BY timestampNs").fetchall()
        records = db.execute(
            "SELECT value || ' reserved', max(totalReserved) FROM MEMORY_RECORD JOIN STRING_IDS ON id = component"
            " GROUP BY 1"
        ).fetchall()
        modules = db.execute(
            "SELECT name || ' module reserved', max(totalReserved) FROM NPU_MODULE_MEM JOIN ENUM_MODULE"
            " ON id = moduleId GROUP BY 1"
        ).fetchall()
    freq = counters.filter(pl.col("metric") == "AI Core Freq MHz").sort("ts_ns")
    assert freq["value"].to_list() == [value for _, value in samples]
    assert freq["ts_ns"].diff().drop_nulls().to_list() == [b[0] - a[0] for a, b in pairwise(samples)]
    for name, value in (*records, *modules):
        assert ours.get(name, 0) == value
