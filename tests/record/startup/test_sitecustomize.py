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


@pytest.mark.parametrize(
    ("words", "environment", "is_watched"),
    [
        ([], {}, True),
        (["-P"], {}, True),
        ([], {"PYTHONSAFEPATH": "1"}, True),
        (["-s"], {"PYTHONNOUSERSITE": "1"}, True),
        (["-I"], {}, False),
        (["-E"], {}, False),
        (["-S"], {}, False),
    ],
)
def test_pythons_that_ignore_the_environment_are_not_watched(tmp_path, words, environment, is_watched):
    (tmp_path / "run" / ".job").mkdir(parents=True)
    env = {**os.environ, "PYTHONPATH": FOLDER, "STEPSCOPE_RECORD_DIR": str(tmp_path / "run"), **environment}
    done = subprocess.run(
        [sys.executable, *words, "-c", "print(1)"], capture_output=True, text=True, check=True, env=env
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert (tmp_path / "run" / ".job" / "notes").exists() == is_watched


def test_programs_of_a_virtual_environment_are_watched(tmp_path):
    (tmp_path / "run" / ".job").mkdir(parents=True)
    program = tmp_path / "program"  # as pip writes them
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(3)\n")
    program.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": FOLDER, "STEPSCOPE_RECORD_DIR": str(tmp_path / "run")}
    assert subprocess.run([str(program)], check=False, env=env).returncode == 3
    assert (tmp_path / "run" / ".job" / "notes").exists()


def test_what_takes_long_to_import_is_not_imported(tmp_path):
    (tmp_path / "run" / ".job").mkdir(parents=True)
    env = {**os.environ, "PYTHONPATH": FOLDER, "STEPSCOPE_RECORD_DIR": str(tmp_path / "run")}
    code = "import sys; print(sorted({'json', 're', 'typing', 'importlib.abc', 'threading'} & set(sys.modules)))"
    plain, hooked = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=e).stdout
        for e in ({**env, "PYTHONPATH": ""}, env)
    )
    assert hooked == plain
