from __future__ import annotations

import pytest
from job_simulator import Layout, Plan, simulate, tables
from jobs import part

from stepscope.analyses.ranks.bubbles import pipeline_bubbles
from stepscope.core.errors import MissingTable


def test_an_even_pipeline_has_about_the_ideal_bubbles():
    plan = Plan(Layout(pp=4), steps=6, microbatches=8, layer_bytes=1 << 10, jitter=0.0, arrival_noise_ns=0.0)
    table = pipeline_bubbles(tables(simulate(plan)))
    assert table["stage"].to_list() == [0, 1, 2, 3]
    assert table["microbatches"].to_list() == [8.0] * 4
    assert table["ideal_ratio"].to_list() == pytest.approx([3 / 11] * 4)
    assert table["bubble_ratio"].mean() == pytest.approx(3 / 11, abs=0.06)
    assert table["excess_compute_ratio"].to_list() == pytest.approx([0.0] * 4, abs=0.02)


def test_a_job_without_a_pipeline_is_refused():
    with pytest.raises(MissingTable, match="pipeline"):
        pipeline_bubbles([part(0, (0, 1)), part(1, (0, 1))])
