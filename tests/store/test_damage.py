"""What lies in the cache is an input like any other: damaged, swapped or forged, it never changes an answer."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import stat
import time
from typing import TYPE_CHECKING

import polars as pl
import pytest

import stepscope
from stepscope import store
from stepscope.core.schema import TABLES
from stepscope.store import CacheWarning, _cache
from stepscope.store._cache import find_trace, find_value, put_trace, put_value
from stepscope.store.cache_keys import settled

if TYPE_CHECKING:
    from pathlib import Path

#: Flips of one byte; 10,000 take a quarter of an hour.
N_FLIPS = int(os.environ.get("STEPSCOPE_TEST_FLIPS", "60"))

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes of files")


@pytest.fixture
def path(tmp_path, where, monkeypatch) -> str:  # noqa: ARG001  the cache
    """A small trace that is cached whatever its size, and written long enough ago."""
    monkeypatch.setattr(store, "LEAST_BYTES", 0)
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 0)
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i % 3}", "pid": 1, "tid": 1, "ts": 10 * i, "dur": 5}
        for i in range(20)
    ]
    target = tmp_path / "rank0.pt.trace.json"
    target.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    while not settled(str(target), time.time_ns()):
        pass
    return str(target)


def answer(path: str) -> tuple[str, dict[str, pl.DataFrame]]:
    """The report, from the cached summary, and all tables of the trace."""
    text = str(stepscope.report(stepscope.load_run(path), workers=0))
    trace = stepscope.load(path)
    tables = {name: trace.table(name) for name in TABLES}
    store.wait_until_written()
    return text, tables


def is_same(first, second) -> bool:
    return first[0] == second[0] and all(frame.equals(second[1][name]) for name, frame in first[1].items())


def flip(file: Path, at: int, bits: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= bits
    file.chmod(0o600)
    file.write_bytes(content)
    file.chmod(0o400)


@pytest.mark.slow
def test_a_flipped_byte_anywhere_changes_no_answer(path, where, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setenv("STEPSCOPE_CACHE", "0")
        right = answer(path)
    assert is_same(answer(path), right)
    sound = tmp_path / "sound"
    shutil.copytree(where.folder, sound)
    cached = sorted(file.relative_to(sound) for file in sound.rglob("*") if file.is_file())
    assert {file.name for file in cached} >= {"digest", "meta.json", "note", "spans.parquet"}
    seed = random.Random(18)
    for i in range(N_FLIPS):
        file = where.folder / cached[i % len(cached)]  # each file is changed
        flip(file, seed.randrange(file.stat().st_size), seed.randrange(1, 256))
        with pytest.warns(CacheWarning, match="its content is not what was written"):
            assert is_same(answer(path), right), file
        shutil.rmtree(where.folder)
        shutil.copytree(sound, where.folder)


@pytest.mark.slow
def test_a_flipped_byte_anywhere_in_an_entry_is_noticed(where, full):
    seed = random.Random(8)
    put_trace(where, "key", full)
    for file in (where.folder / "key").iterdir():
        for _ in range(10):
            at, bits = seed.randrange(file.stat().st_size), seed.randrange(1, 256)
            flip(file, at, bits)
            assert _cache._digest(file.parent, "key") != (file.parent / "digest").read_bytes()
            flip(file, at, bits)
    assert find_trace(where, "key", label="x") is not None


def test_a_truncated_or_longer_file_is_not_served(where, full):
    for change in (lambda content: content[:-1], lambda content: content + b"\0", lambda _: b""):
        put_trace(where, "key", full)
        file = where.folder / "key" / "steps.parquet"
        file.chmod(0o600)
        file.write_bytes(change(file.read_bytes()))
        with pytest.warns(CacheWarning, match="its content is not what was written"):
            assert find_trace(where, "key", label="x") is None
        assert not (where.folder / "key").exists()


def test_a_table_of_another_entry_is_not_served(where, full):
    steps = full.steps.with_columns(pl.col("step") + 1)
    put_trace(where, "one", full)
    put_trace(where, "two", full.with_tables(steps=steps))
    (where.folder / "one" / "steps.parquet").replace(where.folder / "two" / "steps.parquet")
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_trace(where, "two", label="x") is None
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_trace(where, "one", label="x") is None


def test_entries_that_change_places_are_not_served(where, full):
    put_trace(where, "one", full)
    put_trace(where, "two", full)
    for old, new in (("one", "three"), ("two", "one"), ("three", "two")):
        (where.folder / old).rename(where.folder / new)
    for key in ("one", "two"):
        with pytest.warns(CacheWarning, match="its content is not what was written"):
            assert find_trace(where, key, label="x") is None


class Evil:
    def __reduce__(self):
        return os.mkdir, ("code-ran",)


def test_a_forged_pickle_in_the_place_of_a_value_is_refused_and_runs_nothing(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = where.folder / "key"
    entry.mkdir(parents=True)
    where.folder.chmod(0o700)
    entry.chmod(0o700)
    (entry / "note").write_bytes(pickle.dumps(Evil()))
    (entry / "meta.json").write_text('{"stepscope": "note", "meta": {}}')
    with pytest.warns(CacheWarning, match="No such file"):  # it has no digest
        assert find_value(where, "key") is None
    assert not entry.exists()
    assert not (tmp_path / "code-ran").exists()


def value(where):
    put_value(where, "key", b"ours", source="/run/rank0.json", kind="kineto, test", source_bytes=7)
    return where.folder / "key"


def test_a_link_in_the_place_of_a_file_is_not_followed(where, tmp_path):
    file = value(where) / "note"
    (tmp_path / "elsewhere").write_bytes(file.read_bytes())
    (tmp_path / "elsewhere").chmod(0o400)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning, match="note in it is a symbolic link"):
        assert find_value(where, "key") is None
    assert (tmp_path / "elsewhere").read_bytes() == b"ours"
    assert not (where.folder / "key").exists()


def test_a_link_in_the_place_of_an_entry_is_not_followed(where, tmp_path):
    value(where).rename(tmp_path / "elsewhere")
    (where.folder / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning, match="it is a symbolic link"):
        assert find_value(where, "key") is None
    assert not os.path.lexists(where.folder / "key")
    assert {file.name for file in (tmp_path / "elsewhere").iterdir()} == {"digest", "meta.json", "note"}


@pytest.mark.parametrize("name", ["meta.json", "note"])
def test_a_pipe_in_the_place_of_a_file_does_not_block(where, name):
    file = value(where) / name
    file.unlink()
    os.mkfifo(file, 0o400)
    assert store.entries(where) == []
    with pytest.warns(CacheWarning, match="in it is not a regular file"):
        assert find_value(where, "key") is None
    assert not (where.folder / "key").exists()


def test_an_entry_without_its_description_is_removed(where):
    (value(where) / "meta.json").unlink()
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_value(where, "key") is None
    assert not (where.folder / "key").exists()


def test_an_entry_that_others_may_write_to_is_removed(where):
    value(where).chmod(0o770)
    with pytest.warns(CacheWarning, match="it can be written to by other users"):
        assert find_value(where, "key") is None
    (value(where) / "note").chmod(0o602)
    with pytest.warns(CacheWarning, match="note in it can be written to by other users"):
        assert find_value(where, "key") is None


@pytest.mark.slow
def test_a_folder_that_others_may_write_to_is_not_used(where, path):
    first = answer(path)
    where.folder.chmod(0o770)
    with pytest.warns(CacheWarning, match=r"not used: .* can be written to by other users; name a folder of your own"):
        assert store.cache_folder() is None
    with pytest.warns(CacheWarning, match="not used"):
        assert is_same(answer(path), first)
    where.folder.chmod(0o755)
    assert store.cache_folder() is not None


def test_a_link_or_a_file_in_the_place_of_the_folder_is_not_used(where, tmp_path):
    where.folder.symlink_to(tmp_path)
    with pytest.warns(CacheWarning, match="is a symbolic link"):
        assert store.cache_folder() is None
    where.folder.unlink()
    where.folder.touch()
    with pytest.warns(CacheWarning, match="is not a folder"):
        assert store.cache_folder() is None


def test_what_belongs_to_another_user_is_not_used(where, monkeypatch):
    value(where)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert store.cache_folder() is None
    with pytest.warns(CacheWarning, match="it belongs to another user"):
        assert find_value(where, "key") is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_files_that_another_user_owns_are_not_used(where):
    os.chown(value(where) / "note", 12345, -1)
    with pytest.warns(CacheWarning, match="note in it belongs to another user"):
        assert find_value(where, "key") is None
    os.chown(where.folder, 12345, -1)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert store.cache_folder() is None


def test_a_new_folder_is_open_to_nobody_else(where):
    value(where)
    assert stat.S_IMODE(where.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in where.folder.rglob("*")} == {0o700, 0o400}


def test_what_somebody_reads_is_not_removed_even_if_it_is_damaged(where, full):
    put_trace(where, "key", full)
    held = find_trace(where, "key", label="x")
    flip(where.folder / "key" / "steps.parquet", 50, 1)
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_trace(where, "key", label="y") is None
    assert (where.folder / "key").exists()
    assert held is not None
    assert held.spans.equals(full.spans)


def test_an_entry_that_another_process_removes_meanwhile_is_a_miss(where, monkeypatch, recwarn):
    folder = value(where)
    monkeypatch.setattr(_cache, "shared_lock", lambda _: shutil.rmtree(folder))
    assert find_value(where, "key") is None
    assert not recwarn.list
