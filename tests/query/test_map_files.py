from __future__ import annotations

import shutil

import pytest
from job_simulator import Fault, Layout, Plan, simulate
from jobs import part
from make_ranks import write

import stepscope
import stepscope.analyses.ranks.calls as rank_calls_home
from stepscope import analyses
from stepscope.core import files
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.trace import Run
from stepscope.query.map_files import calls_of_ranks, map_over_files, results_of


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    write(simulate(Plan(Layout(dp=6), steps=8, faults=(Fault("late", 3, 400_000),), offset_sd_ns=1e6)), folder)
    return folder


def told(run, **more):
    seen = []
    labels = files.labels_of(run.paths)
    parts = calls_of_ranks(run, labels, on_missing=lambda label, error: seen.append((label, error.message)), **more)
    return [p.rank for p in parts], seen


@pytest.mark.slow
def test_where_files_are_read_changes_nothing(job):
    here = stepscope.show(job, "stragglers", workers=0)
    assert here["rank"].to_list() == [3]
    assert stepscope.show(job, "stragglers", workers=2).equals(here)
    for name in ("collectives", "clock-offsets"):
        assert stepscope.show(job, name, workers=2).equals(stepscope.show(job, name, workers=0))


@pytest.mark.slow
def test_on_dask_too(job):
    pytest.importorskip("distributed")
    here = stepscope.show(job, "stragglers", workers=0)
    assert stepscope.show(job, "stragglers", workers=2, dask="local").equals(here)


@pytest.mark.slow
def test_other_analyses_are_gathered_as_well(job):
    here = stepscope.show(job, "kernels", workers=0)
    done = []
    there = stepscope.show(job, "kernels", workers=2, progress=lambda *n: done.append(n))
    assert there.equals(here)
    assert done[-1] == (6, 6)


@pytest.mark.slow
def test_a_table_as_it_is_is_read_here(job):
    done = []
    found = stepscope.show(job, "steps", workers=2, progress=lambda *n: done.append(n))
    assert found.height == 6 * 8
    assert done
    raw = []
    assert stepscope.show(job, "trace.steps", workers=2, progress=lambda *n: raw.append(n)).height == 6 * 8
    assert not raw


@pytest.mark.slow
def test_what_is_wrong_with_the_question_is_raised_wherever_it_is_asked(job):
    for workers in (0, 2):
        with pytest.raises(UnknownName, match="no choice of by"):
            stepscope.show(job, "mfu", by="nothing", workers=workers)


@pytest.mark.slow
def test_ranks_that_are_missing_broken_or_twice_there_are_told_and_left_out(job, tmp_path):
    for rank in (0, 1, 3):
        shutil.copy(job / f"rank{rank}.pt.trace.json.gz", tmp_path)
    shutil.copy(tmp_path / "rank1.pt.trace.json.gz", tmp_path / "twin-rank1.pt.trace.json.gz")
    (tmp_path / "rank4.pt.trace.json").write_text('{"traceEvents": [{')
    run = stepscope.load_run(tmp_path)
    for workers in (0, 2):
        ranks, seen = told(run, each=map_over_files(run, workers=workers))
        assert ranks == [0, 1, 3]
        assert [label.rsplit("/", 1)[-1] for label, _ in seen] == [
            "rank4", "twin-rank1.pt.trace.json.gz", "each of 2 ranks of 6 (2, 5)",
        ]  # fmt: skip
        assert seen[-1][1] == "no file has this rank"


def test_a_single_missing_rank_is_told_by_its_number(monkeypatch):
    monkeypatch.setattr(rank_calls_home, "rank_calls", lambda rank: part(rank, (0, 5), world_size=4))
    assert told(Run(("a", "b", "c"), lambda path: {"a": 0, "b": 1, "c": 3}[path]))[1] == [
        ("rank 2 of 4", "no file has this rank")
    ]


def test_many_missing_ranks_are_told_by_the_first_of_them(monkeypatch):
    monkeypatch.setattr(rank_calls_home, "rank_calls", lambda rank: part(rank, (0, 5), world_size=40))
    ((who, _),) = told(Run(("a", "b"), lambda path: {"a": 0, "b": 1}[path]))[1]
    assert who == "each of 38 ranks of 40 (2, 3, 4, 5, 6, 7, 8, 9 …)"


def test_one_trace_is_asked_in_this_process(examples):
    run = stepscope.load_run(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz")
    assert map_over_files(run) is None
    trace = next(iter(run))
    assert map_over_files(trace) is None
    (only,) = calls_of_ranks(trace, ["x"], on_missing=lambda *_: None)
    assert only.rank == 0


def test_a_trace_without_exchanges_is_an_error(examples):
    trace = stepscope.load(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    with pytest.raises(MissingTable, match="collectives"):
        calls_of_ranks(trace, ["x"], on_missing=lambda *_: None)


def test_a_file_that_cannot_be_read_is_an_error_if_there_is_no_other():
    def read(path):
        raise StepscopeError(f"cannot read {path}")

    kernels = analyses.find("kernels")
    with pytest.raises(StepscopeError, match="cannot read a"):
        list(results_of(Run(("a",), read), kernels, {}, None))
    outcomes = [found.message for _, found in results_of(Run(("a", "b"), read), kernels, {}, None)]
    assert outcomes == ["cannot read a", "cannot read b"]
