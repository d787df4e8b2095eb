from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.store import _locks
from stepscope.store._locks import alone, shared

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there open files lock themselves")


def test_many_may_read_and_one_alone_may_remove(tmp_path):
    path = tmp_path / "meta.json"
    path.touch()
    first, second = shared(path), shared(path)
    assert first is not None
    assert second is not None
    assert alone(path) is None
    first.close()
    second.close()
    remover = alone(path)
    assert remover is not None
    assert shared(path) is None
    remover.close()


def test_what_is_not_there_cannot_be_locked(tmp_path):
    assert shared(tmp_path / "nothing") is None
    assert alone(tmp_path / "nothing") is None


def test_a_file_that_was_replaced_meanwhile_is_not_held(tmp_path, monkeypatch):
    path = tmp_path / "meta.json"
    path.touch()

    def replaced(_, *, exclusive):
        path.unlink()
        if exclusive:
            path.touch()
        return True

    monkeypatch.setattr(_locks, "_locked", replaced)
    assert shared(path) is None
    path.touch()
    assert alone(path) is None


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "meta.json"
    path.touch()
    code = (
        "import pathlib, sys, time; from stepscope.store._locks import alone\n"
        "lock = alone(pathlib.Path(sys.argv[1])); print(lock is not None, flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert alone(path) is None
    holder.kill()
    holder.communicate()
    free = alone(path)
    assert free is not None
    free.close()


def test_a_file_system_without_locks_lets_nobody_in(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_locks.fcntl, "flock", refuse)
    (tmp_path / "meta.json").touch()
    assert shared(tmp_path / "meta.json") is None
    assert alone(tmp_path / "meta.json") is None
