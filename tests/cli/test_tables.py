from __future__ import annotations

import json

from stepscope import analyses
from stepscope.core.result_tables import RESULTS
from stepscope.core.schema import TABLES


def test_every_analysis_and_every_raw_table_is_listed_once(run):
    listed = json.loads(run("tables", "--format", "json").out)
    names = [row["name"] for row in listed]
    assert names[: len(analyses.names("trace"))] == analyses.names("trace")
    assert {name.removeprefix("trace.") for name in names} >= set(TABLES)
    assert set(names) >= set(RESULTS)
    known = [analyses.names(), set(RESULTS) - set(analyses.names()), TABLES]
    assert len(names) == len(set(names)) == sum(map(len, known))
    assert all(row["doc"] for row in listed)


def test_one_table_lists_columns_units_and_options(run):
    listed = {row["name"]: row for row in json.loads(run("tables", "timeline", "--format", "json").out)}
    assert listed["busy_ns"]["unit"] == "ns"
    assert listed["rank"]["kind"] == "key"
    assert (listed["--by"]["kind"], listed["--by"]["doc"]) == ("option", "default: rank")


def test_the_listing_fits_its_width_without_losing_words(run):
    lines = run("tables").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in "".join(line for line in lines if "utilisation" not in line)


def test_an_unknown_table_is_refused(run):
    assert run("tables", "bogus").code == 2
    assert run("tables", "--format", "terminal").code == 0
