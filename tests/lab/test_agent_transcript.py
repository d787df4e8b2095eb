"""What an agent asks about two runs, and how the page tells it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import agent_transcript
import faults
import pytest
from agent_transcript import Case, Session

from stepscope.comparison.model import CATEGORIES

EXAMPLES = Path(__file__).parents[2] / "examples"
CASE = Case("slow", Path("base"), Path("other"))


def explained(columns, row):
    spans = {"columns": [{"name": name} for name in columns], "rows": [row]}
    answer = {"findings": [{"title": "slow_operator (certain): aten::mm", "details": ["calls: 1 → 2"]}], **spans}
    return Session([("explain", {"run": "run-1", "finding": 1}, answer)])


def test_calls_are_written_as_they_were_made_and_answers_by_what_decides():
    lines = agent_transcript.told(CASE, explained(("rank", "span_id", "name", "dur_ns"), (2, 7, "aten::mm", 90)))
    assert lines.splitlines()[3:] == [
        'explain(run="run-1", finding=1)',
        "  → slow_operator (certain): aten::mm",
        "    calls: 1 → 2",
        "    span 7 of rank 2: aten::mm, 90 ns",
        "```",
    ]


def test_a_run_without_ranks_has_none_in_its_spans():
    lines = agent_transcript.told(CASE, explained(("span_id", "name", "dur_ns"), (7, "aten::mm", 90)))
    assert "    span 7: aten::mm, 90 ns" in lines.splitlines()


def test_cases_are_pairs_of_folders_or_recordings_next_to_a_healthy_one(tmp_path):
    for name in ("pairs/a/normal0", "pairs/a/abnormal", "lab/healthy0", "lab/healthy1", "lab/garbage"):
        (tmp_path / name).mkdir(parents=True)
    pairs, lab = tmp_path / "pairs", tmp_path / "lab"
    assert list(agent_transcript.cases(pairs)) == [Case("a", pairs / "a/normal0", pairs / "a/abnormal")]
    assert list(agent_transcript.cases(lab)) == [Case("garbage", lab / "healthy0", lab / "garbage")]


def test_the_page_shows_five_faults_named_in_four_calls_and_a_healthy_run():
    right = {name: fault.causes for name, fault in faults.FAULTS.items()}
    right |= {"cpu_contention": ("cpu_contention",), "ddp_straggler": ("straggler_rank",)}
    right |= {
        "slow_dataloader": ("data_loading",),
        "demo-slow-loader": ("data_loading",),
        "slow_op": ("slow_operator",),
    }
    page = agent_transcript.PAGE.read_text(encoding="utf-8")
    assert "None" not in page
    named = 0
    for section in page.split("\n## ")[1:]:
        name = section.partition("\n")[0]
        assert len(re.findall(r"^\w+\(", section, re.MULTILINE)) <= 4
        causes = re.findall(r"^  → (\w+) \(\w+\): ", section, re.MULTILINE)
        assert set(causes) <= set(CATEGORIES)
        assert causes == [] if name.startswith("no_fault") else causes[0] in right[name]
        named += causes != []
    assert named >= 5
    assert "\n## no_fault" in page


@pytest.mark.slow
def test_a_shipped_fault_is_named_in_four_calls():
    (case,) = (case for case in agent_transcript.cases(EXAMPLES) if case.name == "demo-slow-loader")
    session = asyncio.run(agent_transcript.diagnosed(case, EXAMPLES))
    assert [tool for tool, _, _ in session.calls] == ["open", "open", "compare", "explain"]
    assert session.finding["title"].startswith("data_loading")
    assert agent_transcript.is_on_page(agent_transcript.told(case, session)), "lab/agent_transcript.py writes it anew"


def test_a_transcript_is_on_the_page_only_in_the_same_words():
    page = agent_transcript.PAGE.read_text(encoding="utf-8")
    section = "## slow_op" + page.partition("## slow_op")[2].partition("\n## ")[0].rstrip()
    assert agent_transcript.is_on_page(section)
    assert not agent_transcript.is_on_page(section.replace("certain", "likely"))
