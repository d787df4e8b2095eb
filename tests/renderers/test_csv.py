from __future__ import annotations

import csv
import io

from stepscope.renderers import Screen, find

CSV = find("csv")


def test_a_table(block, snapshot):
    snapshot(CSV.table(block, Screen()), "table.csv")


def test_names_survive_whole_and_numbers_stay_raw(block):
    rows = list(csv.DictReader(io.StringIO(CSV.table(block, Screen(width=20)), newline="")))
    assert [row["name"] for row in rows] == [name or "" for name in block.frame["name"]]
    assert rows[3]["total_ns"] == str(2**63 - 1)
    assert rows[3]["busy_ratio"] == ""
    assert [row["shapes"] for row in rows] == ["[1,2]", "[]", "", "[null,1099511627776]", "[0]", "[3]"]
