from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope

MAKER = Path(__file__).parents[2] / "benchmarks" / "make_ncu.py"


@pytest.mark.parametrize("page", ["details", "raw"])
def test_what_it_writes_is_read_back(tmp_path, page):
    out = tmp_path / "ncu.csv"
    command = [sys.executable, str(MAKER), str(out), "--launches", "200", "--metrics", "6", "--page", page]
    facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    trace = stepscope.load(out)
    assert (trace.spans.height, trace.kernel_metrics.height) == (facts["n_launches"], 6 * 200)
    assert trace.spans["dur_ns"].sum() == facts["total_ns"]
    assert trace.issues.is_empty()
    assert trace.spans["name"].n_unique() == 30
    assert trace.meta.size_bytes == facts["n_bytes"] == out.stat().st_size
