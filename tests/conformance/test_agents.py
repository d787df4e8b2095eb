"""An agent that knows nothing finds the injected faults of the fault lab, in at most four calls each."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp.client.client import Client

from stepscope.agents.answers import MOST_BYTES
from stepscope.agents.roots import Runs
from stepscope.agents.server import server

pytestmark = pytest.mark.slow


async def diagnosed(case, lab):
    """What an agent does that follows `next`: open both, compare, explain the first finding."""
    async with Client(server(Runs((lab,)))) as client:
        handles = [
            (await client.call_tool("open", {"paths": [f"{case}/{one}"]})).structured_content["run"]
            for one in ("normal0", "abnormal")
        ]
        compared = await client.call_tool("compare", {"base": handles[0], "other": handles[1]})
        following = [one for one in compared.structured_content.get("next", []) if one["tool"] == "explain"]
        explained = [await client.call_tool("explain", one["arguments"]) for one in following[:1]]
    for result in (compared, *explained):
        assert len(result.model_dump_json(by_alias=True).encode()) <= MOST_BYTES
    return compared.structured_content, [one.structured_content for one in explained]


@pytest.mark.parametrize(
    "case", ["cpu_contention", "ddp_straggler", "slow_dataloader", "slow_op", "no_fault_1", "no_fault_2"]
)
def test_a_fault_is_diagnosed_in_four_calls(case, shared):
    labels = json.loads((shared / "faultlab" / case / "labels.json").read_text())
    compared, explained = asyncio.run(diagnosed(case, (shared / "faultlab").resolve()))
    if case.startswith("no_fault"):
        assert "Different: slower" not in compared["headline"]
        return
    title = explained[0]["findings"][0]["title"]
    assert title.partition(" ")[0] in labels["accepted_categories"]
    assert labels["rank"] is None or f"Rank {labels['rank']}" in title
