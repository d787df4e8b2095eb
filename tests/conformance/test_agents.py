"""An agent that knows nothing finds the injected faults of the fault lab, in at most four calls each."""

from __future__ import annotations

import asyncio
import json

import agent_transcript
import pytest
from agent_transcript import Case

from stepscope.agents.answers import MOST_BYTES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["cpu_contention", "ddp_straggler", "slow_dataloader", "slow_op", "no_fault_1", "no_fault_2"]
)
def test_a_fault_is_diagnosed_in_four_calls(name, shared):
    lab = (shared / "faultlab").resolve()
    labels = json.loads((lab / name / "labels.json").read_text())
    case = Case(name, lab / name / "normal0", lab / name / "abnormal")
    session = asyncio.run(agent_transcript.diagnosed(case, lab))
    assert len(session.calls) <= 4
    assert session.longest <= MOST_BYTES
    assert agent_transcript.is_on_page(agent_transcript.told(case, session)), "lab/agent_transcript.py writes it anew"
    if name.startswith("no_fault"):
        assert "Different: slower" not in session.compared["headline"]
        return
    title = session.finding["title"]
    assert title.partition(" ")[0] in labels["accepted_categories"]
    assert labels["rank"] is None or f"Rank {labels['rank']}" in title
