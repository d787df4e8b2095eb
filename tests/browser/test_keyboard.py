"""The keyboard alone suffices: the ten questions are answered with keys, in Chromium and in Firefox."""

from __future__ import annotations

import pytest
from keyboard import Keys, solve
from marionette import FIREFOX, started
from served import serve
from test_tasks import SCREENSHOTS

JOB = "demo-cpu-2ranks"
_CODES = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c"}


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    if FIREFOX is None:
        pytest.skip("no firefox here: apt-get install firefox-esr")
    with started(tmp_path_factory.mktemp("firefox")) as window:
        yield window


@pytest.fixture(scope="module")
def addresses(demo, examples):
    """The page of each example that the questions are about."""
    (other,) = {task.example for task in SCREENSHOTS.TASKS} - {JOB}
    with serve(examples / other) as address:
        yield {JOB: demo, other: address}


@pytest.mark.parametrize("task", SCREENSHOTS.TASKS, ids=lambda task: task.question)
def test_a_question_is_answered_with_keys_in_chromium(tab, addresses, task):
    tab.page.goto(addresses[task.example])
    solve(Keys(tab.page.keyboard.press, tab.page.evaluate), task)


@pytest.mark.parametrize("task", SCREENSHOTS.TASKS, ids=lambda task: task.question)
def test_a_question_is_answered_with_keys_in_firefox(firefox, addresses, task):
    firefox.open(addresses[task.example])
    solve(Keys(lambda key: firefox.press(_CODES.get(key, key)), firefox.evaluate), task)
    assert firefox.errors() == []


def test_what_a_key_leads_to_first_is_past_the_menu(tab, demo):
    tab.open(demo)
    keys = Keys(tab.page.keyboard.press, tab.page.evaluate)
    keys.press("Tab")
    assert keys.evaluate("document.activeElement.textContent.trim()") == "Skip to content"
    keys.press("Enter")
    assert keys.evaluate("document.activeElement.id") == "main"
