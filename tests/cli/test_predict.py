from __future__ import annotations

import json

EXAMPLE = "demo-cpu-decode"


def test_a_change_is_predicted_for_people_and_for_programs(run, examples):
    folder = str(examples / EXAMPLE)
    shown = run("predict", folder, "--if", "op ~ aten::linear: 2x")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[-1].startswith("op ~ aten::linear: 2x")
    (row,) = json.loads(run("predict", folder, "--if", "op ~ aten::linear: 2x", "--format", "json").out)
    assert 0 < row["predicted_ns"] < row["step_ns"]


def test_what_is_no_change_is_refused(run, examples):
    result = run("predict", str(examples / EXAMPLE), "--if", "gemm=2")
    assert result.code == 1
    assert "not a change" in result.err
