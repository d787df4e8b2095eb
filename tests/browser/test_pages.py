"""The pages in a browser: they load, sort, download, compare, change theme, and hostile names do nothing."""

from __future__ import annotations

import json
import re

import pytest
from served import serve
from web_traces import HOSTILE, training, written

from stepscope import load_run
from stepscope.web.pages.sections import NAVIGATION
from stepscope.web.pages.single_file import report_page

ADDRESSES = [path for path, _ in NAVIGATION]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_loads_and_draws_without_trouble(tab, demo, address):
    page = tab.open(demo + address)
    assert page.locator("h1").first.text_content().strip()
    for figure in page.locator("figure.chart").all()[:1]:
        figure.locator("svg.main-svg").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_slowest_step_is_two_clicks_away(tab, demo):
    page = tab.open(demo + "/")
    card = page.locator(".card", has_text="Slowest step")
    assert re.search(r"step \d+, rank \d: \d+ ms", card.inner_text())
    card.get_by_role("link", name="timeline").click()
    tab.drawn()
    page.wait_for_selector("#details h2")
    assert page.locator("#details h2").inner_text().startswith("Range of ")


def test_a_slider_shows_what_a_change_is_worth_and_the_address_remembers_it(tab, demo):
    page = tab.open(demo + "/what-if")
    page.wait_for_selector('#what-if[data-ready=""]', state="attached")
    assert "as recorded" in page.locator("#said").inner_text()
    page.locator('input[data-subject="host"]').press("End")
    page.wait_for_selector('#what-if[data-ready="host: free"]', state="attached")
    assert page.locator("#change").inner_text().startswith("−")
    assert "--if 'host: free'" in page.locator("#command").inner_text()
    tab.open(page.url)
    page.wait_for_selector('#what-if[data-ready="host: free"]', state="attached")
    page.get_by_role("button", name="Nothing changed").click()
    page.wait_for_selector('#what-if[data-ready=""]', state="attached")


def test_a_finding_leads_to_what_mending_it_is_worth(tab, demo):
    page = tab.open(demo + "/")
    page.locator(".findings").get_by_role("link", name="what if").first.click()
    page.wait_for_selector("#what-if[data-ready]:not([data-ready=''])", state="attached")
    assert "→" in page.locator("#said").inner_text()


def test_who_holds_memory_is_two_clicks_away(tab, demo):
    page = tab.open(demo + "/")
    page.locator(".card", has_text="Peak memory").get_by_role("link", name="who holds it").click()
    page.wait_for_selector("table")
    assert "at peak" in page.locator("thead").inner_text()


def test_a_click_on_a_chart_leads_to_the_step(tab, demo):
    page = tab.open(demo + "/")
    bar = page.locator("figure.chart .bars .point path").first
    bar.scroll_into_view_if_needed()
    bar.click(force=True)
    page.wait_for_url("**/timeline?**range=**")
    tab.drawn()


def test_tables_on_a_page_are_sorted_in_place(tab, demo):
    page = tab.open(demo + "/operators")
    table = page.locator("table.sortable").first
    head = table.locator("th", has_text="calls")
    column = head.evaluate("cell => cell.cellIndex")

    def values():
        return [
            float(cell.get_attribute("data-value"))
            for cell in table.locator(f"tbody tr td:nth-child({column + 1})").all()
        ]

    head.locator("button").click()
    assert values() == sorted(values(), reverse=True)
    head.locator("button").click()
    assert values() == sorted(values())
    assert head.get_attribute("aria-sort") == "ascending"


def test_modules_are_a_tree_that_opens_and_closes(tab, demo):
    page = tab.open(demo + "/operators?t=0")
    tree = page.locator("table.tree")
    row = tree.locator("tbody tr:visible")
    assert row.nth(1).locator("td.text").inner_text().split() == ["▾", "LanguageModel_0"]
    before = row.count()
    block = tree.get_by_role("button", name="What is inside Block_0")
    assert block.get_attribute("aria-expanded") == "false"
    block.click()
    assert row.count() > before
    tree.get_by_role("button", name="What is inside DistributedDataParallel_0").click()
    assert row.count() == 1
    tree.get_by_role("button", name="What is inside DistributedDataParallel_0").click()
    assert row.count() > before


def test_a_table_is_filtered_and_its_address_says_so(tab, demo):
    page = tab.open(demo + "/tables/operators")
    page.get_by_label("search").fill("addmm")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**/tables/operators?**search=addmm**")
    names = page.locator("tbody td.text").all_inner_texts()
    assert any("addmm" in name for name in names)
    assert "o.by=name" in page.url


def test_a_table_is_downloaded(tab, demo):
    page = tab.open(demo + "/tables/operators?sort=-calls&columns=name,calls")
    with page.expect_download() as started:
        page.get_by_role("link", name="JSON").click()
    assert started.value.suggested_filename == "operators.json"
    rows = json.loads(started.value.path().read_text())
    assert [row["calls"] for row in rows] == sorted((row["calls"] for row in rows), reverse=True)


def test_two_traces_are_compared_by_form(tab, demo):
    page = tab.open(demo + "/compare")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("section h2:has-text('diff by operator')")
    page.locator("figure.chart svg.main-svg").first.wait_for()


def test_inputs_are_chosen_and_the_choice_stays_in_the_address(tab, demo):
    page = tab.open(demo + "/")
    page.locator("#inputs summary").click()
    page.locator("#inputs input").first.uncheck()
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url("**/?t=1")
    assert "1 of 2 traces" in page.locator("#inputs summary").inner_text()


def test_dark_mode_follows_the_system_and_the_button(browser, demo):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(demo + "/tables")
    back = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(back)
    page.locator("#theme").click()
    light = page.evaluate(back)
    assert dark != light
    page.reload()
    assert page.evaluate(back) == light
    context.close()


def test_everything_is_reached_by_keyboard(tab, demo):
    page = tab.open(demo + "/tables")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_big_file_is_waited_for(tab, tmp_path):
    path = written(tmp_path / "t.json", training(steps=4_000))
    with serve(path) as address:
        page = tab.open(address + "/")
        assert page.locator(".card").count() >= 4


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory):
    content = training(HOSTILE, kernel="<img src=x onerror=window.hacked=1>")
    content["traceEvents"].append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": HOSTILE[0]}})
    content["traceEvents"].append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": HOSTILE[2]}})
    return written(tmp_path_factory.mktemp("evil") / "<img src=x onerror=window.hacked=1>.json", content)


@pytest.fixture(scope="module")
def hostile(hostile_file):
    with serve(hostile_file) as address:
        yield address


@pytest.mark.parametrize("address", [*ADDRESSES, "/tables/spans", "/tables/ops", "/tables/tracks"])
def test_hostile_names_do_nothing_on_a_page(tab, hostile, address):
    page = tab.open(hostile + address)
    for figure in page.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg.main-svg").first.wait_for()
    page.wait_for_timeout(150)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main iframe").count() == 0


@pytest.mark.parametrize("name", HOSTILE[:10])
def test_hostile_names_do_nothing_in_the_timeline(tab, hostile, name):
    from urllib.parse import urlencode

    page = tab.open(hostile + "/timeline?" + urlencode({"q": name, "exact": 1}))
    page.wait_for_selector("#details h2")
    assert page.locator("#details h2").inner_text().strip() == name.strip()
    box = page.locator("#canvas").bounding_box()
    for x in range(250, 850, 60):
        page.mouse.move(box["x"] + x, box["y"] + 70)
    page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_the_report_of_one_file_works_from_disk(tab, tmp_path, examples):
    path = tmp_path / "report.html"
    path.write_text(report_page(load_run(examples / "demo-cpu-2ranks")), encoding="utf-8")
    requests = []
    tab.page.on("request", lambda request: requests.append(request.url))
    page = tab.open(path.as_uri())
    page.locator("figure.chart svg.main-svg").first.wait_for()
    tab.drawn()
    page.locator("#find").fill("aten::mm")
    page.keyboard.press("Enter")
    page.wait_for_selector("#details h2")
    assert page.locator("#details h2").inner_text() == "aten::mm"
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert path.stat().st_size < 6_000_000


def test_hostile_names_do_nothing_in_a_report(tab, tmp_path, hostile_file):
    path = tmp_path / "report.html"
    path.write_text(report_page(load_run(hostile_file)), encoding="utf-8")
    page = tab.open(path.as_uri())
    tab.drawn()
    for figure in page.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main iframe").count() == 0
