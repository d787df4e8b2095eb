from __future__ import annotations

from typing import Literal

import polars as pl
import pytest

from stepscope.analyses import Analysis
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.schema import OPS, SPANS, STEPS
from stepscope.core.table import Column, Table
from stepscope.core.trace import Meta, Trace

COUNTS = Table(
    "counts", "rows of each table", (Column("n_steps", pl.Int64(), "steps"), Column("n_ops", pl.Int64(), "ops"))
)
TRACE = Trace(Meta("a.json", "kineto"), {"steps": STEPS.conform(pl.DataFrame({"step": [1, 2]}))})


def counts(steps: pl.DataFrame, ops: pl.DataFrame, *, times: int = 1, by: Literal["a", "b"] = "a") -> pl.DataFrame:  # noqa: ARG001
    return pl.DataFrame({"n_steps": [steps.height * times], "n_ops": [ops.height]})


COUNT = Analysis("counts", "rows of each table", inputs=(STEPS,), output=COUNTS, run=counts, optional=(OPS,))


def test_it_hands_over_inputs_then_optional_tables_perhaps_empty():
    assert COUNT(TRACE).rows() == [(2, 0)]


def test_it_hands_over_options():
    assert COUNT(TRACE, times=3).rows() == [(6, 0)]


def test_its_options_are_the_keyword_only_arguments_with_evaluated_types():
    options = COUNT.options()
    assert list(options) == ["times", "by"]
    assert (options["times"].kind, options["times"].default) == (int, 1)


def test_an_unknown_option_is_refused_with_those_it_has():
    with pytest.raises(UnknownName, match="no option of counts named 'time'") as caught:
        COUNT(TRACE, time=3)
    assert caught.value.hint == "known: times, by"


def test_an_order_without_a_clock_is_refused_by_what_needs_times():
    spans = SPANS.conform(pl.DataFrame({"span_id": [0, 1], "dur_ns": [5, 6]}))
    trace = Trace(Meta("a.csv", "ncu-csv"), {"steps": TRACE.steps, "spans": spans})

    def run(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame({"n_steps": [frame.height], "n_ops": [0]})

    with pytest.raises(MissingTable, match="counts needs start times"):
        Analysis("counts", "", inputs=(SPANS,), output=COUNTS, run=run)(trace)
    assert Analysis("counts", "", inputs=(SPANS,), output=COUNTS, run=run, needs_clock=False)(trace).height == 1
    assert Analysis("counts", "", inputs=(STEPS,), output=COUNTS, run=run)(trace).height == 1


def test_what_is_missing_comes_with_advice_for_the_recorder():
    def refuse(steps: pl.DataFrame) -> pl.DataFrame:  # noqa: ARG001
        raise MissingTable("shapes", hint="ask another way", topic="shapes")

    refused = Analysis("counts", "", inputs=(STEPS,), output=COUNTS, run=refuse)
    for recorder, remedy in (("kineto", "record_shapes=True"), ("nsys", "autograd-shapes-nvtx")):
        with pytest.raises(MissingTable) as caught:
            refused(Trace(Meta("a", recorder, framework="PyTorch"), TRACE.tables))
        assert remedy in caught.value.hint
        assert caught.value.hint.endswith("; or ask another way")


def test_a_missing_input_is_named_before_anything_runs():
    needs_spans = Analysis("counts", "", inputs=(SPANS,), output=COUNTS, run=counts)
    with pytest.raises(MissingTable, match="counts needs spans"):
        needs_spans(TRACE)
