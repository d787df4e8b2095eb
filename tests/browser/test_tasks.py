"""Questions that people bring to the page: each is answered within three clicks of its first page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from served import serve


def _screenshots():
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = Path(__file__).parents[2] / "scripts" / "screenshots.py"
    spec = importlib.util.spec_from_file_location("screenshots", path)
    sys.modules["screenshots"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCREENSHOTS = _screenshots()


@pytest.mark.parametrize("task", SCREENSHOTS.TASKS, ids=lambda task: task.question)
def test_a_question_is_answered_within_three_clicks(tab, demo, examples, task):
    assert task.clicks <= 3
    if task.example == "demo-cpu-2ranks":
        SCREENSHOTS.solve(tab.page, demo, task, pause_ms=0)
    else:
        with serve(examples / task.example) as address:
            SCREENSHOTS.solve(tab.page, address, task, pause_ms=0)


def test_ten_questions_are_told_with_their_clicks():
    page = Path(__file__).parents[2].joinpath("docs", "page.md").read_text("utf-8")
    assert len(SCREENSHOTS.TASKS) == 10
    for task in SCREENSHOTS.TASKS:
        assert f"| {task.question} | {task.clicks} |" in page
