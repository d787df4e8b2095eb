from __future__ import annotations

import json
import pickle
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stepscope
from stepscope import readers
from stepscope.core.errors import StepscopeError

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 30.0},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 12.0, "dur": 3.0,
     "args": {"correlation": 7}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.0, "dur": 5.0,
     "args": {"correlation": 7, "device": 0, "stream": 7}},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for rank in range(2):
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": EVENTS}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    return tmp_path


def test_a_file_is_loaded_as_a_trace(folder):
    told = []
    trace = stepscope.load(folder / "rank1.json", progress=told.append)
    assert isinstance(trace, stepscope.Trace)
    assert (trace.rank, trace.spans.height) == (1, 3)
    assert told[-1] == (folder / "rank1.json").stat().st_size
    with pytest.raises(StepscopeError, match="more than 10"):
        stepscope.load(str(folder / "rank1.json"), max_bytes=10)


NCU = """\
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","gemm","x","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","%","12.50"
"""


def test_counters_of_kernels_are_joined_to_a_timeline(folder):
    (folder / "ncu.csv").write_text(NCU)
    plain = stepscope.load(folder / "rank0.json")
    for joined in (folder / "ncu.csv", stepscope.load(folder / "ncu.csv")):
        trace = stepscope.load(folder / "rank0.json", kernel_counters=joined)
        assert stepscope.show(trace, "kernels")["dram_ratio"].to_list() == [0.125]
        assert trace.kernel_metrics["value"].to_list() == [12.5]
    assert plain.kernel_metrics.is_empty()


def test_counters_of_kernels_are_read_once_for_all_ranks_and_not_before(folder, monkeypatch):
    (folder / "ncu.csv").write_text(NCU)
    opened = []
    real = readers.open_trace
    monkeypatch.setattr(
        readers, "open_trace", lambda path, **rest: (opened.append(Path(path).name), real(path, **rest))[1]
    )
    run = stepscope.load_run([folder / "rank0.json", folder / "rank1.json"], kernel_counters=folder / "ncu.csv")
    assert opened == []
    assert [trace.kernel_metrics.height for trace in run] == [1, 1]
    assert sorted(opened) == ["ncu.csv", "rank0.json", "rank1.json"]


def test_counters_of_kernels_need_kernels_to_be_joined_to(folder):
    (folder / "ncu.csv").write_text(NCU)
    (folder / "host.json").write_text(json.dumps({"traceEvents": EVENTS[:1]}))
    with pytest.raises(stepscope.MissingTable, match="--with needs kernels"):
        stepscope.load(folder / "host.json", kernel_counters=folder / "ncu.csv")


def test_a_folder_is_a_run_that_is_read_when_asked_for(folder):
    told = set()
    run = stepscope.load_run(folder, progress=lambda path, _: told.add(Path(path).name))
    assert len(run) == 2
    assert told == set()
    assert [trace.rank for trace in run] == [0, 1]
    assert told == {"rank0.json", "rank1.json"}
    assert len(stepscope.load_run([folder / "rank0.json"])) == 1


def test_a_trace_a_run_and_a_path_can_be_shown(folder):
    trace = stepscope.load(folder / "rank0.json")
    alone = stepscope.show(trace, "kernels", by="name")
    assert alone["total_ns"].to_list() == [5_000]
    assert_frame_equal(stepscope.show(folder / "rank0.json", "kernels", by="name"), alone)
    both = stepscope.show(folder, "kernels")
    assert both["rank"].to_list() == [0, 1]


def test_a_trace_that_lacks_the_data_is_warned_about(folder):
    (folder / "rank2.json").write_text(json.dumps({"distributedInfo": {"rank": 2}, "traceEvents": EVENTS[:1]}))
    with pytest.warns(UserWarning, match="rank2 is left out: kernels needs device work") as caught:
        frame = stepscope.show(folder, "kernels")
    assert frame["rank"].to_list() == [0, 1]
    assert Path(caught[0].filename) == Path(__file__)


def test_wrong_names_are_refused(folder):
    trace = stepscope.load(folder / "rank0.json")
    with pytest.raises(stepscope.UnknownName, match="no table named 'kernel'"):
        stepscope.show(trace, "kernel")
    with pytest.raises(stepscope.UnknownName, match="no option of kernels named 'bye'"):
        stepscope.show(trace, "kernels", bye="name")
    with pytest.raises(StepscopeError):
        stepscope.load(folder / "none.json")


@pytest.mark.slow
def test_a_report_prints_as_the_terminal_shows_it(folder):
    report = stepscope.report(folder)
    assert isinstance(report, stepscope.Report)
    assert str(report).startswith(report.headline.split(" · ")[0])
    assert "Kernels" in str(report)
    assert isinstance(report.issues, pl.DataFrame | None)


def test_a_notebook_shows_reports_and_traces(examples):
    trace = stepscope.load(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    assert "<td>spans</td>" in trace._repr_html_()
    found = stepscope.report(trace)
    assert found._repr_html_().startswith('<div class="stepscope">')
    assert [bar.type for bar in found.plot().data] == ["bar"] * len(found.bars[0].parts)


def test_a_report_made_by_hand_has_no_picture():
    from stepscope.core.report import Report

    assert Report("x")._repr_html_() is None
    assert Report("x").plot() is None


def test_an_export_that_is_a_folder_needs_one(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("exported") / "kept"
    assert stepscope.export(folder, "parquet", output=target) == str(target)
    assert [trace.rank for trace in stepscope.load_run(target)] == [0, 1]
    with pytest.raises(stepscope.WouldOverwrite):
        stepscope.export(folder, "parquet", output=target)
    with pytest.raises(StepscopeError, match="parquet is a folder") as caught:
        stepscope.export(folder, "parquet")
    assert caught.value.hint == "export(source, 'parquet', output=folder)"
    with pytest.raises(StepscopeError, match="tensorboard is the content of a file"):
        stepscope.export(folder, "tensorboard", output=target)


@pytest.mark.slow
def test_a_job_is_reported_the_same_by_however_many_processes(folder):
    told = []
    here = stepscope.report(folder, workers=0, progress=lambda *n: told.append(n))
    assert told == []  # who reads here is told of bytes
    there = stepscope.report(folder, workers=2, memory_limit="4GB", progress=lambda *n: told.append(n))
    assert str(there) == str(here)
    assert there.meta == here.meta
    assert told == [(1, 2), (2, 2)]


def test_what_opens_a_run_goes_to_other_processes_without_its_progress(folder):
    run = stepscope.load_run(folder, max_bytes=10**6, progress=lambda *_: None)
    again = pickle.loads(pickle.dumps(run.open_trace))
    assert again(run.paths[1]).rank == 1
    assert (again.max_bytes, again.progress) == (10**6, None)


@pytest.mark.slow
def test_what_is_missing_of_a_job_is_in_its_report(folder):
    events = {"distributedInfo": {"rank": 1, "world_size": 5}, "traceEvents": EVENTS}
    (folder / "rank1-copy.json").write_text(json.dumps(events))
    (folder / "rank4.json").write_text("")
    for name in ("rank0.json", "rank1.json"):
        text = (folder / name).read_text().replace('"world_size": 2', '"world_size": 5')
        (folder / name).write_text(text)
    report = stepscope.report(folder, workers=2)
    assert report.meta["missing_ranks"] == [2, 3]
    assert [entry["rank"] for entry in report.meta["left_out"]] == [4]
    assert [entry["rank"] for entry in report.meta["duplicates"]] == [1]
    assert report.meta["ranks"] == [0, 1]
    assert "2 ranks of 5 are missing: 2–3." in report.quality
    assert any("another file has rank 1" in line for line in report.quality)
    assert any("rank4.json is empty" in line for line in report.quality)


@pytest.mark.slow
def test_files_that_were_never_opened_are_read_by_several_before_a_query(folder, tmp_path, monkeypatch):
    from stepscope import readers, store
    from stepscope.query import workers

    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "LEAST_BYTES", 10)
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 10)
    asked = []
    real = workers.plan
    monkeypatch.setattr(workers, "plan", lambda paths: asked.append(list(paths)) or real(paths, workers=2))
    (folder / "rank2.json").write_text("this is not JSON")
    paths = [str(folder / f"rank{i}.json") for i in range(3)]
    told, left_out = [], []
    with pytest.raises(stepscope.UnknownName):
        stepscope.sql(paths, "SELECT * FROM spanz")
    assert asked == []  # a query that is not understood reads nothing
    found = stepscope.sql(
        paths,
        "SELECT count(*) FROM spans",
        on_missing=lambda *n: left_out.append(n),
        progress=lambda *n: told.append(n),
    )
    assert found.item() == 6
    assert asked == [paths]
    assert [label for label, _ in left_out] == ["rank2"]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert not readers.is_at_hand(paths[2])
    assert readers.is_at_hand(str(folder / "nothing.json"))
    assert readers.is_at_hand(str(folder))


def test_traces_in_memory_are_not_opened_before_a_query(folder, monkeypatch):
    monkeypatch.setattr("stepscope.query.workers.plan", None)
    assert stepscope.load(folder / "rank0.json").sql("SELECT count(*) FROM spans").item() == 3


def test_tables_lists_what_show_knows_and_schema_of_its_columns(examples):
    listed = stepscope.tables()
    assert {"idle", "spans", "stragglers", "diff"} <= set(listed["name"])
    assert stepscope.schema_of("step_breakdown").equals(stepscope.schema_of("step-breakdown"))
    trace = stepscope.load(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    shown = trace.show("operators")
    assert set(shown.columns) <= set(stepscope.schema_of("operators")["name"])
    with pytest.raises(stepscope.UnknownName) as caught:
        stepscope.schema_of("operator")
    assert caught.value.hint.startswith("known: operators, ")


@pytest.mark.slow
def test_values_have_the_verbs_as_methods(examples):
    run = stepscope.load_run(examples / "demo-cpu-2ranks")
    assert (len(run), run[0].rank, run[-1].rank) == (2, 0, 1)
    assert run.show("steps").equals(stepscope.show(run, "steps"))
    assert str(run[0].report()) == str(stepscope.report(run[0]))
    assert run.report().headline == stepscope.report(run).headline
