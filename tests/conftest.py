"""What every test may use: the recorded demo traces, and how hypothesis behaves on a busy machine."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).parents[1]

# Tests open files of their own making, which nobody opens again: those that are about the cache turn it on.
os.environ["STEPSCOPE_CACHE"] = "0"
# One worker of pytest a core: threads would only get in each other's way.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("STEPSCOPE_THREADS", "1")

# No deadline: the cores that tests run on may be shared, and a slow example is not a wrong one. Where CI is set, the
# same examples are tried every time, and more of them, so that a change is not failed by what it did not touch.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True, max_examples=60)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of recorded traces: demo-cpu-2ranks (training, Python stacks), demo-cpu-decode (no stacks)."""
    return ROOT / "examples"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of some folders are of a kind, and all of these kinds are slow."""
    folders = {f"{ROOT / 'tests' / kind}{os.sep}": kind for kind in ("conformance", "browser")}
    for item in items:
        for folder, kind in folders.items():
            if str(item.path).startswith(folder):
                item.add_marker(kind)
                item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples are run where docs have them, which tests have not: their files are read once and not twice."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection_finish() -> None:
    """Ten thousand collected tests are not garbage: it is not looked for among them again after each test."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
