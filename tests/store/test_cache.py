from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import TABLES
from stepscope.store import CacheFolder, CacheWarning, _cache, _folder, cache_folder, column_files
from stepscope.store._cache import (
    clear,
    entries,
    exclusive_lock,
    find_trace,
    find_value,
    put_trace,
    put_value,
    scratch_folder,
    shared_lock,
)


def small(where, trace):
    """Bytes that an entry of the trace takes."""
    put_trace(where, "probe", trace)
    (found,) = entries(where)
    clear(where)
    _cache._usage.clear()
    return found.stored_bytes


def names(where):
    return {path.name for path in where.folder.iterdir()}


def test_what_was_kept_is_found_again_under_the_name_it_is_asked_by(where, full):
    assert find_trace(where, "key", label="other.json") is None
    assert put_trace(where, "key", full)
    found = find_trace(where, "key", label="other.json")
    assert found is not None
    assert found.meta == replace(full.meta, path="other.json")
    assert found.spans.equals(full.spans)
    assert names(where) == {"key"}


@pytest.mark.parametrize("folder", ["plain", "a[1]*{b}", "step=3"])
def test_big_tables_are_read_column_by_column(folder, tmp_path, full, monkeypatch):
    monkeypatch.setattr(column_files, "LEAST_ROWS", 1)
    monkeypatch.setattr(_folder, "LEAST_ROWS", 1)
    where = CacheFolder(tmp_path / folder, 10**9)
    put_trace(where, "key", full)
    trace = find_trace(where, "key", label="x")
    assert trace is not None
    for name, table in full.tables.items():
        assert trace.tables[name].schema == table.schema
        assert trace.tables[name].equals(table, null_equal=True), name


def test_a_big_table_that_is_gone_or_shorter_is_damage(where, full, monkeypatch):
    monkeypatch.setattr(_folder, "LEAST_ROWS", 1)
    put_trace(where, "key", full)
    trace = find_trace(where, "key", label="x")
    assert trace is not None
    (where.folder / "key" / "spans.parquet").unlink()
    with pytest.raises(CorruptInput, match="missing"):
        trace.tables["spans"]
    kernels = where.folder / "key" / "kernels.parquet"
    kernels.chmod(0o600)
    kernels.write_bytes(b"PAR1")
    with pytest.raises(CorruptInput, match="bytes instead of"):
        trace.tables["kernels"]


def test_what_is_there_already_is_not_written_again(where, full):
    assert put_trace(where, "key", full)
    inode = (where.folder / "key").stat().st_ino
    assert not put_trace(where, "key", full)
    assert (where.folder / "key").stat().st_ino == inode


def test_a_damaged_entry_is_not_served_and_makes_room(where, full):
    put_trace(where, "key", full)
    spans = where.folder / "key" / "spans.parquet"
    spans.chmod(0o600)
    spans.write_bytes(b"PAR1")
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_trace(where, "key", label="x") is None
    assert put_trace(where, "key", full)
    assert find_trace(where, "key", label="x") is not None


@pytest.mark.parametrize("text", ["", "{}", '{"stepscope": "trace", ', '{"stepscope": "trace", "version": 99}'])
def test_a_description_of_another_version_or_none_is_a_miss(where, full, text):
    put_trace(where, "key", full)
    meta = where.folder / "key" / "meta.json"
    meta.chmod(0o600)
    meta.write_text(text)
    (meta.parent / "digest").chmod(0o600)
    (meta.parent / "digest").write_bytes(_cache._digest(meta.parent, "key"))
    assert find_trace(where, "key", label="x") is None


def test_the_least_recently_used_go_first(where, full):
    room = replace(where, limit_bytes=int(3.5 * small(where, full)))
    for i, key in enumerate("abc"):
        put_trace(room, key, full)
        os.utime(room.folder / key / "meta.json", ns=(i, i))
    assert find_trace(room, "a", label="x") is not None  # used just now
    put_trace(room, "d", full)
    assert names(room) == {"a", "c", "d"}


@pytest.mark.slow
def test_the_limit_holds_whatever_the_process_believes(where, full):
    room = replace(where, limit_bytes=int(4.5 * small(where, full)))
    for i in range(30):
        put_trace(room, f"k{i}", full)
        assert sum(entry.stored_bytes for entry in entries(room)) <= room.limit_bytes


def test_what_alone_is_beyond_the_limit_is_not_kept(where, full):
    assert not put_trace(replace(where, limit_bytes=1000), "key", full)
    assert names(where) == set()


def test_what_someone_reads_is_not_removed(where, full):
    put_trace(where, "read", full)
    put_trace(where, "idle", full)
    found = find_trace(where, "read", label="x")
    assert found is not None
    assert clear(where) == (1, 1)
    assert found.spans.equals(full.spans)
    del found
    assert clear(where) == (1, 0)
    assert names(where) == set()


def test_entries_tell_what_they_are_the_last_used_first(where, full):
    put_trace(where, "old", full)
    put_trace(where, "new", replace(full, meta=replace(full.meta, path="/data/new.json")))
    os.utime(where.folder / "old" / "meta.json", ns=(1, 1))
    first, second = entries(where)
    assert (first.source, first.format, first.source_bytes) == ("/data/new.json", "kineto", 10**6)
    assert second.used_unix_ns == 1
    (where.folder / "old" / "meta.json").chmod(0o600)
    (where.folder / "old" / "meta.json").write_text('{"stepscope": "trace", ')
    assert [entry.source for entry in entries(where)] == ["/data/new.json"]


def test_a_cache_that_does_not_exist_is_empty(where):
    assert entries(where) == []
    assert clear(where) == (0, 0)


def test_what_a_killed_process_left_is_swept_away(where, full):
    where.folder.mkdir()
    left, fresh, made_nothing = (where.folder / f".new-{name}" for name in ("left", "fresh", "nothing"))
    for folder in (left, fresh, made_nothing):
        folder.mkdir()
    (left / ".lock").touch()
    (left / "entry").mkdir()
    os.utime(left, (1, 1))
    os.utime(made_nothing, (1, 1))
    with scratch_folder(where.folder) as busy:
        os.utime(busy, (1, 1))
        put_trace(where, "key", full)
        # Whose owner lives stays, and so does what is too new to have a lock.
        assert names(where) == {"key", busy.name, fresh.name}
    assert names(where) == {"key", fresh.name}


def test_a_disk_that_refuses_leaves_nothing(where, full, monkeypatch):
    def refuse(*_, **__):
        (where.folder / "x").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_cache, "write_folder", refuse)
    with pytest.raises(OSError, match="No space"):
        put_trace(where, "key", full)
    assert names(where) == {"x"}


def test_a_rename_that_fails_is_told_unless_another_was_quicker(where, full, monkeypatch):
    import pathlib

    put_trace(where, "other", full)
    real = pathlib.Path.rename

    def late(self, target):
        if target.name == "key":
            shutil.copytree(where.folder / "other", where.folder / "key")
            raise OSError(39, "Directory not empty")
        if target.name == "never":
            raise OSError(30, "Read-only file system")
        return real(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", late)
    assert not put_trace(where, "key", full)
    with pytest.raises(OSError, match="Read-only"):
        put_trace(where, "never", full)


def test_writers_at_the_same_time_leave_one_whole_entry(where, full):
    threads = [threading.Thread(target=put_trace, args=(where, "key", full)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(where) == {"key"}
    found = find_trace(where, "key", label="x")
    assert found is not None
    assert found.spans.equals(full.spans)


WRITER = """
import json, pathlib, sys
from stepscope.store import CacheFolder, read_folder, read_document
from stepscope.store._cache import put_trace
source, target = sys.argv[1:]
trace = read_folder(source, read_document(source, kind="trace"), label="x")
for name in trace.tables:
    trace.table(name)
print("ready", flush=True)
for i in range(10_000):
    put_trace(CacheFolder(pathlib.Path(target), 10**9), f"k{i}", trace)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_read(where, full, tmp_path):
    put_trace(CacheFolder(tmp_path / "source", 10**9), "trace", full)
    random.seed(8)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "source" / "trace"), str(where.folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0, 0.08))
        writer.kill()
        writer.communicate()
        for folder in where.folder.iterdir():
            if folder.name.startswith("."):
                continue
            found = find_trace(where, folder.name, label="x")
            assert found is not None, "an entry that is not whole"
            assert all(found.table(name).equals(full.table(name)) for name in TABLES)
            del found
    for folder in where.folder.iterdir():
        os.utime(folder, (1, 1))
    clear(where)
    assert names(where) == set()


def test_entries_may_not_be_written_to(where, full):
    put_trace(where, "key", full)
    modes = {path.stat().st_mode & 0o777 for path in (where.folder / "key").iterdir()}
    assert modes == {0o400}
    assert where.folder.stat().st_mode & 0o077 == 0
    assert json.loads((where.folder / "key" / "meta.json").read_text())["stepscope"] == "trace"


def test_what_others_remove_meanwhile_is_passed_over(where, full, monkeypatch):
    put_trace(where, "gone", full)
    put_trace(where, "here", full)
    real = _cache._size_of

    def size_of(folder):
        if folder.name == "gone":
            raise FileNotFoundError(2, "no such file", str(folder))
        return real(folder)

    monkeypatch.setattr(_cache, "_size_of", size_of)
    assert [entry.folder.name for entry in entries(where)] == ["here"]
    assert _cache._shrink(where.folder, 0) == 0
    assert names(where) == {"gone"}


def test_what_cannot_be_moved_stays(where, full, monkeypatch):
    put_trace(where, "key", full)

    def refuse(_, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    assert clear(where) == (0, 1)
    assert names(where) == {"key"}


def test_unfinished_folders_that_vanish_are_not_looked_at(where):
    assert _cache._is_new(where.folder / "nothing")


def note(where, content=b"some bytes"):
    return put_value(where, "note", content, source="/run/rank0.json", kind="kineto, summary", source_bytes=7)


def test_a_note_is_found_again_and_listed_with_its_source(where):
    assert find_value(where, "note") is None
    assert note(where)
    assert find_value(where, "note") == b"some bytes"
    assert find_trace(where, "note", label="x") is None
    (entry,) = entries(where)
    assert (entry.source, entry.format, entry.source_bytes) == ("/run/rank0.json", "kineto, summary", 7)
    assert not note(where, b"others")
    assert find_value(where, "note") == b"some bytes"


def test_a_note_that_was_cut_is_not_served_and_makes_room(where):
    note(where)
    content = where.folder / "note" / "note"
    content.chmod(0o600)
    content.write_bytes(b"some")
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_value(where, "note") is None
    assert note(where)
    assert find_value(where, "note") == b"some bytes"
    (where.folder / "note" / "note").unlink()
    with pytest.warns(CacheWarning, match="its content is not what was written"):
        assert find_value(where, "note") is None


def test_a_kept_trace_is_no_note(where, full):
    put_trace(where, "key", full)
    assert find_value(where, "key") is None


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STEPSCOPE_CACHE", "STEPSCOPE_CACHE_DIR", "STEPSCOPE_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("word", ["0", "off", "No", "FALSE"])
def test_a_word_turns_it_off(monkeypatch, word):
    monkeypatch.setenv("STEPSCOPE_CACHE", word)
    assert cache_folder() is None


def test_folder_and_size_are_those_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "3MB")
    assert cache_folder() == CacheFolder(tmp_path / "kept", 3_000_000)
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "much")
    with pytest.raises(StepscopeError, match="STEPSCOPE_CACHE_SIZE: 'much' is not a size"):
        cache_folder()


@pytest.mark.parametrize(("free", "limit"), [(10**12, 5 * 10**9), (10**10, 10**9)])
def test_by_default_it_takes_5_gb_or_a_tenth_of_what_is_free(monkeypatch, free, limit):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    found = cache_folder()
    assert found is not None
    assert found.limit_bytes == limit


def test_a_disk_that_cannot_be_asked_has_no_room(monkeypatch):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    found = cache_folder()
    assert found is not None
    assert found.limit_bytes == 0


@pytest.mark.parametrize(
    ("platform", "told", "expected"),
    [
        ("linux", {}, ".cache/stepscope"),
        ("linux", {"XDG_CACHE_HOME": "/var/tmp/mine"}, "/var/tmp/mine/stepscope"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/stepscope"),
        ("darwin", {}, "Library/Caches/stepscope"),
        ("win32", {}, "AppData/Local/stepscope/Cache"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/stepscope/Cache"),
    ],
)
def test_it_lies_where_the_system_wants_it(monkeypatch, platform, told, expected):
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = cache_folder()
    assert found is not None
    assert found.folder == Path.home() / expected


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there open files lock themselves")


def test_many_may_read_and_one_alone_may_remove(tmp_path):
    path = tmp_path / "meta.json"
    path.touch()
    first, second = shared_lock(path), shared_lock(path)
    assert first is not None
    assert second is not None
    assert exclusive_lock(path) is None
    first.close()
    second.close()
    remover = exclusive_lock(path)
    assert remover is not None
    assert shared_lock(path) is None
    remover.close()


def test_what_is_not_there_cannot_be_locked(tmp_path):
    assert shared_lock(tmp_path / "nothing") is None
    assert exclusive_lock(tmp_path / "nothing") is None


def test_a_file_that_was_replaced_meanwhile_is_not_held(tmp_path, monkeypatch):
    path = tmp_path / "meta.json"
    path.touch()

    def replaced(_, *, exclusive):
        path.unlink()
        if exclusive:
            path.touch()
        return True

    monkeypatch.setattr(_cache, "_locked", replaced)
    assert shared_lock(path) is None
    path.touch()
    assert exclusive_lock(path) is None


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "meta.json"
    path.touch()
    code = (
        "import pathlib, sys, time; from stepscope.store._cache import exclusive_lock\n"
        "lock = exclusive_lock(pathlib.Path(sys.argv[1])); print(lock is not None, flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert exclusive_lock(path) is None
    holder.kill()
    holder.communicate()
    free = exclusive_lock(path)
    assert free is not None
    free.close()


def test_a_file_system_without_locks_lets_nobody_in(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_cache.fcntl, "flock", refuse)
    (tmp_path / "meta.json").touch()
    assert shared_lock(tmp_path / "meta.json") is None
    assert exclusive_lock(tmp_path / "meta.json") is None
