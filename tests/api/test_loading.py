from __future__ import annotations

import pickle
import shutil
import time

import pytest

import stepscope
from stepscope import load_run, store
from stepscope.api.loading import FileOpener, loaded, named_as
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Opener, Trace
from stepscope.readers import SideFiles
from stepscope.store.cache_keys import settled


@pytest.fixture
def file(tmp_path, examples, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "run").mkdir()
    target = shutil.copy(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz", tmp_path / "run")
    while not settled(target, time.time_ns()):
        pass
    return target


def kept():
    where = store.cache_folder()
    assert where is not None
    store.wait_until_written()
    return len(store.entries(where))


@pytest.mark.slow
def test_a_file_that_is_opened_once_is_not_kept(file):
    opener = load_run(file).open_trace
    assert isinstance(opener, Opener)
    trace = opener.once(file)
    assert (trace.rank, kept()) == (0, 0)
    assert opener(file).spans.equals(trace.spans)
    assert kept() == 1
    assert opener.once(file).spans.equals(trace.spans)


def test_what_a_trace_depends_on_changes_with_the_files_beside_it(file, tmp_path):
    opener = FileOpener(SideFiles(), None, 10**9, None)
    bare = opener.depends(file)
    assert bare == (10**9,)
    (tmp_path / "run" / "counters.csv").write_text("ts_ns,metric,unit,device,value\n")
    with_counters = opener.depends(file)
    (tmp_path / "run" / "meta.json").write_text("{}")
    with_notes = opener.depends(file)
    assert len({bare, with_counters, with_notes}) == 3


def test_of_what_comes_from_elsewhere_nothing_is_said(file):
    assert FileOpener(SideFiles("other/counters.csv"), None, None, None).depends(file) is None
    assert FileOpener(SideFiles(), "kernels.ncu-rep", None, None).depends(file) is None


def test_an_opener_can_be_sent_without_its_listener(file):
    told = []
    opener = pickle.loads(pickle.dumps(FileOpener(SideFiles(), None, None, lambda *what: told.append(what))))
    assert isinstance(opener(file), Trace)
    assert not told


@pytest.mark.slow
def test_a_trace_is_loaded_with_what_is_beside_it(file, tmp_path):
    (tmp_path / "run" / "counters.csv").write_text("ts_ns,metric,unit,device,value\n1,host_cpu_usage,%,host,5\n")
    assert loaded(file).counters.height == 1
    assert loaded(file, cache=False).counters.height == 1


@pytest.mark.slow
def test_a_folder_with_one_trace_is_that_trace(file, tmp_path):
    (tmp_path / "run" / "meta.json").write_text('{"stepscope": "recording"}')
    trace = loaded(tmp_path / "run")
    assert trace.rank == 0
    stepscope.export(load_run(file), "parquet", output=tmp_path / "stored")
    assert loaded(tmp_path / "stored").spans.equals(trace.spans)


def test_a_folder_with_several_traces_or_none_is_refused_with_what_to_do(file, tmp_path):
    shutil.copy2(file, tmp_path / "run" / "rank1.pt.trace.json.gz")
    with pytest.raises(StepscopeError, match="run holds 2 traces") as caught:
        loaded(tmp_path / "run")
    assert "load_run" in caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepscopeError, match="no trace in"):
        loaded(tmp_path / "empty")


def test_many_files_of_a_folder_are_named_by_it_and_options_follow(tmp_path):
    for rank in range(5):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": []}')
    paths = sorted(str(path) for path in tmp_path.iterdir())
    opener = FileOpener(SideFiles("a b.csv"), None, None, None)
    assert named_as(paths, paths, opener) == (str(tmp_path), "--counters", "a b.csv")
    assert named_as(paths[:3], paths[:3], opener)[:3] == tuple(paths[:3])
    (tmp_path / "rank5.json").write_text('{"traceEvents": []}')
    assert named_as(paths, paths, opener)[:5] == tuple(paths)
