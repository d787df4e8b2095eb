from __future__ import annotations

import importlib
import resource
import sys
from pathlib import Path

import pytest


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("measure")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.slow
def test_memory_and_cpu_time_of_the_process_are_counted(measure):
    cost = measure.best(python("x = b'1' * 300_000_000; sum(range(2_000_000))"), runs=1, timeout_s=60)
    assert cost.failure is None
    # The system counts what the process was before it became another program: a copy of this one.
    own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 300_000_000 < cost.peak_bytes < max(1_000_000_000, 1.1 * own_bytes)
    assert 0 < cost.cpu_s < 60


def test_a_failure_is_told_in_the_words_of_the_process(measure):
    assert (
        measure.once(python("raise ValueError('no such thing')"), timeout_s=60).failure == "ValueError: no such thing"
    )
    silent = measure.once(python("raise SystemExit(3)"), timeout_s=60)
    assert silent.failure == "exit code 3"


@pytest.mark.slow
def test_a_process_that_hangs_is_ended(measure):
    assert measure.once(python("import time; time.sleep(60)"), timeout_s=0.5).failure == "not done in 0 s"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not bound the address space of a process")
def test_a_process_that_wants_too_much_memory_fails(measure):
    cost = measure.once(python("x = bytes(2_000_000_000)"), timeout_s=60, max_bytes=1_000_000_000)
    assert cost.failure == "MemoryError"
