"""Pages in one file, as they are opened from a mail: they draw, ask nobody, and run nothing of a trace."""

from __future__ import annotations

import polars as pl
import pytest
from web_traces import HOSTILE, training, written

from stepscope import load_run, renderers, show
from stepscope.api import verbs
from stepscope.core.report import Block
from stepscope.core.table import Column, Table
from stepscope.web.pages.single_file import comparison_page, report_page

STACKS = Table(
    "python-stacks", "sampled stacks", (Column("stack", pl.String(), "frames"), Column("samples", pl.Int64(), "n"))
)


@pytest.fixture
def opened(tab, tmp_path):
    """Opens a text as a file; nothing may be asked of any server."""
    requests = []
    tab.page.on("request", lambda request: requests.append(request.url))

    def open_(text):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        tab.page.goto(path.as_uri())
        return tab.page

    yield open_
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []


def page_of(name, frame, drawn=None, table=None):
    block = Block(name, table or Table(name, name, ()), frame, drawn=drawn)
    return renderers.find("html").table(block, renderers.Screen())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_draws_where_the_difference_went(opened, tab, tmp_path, scheme):
    slow = training(HOSTILE[:6], steps=6)
    base = load_run(written(tmp_path / "a.json", training(steps=6)))
    other = load_run(written(tmp_path / "b.json", slow))
    tab.page.emulate_media(color_scheme=scheme)
    page = opened(comparison_page(verbs.compare_report(base, other), ["a.json", "b.json"]))
    page.locator("figure.chart").scroll_into_view_if_needed()
    page.locator("figure.chart svg.main-svg").first.wait_for()
    labels = page.locator("figure.chart .xtick text").all_text_contents()
    assert (labels[0], labels[-1]) == ("base", "other")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_is_a_page_with_its_figure_in_the_colours_of_the_reader(opened, tab, examples, scheme):
    frame = show(examples / "demo-cpu-decode", "operators")
    tab.page.emulate_media(color_scheme=scheme)
    page = opened(page_of("operators", frame))
    page.locator(".figure svg.main-svg").first.wait_for()
    colour = page.evaluate("getComputedStyle(document.querySelector('.ytick text')).fill")
    assert colour == page.evaluate("getComputedStyle(document.body).color")
    light = sum(map(int, page.evaluate("getComputedStyle(document.body).backgroundColor")[4:-1].split(","))) > 384
    assert light == (scheme == "light")


def test_stacks_are_a_flame_graph_in_which_hostile_names_do_nothing(opened):
    frame = pl.DataFrame({"stack": [f"main;{name.replace(';', ',')}" for name in HOSTILE]}).with_columns(samples=3)
    page = opened(page_of("python-stacks", frame, table=STACKS))
    page.locator(".figure .icicle .slice").first.wait_for()
    assert page.locator(".icicle .slice").count() == len(HOSTILE) + 2
    page.locator(".icicle .slice").last.hover()
    page.locator(".hoverlayer .hovertext").wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator(".figure img, .figure iframe").count() == 0


def test_the_report_has_sampled_lines_below_its_timeline(opened, tab, examples):
    page = opened(report_page(load_run(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz")))
    tab.drawn()
    canvas = page.locator("#canvas")
    canvas.focus()
    for _ in range(80):
        page.keyboard.press("ArrowDown")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] - 20)
    page.wait_for_selector("#tip:not([hidden])")
    assert "memory allocated, cpu" in page.locator("#tip").inner_text()
    assert "MiB" in page.locator("#tip").inner_text()
