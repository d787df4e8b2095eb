"""Every question to begin with is answered, by the demo or by a small trace with kernels."""

from __future__ import annotations

import pytest
from web_traces import training, written

from stepscope import load_run
from stepscope.core.schema import TABLES
from stepscope.web.pages.sql_examples import EXAMPLES, FIRST

EACH = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)


@EACH
def test_it_is_answered(example, tmp_path):
    for rank in range(2):
        written(tmp_path / f"rank{rank}.json", training(("aten::mm", "aten::copy_"), steps=8, rank=rank))
    found = load_run(tmp_path).sql(example.text)
    assert found.height or example.text == "SELECT * FROM issues" or "aten::copy_" in example.text


@EACH
def test_the_demo_answers_it_too(example, examples):
    found = load_run(examples / "demo-cpu-2ranks").sql(example.text)
    assert found.height or "kernels" in example.needs or "issues" in example.text


@EACH
def test_it_needs_tables_that_there_are(example):
    assert set(example.needs) <= set(TABLES)


def test_the_first_is_the_one_in_the_editor():
    assert EXAMPLES[0].text == FIRST
    assert len({example.text for example in EXAMPLES}) == len(EXAMPLES)
