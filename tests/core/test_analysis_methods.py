from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import stepscope
from stepscope import analyses
from stepscope.core import analysis_methods
from stepscope.core.analysis_methods import AnalysisMethods


@pytest.fixture(scope="module")
def trace(examples):
    return stepscope.load(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")


def test_an_analysis_is_a_method_with_its_options(trace):
    by_shape = trace.analyses.operators(by="shape")
    assert by_shape.equals(stepscope.show(trace, "operators", by="shape"))
    assert trace.analyses.step_breakdown().equals(stepscope.show(trace, "step-breakdown"))


@pytest.mark.slow
def test_those_of_ranks_are_methods_of_a_run(examples):
    run = stepscope.load_run(examples / "demo-cpu-2ranks")
    assert run.analyses.parallel_groups().equals(stepscope.show(run, "parallel-groups"))


def test_dir_lists_them(trace):
    listed = dir(trace.analyses)
    assert {"idle", "step_breakdown", "stragglers"} <= set(listed)
    assert not {"spans", "diff"} & set(listed)


def test_an_unknown_one_is_no_attribute(trace):
    with pytest.raises(AttributeError, match="no analysis named 'idel'"):
        trace.analyses.idel()
    assert not hasattr(trace.analyses, "__len__")


def test_the_stub_declares_each_of_ours_and_nothing_else():
    stub = Path(inspect.getfile(analysis_methods)).with_suffix(".pyi").read_text(encoding="utf-8")
    declared = [line.split("(")[0].split()[1] for line in stub.splitlines() if line.startswith("    def ")]
    known = [*analyses.names("trace"), *analyses.names("ranks")]
    assert [name for name in declared if not name.startswith("__")] == [name.replace("-", "_") for name in known]
    assert [name for name in vars(AnalysisMethods) if not name.startswith("_")] == []
