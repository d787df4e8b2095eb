from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.readers import open_trace

MAKER = Path(__file__).parents[2] / "benchmarks" / "make_paddle.py"


@pytest.mark.parametrize("more", [[], ["--launches"]])
def test_the_made_profile_holds_what_was_asked_for(tmp_path, more):
    path = tmp_path / "made.pb"
    subprocess.run([sys.executable, str(MAKER), str(path), "--events", "2500", *more], check=True)
    trace = open_trace(str(path))
    host = trace.spans.filter(~trace.spans["category"].is_in(["kernel", "runtime"]))
    assert host.height == 2500
    assert trace.steps.height == 3
    assert trace.kernels.is_empty() == (not more)
    assert trace.issues.is_empty()
