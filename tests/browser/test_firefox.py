"""The page in Firefox: each page draws, and the timeline obeys its keys."""

from __future__ import annotations

import pytest
from marionette import FIREFOX, started

from stepscope.web.pages.sections import NAVIGATION


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    if FIREFOX is None:
        pytest.skip("no firefox here: apt-get install firefox-esr")
    with started(tmp_path_factory.mktemp("firefox")) as firefox:
        yield firefox


@pytest.fixture(autouse=True)
def no_trouble(window):
    yield
    assert window.errors() == []


@pytest.mark.parametrize("address", [path for path, _ in NAVIGATION])
def test_a_page_loads_and_draws_without_trouble(window, demo, address):
    window.open(demo + address)
    assert window.evaluate("document.querySelector('h1').textContent.trim()")
    if window.evaluate("!!document.querySelector('figure.chart')"):
        window.wait_for("!!document.querySelector('figure.chart svg.main-svg')")
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_errors_of_scripts_are_seen(window, demo):
    window.open(demo + "/sql")
    window.evaluate("void setTimeout(() => noSuchName())")
    seen = window.errors(forget=True)
    assert [error for error in seen if "noSuchName is not defined" in error]


def test_keys_zoom_the_timeline_and_find_names(window, demo):
    window.open(demo + "/timeline?t=0")
    window.evaluate("document.querySelector('#canvas').focus()")
    window.press("w", "w")
    window.wait_for("new URL(location).searchParams.has('from')")
    window.press("0")
    window.wait_for("!new URL(location).searchParams.has('from')")
    window.press("/", *"aten::mm", "\ue007")
    window.wait_for("document.querySelector('#details h2')?.textContent.startsWith('aten::mm')")
    window.wait_for("/^\\d+ of \\d+/.test(document.querySelector('#hits').textContent)")


def test_a_table_is_sorted_by_a_click(window, demo):
    window.open(demo + "/operators")
    heads = "[...document.querySelectorAll('table.sortable th')]"
    window.evaluate(f"void (window.head = {heads}.find(one => one.textContent.includes('calls')))")
    window.evaluate("void head.querySelector('button').click()")
    calls = window.evaluate(
        "[...head.closest('table').tBodies[0].rows].map(row => Number(row.cells[head.cellIndex].dataset.value))"
    )
    assert calls == sorted(calls, reverse=True)
    assert len(set(calls)) > 1
