from __future__ import annotations

import runpy
import sys
from pathlib import Path

import polars as pl

import stepscope

MAKER = Path(__file__).parents[2] / "benchmarks" / "make_perfetto.py"


def test_the_trace_has_as_many_spans_as_wanted_each_kernel_with_its_operator(tmp_path, monkeypatch):
    path = tmp_path / "rank0.pftrace"
    monkeypatch.setattr(sys, "argv", ["make_perfetto.py", str(path), "--spans", "60"])
    runpy.run_path(str(MAKER), run_name="__main__")
    spans = stepscope.load(path).spans
    kernels = spans.filter(pl.col("category") == "kernel")
    assert (spans.height, kernels.height, kernels["op_id"].null_count()) == (60, 30, 0)
    assert set(kernels["dur_ns"]) == {700}
