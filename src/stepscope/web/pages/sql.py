"""The page for SQL: an editor, example queries (each is run on a demo in the tests), the tables, and the answer."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.api import verbs
from stepscope.core import units
from stepscope.core.errors import StepscopeError
from stepscope.query import sql, tables
from stepscope.web.pages.rows import FORMATS, attachment, known_format, sheet
from stepscope.web.pages.site import Site, Waiting, ask, html, inputs_of, links_to
from stepscope.web.pages.table_query import Answer
from stepscope.web.session import Busy
from stepscope.web.workers import on_stop

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.core.table import Column
    from stepscope.web.session import Session


class Example(msgspec.Struct, frozen=True):
    """A question, the query, the recorded tables that it needs, how many files."""

    title: str
    text: str
    needs: tuple[str, ...] = ("spans",)
    n_files: int = 1


#: The query in the editor at first.
FIRST = """\
SELECT category, count(*) AS calls, sum(dur_ns) AS total_ns, max(dur_ns) AS longest_ns
FROM spans
GROUP BY category
ORDER BY total_ns DESC"""
EXAMPLES = (
    Example("What is in the recording?", FIRST),
    Example("Which operators cost most?", """\
SELECT name, sum(calls) AS calls, sum(host_self_ns) AS host_self_ns, sum(device_self_ns) AS device_self_ns
FROM operators
GROUP BY name
ORDER BY coalesce(sum(operators.device_self_ns), 0) DESC, sum(operators.host_self_ns) DESC
LIMIT 20""", ("ops",)),
    Example("What are the longest spans, and where?", """\
SELECT trace, name, category, step, span_id, ts_ns, dur_ns
FROM spans
WHERE category NOT IN ('step', 'user_range', 'python', 'other')
ORDER BY dur_ns DESC
LIMIT 20"""),
    Example("Which calls vary most?", """\
SELECT name, count(*) AS calls, median(dur_ns) AS median_ns, quantile_cont(dur_ns, 0.99) AS p99_ns,
       max(dur_ns) AS most_ns
FROM spans
WHERE category IN ('operator', 'kernel')
GROUP BY name
HAVING calls >= 8
ORDER BY sum(dur_ns) * (most_ns / greatest(median_ns, 1)) DESC
LIMIT 20"""),
    Example("With which shapes is the most expensive operator called?", """\
WITH top AS (SELECT name FROM operators GROUP BY name ORDER BY sum(host_self_ns) DESC LIMIT 1)
SELECT name, input_shapes, count(*) AS calls, sum(dur_ns) AS total_ns, median(dur_ns) AS median_ns
FROM spans JOIN ops USING (trace, span_id) JOIN top USING (name)
GROUP BY name, input_shapes
ORDER BY total_ns DESC
LIMIT 20""", ("ops",)),
    Example("Who calls aten::copy_?", """\
SELECT caller.name, count(*) AS calls, sum(call.dur_ns) AS total_ns
FROM spans AS call JOIN spans AS caller ON caller.trace = call.trace AND caller.span_id = call.parent_id
WHERE call.name = 'aten::copy_'
GROUP BY caller.name
ORDER BY total_ns DESC
LIMIT 20""", ("ops",)),
    Example("How long do kernels wait after their launch?", """\
SELECT kernel.name, count(*) AS calls, median(kernel.ts_ns - launch.ts_ns) AS median_wait_ns,
       max(kernel.ts_ns - launch.ts_ns) AS longest_wait_ns, sum(kernel.dur_ns) AS total_ns
FROM spans AS kernel JOIN spans AS launch ON launch.trace = kernel.trace AND launch.span_id = kernel.launch_id
WHERE kernel.category = 'kernel'
GROUP BY kernel.name
ORDER BY total_ns DESC
LIMIT 20""", ("kernels",)),
    Example("Which operators allocate most?", """\
SELECT spans.name, count(*) AS blocks, sum(bytes) AS total_bytes
FROM allocations JOIN spans ON spans.trace = allocations.trace AND spans.span_id = allocations.op_id
WHERE bytes > 0
GROUP BY spans.name
ORDER BY total_bytes DESC
LIMIT 20""", ("allocations", "spans")),
    Example("Which rank is the slowest in each step?", """\
SELECT step, arg_max(rank, window_ns) AS slowest_rank, max(window_ns) AS slowest_ns,
       max(window_ns) - min(window_ns) AS apart_ns
FROM steps
GROUP BY step
ORDER BY apart_ns DESC
LIMIT 20""", ("steps",), n_files=2),
    Example("What was dropped, guessed or repaired?", "SELECT * FROM issues", ()),
)  # fmt: skip


#: A query is stopped after this time, and refused if it needs more memory.
LIMIT_S, _MEMORY = 30.0, "2GB"
_LONGEST = 6_000
_ROWS_SHOWN = 500
_KINDS = {
    "traces": "The files", "table": "The recording itself", "analysis": "Analyses", "ranks": "All ranks together",
    "result": "Results that files of other tools hold",
}  # fmt: skip


class Listed(msgspec.Struct, frozen=True):
    """A table that a query may name: what it is, its columns, its rows where they are known."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    n_rows: int | None = msgspec.field(default=None)


async def sql_page(site: Site, request: Request) -> Response:
    """The editor. If the address holds a query, also its rows, or the reason why there are none.

    A query from another site's link is put into the editor, and runs only if the user runs it.
    """
    session, inputs = site.session, inputs_of(site, request)
    text = _text(request)
    foreign = bool(text) and _is_foreign(request)
    shown: dict[str, Any] = {"sheet": None, "remarks": (), "error": None, "waiting": False, "downloads": []}
    links = links_to(site, request, inputs)
    if text and not foreign:
        try:
            answer: Answer = await ask(site, request, *_question(session, text, inputs))
        except Busy:
            raise
        except Waiting:
            shown["waiting"] = True
        except StepscopeError as error:
            shown["error"] = error
        else:
            links = links_to(site, request, inputs)  # which rank is in which file may have become known by now
            made = sheet(answer.frame, answer.table, link=links.events, limit=_ROWS_SHOWN, keep_empty=True)
            files = [(label, links.to(f"/download/sql/rows.{kind}", q=text)) for kind, (label, _) in FORMATS.items()]
            shown |= {"sheet": made, "remarks": answer.remarks, "downloads": files}
    heights = session.heights(inputs)
    return html(site, request, "sql.html", 202 if shown["waiting"] else 200, title="SQL", text=text or FIRST,
                tables=_listed(heights), examples=_fitting(heights, len(inputs)), limit=units.duration(LIMIT_S * 1e9),
                longest=_LONGEST, foreign=foreign, parameters=dict(request.query_params),
                links=links, **shown)  # fmt: skip


async def sql_download(site: Site, request: Request) -> Response:
    """All rows of the query as a file."""
    suffix, text = known_format(request.path_params["suffix"]), _text(request)
    if not text:
        raise StepscopeError("there is no query", "write one on the page SQL")
    if _is_foreign(request):
        raise StepscopeError("a link on another site leads here", "run the query on the page SQL first")
    answer: Answer = await ask(site, request, *_question(site.session, text, inputs_of(site, request)))
    return await attachment("stepscope-sql", suffix, answer.frame, answer.table)


def _text(request: Request) -> str:
    return request.query_params.get("q", "").replace("\r\n", "\n").strip()


def _is_foreign(request: Request) -> bool:
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _question(session: Session, text: str, inputs: tuple[int, ...]) -> tuple[Hashable, partial[Answer]]:
    return ("sql", text, inputs, session.stamps(inputs)), partial(_ran, session, text, inputs)


def _ran(session: Session, text: str, inputs: tuple[int, ...]) -> Answer:
    if len(text) > _LONGEST:
        hint = "shorten it, or use the command line: stepscope sql PATH -"
        raise StepscopeError(f"the query has {len(text):,} letters, {_LONGEST:,} are taken here", hint)
    remarks: list[str] = []
    frame = verbs.sql(
        session.run(inputs),
        text,
        timeout_s=LIMIT_S,
        memory_limit=_MEMORY,
        on_missing=lambda label, error: remarks.append(f"{label} is left out: {error.message}"),
        on_start=on_stop,
    )
    return Answer(frame, tables.described("sql", frame), tuple(dict.fromkeys(remarks)))


@cache
def _known() -> tuple[tuple[str, str, str, tuple[Column, ...]], ...]:
    """Kind, name, line and columns of each table, with the rank and the file that all have."""
    described = []
    for name, kind, table in sql.tables():
        own = (tables.RANK, tables.TRACE, *(c for c in table.columns if c.name not in ("rank", "trace")))
        described.append((kind, name, table.doc, own))
    return tuple(described)


def _listed(heights: Mapping[str, int] | None) -> dict[str, list[Listed]]:
    """The tables under the title of their kind."""
    groups: dict[str, list[Listed]] = {title: [] for title in _KINDS.values()}
    for kind, name, doc, columns in _known():
        n_rows = None if heights is None or kind != "table" else heights.get(name.removeprefix(tables.RAW), 0)
        groups[_KINDS[kind]].append(Listed(name, doc, columns, n_rows))
    return groups


def _fitting(heights: Mapping[str, int] | None, n_inputs: int) -> list[Example]:
    """Example questions that these inputs can answer, as far as is known."""
    return [
        example
        for example in EXAMPLES
        if n_inputs >= example.n_files and (heights is None or all(heights.get(name) for name in example.needs))
    ]
