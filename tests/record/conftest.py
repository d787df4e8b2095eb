"""Recordings of real short jobs, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
#: What uses one of these starts the recorder, or one of its processes.
RECORDING_FIXTURES = {"record_into", "start", "_allowed"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}{os.sep}") and RECORDING_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("recording")
            item.add_marker("slow")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


@pytest.fixture(scope="session")
def record_into():
    """Runs `stepscope record -o FOLDER` with more words; its result has `.folder`."""

    def run(folder: Path, *words: str, **kwargs) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), *words]
        kwargs = {"capture_output": True, "text": True, "timeout": 120, "env": _environment()} | kwargs
        done = subprocess.run(command, check=False, **kwargs)
        done.folder = folder
        return done

    return run


@pytest.fixture
def record(tmp_path, record_into):
    """Runs `stepscope record` into a folder of this test's."""

    def run(*words: str, folder: Path = tmp_path / "run", **kwargs) -> subprocess.CompletedProcess:
        return record_into(folder, *words, **kwargs)

    return run


@pytest.fixture
def start(tmp_path):
    """Starts `stepscope record -o FOLDER` with more words, and gives the process, which ends with the test."""
    started = []

    def run(*words: str, folder: Path = tmp_path / "run", **kwargs) -> subprocess.Popen:
        command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), *words]
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": _environment()} | kwargs
        started.append(subprocess.Popen(command, **kwargs))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def wait_until():
    def wait(is_so: Callable[[], object], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return wait


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
