from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.schema import STEPS, TABLES
from stepscope.core.stored_tables import StoredTables
from stepscope.core.trace import Meta, Trace

STEP = STEPS.conform(pl.DataFrame({"step": [3], "ts_ns": [0], "dur_ns": [10]}))


def stored(**made):
    """Two tables in files, of which every reading is counted."""
    read = []

    def read_one(name):
        read.append(name)
        return TABLES[name].empty() if name == "spans" else STEP

    files = {"spans": "x/spans.parquet", "steps": "x/steps.parquet"}
    return StoredTables(files, {"spans": 0, "steps": 1}, read_one, made), read


def test_stored_tables_are_read_when_asked_for_and_once():
    tables, read = stored()
    trace = Trace(Meta("a.json", "kineto"), tables)
    assert (len(trace.tables), list(trace.tables), "ops" in trace.tables) == (2, ["spans", "steps"], False)
    assert repr(trace) == "Trace('a.json', kineto, spans 0, steps 1)"
    assert trace.ops.is_empty()
    assert read == []
    assert trace.steps is trace.steps is STEP
    assert read == ["steps"]
    with pytest.raises(KeyError):
        _ = trace.tables["ops"]


def test_frames_in_place_of_stored_tables_share_what_was_read():
    tables, read = stored()
    trace = Trace(Meta("a.json", "kineto"), tables)
    _ = trace.steps
    longer = pl.concat([STEP, STEP])
    other = trace.with_tables(steps=longer, ops=TABLES["ops"].empty())
    assert other.heights() == {"spans": 0, "steps": 2, "ops": 0}
    assert other.steps is longer
    assert trace.steps is STEP
    _ = other.spans, trace.spans
    assert read == ["steps", "spans"]
    assert isinstance(other.tables, StoredTables)
    assert (other.tables.file("steps"), other.tables.file("spans")) == (None, "x/spans.parquet")
    assert (len(other.tables), "ops" in other.tables) == (3, True)
