from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import polars as pl
import pytest
from msgspec.structs import replace

from stepscope import renderers
from stepscope.analyses.costs.roofline import ROOFLINE
from stepscope.core.report import Bar, Block, Finding, Note, Part, Report
from stepscope.core.table import Column, Table
from stepscope.renderers import Screen, figures
from stepscope.renderers.html import fragment

HTML = renderers.find("html")
EVIL = "<script>alert(1)</script>\x1b[31m\" onmouseover='x' &amp; gemm<float, 4>"
POINT = {
    "name": EVIL, "family": "gemm", "precision": "bf16", "calls": 1, "device_ns": 1000, "flop": 1e9, "bytes": 1e6,
    "flop_per_s": 1e15, "bytes_per_s": 1e12, "intensity": 1000.0, "bound": "compute", "roof_ratio": 1.0,
    "peak_flop_per_s": 1e15, "peak_bytes_per_s": 2e12, "accelerator": EVIL,
}  # fmt: skip


class Page(HTMLParser):
    """The tags of a page and the texts of its cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.attributes = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data


def drawn(block):
    return HTML.table(block, Screen())


def roofline(**more):
    frame = ROOFLINE.conform(pl.DataFrame([POINT]))
    return Block("roofline", ROOFLINE, frame, **more)


def test_the_page_holds_every_cell_and_nothing_that_a_browser_obeys(block):
    page = Page(drawn(block))
    assert page.open == []
    assert page.tags.count("script") == 0
    assert set(page.tags) <= {"html", "head", "meta", "title", "style", "body", "h1", "p", "div", "code", "table",
                              "thead", "tbody", "tr", "th", "td"}  # fmt: skip
    assert not [name for name in page.attributes if name.startswith("on")]
    assert len(page.cells) == block.frame.width * block.frame.height
    assert page.tags.count("th") == block.frame.width
    assert "[bold red]ampere_sgemm[/bold red] `x` | $y$ *z* __global__ <script>&amp;" in page.cells
    assert "\x1b" not in drawn(block)
    assert "73 ms" in page.cells


def test_columns_say_what_they_mean_and_numbers_stand_to_the_right():
    table = Table("t", "what <it> is", (Column("n_calls", pl.Int64(), 'how "often"'), Column("name", pl.String(), "x")))
    text = drawn(Block("<T>", table, pl.DataFrame({"n_calls": [1200], "name": ["a"]}), note="2 of <3>"))
    assert '<th class="number" title="how &quot;often&quot;">calls</th>' in text
    assert '<td class="number">1,200</td><td class="text"><div>a</div></td>' in text
    assert "<h1>&lt;T&gt;</h1>" in text
    assert "<p>what &lt;it&gt; is</p>" in text
    assert "<p>2 of &lt;3&gt;</p>" in text


def test_a_page_forbids_itself_to_fetch_anything_and_to_run_other_scripts():
    text = drawn(roofline())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    (own,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    plotly = figures.plotly_path().read_text("utf-8")
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in (plotly, own)]
    assert re.findall("script-src ([^;]*);", policy) == [" ".join(f"'sha256-{one}'" for one in hashes)]
    assert not re.search(r"(?:src|href)=[\"']", text)
    assert "script-src 'none'" in drawn(Block("x", ROOFLINE, roofline().frame))


def test_a_table_with_a_figure_has_it_and_its_script_once():
    text = drawn(roofline())
    assert text.count('id="figure-roofline"') == 1
    (packed,) = re.findall(r'id="plotly">([^<]*)</script>', text)
    assert zlib.decompress(base64.b64decode(packed)).decode() == figures.plotly_path().read_text("utf-8")
    (data,) = re.findall(r'type="application/json" id="data">(.*?)</script>', text)
    assert "alert(1)" in data  # the name is there
    assert "<" not in data
    assert json.loads(data) == figures.drawn("roofline", roofline().frame)
    assert text == drawn(roofline())  # no random ids


def test_a_figure_is_drawn_from_rows_of_its_own_where_they_are_given():
    none = roofline().frame.with_columns(flop=pl.lit(None, pl.Float64))
    assert "plotly" not in drawn(replace(roofline(), frame=none))
    assert "1 of 1 rows" in drawn(replace(roofline(), frame=none, drawn=roofline().frame))


@pytest.mark.parametrize("columns", [["name", "calls"], []])
def test_without_the_columns_or_rows_of_a_figure_there_is_a_table_alone(columns):
    block = roofline()
    frame = block.frame.select(columns) if columns else block.frame.clear()
    text = drawn(replace(block, frame=frame))
    assert "plotly" not in text
    assert "<table>" in text


def test_suffixes_ask_for_it():
    for name in ("x.html", "X.HTM"):
        assert renderers.by_suffix(name) is HTML


REPORT_TABLE = Table(
    "t", "a table", (Column("name", pl.String(), "name", key=True), Column("total_ns", pl.Int64(), "time", "ns"))
)
REPORT_BLOCK = Block(EVIL, REPORT_TABLE, pl.DataFrame({"name": [EVIL, None], "total_ns": [1500, None]}), note=EVIL)
BARS = (Bar(EVIL, EVIL, (Part(EVIL, 0.75), Part("idle", 0.5)), (Note(EVIL, EVIL, EVIL),)), Bar("x", "1"))
FINDINGS = (Finding(EVIL, (EVIL,), 2e6, EVIL, 0.5, EVIL), Finding("bare"))
REPORT = Report(EVIL, BARS, FINDINGS, (REPORT_BLOCK,), (EVIL,))


def test_a_report_is_whole_and_nothing_of_it_is_markup():
    for text in (HTML.report(REPORT, renderers.Screen()), fragment(REPORT)):
        page = Page(text)
        assert not page.open
        assert "script" not in page.tags
        assert "\x1b" not in text
        assert "50 %" in text
        assert "2 ms" in text


def test_bars_of_more_than_a_whole_fit():
    assert 'x="60.000%" width="40.000%"' in fragment(REPORT)


def test_a_report_is_written_under_the_name_and_suffix_of_pages():
    assert renderers.find("html") is HTML
    assert renderers.by_suffix("a/b.HTM") is HTML


def test_bars_of_other_lengths_and_what_must_be_read_first(block):
    bar = Bar("Step", "1 s", (Part("busy", 1.0),), length=0.5)
    text = fragment(Report("h", bars=(bar,), first=replace(block, note="mind")))
    assert 'width="50.000%"' in text
    assert text.index("mind") < text.index("<b>Step</b>")
