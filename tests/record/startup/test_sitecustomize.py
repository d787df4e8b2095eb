from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope.record.startup

FOLDER = str(Path(stepscope.record.startup.__file__).parent)


@pytest.fixture
def python(tmp_path):
    """Runs code in a Python that starts with the hook, and with the folder `own` on its path."""
    (tmp_path / "own").mkdir()
    (tmp_path / "run" / ".job").mkdir(parents=True)

    def run(code: str, **environment: str) -> subprocess.CompletedProcess:
        path = os.pathsep.join([FOLDER, str(tmp_path / "own")])
        env = {**os.environ, "PYTHONPATH": path, "STEPSCOPE_RECORD_DIR": str(tmp_path / "run"), **environment}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    return run


def test_the_users_own_customisation_runs_as_ever(python, tmp_path):
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine', __name__)\nvalue = 5\n")
    done = python("import sitecustomize; print(sitecustomize.value)")
    assert (done.stdout, done.stderr) == ("mine sitecustomize\n5\n", "")


def test_the_process_is_noted_and_its_path_is_clean(python, tmp_path):
    done = python("import sys; print([p for p in sys.path if 'startup' in p])")
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert '"python": "3.' in (tmp_path / "run" / ".job" / "notes").read_text()


def test_children_of_children_start_with_it_too(python, tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    assert python(code).stderr == ""
    assert len((tmp_path / "run" / ".job" / "notes").read_text().splitlines()) == 2


def test_without_a_recording_nothing_happens(python, tmp_path):
    assert python("print('ran')", STEPSCOPE_RECORD_DIR=str(tmp_path / "gone")).stdout == "ran\n"
    assert not (tmp_path / "run" / ".job" / "notes").exists()
