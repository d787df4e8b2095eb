from __future__ import annotations

import gzip
import json
import os
import time

import polars as pl
import pytest
from msgspec.structs import replace

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.readers.chrome import kineto
from stepscope.readers.formats import FORMATS


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A trace that is worth keeping, written long enough ago."""
    monkeypatch.setattr(store, "LEAST_BYTES", 1000)
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 100)
    path = tmp_path / "rank2.json"
    write(path)
    return path


def write(path, *, name="work"):
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}{i % 7}", "pid": 1, "tid": 1, "ts": i * 10, "dur": 5}
        for i in range(200)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    time.sleep(0.15)


def load(path, **options):
    found = stepscope.load(path, **options)
    store.wait_until_written()
    return found


def kept(where):
    return [entry.source for entry in store.entries(where)]


@pytest.mark.slow
def test_a_file_is_read_once(where, file, monkeypatch):
    first = load(file)
    assert kept(where) == [str(file)]
    monkeypatch.setattr("stepscope.readers.reader_for", None)  # nothing reads the file itself any more
    again = load(file)
    assert again.meta == first.meta
    assert again.spans.equals(first.spans)
    assert str(stepscope.report(again)) == str(stepscope.report(first))


@pytest.mark.usefixtures("where")
def test_progress_is_told_all_at_once(file):
    load(file)
    told = []
    load(file, progress=told.append)
    assert told == [file.stat().st_size]


@pytest.mark.usefixtures("where")
def test_nothing_is_written_beside_the_file(file):
    load(file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["kept", "rank2.json"]


@pytest.mark.slow
def test_a_file_that_changed_is_read_again(where, file):
    assert load(file).spans["name"][0] == "aten::work0"
    status = file.stat()
    write(file, name="play")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    time.sleep(0.15)
    assert load(file).spans["name"][0] == "aten::play0"
    assert len(kept(where)) == 2


def test_a_file_that_was_written_to_a_moment_ago_is_not_kept(where, file):
    file.touch()
    load(file)
    assert kept(where) == []


def test_a_file_that_changes_while_it_is_read_is_not_kept(where, file, monkeypatch):
    real = kineto.read

    def slowly(source):
        trace = real(source)
        os.utime(file)
        return trace

    monkeypatch.setattr(kineto, "read", slowly)
    load(file)
    assert kept(where) == []


@pytest.mark.slow
@pytest.mark.usefixtures("where")
def test_the_name_of_a_file_counts_as_well(file):
    assert load(file).rank == 2
    other = file.with_name("rank5.json")
    os.link(file, other)
    time.sleep(0.15)
    assert load(other).rank == 5


@pytest.mark.slow
@pytest.mark.usefixtures("where")
def test_a_limit_on_what_is_unpacked_holds_for_kept_files_too(file):
    packed = file.with_name("rank3.json.gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    time.sleep(0.15)
    load(packed)
    with pytest.raises(StepscopeError, match="unpacks to more than"):
        load(packed, max_bytes=1000)


@pytest.mark.usefixtures("where")
def test_counters_beside_the_file_are_read_each_time(file):
    assert load(file).counters.is_empty()
    frame = pl.DataFrame({"ts_ns": [1], "metric": ["m"], "unit": ["%"], "device": ["host"], "value": [1.0]})
    frame.write_csv(file.with_name("counters.csv"))
    again = load(file)
    assert again.issues["code"].to_list() == ["counters_unplaced"]
    assert again.spans.height == 200


def test_a_reader_that_looks_elsewhere_is_not_kept(where, file, monkeypatch):
    kineto = next(one for one in FORMATS if one.name == "kineto")
    monkeypatch.setattr("stepscope.readers.reader_for", lambda *_: replace(kineto, cacheable=False))
    load(file)
    assert kept(where) == []


def test_small_files_are_not_kept(where, file, monkeypatch):
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 10**9)
    assert store.file_key(str(file), ()) is None
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 100)
    monkeypatch.setattr(store, "LEAST_BYTES", 10**9)
    load(file)
    assert kept(where) == []


def test_nothing_is_kept_where_the_cache_is_off(where, file, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "0")
    load(file)
    assert not where.folder.exists()


def test_a_disk_that_takes_nothing_does_not_make_reading_fail(file, monkeypatch, tmp_path):
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "no-folder" / "x"))
    assert load(file).spans.height == load(file).spans.height == 200


def test_an_object_that_tells_no_state_is_not_kept(where, file):
    files.write("memory://store-test/rank1.json", file.read_bytes())
    assert load("memory://store-test/rank1.json").rank == 1
    assert kept(where) == []
