from __future__ import annotations

from stepscope.core.report import Bar, Report
from stepscope.renderers import Screen, find
from stepscope.renderers.markdown import escape

MARKDOWN = find("md")


def test_a_report(report, snapshot):
    snapshot(MARKDOWN.report(report, Screen()), "report.md")


def test_a_table(block, snapshot):
    snapshot(MARKDOWN.table(block, Screen()), "table.md")


def test_every_row_has_as_many_cells_as_the_header(block):
    lines = MARKDOWN.table(block, Screen()).splitlines()[:8]
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(block.frame.columns) + 1}


def test_markup_is_escaped_and_plain_names_are_not():
    assert escape("a|b `c` <d> *e* [f](g) __h__ $i$ ~~j~~ k\\l") == (
        "a\\|b \\`c\\` \\<d\\> \\*e\\* \\[f\\](g) \\_\\_h\\_\\_ \\$i\\$ \\~\\~j\\~\\~ k\\\\l"
    )
    assert escape("aten::mm ampere_sgemm_128x64") == "aten::mm ampere_sgemm_128x64"


def test_what_must_be_read_first_stands_before_the_bars(block):
    text = MARKDOWN.report(Report("h", bars=(Bar("Step", "1 s"),), first=block), Screen())
    assert text.index(block.title) < text.index("**Step**")
