from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
import zlib
from types import SimpleNamespace

import plotly.graph_objects as go
import polars as pl
import pytest

from stepscope import analyses, load, show
from stepscope.analyses.pairs.diff import DIFF
from stepscope.comparison.effects import DELTAS
from stepscope.core import registry
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.renderers import figures

#: Tables that analyses give, and those of two runs side by side; python-stacks comes from another recording.
ANALYSED = [name for name in figures.names() if name in (*analyses.names("trace"), *analyses.names("ranks"))]


@pytest.mark.parametrize("name", ANALYSED)
def test_each_figure_draws_a_table_of_an_analysis_with_options_that_it_has(name):
    figure, analysis = figures.find(name), analyses.find(name)
    assert figure.name == name == analysis.output.name
    assert set(figure.needs) <= set(analysis.output.dtypes)
    assert set(figure.options) <= set(analysis.options())


@pytest.mark.parametrize("name", figures.names())
def test_each_figure_says_what_it_is(name):
    figure = figures.find(name)
    assert figure.name == name
    assert figure.doc
    assert figure.title


def test_figures_of_comparisons_draw_their_tables():
    assert set(figures.names()) - set(ANALYSED) <= {"diff", "history", "parts", "python-stacks"}
    assert set(figures.find("diff").needs) <= set(DIFF.dtypes)
    assert set(figures.find("parts").needs) <= set(DELTAS.dtypes)


@pytest.mark.parametrize("name", figures.names())
def test_a_frame_without_the_columns_or_rows_has_no_figure(name):
    assert figures.drawn(name, pl.DataFrame({"x": [1]})) is None
    assert figures.drawn(name, pl.DataFrame()) is None


def test_tables_without_a_figure_have_none(examples):
    trace = load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz")
    assert figures.drawn("tracks", trace.tracks) is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("steps", {}), ("operators", {}), ("memory", {"by": "time"})])
def test_figures_of_a_recording_are_json_that_plotly_takes(examples, name, options):
    frame = show(load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz"), name, **options)
    figure = figures.drawn(name, frame)
    assert json.loads(json.dumps(figure, allow_nan=False))["data"]
    assert go.Figure(figure).data


@pytest.mark.slow
def test_drawing_imports_nothing_of_plotly():
    code = (
        "import sys, polars as pl\nfrom stepscope.renderers import figures\n"
        "frame = pl.DataFrame({'name': ['a'], 'total_ns': [1]})\nassert figures.drawn('kernels', frame)\n"
        "assert not [m for m in sys.modules if m.startswith('plotly')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plotlys_script_comes_with_the_same_packed():
    text, packed = figures.plotly_script()
    assert zlib.decompress(base64.b64decode(packed)).decode() == text == figures.plotly_path().read_text("utf-8")
    assert len(packed) < len(text) / 2


def test_without_plotlys_script_the_way_out_is_told(monkeypatch, tmp_path):
    for spec in (None, SimpleNamespace(origin=None), SimpleNamespace(origin=str(tmp_path / "__init__.py"))):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, found=spec: found)
        with pytest.raises(StepscopeError, match="plotly's script is not installed"):
            figures.plotly_path()


def test_an_unknown_name_is_told_with_those_that_are_known():
    with pytest.raises(UnknownName, match="no figure named 'rooflin'"):
        figures.find("rooflin")


def test_a_module_without_a_figure_is_a_bug(monkeypatch):
    monkeypatch.setattr(registry, "import_module", lambda _: SimpleNamespace(FIGURE="picture"))
    with pytest.raises(TypeError, match="gives str, not Figure"):
        figures.find("roofline")
