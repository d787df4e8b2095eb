from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from stepscope.readers import open_trace

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_nsys.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_nsys", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_made_is_an_export_with_launches_and_ranges(script, tmp_path, monkeypatch, capsys):
    path = tmp_path / "big.sqlite"
    monkeypatch.setattr(sys, "argv", ["make_nsys.py", str(path), "--kernels", "95", "--kernels-a-range", "10"])
    assert script.main() == 0
    assert json.loads(capsys.readouterr().out) == {"n_kernels": 95, "n_bytes": path.stat().st_size}
    trace = open_trace(str(path))
    kernels = trace.spans.filter(pl.col("category") == "kernel")
    assert (kernels.height, kernels["launch_id"].null_count()) == (95, 0)
    assert trace.spans.filter(pl.col("category") == "user_range").height == 10
    ends = kernels["ts_ns"] + kernels["dur_ns"]
    assert (kernels["ts_ns"][1:] >= ends[:-1]).all()
    assert trace.issues.is_empty()
