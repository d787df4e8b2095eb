"""Handlers of the pages: each asks the session, and fills a template."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.exceptions import HTTPException

from stepscope import analyses
from stepscope.api import verbs
from stepscope.core.errors import StepscopeError
from stepscope.query import tables as query_tables
from stepscope.renderers import figures
from stepscope.web.pages import memory, what_if
from stepscope.web.pages.drilldown import address_of_difference, address_of_row
from stepscope.web.pages.links import stretch_columns
from stepscope.web.pages.rows import FORMATS, attachment, known_format, sheet
from stepscope.web.pages.sections import PAGES, asked_by, filled, lacking
from stepscope.web.pages.site import Site, ask, html, inputs_of, links_to
from stepscope.web.pages.table_query import Answer, Question, answered, arranged, choices, question_of
from stepscope.web.session import Busy

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.web.pages.sections import Section

_ROWS_PER_PAGE = 100


async def timeline(site: Site, request: Request) -> Response:
    """The timeline."""
    return html(site, request, "timeline.html", title="Timeline")


async def page(site: Site, request: Request) -> Response:
    """A page by its name in `PAGES`."""
    name = request.path_params["page"]
    if name not in PAGES:
        raise HTTPException(404)
    page = PAGES[name]
    inputs = inputs_of(site, request)
    parts = [await _section(site, request, inputs, section) for section in page.sections]
    more = await what_if.controls(site, request, inputs) if name == "what-if" else {}
    more |= await memory.controls(site, request, inputs) if name == "memory" else {}
    if name == "memory" and more and any(part["error"] is None for part in parts):
        parts = [part for part in parts if part["error"] is None]  # a snapshot has no operators, and needs none
    template = f"{name.replace('-', '_')}.html" if more else "sections.html"
    return html(site, request, template, title=page.title, doc=page.doc, parts=parts, **more)


async def _section(site: Site, request: Request, inputs: tuple[int, ...], section: Section) -> dict[str, Any]:
    try:
        answer = await _answer(site, request, asked_by(section, inputs))
    except Busy:
        raise
    except StepscopeError as error:
        return lacking(section, error)
    return filled(section, answer, links_to(site, request, inputs), section.rows)


async def _answer(site: Site, request: Request, question: Question) -> Answer:
    """The whole table, before it is searched, grouped and sorted: the session holds it, and the rest is cheap."""
    bare = replace(question, search="", group=(), sort=(), columns=())
    key = (bare, site.session.stamps(question.inputs))
    answer: Answer = await ask(site, request, key, lambda: answered(site.session, bare))
    return answer


async def tables(site: Site, request: Request) -> Response:
    """The list of all tables."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, kind in query_tables.names():
        if kind != "comparison":
            kinds.setdefault(kind, []).append((name, query_tables.find(name).doc))
    return html(site, request, "tables.html", title="Tables", kinds=kinds)


async def table(site: Site, request: Request) -> Response:
    """One table, with its options."""
    parameters = dict(request.query_params)
    name = request.path_params["name"]
    question = question_of(name, inputs_of(site, request), parameters)
    answer = await _answer(site, request, question)
    shown = await asyncio.to_thread(arranged, answer, question)
    page = int(parameters["page"]) if parameters.get("page", "").isdecimal() and len(parameters["page"]) < 9 else 1
    links = links_to(site, request, question.inputs)
    offset = (page - 1) * _ROWS_PER_PAGE
    made = sheet(shown.frame, shown.table, link=address_of_row(links, name), offset=offset, limit=_ROWS_PER_PAGE,
                 sort=question.sort, keep_empty="all" in parameters)  # fmt: skip
    columns = shown.frame.columns
    chart = figures.drawn(name, shown.frame, lambda row: links.events(row, columns)) if page == 1 else None
    query = {k: v for k, v in parameters.items() if k not in ("page", "sort")} | {"sort": parameters.get("sort", "")}

    def again(**changed: object) -> str:
        changed = {**query, **changed}
        return links.table(name, **{k.replace(".", "__"): v for k, v in changed.items()})

    def sorted_by(column: str, order: str) -> str:
        return again(sort={"": column, "·": f"+{column}", "+": f"-{column}"}.get(order, f"+{column}"))

    same = {k.replace(".", "__"): v for k, v in query.items()}
    downloads = [(label, links.to(f"/download/{name}.{kind}", **same)) for kind, (label, _) in FORMATS.items()]
    marking = {k: v for k, v in parameters.items() if v and k not in ("page", "t", "columns", "all", "sort")}
    marked = links.to("/timeline", marks=urlencode({"table": name, **marking})) if stretch_columns(columns) else None
    return html(site, request, "table.html", title=name, marked=marked, doc=query_tables.find(name).doc, sheet=made,
                 question=question,
                 choices=choices(name, dict(question.options)), parameters=parameters, page=page,
                 per_page=_ROWS_PER_PAGE, all_columns=answer.frame.columns, again=again, sorted_by=sorted_by,
                 downloads=downloads, remarks=answer.remarks, chart=chart, links=links)  # fmt: skip


async def download(site: Site, request: Request) -> Response:
    """One table as a file."""
    suffix, name = known_format(request.path_params["suffix"]), request.path_params["name"]
    question = question_of(name, inputs_of(site, request), dict(request.query_params))
    answer = await _answer(site, request, question)
    shown = await asyncio.to_thread(arranged, answer, question)
    return await attachment(name, suffix, shown.frame, shown.table)


async def compare_page(site: Site, request: Request) -> Response:
    """Two inputs compared."""
    known = site.session.inputs()
    pair = [request.query_params.get(side, "") for side in "ab"]
    sections: list[dict[str, Any]] = []
    said: dict[str, Any] = {"report": None, "reason": None}
    if all(pair):
        inputs = (*inputs_of(site, request, "a")[:1], *inputs_of(site, request, "b")[:1])
        said = await _verdict(site, request, inputs)
        for name in analyses.names("pair"):
            for values in _ways(name):
                parameters = {f"o.{k}": v for k, v in values.items()}
                sections.append(await _comparison(site, request, question_of(name, inputs, parameters)))
        # Memory snapshots have no operators, and traces no snapshot's blocks.
        sections = [one for one in sections if one["error"] is None] or sections
    return html(site, request, "compare.html", title="Compare", pair=pair, parts=sections,
                 inputs=known, **said)  # fmt: skip


async def _verdict(site: Site, request: Request, inputs: tuple[int, ...]) -> dict[str, Any]:
    """Whether the two differ, by how much, where it went and why; or why that cannot be said."""
    session = site.session
    key = ("comparison", inputs, session.stamps(inputs))
    try:
        report = await ask(site, request, key, lambda: verbs.compare_report(*(session.run((i,)) for i in inputs)))
    except Busy:
        raise
    except StepscopeError as error:
        return {"report": None, "reason": error}
    links = links_to(site, request, inputs)
    blocks = [
        (block, sheet(block.frame, block.table, link=address_of_difference(links, block.frame)))
        for block in report.tables
    ]
    return {"report": report, "reason": None, "blocks": blocks, "colours": figures.COLOURS, "cards": None,
            "chart": None, "links": links}  # fmt: skip


def _ways(name: str) -> list[dict[str, str]]:
    """The ways that a comparison can be made, one set of options each: all values of its option `by`, if it has one."""
    by = next((choice for choice in choices(name, {}) if choice.name == "by"), None)
    return [{"by": value} for value in by.values] if by is not None and by.values else [{}]


async def _comparison(site: Site, request: Request, question: Question) -> dict[str, Any]:
    title = " ".join([question.name, *(f"by {v}" for _, v in question.options)])
    part: dict[str, Any] = {"title": title, "sheet": None, "chart": None, "error": None, "remarks": (),
                            "doc": query_tables.find(question.name).doc}  # fmt: skip
    try:
        answer = await _answer(site, request, question)
    except StepscopeError as error:
        return {**part, "error": error}
    link = address_of_difference(links_to(site, request, question.inputs), answer.frame)
    made = sheet(answer.frame, answer.table, link=link, limit=60)
    return {
        **part,
        "sheet": made,
        "remarks": answer.remarks,
        "frame": answer.frame,
        "chart": figures.drawn(question.name, answer.frame),
    }
