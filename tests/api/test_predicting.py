from __future__ import annotations

import stepscope
from stepscope.analyses.critical_path.predictions import PREDICTIONS
from stepscope.api.predicting import with_stragglers
from stepscope.api.verbs import load_run

JOB = "demo-cpu-2ranks"


def test_what_concerns_all_ranks_comes_before_what_concerns_each(examples):
    frame = PREDICTIONS.empty()
    rows = with_stragglers(load_run(examples / JOB), frame, None)
    assert rows["scenario"].to_list() == ["ranks: no stragglers"]
    assert 0 <= rows["gain_ratio"][0] < 0.5
    assert rows.schema == frame.schema


def test_one_rank_makes_no_other_wait(examples):
    trace = stepscope.load(str(examples / JOB / "rank0.pt.trace.json.gz"))
    assert with_stragglers(trace, PREDICTIONS.empty(), None).is_empty()
