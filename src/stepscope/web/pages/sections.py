"""A section of a page, filled: the same on the server and in a report of one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.renderers import figures
from stepscope.web.pages.drilldown import behind
from stepscope.web.pages.rows import sheet
from stepscope.web.pages.table_query import Found, Question, arranged, question_of

if TYPE_CHECKING:
    from stepscope.core.errors import StepscopeError
    from stepscope.web.pages.links import Links
    from stepscope.web.pages.pages import Section

__all__ = ["asked_by", "filled", "lacking"]


def asked_by(section: Section, inputs: tuple[int, ...]) -> Question:
    """The question that a section answers."""
    return question_of(section.table, inputs, _words(section))


def filled(section: Section, found: Found, links: Links | None, rows: int) -> dict[str, Any]:
    """What the template draws: chart, sheet of `rows` rows, notes; without `links` no mark leads anywhere."""
    shown = arranged(found, asked_by(section, ()))
    columns = found.frame.columns
    link = None if links is None else behind(links, section.table)
    chart = None
    if section.chart:
        drawn = None if links is None else lambda row: links.events(row, columns)
        chart = figures.drawn(section.table, found.frame, drawn)
    made = None
    if not (section.chart_only and chart):
        kept = [c for c in section.columns if c in columns] or columns
        made = sheet(shown.frame, shown.table, link=link, limit=rows, columns=kept)
    words = {k.replace(".", "__"): v for k, v in _words(section).items()}
    more = None if links is None else links.table(section.table, **words)
    return {"section": section, "sheet": made, "chart": chart, "error": None, "notes": found.notes, "more": more}


def lacking(section: Section, error: StepscopeError) -> dict[str, Any]:
    """The same for a section whose data was not recorded."""
    return {"section": section, "sheet": None, "chart": None, "error": error, "notes": (), "more": None}


def _words(section: Section) -> dict[str, str]:
    return {k if k == "sort" else f"o.{k}": v for k, v in section.options.items()}
