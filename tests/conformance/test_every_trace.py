"""Every trace of the collection loads, and holds what a plain reading of its JSON counts (see plain_counts.py)."""

from __future__ import annotations

import csv
from pathlib import Path

import plain_counts
import polars as pl
import pytest
from plain_counts import Counts

from stepscope.core.errors import UnknownFormat
from stepscope.core.schema import CAPTURED
from stepscope.readers import open_trace

#: Made by plain_counts.py; a file without numbers is no trace.
TABLE = Path(__file__).with_name("every_trace.csv")
#: Smaller files are counted again in every run, so that the table cannot go stale unnoticed.
COUNTED_AGAIN_BYTES = 300_000


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


#: JSON of other formats, which other tests count.
OTHER_FORMATS = (
    "traces/tracelens/rocprof/908_results.json.gz",
    *(row["path"] for row in rows() if Path(row["path"]).name.startswith("communication")),  # results of Ascend
)
TRACES = {row["path"]: Counts(*(int(row[name]) for name in Counts._fields)) for row in rows() if row["spans"]}
OTHERS = [row["path"] for row in rows() if not row["spans"] and row["path"] not in OTHER_FORMATS]


def read(path: Path) -> Counts:
    trace = open_trace(str(path))
    dropped = trace.issues.filter(pl.col("code") == "wild_times")["count"].sum()
    joined = (trace.spans["recorded_category"] == CAPTURED).sum()
    is_kernel = trace.spans["category"] == "kernel"
    is_linked = trace.spans["launch_id"].is_not_null()
    return Counts(trace.spans.height - joined + dropped, int(is_kernel.sum()), int(is_linked.sum()), trace.steps.height)


@pytest.mark.parametrize("path", TRACES)
def test_a_trace_holds_what_its_json_holds(shared, path):
    assert read(shared / path) == TRACES[path]


@pytest.mark.parametrize("path", OTHERS)
def test_other_json_is_refused_by_name(shared, path):
    with pytest.raises(UnknownFormat) as caught:
        open_trace(str(shared / path))
    assert path in caught.value.message
    assert caught.value.hint


def test_every_file_of_the_collection_is_listed(shared):
    assert {str(path.relative_to(shared)) for path in plain_counts.files(shared)} == {*TRACES, *OTHERS, *OTHER_FORMATS}


def test_the_table_is_what_a_plain_reading_counts(shared):
    small = [path for path in TRACES if (shared / path).stat().st_size < COUNTED_AGAIN_BYTES]
    counted = {
        path: plain_counts.count(plain_counts.events_of(plain_counts.load(shared / path)) or []) for path in small
    }
    assert counted == {path: TRACES[path] for path in small}
    assert len(small) > 80
