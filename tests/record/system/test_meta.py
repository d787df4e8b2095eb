from __future__ import annotations

import json
import os
import time

import pytest

from stepscope.record.system import meta


def test_clocks_are_read_at_one_moment():
    found = meta.clocks()
    assert 0 <= found["uncertainty_ns"] < 1_000_000
    assert abs(time.time_ns() - found["unix_ns"] - (time.monotonic_ns() - found["monotonic_ns"])) < 1_000_000
    assert found["boottime_ns"] >= found["monotonic_ns"] - 1_000_000


def test_the_host_is_described():
    found = meta.this_host()
    assert found["cores"] == os.cpu_count()
    assert found["memory_bytes"] > 1 << 20
    assert found["host"]


def test_fields_are_set_and_issues_are_added(tmp_path):
    meta.write(tmp_path, {"a": 1, "issues": [meta.issue("x", "one")]})
    meta.merge(tmp_path, [meta.issue("y", "two", severity="info", count=3)], a=2)
    meta.merge(tmp_path, b="ü")
    assert json.loads((tmp_path / "meta.json").read_text(encoding="utf-8")) == {
        "a": 2,
        "b": "ü",
        "issues": [
            {"code": "x", "severity": "warning", "count": 1, "example": "one"},
            {"code": "y", "severity": "info", "count": 3, "example": "two"},
        ],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path):
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(OSError, match=r"meta\.json"):
        meta.write(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]


def test_notes_of_processes_are_put_together_by_pid(tmp_path):
    assert meta.hook_messages(tmp_path) == ([], [])
    (tmp_path / ".job").mkdir()
    lines = ['{"pid": 1, "python": "3"}', '{"pid": 2}', '{"code": "c", "pid": 1}', '{"pid": 1, "steps": 4}', '{"cut']
    (tmp_path / ".job" / "notes").write_text("\n".join(lines))
    processes, issues = meta.hook_messages(tmp_path)
    assert processes == [{"pid": 1, "python": "3", "steps": 4}, {"pid": 2}]
    assert issues == [{"code": "c", "pid": 1}]


def test_leftovers_are_removed_and_unfinished_files_counted(tmp_path):
    (tmp_path / ".job").mkdir()
    (tmp_path / ".job" / "gc-1").touch()
    for name in (".profile-1.json.part", "mine.part", "rank0.pt.trace.json.gz"):
        (tmp_path / name).touch()
    (tmp_path / ".dump-0002-signal.part").mkdir()
    for name in ("dump-0001-signal", ".dump-0002-signal.part"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / ".profile-1.json.part").touch()
    assert meta.remove_leftovers(tmp_path) == 3
    (tmp_path / "dump-0001-signal").rmdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.part", "rank0.pt.trace.json.gz"]
    assert meta.remove_leftovers(tmp_path) == 0
