"""Databases of Ascend's profiler against the vendor's own summary, and against text exports of the same program."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import polars as pl
import pytest

import stepscope

pytestmark = pytest.mark.conformance
RUNS = [(level, rank) for level in (0, 1) for rank in (0, 1)]
FOLDER = "ascend/{form}/level{level}/rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT"


def loaded(shared, form, level, rank):
    name = f"ascend_pytorch_profiler_{rank}.db" if form == "db" else "trace_view.json"
    return stepscope.load(shared / FOLDER.format(form=form, level=level, rank=rank) / name)


@pytest.mark.parametrize(("level", "rank"), RUNS)
def test_parts_of_the_step_are_those_of_the_vendors_summary(shared, level, rank):
    path = shared / FOLDER.format(form="db", level=level, rank=rank) / "analysis.db"
    with closing(sqlite3.connect(path)) as db:
        columns = "computing, communication, communication_not_overlapped, free, stage"
        wanted = db.execute(f"SELECT {columns} FROM StepTraceTime").fetchone()
    trace = loaded(shared, "db", level, rank)
    kernels = trace.with_tables(spans=trace.spans.filter(pl.col("category").is_in(("kernel", "memset"))))
    row = kernels.show("timeline").row(0, named=True)
    columns = ("computation_ns", "communication_ns", "exposed_communication_ns", "idle_ns", "total_ns")
    assert [row[c] / 1000 for c in columns] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("level", "rank"), RUNS)
def test_a_database_holds_what_the_text_export_of_the_same_program_does(shared, level, rank):
    database, text = (loaded(shared, form, level, rank) for form in ("db", "text"))
    for category in ("kernel", "memcpy", "operator", "dataloader", "module", "step", "sync"):
        assert names(database, category) == names(text, category), category
    assert Counter(database.arrows["recorded_category"]) == Counter(text.arrows["recorded_category"])
    assert database.meta.rank == text.meta.rank == rank


def names(trace, category):
    """How often each name occurs; collectives have numbers of the run in theirs."""
    spans = trace.spans.filter(pl.col("category") == category)
    return Counter(spans["name"].cast(pl.String).str.replace(r"__\d+_", "__N_"))
