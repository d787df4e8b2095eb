from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stepscope
from stepscope import readers
from stepscope.errors import StepscopeError

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
        trace = stepscope.load(folder / "rank0.json", with_=joined)
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
    run = stepscope.load_run([folder / "rank0.json", folder / "rank1.json"], with_=folder / "ncu.csv")
    assert opened == []
    assert [trace.kernel_metrics.height for trace in run] == [1, 1]
    assert sorted(opened) == ["ncu.csv", "rank0.json", "rank1.json"]


def test_counters_of_kernels_need_kernels_to_be_joined_to(folder):
    (folder / "ncu.csv").write_text(NCU)
    (folder / "host.json").write_text(json.dumps({"traceEvents": EVENTS[:1]}))
    with pytest.raises(stepscope.MissingTable, match="--with needs kernels"):
        stepscope.load(folder / "host.json", with_=folder / "ncu.csv")


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


def test_a_report_prints_as_the_terminal_shows_it(folder):
    report = stepscope.report(folder)
    assert isinstance(report, stepscope.Report)
    assert str(report).startswith(report.headline.split(" · ")[0])
    assert "Kernels" in str(report)
    assert isinstance(report.issues, pl.DataFrame | None)


def test_a_table_is_plotted_as_a_plotly_figure(examples):
    figure = stepscope.plot(examples / "demo-cpu-2ranks", "steps")
    assert {trace.name for trace in figure.data} == {"operators", "data loading", "Python and other"}
    with pytest.raises(stepscope.UnknownName, match="no chart"):
        stepscope.plot(examples / "demo-cpu-2ranks", "tracks")


def test_a_notebook_shows_reports_and_traces(examples):
    trace = stepscope.load(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    assert "<td>spans</td>" in trace._repr_html_()
    found = stepscope.report(trace)
    assert found._repr_html_().startswith('<div class="stepscope">')
    assert [bar.type for bar in found.plot().data] == ["bar"] * len(found.bars[0].parts)


def test_a_report_made_by_hand_has_no_picture():
    from stepscope.reports.model import Report

    assert Report("x")._repr_html_() is None
    assert Report("x").plot() is None
