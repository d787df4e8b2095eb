from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from stepscope import analyses, figures
from stepscope.errors import UnknownName


@pytest.mark.parametrize("name", figures.names())
def test_each_figure_draws_a_table_of_an_analysis_with_options_that_it_has(name):
    figure, analysis = figures.find(name), analyses.find(name)
    assert figure.name == name == analysis.output.name
    assert set(figure.needs) <= set(analysis.output.dtypes)
    assert set(figure.options) <= set(analysis.options())
    assert figure.doc


def test_an_unknown_name_is_told_with_those_that_are_known():
    with pytest.raises(UnknownName, match="no figure named 'rooflin'"):
        figures.find("rooflin")


def test_a_module_without_a_figure_is_a_bug(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(FIGURE="picture"))
    with pytest.raises(TypeError, match="gives str, not a Figure"):
        figures.find("roofline")
