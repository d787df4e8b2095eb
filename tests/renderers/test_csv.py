from __future__ import annotations

import csv
import io
import json

import polars as pl
import pytest

from stepscope.core.report import Block
from stepscope.core.table import Column, Table
from stepscope.renderers import Screen, find

CSV = find("csv")


def test_a_table(block, snapshot):
    snapshot(CSV.table(block, Screen()), "table.csv")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *((text, "'" + text) for text in ("=1+1", "@x", "-range", "+f", "-1+2", "-inf", "=", "＝1", "－x")),  # noqa: RUF001
        *((text, text) for text in ("-5", "+5", "-.5e-3", "-5.", "-", "+", "a=1", "", "'=1", " =1")),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_no_text_is_a_formula_and_numbers_stay_numbers(text, cell):
    frame = pl.DataFrame({text: [text, None], "n": [-5, None], "list": [[text], None]})
    schema = Table("t", "", tuple(Column(name, dtype, "") for name, dtype in frame.schema.items()))
    written = CSV.table(Block("t", schema, frame), Screen())
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert [row[:2] for row in rows] == [[cell, "n"], [cell, "-5"], ["", ""]]
    raw = list(csv.reader(io.StringIO(find("csv-raw").table(Block("t", schema, frame), Screen()), newline="")))
    assert [row[:2] for row in raw] == [[text, "n"], [text, "-5"], ["", ""]]
    assert json.loads(raw[1][2]) == [text]


def test_names_survive_whole_and_numbers_stay_raw(block):
    rows = list(csv.DictReader(io.StringIO(find("csv-raw").table(block, Screen(width=20)), newline="")))
    assert [row["name"] for row in rows] == [name or "" for name in block.frame["name"]]
    assert rows[3]["total_ns"] == str(2**63 - 1)
    assert rows[3]["busy_ratio"] == ""
    assert [row["shapes"] for row in rows] == ["[1,2]", "[]", "", "[null,1099511627776]", "[0]", "[3]"]
