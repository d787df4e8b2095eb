"""Every public question about a file: tables with each value of each option, reports, figures, SQL, pages, exports."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

import stepscope
from stepscope import analyses, exports, renderers
from stepscope.core.schema import TABLES
from stepscope.query import tables
from stepscope.renderers import figures
from stepscope.web.app import create_app
from stepscope.web.pages.sections import PAGES
from stepscope.web.pages.single_file import report_page
from stepscope.web.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.core.options import Option
    from stepscope.core.trace import Run, Trace

    Question = tuple[str, Callable[[], object]]

_NUMBERS, _TEXTS = (0, 1, 10**9), ("", "aten::", "(")
_CALLS = ("layout", "window?from=0&to=1000000&px=800", "span/0", "span/999999", "statistics?from=0&to=1000000",
          "search?q=a")  # fmt: skip


def questions(path: Path, base: Path) -> Iterator[Question]:
    """What can be asked of the file at `path`, opened first; `base` is a sound one that it is compared with."""
    trace = stepscope.load(path)
    yield "opened", lambda: None
    yield "describe", lambda: (repr(trace), trace._repr_html_(), [trace.table(name) for name in trace.tables])
    for name, kind in tables.names():
        source = {"comparison": [path, base], "ranks": [path, base]}.get(kind)
        asked = trace if source is None else stepscope.load_run(source)
        for options in _options(name, kind):
            yield f"show {name} {options or ''}".rstrip(), partial(stepscope.show, asked, name, **options)
    for name in figures.names():
        yield f"plot {name}", partial(stepscope.plot, trace, name)
    yield "report", partial(_rendered, trace)
    yield "report of two", partial(_rendered, stepscope.load_run([path, base]))
    for other in (path, base):
        yield (
            f"compare with {'itself' if other is path else 'another'}",
            lambda o=other: str(stepscope.compare(path, o)),
        )
    for name in TABLES:
        yield f"sql {name}", partial(trace.sql, f'SELECT * FROM "{name}" ORDER BY 1 LIMIT 100')
    yield (
        "sql join",
        partial(trace.sql, "SELECT s.name, sum(s.dur_ns) FROM spans s JOIN kernels k USING (span_id) GROUP BY 1"),
    )
    for kind in exports.names():
        yield f"export {kind}", partial(_exported, trace, kind)
    yield "one-file page", lambda: report_page(stepscope.load_run([path]))
    yield from _requests(path, base)


def _options(name: str, kind: str) -> Iterator[dict[str, Any]]:
    """None, then each value of each option by itself."""
    yield {}
    if kind in ("analysis", "ranks", "comparison"):
        for option in analyses.find(name).options().values():
            yield from ({option.name: value} for value in _values(option))


def _values(option: Option) -> tuple[Any, ...]:
    if option.choices:
        return option.choices
    if option.kind is bool:
        return (not option.default,)
    if option.kind is str:
        return _TEXTS
    return tuple(option.kind(number) for number in _NUMBERS)


def _rendered(source: Trace | Run) -> None:
    report = stepscope.report(source)
    for name in ("terminal", "markdown", "json"):
        render = renderers.find(name).report
        assert render is not None
        render(report, renderers.Screen())


def _exported(trace: Trace, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stepscope.export(trace, kind, output=Path(folder, "out") if exports.find(kind).folder else None)


def _requests(path: Path, base: Path) -> Iterator[Question]:
    """Every page, and what the pages ask in turn. An answer of 500 raises here what went wrong there."""
    session = Session([str(path), str(base)])
    client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    addresses = [
        *("/", "/timeline", "/tables", "/compare?a=0&b=1", "/sql?q=SELECT+count(*)+FROM+spans"),
        *(f"/{page}?t=0" for page in PAGES),
        *(f"/tables/{name}?t=0" for name, kind in tables.names() if kind in ("analysis", "table", "result")),
        *(f"/api/trace/0/{call}" for call in _CALLS),
    ]
    for address in addresses:
        yield f"page {address}", partial(client.get, address)
    yield "page closes", session.close
