from __future__ import annotations

from html.parser import HTMLParser

import polars as pl

from stepscope import renderers
from stepscope.core.report import Bar, Block, Finding, Note, Part, Report
from stepscope.core.schema import Column, Table
from stepscope.renderers.html import RENDERER
from stepscope.renderers.report_html import fragment

EVIL = "<script>alert(1)</script>\x1b[31m"
TABLE = Table(
    "t", "a table", (Column("name", pl.String(), "name", key=True), Column("total_ns", pl.Int64(), "time", "ns"))
)
BLOCK = Block(EVIL, TABLE, pl.DataFrame({"name": [EVIL, None], "total_ns": [1500, None]}), note=EVIL)
REPORT = Report(EVIL, (Bar(EVIL, EVIL, (Part(EVIL, 0.75), Part("idle", 0.5)),
                             (Note(EVIL, EVIL, EVIL),)), Bar("x", "1")),
                (Finding(EVIL, (EVIL,), 2e6, EVIL, 0.5, EVIL), Finding("bare")), (BLOCK,), (EVIL,))  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):  # noqa: ARG002  the parser's signature
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_report_is_whole_and_nothing_of_it_is_markup():
    for text in (RENDERER.report(REPORT, renderers.Screen()), fragment(REPORT)):
        tags = Tags(text)
        assert not tags.open
        assert "script" not in tags.seen
        assert "\x1b" not in text
        assert "50 %" in text
        assert "2 ms" in text


def test_bars_of_more_than_a_whole_fit():
    assert 'x="60.000%" width="40.000%"' in fragment(REPORT)


def test_a_report_is_written_under_the_name_and_suffix_of_pages():
    assert renderers.find("html") is RENDERER
    assert renderers.by_suffix("a/b.HTM") is RENDERER
