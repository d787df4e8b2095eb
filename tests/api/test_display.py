"""What values show of themselves: in notebooks, as figures."""

from __future__ import annotations

import json
import re

import pytest

import stepscope
from stepscope import load_run
from stepscope.api import display
from stepscope.core.errors import StepscopeError
from stepscope.core.report import Block, Report
from stepscope.core.table import Table
from stepscope.renderers import figures

EVIL = "<img src=x onerror=alert(1)>"


def event(name, ts, dur, cat="cpu_op", **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


def written(folder, *, loading, rank=0, name=EVIL):
    """A recording of twelve steps, each with so much loading of data."""
    folder.mkdir(parents=True, exist_ok=True)
    events, at = [], 1000.0
    for step in range(12):
        length = 1000 + loading + step % 3
        events.append(event(f"ProfilerStep#{step}", at, length, "user_annotation"))
        events.append(event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, loading))
        events.append(event(name, at + loading, 900))
        at += length
    document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def pair(tmp_path):
    return written(tmp_path / "a", loading=100), written(tmp_path / "b", loading=2000)


@pytest.mark.slow
def test_a_comparison_is_plotted_from_the_base_to_the_other(pair):
    found = stepscope.compare(*pair)
    figure = found.plot()
    assert figure.data[0].base[0] == 0
    assert figure.layout.xaxis.ticktext[0] == "base"
    assert "data loading" in figure.layout.xaxis.ticktext
    assert figure.layout.title.text.startswith("<b>From the base to the other</b>")
    error = figure.data[0].error_y
    assert error.visible
    assert len(error.array) == len(figure.data[0].y)
    assert figure.to_dict() == stepscope.api.verbs.compare_report(*map(load_run, pair)).plot().to_dict()


@pytest.mark.slow
def test_a_comparison_draws_itself_without_scripts_and_with_names_escaped(pair):
    found = stepscope.compare(*pair)
    text = found._repr_html_()
    assert found.verdict == "different"
    assert "data loading" in text
    assert "<script" not in text
    assert "<img" not in text
    assert stepscope.api.verbs.compare_report(*map(load_run, pair))._repr_html_() == text


def test_a_comparison_made_by_other_means_has_no_picture(pair):
    from stepscope.api.comparing import compare_two_runs

    bare = compare_two_runs(*map(load_run, pair))
    assert bare.plot() is None
    assert bare._repr_html_() is None


def test_a_comparison_without_parts_says_so(pair):
    from msgspec.structs import replace

    found = stepscope.compare(*pair)
    with pytest.raises(StepscopeError, match="no parts of a step to draw"):
        replace(found, parts=found.parts.clear()).plot()


@pytest.mark.slow
def test_a_report_without_a_figure_of_its_own_is_plotted_as_bars(pair):
    report = stepscope.report(pair[0])
    figure = report.plot()
    assert {bar.type for bar in figure.data} == {"bar"}
    assert figure.layout.title.text == "<b>Where the time went</b>"
    # A table with rows to draw but no figure does not stand in the way.
    frame = report.tables[0].frame
    other = Report("x", tables=(Block("x", Table("nothing", "x", ()), frame, drawn=frame),))
    assert not display.with_display(other).plot().data


@pytest.mark.slow
@pytest.mark.parametrize("table", ["steps", "operators"])
def test_a_trace_and_a_run_are_plotted_by_table(pair, tmp_path, table):
    trace = stepscope.load(pair[0])
    figure = trace.plot(table)
    assert figure.layout.title.text.startswith(f"<b>{figures.find(table).title}</b>")
    assert figure.to_dict() == stepscope.plot(trace, table).to_dict()
    written(tmp_path / "a", loading=100, rank=1)
    run = load_run(tmp_path / "a")
    assert len(run) == 2
    assert run.plot(table).data
    if table == "steps":
        assert run.plot().to_dict() == run.plot(table).to_dict()
        assert "0 r1" in run.plot().data[0].x


def test_names_in_figures_are_literal(pair):
    (bars,) = stepscope.plot(pair[0], "operators").data
    assert any("&lt;img" in text for text in bars.hovertext)
    assert "<img" not in str(bars)


@pytest.mark.slow
def test_options_that_a_figure_needs_need_not_be_given(examples):
    figure = stepscope.plot(examples / "demo-cpu-2ranks", "memory")
    assert [line.name for line in figure.data] == ["rank 0 cpu allocated", "rank 1 cpu allocated"]
    with pytest.raises(stepscope.MissingTable, match="the figure of memory needs columns"):
        stepscope.plot(examples / "demo-cpu-2ranks", "memory", by="operator")


def test_what_has_no_figure_is_told(pair):
    with pytest.raises(stepscope.UnknownName, match="no figure named 'tracks'"):
        stepscope.plot(pair[0], "tracks")
    with pytest.raises(stepscope.UnknownName, match="no table named 'step'"):
        stepscope.plot(pair[0], "step")
    with pytest.raises(stepscope.MissingTable):
        stepscope.plot(pair[0], "kernels")


def test_what_has_nothing_to_draw_is_told(tmp_path):
    document = {"traceEvents": [event("aten::mm", 1, 0)]}
    (tmp_path / "t.json").write_text(json.dumps(document))
    with pytest.raises(StepscopeError, match="operators cannot be drawn"):
        stepscope.plot(tmp_path / "t.json", "operators")


def test_a_trace_and_a_run_draw_themselves_without_reading_tables(tmp_path):
    hostile = written(tmp_path / "<b>x", loading=1)
    trace = stepscope.load(hostile)
    text = trace._repr_html_()
    assert "<td>spans</td><td>36</td>" in text
    assert "&lt;b&gt;x" in text
    assert "rank 0 of 2" in text
    assert "<b>x" not in text
    assert "<td>kernels</td>" not in text  # it has no rows
    assert not re.search("<script|on[a-z]+=", text)
    many = stepscope.Run(tuple(f"{hostile}.{i}" for i in range(25)), lambda _: trace)
    text = many._repr_html_()
    assert "25 files" in text
    assert "5 more" in text
    assert "<b>x" not in text
    assert "1 file<" in stepscope.Run((str(hostile),), lambda _: trace)._repr_html_()


def test_results_draw_themselves_with_what_they_hold():
    from stepscope.analyses.steps.steps import STEPS
    from stepscope.core.trace import Meta, Result, Results

    found = Results(Meta("<r>", "results"), {}, {"steps": Result(STEPS, STEPS.empty())})
    text = found._repr_html_()
    assert "<td>steps</td><td>0</td>" in text
    assert "&lt;r&gt;" in text
