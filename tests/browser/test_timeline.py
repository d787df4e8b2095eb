"""The timeline under the hands: zoom, move, find, select, fold, and a trace of a million spans."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from served import serve

LABELS = 210


def parameters(page):
    """The address, once it has settled: the page's own clock tells, which may be slow."""
    page.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => setTimeout(done, 50)), 400))")
    return {k: v[0] for k, v in parse_qs(urlsplit(page.url).query).items()}


def shown(page):
    found = parameters(page)
    return (int(found["from"]), int(found["to"])) if "from" in found else None


@pytest.fixture
def timeline(tab, demo):
    page = tab.open(demo + "/timeline?t=0")
    page.locator("#canvas").focus()
    return page


def test_keys_zoom_move_and_fit(timeline):
    assert shown(timeline) is None
    timeline.keyboard.press("w")
    timeline.keyboard.press("w")
    low, high = shown(timeline)
    timeline.keyboard.press("d")
    moved = shown(timeline)
    assert moved[0] > low
    assert abs((moved[1] - moved[0]) - (high - low)) <= 2
    timeline.keyboard.press("a")
    assert abs(shown(timeline)[0] - low) <= 2
    timeline.keyboard.press("s")
    assert shown(timeline)[1] - shown(timeline)[0] > high - low
    timeline.keyboard.press("0")
    assert shown(timeline) is None


def test_the_wheel_zooms_at_the_pointer(timeline):
    box = timeline.locator("#canvas").bounding_box()
    x = box["x"] + LABELS + (box["width"] - LABELS) / 4
    timeline.mouse.move(x, box["y"] + 200)
    timeline.keyboard.down("Control")
    timeline.mouse.wheel(0, -600)
    timeline.keyboard.up("Control")
    timeline.wait_for_url("**from=**")
    low, high = shown(timeline)
    layout = timeline.evaluate("fetch('/api/trace/0/layout').then(answer => answer.json())")
    span = layout["last_ns"] - layout["first_ns"]
    assert high - low < span
    under = low + (high - low) / 4
    assert abs(under - (layout["first_ns"] + span / 4)) < span / 25


def test_an_address_brings_the_same_view_back(timeline, tab):
    for key in "wwd":
        timeline.keyboard.press(key)
    before = shown(timeline)
    tab.open(timeline.url)
    assert shown(timeline) == before


def test_names_are_found_and_stepped_through(timeline):
    timeline.keyboard.press("/")
    timeline.keyboard.type("aten::mm")
    timeline.keyboard.press("Enter")
    timeline.wait_for_selector("#details h2")
    assert timeline.locator("#details h2").inner_text().startswith("aten::mm")
    first = timeline.locator("#hits").inner_text()
    assert re.match(r"\d+ of \d+ · ", first)
    timeline.locator("#next").click()
    timeline.wait_for_timeout(400)
    assert timeline.locator("#hits").inner_text() != first
    assert parameters(timeline)["q"] == "aten::mm"
    timeline.keyboard.press("Escape")


def test_what_is_not_there_is_not_found(timeline):
    timeline.locator("#find").fill("no such name")
    timeline.keyboard.press("Enter")
    timeline.wait_for_selector("#hits:has-text('nothing found')")


def test_a_click_shows_details_and_the_address_keeps_them(timeline, tab):
    box = timeline.locator("#canvas").bounding_box()
    timeline.mouse.click(box["x"] + LABELS + 300, box["y"] + 40 + 22 + 8)
    timeline.wait_for_selector("#details dl")
    title = timeline.locator("#details h2").inner_text()
    span = parameters(timeline)["span"]
    tab.open(timeline.url)
    timeline.wait_for_selector("#details dl")
    assert timeline.locator("#details h2").inner_text() == title
    assert parameters(timeline)["span"] == span


def test_a_range_is_added_up(timeline):
    box = timeline.locator("#canvas").bounding_box()
    timeline.mouse.move(box["x"] + LABELS + 100, box["y"] + 10)
    timeline.mouse.down()
    timeline.mouse.move(box["x"] + LABELS + 300, box["y"] + 10, steps=5)
    timeline.mouse.up()
    timeline.wait_for_selector("#details table")
    low, high = map(int, parameters(timeline)["range"].split("-"))
    sums = timeline.evaluate(f"fetch('/api/trace/0/statistics?from={low}&to={high}').then(answer => answer.json())")
    assert timeline.locator("#details h2").inner_text() == f"Range of {sums['length']}"
    assert sums["names"][0]["name"] in timeline.locator("#details").inner_text()


def test_tracks_fold_and_are_pinned(timeline):
    box = timeline.locator("#canvas").bounding_box()
    timeline.mouse.click(box["x"] + 60, box["y"] + 40 + 22 + 8)
    assert parameters(timeline)["fold"].startswith("0.")
    timeline.mouse.click(box["x"] + LABELS - 12, box["y"] + 40 + 22 + 8)
    assert parameters(timeline)["pin"].startswith("0.")


def test_a_kind_of_the_legend_is_hidden_and_the_address_keeps_it(timeline, tab):
    def lanes():
        layout = (
            "fetch('/api/trace/0/layout' + (new URLSearchParams(location.search).get('hide') ? '?hide=operators' : ''))"
        )
        groups = timeline.evaluate(f"{layout}.then(answer => answer.json())")["groups"]
        return sum(track["lanes"] for group in groups for track in group["tracks"])

    before = lanes()
    kind = timeline.locator("#legend").get_by_role("button", name="operators")
    kind.click()
    assert kind.get_attribute("aria-pressed") == "false"
    assert parameters(timeline)["hide"] == "operators"
    assert lanes() < before
    again = tab.open(timeline.url)
    assert again.locator("#legend button[aria-pressed=false]").inner_text() == "operators"
    again.locator("#legend").get_by_role("button", name="operators").click()
    assert "hide" not in parameters(again)


def test_escape_leaves_the_search(timeline):
    timeline.keyboard.press("/")
    timeline.locator("#find").press_sequentially("aten")
    timeline.keyboard.press("Escape")
    assert timeline.locator("#find").input_value() == ""
    assert timeline.evaluate("document.activeElement.id") == "canvas"


def test_several_ranks_are_aligned(tab, demo):
    page = tab.open(demo + "/timeline?align=step")
    assert page.locator("#align").input_value() == "step"
    page.locator("#align").select_option("start")
    page.wait_for_url(re.compile("align=start"))


def test_the_step_list_zooms(timeline):
    timeline.locator("#step").select_option(index=2)
    low, high = shown(timeline)
    layout = timeline.evaluate("fetch('/api/trace/0/layout').then(answer => answer.json())")
    _, start, length = layout["steps"][1]
    assert low <= start
    assert high >= start + length


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    """Address of the page of a trace of a million spans, nested and side by side."""
    path = tmp_path_factory.mktemp("big") / "million.json"
    with path.open("w") as file:
        file.write('{"schemaVersion":1,"traceEvents":[\n')
        for i in range(100_000):
            at = i * 100
            file.writelines(
                json.dumps(
                    {
                        "ph": "X",
                        "name": f"op{(i + k) % 50}",
                        "cat": "cpu_op",
                        "pid": 1,
                        "tid": 1 + k % 4,
                        "ts": at + k,
                        "dur": 90 - 2 * k,
                    }
                )
                + ",\n"
                for k in range(10)
            )
        file.write('{"ph":"X","name":"last","cat":"cpu_op","pid":1,"tid":1,"ts":10000100,"dur":5}]}')
    with serve(path) as address:
        yield address


def test_a_million_spans_are_zoomed_through_in_a_small_heap(tab, million):
    page = tab.open(million + "/timeline")
    page.locator("#canvas").focus()
    for key in "wwwwwwwwwdddaaasss":
        page.keyboard.press(key)
        page.wait_for_timeout(60)
    page.wait_for_timeout(500)
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    used = client.send("Runtime.getHeapUsage")["usedSize"]
    assert used < 250e6
    assert page.locator("#trouble").is_hidden()
    page.locator("#find").fill("last")
    page.keyboard.press("Enter")
    page.wait_for_selector("#details h2:has-text('last')")


def test_values_of_counters_are_told_in_units_that_people_use(timeline):
    told = timeline.evaluate(
        """import('/static/draw.js').then(({ amount }) => [
            [3 * 1024 ** 3, 'bytes'], [2560, 'bytes/s'], [3e7, 'ns'], [5e8, 'ns/s'], [12345, 'count'], [2.5, '%'],
            [7, null],
        ].map(([value, unit]) => amount(value, unit)))"""
    )
    assert told == ["3 GiB", "2.5 KiB/s", "30 ms", "50 %", "12,300", "2.5 %", "7"]


def test_steps_of_the_profiler_stand_in_one_row(timeline):
    layout = timeline.evaluate("fetch('/api/trace/0/layout').then(answer => answer.json())")
    threads = [track for group in layout["groups"] for track in group["tracks"] if track["spans"] > 1_000]
    assert threads
    assert all(track["lanes"] < 40 for track in threads)


def test_marks_are_stepped_through_and_measured_between(timeline):
    timeline.select_option("#marks", label="critical path")
    timeline.wait_for_selector("#hits:has-text(' of ')")
    whole = timeline.locator("#hits").inner_text()
    assert timeline.locator("#details h2").first.inner_text() == "critical path"
    timeline.locator("#canvas").focus()
    timeline.keyboard.press("n")
    timeline.wait_for_selector("#details .mark dl")
    assert timeline.locator("#hits").inner_text() == f"1 of {whole}"
    timeline.keyboard.press("m")
    timeline.keyboard.press("n")
    timeline.wait_for_selector("#hits:has-text('2 of')")
    timeline.wait_for_selector("#details .mark dl")
    timeline.keyboard.press("m")
    timeline.wait_for_selector("#details h2:has-text('Range of')")
    facts = timeline.locator("#details dl").first.inner_text()
    assert all(name in facts for name in ("A\n", "B\n", "start to start", "end to start"))
    assert parameters(timeline)["marks"].startswith("table=critical-path")
    timeline.keyboard.press("Escape")
    assert "range" not in parameters(timeline)


def test_keys_that_are_faster_than_the_answers_measure_between_the_spans_that_were_meant(timeline):
    timeline.keyboard.type("/gloo:all_reduce")
    timeline.keyboard.press("Enter")
    timeline.wait_for_selector("#details h2:has-text('gloo:all_reduce')")

    def later(route):
        timeline.wait_for_timeout(300)
        route.continue_()

    timeline.route("**/span/*", later)
    timeline.keyboard.type("mnm")
    timeline.wait_for_selector("#details dt:text-is('start to start')")
    timeline.wait_for_timeout(500)
    facts = timeline.locator("#details dl").first.inner_text().split("\n")
    assert facts[facts.index("A") + 1] == facts[facts.index("B") + 1] == "gloo:all_reduce"
    assert facts[facts.index("start to start") + 1] != "0"


def test_findings_and_collectives_are_marked_on_each_rank(tab, demo):
    page = tab.open(demo + "/timeline?marks=" + quote("table=collectives&o.by=call"))
    page.wait_for_selector("#details h2:has-text('collectives')")
    assert page.locator("#marks option:checked").inner_text() == "collectives"
    ranks = page.locator("#details td:first-child").all_inner_texts()
    assert set(ranks) == {"0", "1"}
    page.select_option("#marks", label="findings")
    page.wait_for_selector("#details h2:has-text('findings')")
    page.locator("#details td button").first.click()
    page.wait_for_selector("#details .mark dt:has-text('finding')")


def test_traces_are_aligned_at_the_step_that_one_chooses(tab, demo):
    page = tab.open(demo + "/timeline?align=step&step=6")
    layouts = [page.evaluate(f"fetch('/api/trace/{i}/layout').then(answer => answer.json())") for i in (0, 1)]
    starts = [next(start for step, start, _ in layout["steps"] if step == 6) for layout in layouts]
    bounds = page.evaluate(
        "import('/static/layout.js').then(m => m.offsetsOf(" + json.dumps(layouts) + ", 'step', '6'))"
    )
    assert bounds[1] == starts[0] - starts[1]
