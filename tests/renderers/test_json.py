from __future__ import annotations

import json
import math

import polars as pl

from stepscope.renderers import Screen, find

JSON = find("json")


def test_a_report(report, snapshot):
    text = JSON.report(report, Screen())
    snapshot(text, "report.json")
    content = json.loads(text)
    assert list(content) == ["schema", "headline", "bars", "findings", "tables", "quality", "issues", "meta"]
    assert content["tables"][0]["rows"][3]["total_ns"] == 2**63 - 1
    assert content["meta"] == {"ranks": [0, 1], "path": "run42", "share": None, "nested": {"1": [2, None]}}


def test_a_table_is_a_list_of_rows_with_raw_numbers(block, snapshot):
    text = JSON.table(block, Screen())
    snapshot(text, "table.json")
    rows = json.loads(text)
    assert [row["name"] for row in rows] == block.frame["name"].to_list()
    assert rows[3]["total_ns"] == 2**63 - 1
    assert rows[3]["busy_ratio"] is None
    assert rows[1]["exposed_communication_ns"] is None
    assert len(text.rstrip("\n").split("\n")) == len(rows)


def test_empty_tables_are_empty_lists(block):
    from msgspec.structs import replace

    assert JSON.table(replace(block, frame=block.frame.clear()), Screen()) == "[]\n"
    assert JSON.table(replace(block, frame=pl.DataFrame()), Screen()) == "[]\n"


def test_nothing_in_it_is_beyond_json(report):
    def refuse(text):
        raise AssertionError(text)

    json.loads(JSON.report(report, Screen()), parse_constant=refuse)
    assert math.isnan(report.meta["share"])
