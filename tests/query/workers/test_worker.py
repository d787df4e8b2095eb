from __future__ import annotations

import gc
import io
import json
import pickle
import subprocess
import sys

import pytest

from stepscope.query.workers.worker import COMMAND, serve


def tasks(*values):
    return io.BytesIO(b"".join(pickle.dumps(value) for value in values))


def test_a_function_is_applied_to_what_follows_until_there_is_no_more():
    results = io.BytesIO()
    serve(tasks(str.upper, "a", "b"), results)
    results.seek(0)
    assert [pickle.load(results), pickle.load(results)] == ["A", "B"]
    with pytest.raises(EOFError):
        pickle.load(results)


def test_cycles_are_searched_for_between_items_only(monkeypatch):
    found = []
    monkeypatch.setattr(gc, "collect", lambda: found.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: found.append("freeze"))
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    serve(tasks(str.upper, "a", "b"), io.BytesIO())
    assert found == ["collect", "freeze"] * 2


def test_without_a_function_there_is_nothing_to_do():
    with pytest.raises(EOFError):
        serve(tasks(), io.BytesIO())


def test_a_process_of_its_own_keeps_what_is_printed_apart():
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, json.dumps(sys.path)],
        input=tasks(print, "hello", "you").getvalue(),
        capture_output=True,
        check=True,
    )
    results = io.BytesIO(done.stdout)
    assert [pickle.load(results), pickle.load(results)] == [None, None]
    assert done.stderr.decode().split() == ["hello", "you"]
