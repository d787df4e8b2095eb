"""The page SQL under the hands: examples, keyboard, errors, sorting, downloads, hostile names."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from served import serve
from web_traces import HOSTILE, training, written

PANEL = "section[aria-label=Answer]"


def run(page, text):
    """Ask it by keyboard, and wait for the answer."""
    page.locator("#query").fill(text)
    page.keyboard.press("Control+Enter")
    page.wait_for_function("text => new URLSearchParams(location.search).get('q') === text", arg=text)
    page.wait_for_selector(f"{PANEL}:not([data-waiting])")


def test_an_example_is_one_click_away_and_its_rows_lead_to_the_timeline(tab, demo):
    page = tab.open(demo + "/sql")
    page.get_by_role("link", name="What are the longest spans, and where?").click()
    page.wait_for_selector(f"{PANEL} table")
    assert page.locator("#count").inner_text() == "20 rows"
    number = page.locator(f"{PANEL} tbody td.number a").last
    number.click()
    page.wait_for_url("**/timeline?**span=**")
    tab.drawn()
    page.wait_for_selector("#details dl")


def test_a_query_is_run_by_keyboard_and_its_address_shares_it(tab, demo):
    page = tab.open(demo + "/sql")
    text = "SELECT rank, count(*) AS n\nFROM spans\nGROUP BY rank ORDER BY rank"
    run(page, text)
    assert page.locator("#count").inner_text() == "2 rows"
    assert parse_qs(urlsplit(page.url).query)["q"] == [text]
    shared = tab.open(page.url)
    assert shared.locator("#query").input_value() == text
    assert shared.locator("#count").inner_text() == "2 rows"


def test_rows_are_sorted_in_place(tab, demo):
    page = tab.open(demo + "/sql?q=" + quote("SELECT * FROM (VALUES (2), (NULL), (10), ('nan'::DOUBLE), (1)) AS t(n)"))
    head = page.locator(f"{PANEL} th button")
    head.click()
    assert page.locator(f"{PANEL} tbody td").all_inner_texts()[:3] == ["10", "2", "1"]
    head.click()
    assert page.locator(f"{PANEL} tbody td").all_inner_texts()[:3] == ["1", "2", "10"]


def test_errors_are_text_with_a_hint_and_the_query_stays(tab, demo):
    page = tab.open(demo + "/sql")
    run(page, "SELECT nam FROM spans")
    assert page.locator(f"{PANEL}[role=alert]").inner_text().startswith("no column named 'nam'.")
    assert "Hint: known: name" in page.locator(PANEL).inner_text()
    assert page.locator("#query").input_value() == "SELECT nam FROM spans"
    run(page, "SELECT * FROM read_text('/etc/passwd')")
    assert "nothing else: no read_text" in page.locator(PANEL).inner_text()


def test_a_query_too_long_for_an_address_is_told_before_it_is_sent(tab, demo):
    page = tab.open(demo + "/sql")
    page.locator("#query").fill("SELECT '" + "é" * 3_000 + "'")
    page.get_by_role("button", name="Run").click()
    assert "too long for an address" in page.locator("#too-long").inner_text()
    assert page.url == demo + "/sql"


def test_names_of_tables_and_columns_are_put_into_the_query(tab, demo):
    page = tab.open(demo + "/sql")
    page.locator("#query").fill("SELECT  FROM spans")
    page.evaluate("document.getElementById('query').setSelectionRange(7, 7)")
    page.locator("details.columns-of summary", has_text="spans").first.click()
    page.locator("details[open] [data-insert=dur_ns]").first.click()
    assert page.locator("#query").input_value() == "SELECT dur_ns FROM spans"
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"{PANEL} table")
    assert "44,700 rows, the first 500 of them shown" in page.locator("#count").inner_text()


def test_all_rows_are_downloaded(tab, demo):
    page = tab.open(demo + "/sql?q=" + quote("SELECT span_id FROM spans WHERE rank = 0"))
    with page.expect_download() as started:
        page.get_by_role("link", name="JSON").click()
    assert started.value.suggested_filename == "stepscope-sql.json"
    assert len(json.loads(started.value.path().read_text())) == 22_350


def test_the_choice_of_traces_keeps_the_query(tab, demo):
    page = tab.open(demo + "/sql?q=" + quote("SELECT DISTINCT trace FROM spans"))
    assert page.locator("#count").inner_text() == "2 rows"
    page.locator("#inputs summary").click()
    page.locator("#inputs input").first.uncheck()
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url("**t=1**")
    page.wait_for_selector(f"{PANEL} table")
    assert page.locator("#count").inner_text() == "1 row"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    with serve(written(tmp_path_factory.mktemp("evil") / "t.json", training(HOSTILE))) as address:
        yield address


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name, span_id, dur_ns FROM spans",
        "SELECT name AS \"<img src=x onerror=window.hacked=1>\", [name] AS l, {'a': name} AS s FROM spans",
        'SELECT * FROM "<img src=x onerror=window.hacked=1>"',
        "SELECT 1 -- </textarea><script>window.hacked=1</script>",
    ],
)  # fmt: skip
def test_hostile_names_do_nothing(tab, hostile, text):
    page = tab.open(hostile + "/sql?q=" + quote(text))
    page.wait_for_selector(PANEL)
    page.wait_for_timeout(150)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main iframe, main script").count() == 0
    assert page.locator("#query").input_value() == text


def test_it_is_dark_where_the_system_is(browser, demo):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(demo + "/sql")
    back = page.evaluate("getComputedStyle(document.getElementById('query')).backgroundColor")
    assert max(map(int, back.removeprefix("rgb(").removesuffix(")").split(","))) < 60
    context.close()
