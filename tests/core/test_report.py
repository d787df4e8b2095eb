from __future__ import annotations

import pytest

from stepscope.core.report import Report


def test_facts_are_read_only():
    facts = {"ranks": 8}
    report = Report("h", meta=facts)
    facts["ranks"] = 9
    assert report.meta["ranks"] == 8
    with pytest.raises(TypeError):
        report.meta["ranks"] = 9


def test_it_prints_through_the_renderer_that_it_was_handed():
    assert str(Report("h")) == "h"
    assert str(Report("h", to_text=lambda report: f"<{report.headline}>\n")) == "<h>"
    assert repr(Report("h")) == "Report('h', 0 findings, 0 tables)"


def test_notebooks_show_its_text():
    class Printer:
        def text(self, text):
            self.shown = text

    printer = Printer()
    Report("h")._repr_pretty_(printer, cycle=False)
    assert printer.shown == "h"
