"""Rows of result tables as marks on the timeline: each a stretch of time, and the span that it is about if it has one.

The critical path, idle gaps, collectives and the findings of the report are such tables; any other table whose rows
have a start and a length can be marked too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import polars as pl
import polars.selectors as cs
from msgspec.structs import replace
from starlette.responses import JSONResponse

from stepscope.core.errors import StepscopeError
from stepscope.core.names import mentioned_name
from stepscope.core.units import duration
from stepscope.query import tables
from stepscope.renderers.cells import cells, labels
from stepscope.web.pages import overview
from stepscope.web.pages.calls import NO_STORE, scene_for
from stepscope.web.pages.links import stretch_columns
from stepscope.web.pages.site import Site, ask, inputs_of, links_to
from stepscope.web.pages.table_query import answered, arranged, question_of
from stepscope.web.timeline.drawing import short
from stepscope.web.timeline.inspection import depths_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.core.report import Finding
    from stepscope.core.table import Table
    from stepscope.web.pages.links import Links
    from stepscope.web.session import Session
    from stepscope.web.timeline.scene import Scene

_MOST, _MOST_STEPS = 20_000, 200
#: Columns that name a row: what kind it is of, and which one it is.
_KINDS = ("cause", "kind", "category", "phase", "status")
_NAMES = ("name", "operator", "op", "module", "module_class", "collective", "metric", "trace")


class _Mark(msgspec.Struct, frozen=True):
    """A finding's place: its span if it is one, its start and length in ns."""

    finding: Finding
    span: int | None
    start: int
    length: int


async def marks(site: Site, request: Request) -> Response:
    """Marks on one trace, as JSON: of the findings of the report, or of the rows of a table."""
    parameters, inputs = dict(request.query_params), inputs_of(site, request)
    index = request.path_params["index"]
    scene = await scene_for(site, request)
    if parameters.get("findings"):
        report = await overview.report_of(site, request)
        about = ("marks", index, inputs, site.session.stamps(inputs))
        links = links_to(site, request, (index,))
        placed = await ask(site, request, about, lambda: _placed_findings(site.session, links, scene, report.findings))
        every = links_to(site, request, inputs)
        tables_of = {finding.title: every.command(finding.command) for finding in report.findings}
        drawn = await asyncio.to_thread(_of_findings, scene, placed)
        return JSONResponse({**drawn, "tables": tables_of}, headers=NO_STORE)
    name = parameters.get("table", "")
    of_job = tables.find(name).scope == "ranks"
    question = question_of(name, inputs if of_job else (index,), parameters)
    key = ("marks", index, question, site.session.stamps(question.inputs))
    answer = await ask(site, request, key, lambda: arranged(answered(site.session, question), question))
    rank = site.session.rank(index)
    frame = answer.frame
    if of_job and rank is not None and "rank" in frame.columns:
        frame = frame.filter(pl.col("rank") == rank)
    return JSONResponse(await asyncio.to_thread(of_table, scene, frame, answer.table), headers=NO_STORE)


def of_table(scene: Scene, frame: pl.DataFrame, table: Table) -> dict[str, Any]:
    """The rows of a table that have a place in time, as marks in order of time; the longest 20,000 of many.

    `marks` has for each [span or null, track or null, depth, start, length, index into `names`], times in ns. `facts`
    has the cells of the longest 200, which one steps through, by the number of the mark.
    """
    placed = _placed(scene, frame)
    shown = placed.sort("mark_length", descending=True).head(_MOST).sort("mark_start", "mark_length")
    longest = shown["mark_length"].arg_sort(descending=True).head(_MOST_STEPS).sort()
    known = [s.name for s in frame.iter_columns() if s.null_count() < len(s) and not s.name.endswith("_id")]
    rows = zip(*cells(shown[longest].select(known), table), strict=True) if shown.height else ()
    heads = labels(known)
    facts = {
        at: [[head, text] for head, text in zip(heads, row, strict=True) if text != "–"]
        for at, row in zip(longest.to_list(), rows, strict=True)
    }
    spans = shown["mark_span"].to_list()
    starts, lengths = shown["mark_start"].to_list(), shown["mark_length"].to_list()
    named = list(zip(spans, starts, lengths, shown["mark_name"].to_list(), strict=True))
    return _drawn(scene, named, facts, placed.height, int(placed["mark_length"].sum()))


def _placed(scene: Scene, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows with a place in time, with the columns `mark_span`, `mark_start`, `mark_length` and `mark_name`."""
    spans, stretch = scene.trace.spans, stretch_columns(frame.columns)
    span = frame["span_id"].cast(pl.Int64) if "span_id" in frame.columns else pl.lit(None, pl.Int64)
    frame = frame.with_columns(mark_span=span)
    if stretch is None:
        frame = frame.drop_nulls("mark_span")
        start, length = (spans[column].gather(frame["mark_span"]) for column in ("ts_ns", "dur_ns"))
    else:
        start, length = (frame[column].cast(pl.Int64) for column in stretch)
    texts = {s.name for s in frame.select(cs.string() | cs.categorical() | cs.enum()) if s.null_count() < len(s)}
    firsts = (next((column for column in columns if column in texts), None) for columns in (_KINDS, _NAMES))
    parts = [pl.col(column).cast(pl.String) for column in firsts if column is not None]
    if len(parts) > 1:
        parts = [pl.when(parts[0].ne_missing(parts[1])).then(parts[0]), parts[1]]
    name = pl.concat_str(parts, separator=" · ", ignore_nulls=True) if parts else pl.lit("")
    frame = frame.with_columns(mark_start=start, mark_length=length, mark_name=name)
    return frame.drop_nulls(["mark_start", "mark_length"])


def _placed_findings(session: Session, links: Links, scene: Scene, findings: tuple[Finding, ...]) -> list[_Mark]:
    """Where each finding is: the longest row of the table that it names, else the longest span that it mentions.

    Findings without either are left out: they are about all of the recording.
    """
    placed = []
    for finding in findings:
        rows = _placed(scene, _rows_of(session, links, finding, scene)).sort("mark_length", descending=True)
        longest = rows.select("mark_span", "mark_start", "mark_length").head(1)
        placed += [_Mark(finding, *row) for row in longest.rows()]
    return sorted(placed, key=lambda mark: (mark.start, mark.length))


def _rows_of(session: Session, links: Links, finding: Finding, scene: Scene) -> pl.DataFrame:
    address = links.command(finding.command.removeprefix("stepscope "))
    if address is not None:
        parts = urlsplit(address)
        name = parts.path.rpartition("/")[2]
        try:
            question = question_of(name, links.inputs, dict(parse_qsl(parts.query)))
            frame = arranged(answered(session, question), replace(question, columns=())).frame
            if tables.find(name).scope == "trace" and stretch_columns(frame.columns):
                return frame
        except StepscopeError:  # a table of the whole job, or not recorded by this rank
            pass
    mentioned = mentioned_name((finding.title, *finding.details), scene.names)
    return scene.trace.spans.filter(pl.col("name").cast(pl.String) == (mentioned or ""))


def _of_findings(scene: Scene, placed: list[_Mark]) -> dict[str, Any]:
    facts = {}
    for at, mark in enumerate(placed):
        finding = mark.finding
        cost = "" if finding.value_ns is None else f"{duration(finding.value_ns)} {finding.value_label}".strip()
        facts[at] = [["finding", finding.title], *([["costs", cost]] if cost else []),
                     *(["", line] for line in finding.details)]  # fmt: skip
    named = [(mark.span, mark.start, mark.length, mark.finding.title) for mark in placed]
    return _drawn(scene, named, facts, len(placed), None)


def _label(name: str) -> str:
    kind, dot, rest = name.rpartition(" · ")
    return kind + dot + short(rest)


def _drawn(
    scene: Scene,
    marks: Sequence[tuple[int | None, int, int, str | None]],
    facts: Mapping[int, list[list[str]]],
    count: int,
    total_ns: int | None,
) -> dict[str, Any]:
    spans = list({span for span, *_ in marks if span is not None})
    depths, tracks = depths_of(scene, spans), scene.trace.spans["track_id"].gather(spans).to_list()
    places: dict[int | None, tuple[int | None, int]] = {None: (None, 0)}
    places |= {span: (track, depths.get(span, 0)) for span, track in zip(spans, tracks, strict=True)}
    names = {name or "": i for i, name in enumerate(dict.fromkeys(name for *_, name in marks))}
    return {
        "names": [_label(name) for name in names],
        "marks": [[span, *places[span], start, length, names[name or ""]] for span, start, length, name in marks],
        "facts": facts,
        "count": count,
        "total": "" if total_ns is None else duration(total_ns),
    }
