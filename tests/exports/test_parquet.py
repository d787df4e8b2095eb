from __future__ import annotations

import polars as pl
import pytest
from msgspec.structs import replace

import stepscope
from stepscope import store
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import STEPS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.exports import Context, Folder
from stepscope.exports.parquet import EXPORT

STEP = STEPS.conform(pl.DataFrame({"step": [3], "ts_ns": [0], "dur_ns": [10], "source": ["annotation"]}))


def job(*traces):
    """A run of traces by path; a text stands for a file that cannot be read."""
    by_path = dict(traces)

    def open_trace(path):
        found = by_path[path]
        if isinstance(found, str):
            raise StepscopeError(found)
        return replace(found, meta=replace(found.meta, path=path))

    return Run(tuple(by_path), open_trace)


def ranked(rank):
    return Trace(Meta("x", "kineto", rank=rank), {"steps": STEP})


def written(run, target):
    told = []
    content = EXPORT(run, Context(str.upper, told.append))
    assert isinstance(content, Folder)
    content.write(str(target), force=False)
    return [path.rpartition("/")[2] for path in store.traces_in(str(target))], told


def test_traces_are_called_after_their_ranks(tmp_path):
    names, told = written(job(("a.json", ranked(3)), ("b.json", ranked(0))), tmp_path / "kept")
    assert (names, told) == (["rank3", "rank0"], [])
    assert stepscope.load(tmp_path / "kept" / "rank3").steps.equals(STEP)


def test_without_ranks_they_are_called_after_their_files(tmp_path):
    paths = ("run/one two.json.gz", "other/one two.json", r"c:\x\ONE_TWO.json", "x.zip!a/b.json", "/..json")
    names, _ = written(job(*((path, ranked(None)) for path in paths)), tmp_path / "kept")
    assert names == ["one_two", "one_two_", "ONE_TWO__", "b", "trace"]


def test_a_rank_that_is_there_twice_is_kept_twice(tmp_path):
    names, _ = written(job(("a.json", ranked(1)), ("b.json", ranked(1))), tmp_path / "kept")
    assert names == ["rank1", "rank1_"]


def test_what_cannot_be_read_is_left_out_and_told(tmp_path):
    names, told = written(job(("a.json", "not JSON"), ("b.json", ranked(1))), tmp_path / "kept")
    assert (names, told) == (["rank1"], ["a.json is left out: not JSON"])
    with pytest.raises(StepscopeError, match="not JSON"):
        written(job(("a.json", "not JSON"), ("b.json", "empty")), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_no_traces_are_an_error(tmp_path):
    with pytest.raises(StepscopeError, match="no traces given"):
        written(job(), tmp_path / "none")
