from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _python(variable: str, module: str) -> str:
    python = os.environ.get(variable, sys.executable)
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {module} here; name a Python that has it with {variable}")
    return python


@pytest.fixture(scope="session")
def paddle_python() -> str:
    """A Python with paddle: this one, or the one that STEPSCOPE_PADDLE_PYTHON names."""
    return _python("STEPSCOPE_PADDLE_PYTHON", "paddle")


@pytest.fixture(scope="session")
def jax_python() -> str:
    """A Python with jax: this one, or the one that STEPSCOPE_JAX_PYTHON names."""
    return _python("STEPSCOPE_JAX_PYTHON", "jax")
