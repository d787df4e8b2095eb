from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope import store
from stepscope.store import CacheFolder


@pytest.fixture
def kept(monkeypatch, tmp_path, make_trace):
    """Two traces in a cache."""
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "1MiB")
    where = CacheFolder(tmp_path / "kept", 2**20)
    for i, name in enumerate(("old", "new")):
        store.put_trace(where, name, make_trace(f"/data/{name}.json", 0))
        os.utime(where.folder / name / "meta.json", ns=(i * 10**9, i * 10**9))
    return where


def test_what_is_kept_is_listed_the_last_used_first(run, kept):
    result = run("cache")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["/data/new.json", "/data/old.json"]
    assert "1970-01-01 00:00:01" in lines[2]
    assert lines[-1].startswith(f"{kept.folder}: ")
    assert lines[-1].endswith("of 1 MiB")


def test_the_list_comes_in_other_forms(run, kept, tmp_path):
    rows = json.loads(run("cache", "--format", "json").out)
    assert [row["file"] for row in rows] == ["/data/new.json", "/data/old.json"]
    assert all(row["kept_bytes"] > 0 for row in rows)
    assert run("cache", "-o", str(tmp_path / "out.csv")).code == 0
    assert (tmp_path / "out.csv").read_text().startswith("file,format,file_bytes,kept_bytes,used\n")
    assert kept.folder.exists()


def test_it_can_be_cleared(run, kept):
    result = run("cache", "clear")
    assert result.code == 0
    assert result.err.startswith("2 removed, ")
    assert list(kept.folder.iterdir()) == []
    assert "no rows" in run("cache").out


def test_what_is_in_use_stays(run, kept):
    from stepscope.store._cache import find_trace

    held = find_trace(kept, "new", label="x")
    result = run("cache", "clear")
    assert result.err.startswith("1 removed, ")
    assert result.err.endswith("; 1 in use\n")
    assert held is not None


def test_a_cache_that_is_off_says_so(run, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "0")
    result = run("cache")
    assert (result.code, result.out) == (0, "")
    assert "turns the cache off" in result.err


def test_a_folder_that_may_not_be_written_to_is_told(run, kept, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != kept.folder)
    assert "cannot be written, so nothing new is cached" in run("cache").err


@pytest.mark.skipif(os.name != "posix", reason="modes of folders")
@pytest.mark.filterwarnings("always::stepscope.store.CacheWarning")
@pytest.mark.parametrize("more", [(), ("clear",)])
def test_a_folder_that_others_may_write_to_is_refused_with_the_reason(run, kept, more):
    kept.folder.chmod(0o777)
    result = run("cache", *more)
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"note: the cache is not used: {kept.folder} can be written to by other users; ")
    assert len(store.entries(kept)) == 2


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="modes of folders")
def test_the_reason_is_given_once_whatever_the_number_of_workers(kept, examples):
    kept.folder.chmod(0o777)
    command = [sys.executable, "-m", "stepscope", "report", str(examples / "demo-cpu-2ranks"), "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("the cache is not used") == 1, done.stderr


def test_anything_but_clear_is_a_usage_error(run, kept):
    assert run("cache", "empty").code == 2
    assert len(store.entries(kept)) == 2
