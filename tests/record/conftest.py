"""Recordings of real short jobs, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


@pytest.fixture
def record(tmp_path):
    """Runs `stepscope record -o FOLDER` with more words; its result has `.folder`."""

    def run(*words: str, folder: Path | None = None, **kwargs) -> subprocess.CompletedProcess:
        folder = folder or tmp_path / "run"
        command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), *words]
        kwargs = {"capture_output": True, "text": True, "timeout": 120, "env": _environment()} | kwargs
        done = subprocess.run(command, check=False, **kwargs)
        done.folder = folder
        return done

    return run


@pytest.fixture
def start(tmp_path):
    """Starts `stepscope record -o FOLDER` with more words, and gives the process, which ends with the test."""
    started = []

    def run(*words: str, **kwargs) -> subprocess.Popen:
        command = [sys.executable, "-m", "stepscope", "record", "-o", str(tmp_path / "run"), *words]
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": _environment()} | kwargs
        started.append(subprocess.Popen(command, **kwargs))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def meta():
    def read(folder: Path) -> dict:
        return json.loads((folder / "meta.json").read_text())

    return read


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python with torch: this one, or the one that STEPSCOPE_TORCH_PYTHON names."""
    python = os.environ.get("STEPSCOPE_TORCH_PYTHON", sys.executable)
    done = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no torch here; name a Python that has it with STEPSCOPE_TORCH_PYTHON")
    return python
