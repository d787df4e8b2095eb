from __future__ import annotations

import ctypes
import gc
import json
import os
import struct
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from stepscope.record.startup import _stepscope_job
from stepscope.record.startup._stepscope_job import AfterImport, Collections, HookLog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / ".job").mkdir()
    return tmp_path


def totals(folder: Path) -> tuple[int, int, int]:
    return struct.unpack("<qqq", (folder / ".job" / f"gc-{os.getpid()}").read_bytes())


@pytest.mark.slow
def test_collections_and_their_time_are_counted(folder):
    collections = Collections(str(folder))
    gc.callbacks.append(collections.called)
    try:
        gc.collect()
        gc.collect()
    finally:
        gc.callbacks.remove(collections.called)
    count, taken, began = totals(folder)
    assert count >= 2
    assert 0 < taken < 60e9
    assert began == 0


def test_a_collection_under_way_is_told(folder):
    collections = Collections(str(folder))
    collections.called("stop", {})  # one that began before we looked
    before = time.monotonic_ns()
    collections.called("start", {})
    count, taken, began = totals(folder)
    assert (count, taken) == (0, 0)
    assert before <= began <= time.monotonic_ns()
    collections.called("stop", {})
    assert totals(folder)[0] == 1


def test_a_forked_child_counts_for_itself(folder):
    collections = Collections(str(folder))
    collections.called("start", {})
    collections.called("stop", {})
    collections.open()  # as the child does
    assert totals(folder) == (0, 0, 0)


def test_a_folder_that_is_gone_is_no_matter(tmp_path):
    collections = Collections(str(tmp_path / "gone"))
    collections.called("start", {})
    collections.called("stop", {})
    HookLog(str(tmp_path / "gone")).add(a=1)
    assert not list(tmp_path.iterdir())


def test_notes_are_lines_with_the_pid(folder):
    log = HookLog(str(folder))
    log.add(a=1)
    log.issue("code", "words")
    lines = [json.loads(line) for line in (folder / ".job" / "notes").read_text().splitlines()]
    assert lines == [
        {"a": 1, "pid": os.getpid()},
        {"code": "code", "severity": "warning", "count": 1, "example": "words", "pid": os.getpid()},
    ]


def test_notes_hold_any_text(folder):
    fields = {"a": 'quote " \\ \n', "b": "ä €\U0001f600\x7f", "c": None, "d": 1.5, "e": True}
    HookLog(str(folder)).add(**fields)
    assert json.loads((folder / ".job" / "notes").read_text()) == {**fields, "pid": os.getpid()}


def test_a_full_disk_is_no_matter(folder):
    (folder / ".job" / "notes").symlink_to("/dev/full")
    HookLog(str(folder)).add(a=1)


def test_a_function_is_called_once_after_an_import(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("loader = __spec__.loader\nvalue = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    called = []
    finder = AfterImport({"watched_module": lambda module: called.append(module.value)})
    sys.meta_path.insert(0, finder)
    try:
        import json.tool  # noqa: F401  another module

        import watched_module

        assert called == [3]
        assert finder not in sys.meta_path
        assert type(watched_module.loader).__name__ == "SourceFileLoader"
        assert watched_module.__spec__.loader is watched_module.loader
    finally:
        sys.modules.pop("watched_module", None)


def test_a_module_that_is_not_there_is_waited_for(monkeypatch):
    finder = AfterImport({"no_such_module_at_all": lambda _: None})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(ImportError):
        __import__("no_such_module_at_all")
    assert finder in sys.meta_path


def test_of_several_modules_each_is_waited_for(tmp_path, monkeypatch):
    for name in ("first_watched", "second_watched"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    called = []
    finder = AfterImport(
        dict.fromkeys(("first_watched", "second_watched"), lambda module: called.append(module.__name__))
    )
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in ("second_watched", "first_watched"):
        assert finder in sys.meta_path
        __import__(name)
        sys.modules.pop(name)
    assert called == ["second_watched", "first_watched"]
    assert finder not in sys.meta_path


def test_a_framework_that_is_unlike_what_we_know_is_imported_all_the_same(folder, tmp_path, monkeypatch):
    (tmp_path / "paddle.py").write_text("__version__ = '99.0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(_stepscope_job.os, "register_at_fork", lambda **_: None)
    callbacks = list(gc.callbacks)
    try:
        _stepscope_job.start(str(folder), "5:15")
        import paddle

        assert paddle.__version__ == "99.0"
    finally:
        gc.callbacks[:] = callbacks
        sys.modules.pop("paddle", None)
    (note,) = (line for line in (folder / ".job" / "notes").read_text().splitlines() if "code" in line)
    assert "does not show when a step ends" in note


@pytest.fixture
def calls(monkeypatch):
    """What prctl is called with, and what is to be done in forked children."""
    told: list = []
    forks: list = []
    library = SimpleNamespace(prctl=lambda *words: told.append([getattr(word, "value", word) for word in words]))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(os, "register_at_fork", lambda **when: forks.append(when["after_in_child"]))
    return told, forks


def test_where_only_parents_may_look_the_recorder_is_named_and_forked_children_name_it_too(calls, tmp_path):
    told, forks = calls
    (tmp_path / "scope").write_text("1\n")
    _stepscope_job.allow_tracer(4242, str(tmp_path / "scope"))
    assert told == [[0x59616D61, 4242, 0, 0, 0]]
    forks[0]()
    assert len(told) == 2


@pytest.mark.parametrize("scope", ["0\n", "2\n", "3\n", None])
def test_elsewhere_nothing_is_done(calls, tmp_path, scope):
    if scope is not None:
        (tmp_path / "scope").write_text(scope)
    _stepscope_job.allow_tracer(4242, str(tmp_path / "scope"))
    assert calls == ([], [])


def test_steps_that_a_job_marks_itself_are_timed_until_a_framework_counts_them(tmp_path, monkeypatch):
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    log = _stepscope_job.HookLog(str(tmp_path))
    monkeypatch.setattr(_stepscope_job, "_watched", [log])
    for _ in range(3):
        _stepscope_job.step()
    log.times.flush()
    (path,) = tmp_path.glob("pid*.loop.steps")
    assert path.stat().st_size == 32 + 2 * 8

    class Steps:
        n = 0

        def marked(self) -> None:
            self.n += 1

    log.steps = Steps()
    _stepscope_job.step()
    assert log.steps.n == 1


def test_threads_that_mark_the_first_steps_at_once_write_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    log = _stepscope_job.HookLog(str(tmp_path))
    monkeypatch.setattr(_stepscope_job, "_watched", [log])
    make = _stepscope_job._own_times
    made = []

    def slowly(folder):
        made.append(make(folder))
        if len(made) == 1:
            _stepscope_job.step()  # another thread's, before this one's is known
        return made[-1]

    monkeypatch.setattr(_stepscope_job, "_own_times", slowly)
    for _ in range(3):
        _stepscope_job.step()
    for times in made:
        times.flush()
    (path,) = tmp_path.glob("pid*.loop.steps")
    assert len(made) == 2
    assert path.read_bytes().count(b"STEPEND1") == 1
