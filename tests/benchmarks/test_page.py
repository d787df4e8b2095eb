from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return [importlib.import_module(name) for name in ("page", "measure", "inputs", "peers")]


def made(inputs):
    return inputs.Made(inputs.Input("a", Path("folder/trace.json"), 2), Path("trace.json"), 90_000_000, 264_241)


def test_times_on_more_cores_are_modelled_from_those_on_one_and_two(modules):
    page, measure, inputs, _ = modules
    one, two = measure.Cost(1.7, 1.8, 0), measure.Cost(1.7, 1.0, 0)
    line = page.cores([page.OnCores(made(inputs), one, two)]).splitlines()[-1]
    # 0.2 s are serial; of the other 1.6 s an eighth and a sixteenth are left.
    assert line == "| folder/trace × 2 | 90 | 1.80 | 1.00 | 0.20 | 0.40 | 0.30 |"


def test_cpu_time_is_a_multiple_of_that_of_plain_decoding(modules):
    page, measure, inputs, peers = modules
    theirs = [measure.Cost(1.5, 1.5, 0) if peer.name == page.FLOOR else None for peer in peers.PEERS]
    text = page.peers(peers.PEERS, [page.Beside(made(inputs), measure.Cost(1.2, 1.0, 0), theirs)])
    assert "| 1.20 / 1.00 / 0 | × 0.80 |" in text
    none = page.peers(peers.PEERS, [page.Beside(made(inputs), measure.Cost(1.2, 1.0, 0), [None] * len(peers.PEERS))])
    assert "| 1.20 / 1.00 / 0 | – |" in none


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has taskset")
def test_a_command_runs_on_so_many_cores(modules, tmp_path):
    _, measure, *_ = modules
    file = tmp_path / "cores"
    code = f"import os; open({str(file)!r}, 'w').write(str(len(os.sched_getaffinity(0))))"
    assert measure.once([sys.executable, "-c", code], timeout_s=60, cores=1).failure is None
    assert file.read_text() == "1"
