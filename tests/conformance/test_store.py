"""Real traces that went through a store are what they were, and a real job's report does not depend on who reads it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import stepscope
from stepscope import store
from stepscope.renderers import Screen, json

TABLE = Path(__file__).with_name("every_trace.csv")
JOB = "traces/more/kineto-multirank/megatron-tp8-a100"


def some() -> list[str]:
    """Every twelfth trace of the collection, and one of each other format."""
    with TABLE.open(newline="") as file:
        chrome = [row["path"] for row in csv.DictReader(file) if row["spans"]]
    return chrome[::12]


def others(shared: Path) -> list[str]:
    """A file of each format that is no Chrome trace."""
    found: dict[str, str] = {}
    for ending in ("*.sqlite", "*.pb", "*.csv", "*.db", "*.rpd", "*.hatchet", "*.txt"):
        for path in sorted(shared.rglob(ending)):
            if path.stat().st_size > 5_000_000:
                continue
            try:
                trace = stepscope.load(path)
            except stepscope.StepscopeError:
                continue
            if store.storable(trace):  # results with tables of their own are refused, see tests/store
                found.setdefault(trace.meta.format, str(path))
    return list(found.values())


def check(path: str, folder: Path) -> None:
    trace = stepscope.load(path)
    folder.mkdir()
    store.write_folder(trace, str(folder))
    document = store.read_document(str(folder), kind="trace")
    assert document is not None
    again = store.read_folder(str(folder), document, label=trace.meta.path)
    assert again.meta == trace.meta
    assert set(again.tables) == set(trace.tables)
    for name in trace.tables:
        assert again.table(name).equals(trace.table(name))
        assert again.table(name).schema == trace.table(name).schema
    assert str(stepscope.report(again)) == str(stepscope.report(trace))


@pytest.mark.parametrize("path", some())
def test_a_trace_survives_the_store(shared, tmp_path, path):
    check(str(shared / path), tmp_path / "kept")


@pytest.mark.exhaustive
def test_other_formats_do_as_well(shared, tmp_path):
    found = others(shared)
    assert len(found) >= 5
    for i, path in enumerate(found):
        check(path, tmp_path / str(i))


@pytest.mark.exhaustive
def test_a_real_job_is_reported_the_same_by_several_processes_and_from_a_store(shared, tmp_path):
    render = json.RENDERER.report
    assert render is not None
    paths = sorted((shared / JOB).glob("megatron_kineto_*.json.gz"))
    here = stepscope.report(paths, workers=0)
    there = stepscope.report(paths, workers=2)
    assert render(there, Screen()) == render(here, Screen())
    target = stepscope.export(paths, "parquet", output=tmp_path / "kept")
    kept = stepscope.report(target)
    assert (kept.headline, kept.findings, kept.bars) == (here.headline, here.findings, here.bars)


def test_the_job_is_one_database(shared):
    run = stepscope.load_run(sorted((shared / JOB).glob("megatron_kineto_*.json.gz")))
    found = run.sql("SELECT rank, count(*) AS n FROM spans WHERE category = 'kernel' GROUP BY rank ORDER BY rank")
    expected = [(trace.rank, trace.spans.filter(trace.spans["category"] == "kernel").height) for trace in run]
    assert found.rows() == sorted(expected)
