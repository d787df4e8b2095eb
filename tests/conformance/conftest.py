"""Real traces of many accelerators and frameworks, which are not part of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared/data` beside the repository: real traces, and what other tools make of them."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the collection of real traces (../shared/data, beside the repository) is not here")
    return folder
