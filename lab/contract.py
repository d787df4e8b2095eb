"""Every public question about a file: each must give an answer or a StepscopeError, soon and in little memory.

The questions come from the registries, so a new analysis, option, export, figure, output format or page is asked too.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
import tempfile
import warnings
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import more_questions
from starlette.testclient import TestClient

import stepscope
from stepscope import exports, renderers
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import TABLES
from stepscope.core.trace import Run
from stepscope.query import tables
from stepscope.renderers import figures
from stepscope.web import app
from stepscope.web.pages import site
from stepscope.web.pages.sections import PAGES
from stepscope.web.pages.single_file import report_page
from stepscope.web.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from jinja2 import Environment

    from stepscope.core.options import Option
    from stepscope.core.trace import Trace

    Question = tuple[str, Callable[[], object]]

SECONDS = 10  # of the processor, so that a busy machine fails nothing
WALL_SECONDS = 90
MEMORY_FACTOR, MEMORY_MORE_MIB = 3, 200
#: A changed file may be much larger than the sound one: a value of a few characters becomes a row of a table.
MEMORY_PER_BYTE = 8
SQL = (
    "SELECT name, count(*), sum(dur_ns) FROM spans GROUP BY name",
    "SELECT category, avg(dur_ns) FROM spans LEFT JOIN steps USING (step) GROUP BY ALL",
    "SELECT s.name, sum(s.dur_ns) FROM spans s JOIN kernels k USING (span_id) GROUP BY 1",
    'SELECT * FROM "step-breakdown"',
)
CHANGES = (
    "class gemm: 2x", "class gemm: removed", "kernel ~ .: 1e9x", "op ~ .: removed", "range forward: 2x", "launch: free",
    "launch: graphs", "loader: hidden", "sync: removed", "copies: free", "comm: overlapped", "host: free",
    "device: free", "ranks: no stragglers",
)  # fmt: skip
OPEN = "open"
_REQUESTS = (
    "", "timeline", "compare?a=0&b=1", "tables", "sql", "sql?q=SELECT+count(*)+FROM+spans", "download/kernels.csv",
    "api/trace/0/layout", "api/trace/0/search?q=a", "api/trace/0/span/0", "api/trace/0/span/999999999",
    "api/trace/0/window?from=0&to=1000000000&tracks=0,1,2,3", f"api/trace/0/statistics?from=0&to={2**62}",
)  # fmt: skip
_MORE_REQUESTS = (
    f"api/trace/0/window?from=-{2**62}&to={2**62}&tracks=0,1", "api/trace/0/marks?findings=1",
    "api/trace/0/marks?table=idle",
    "api/trace/0/what-if", "api/trace/0/what-if?if=launch:+graphs", "api/trace/0/what-if?if=device:+free&if=host:+1e9x",
    "api/trace/0/memory/layout", f"api/trace/0/memory/window?from=0&to={2**62}",
    "api/trace/0/memory/moment?x=5&axis=time",
    "api/trace/0/memory/window?from=0&to=10&by=stack&axis=time", "api/trace/0/memory/moment?place=3&by=stack",
    "api/trace/0/memory/stack/0", "compare?a=1&b=0", "tables/kernels?group=name&sort=-total_ns&q=a",
    "download/steps.json",
    "download/sql/rows.csv?q=SELECT+*+FROM+spans",
)  # fmt: skip
_HEAVIEST = ("report", "compare with itself", "one-file page")
_NOT_FINITE = re.compile(r"[^\w](NaN|Infinity)[^\w]")


class TookTooLongError(BaseException):
    """No Exception, so that nothing on the way can take it for one of its own."""


def questions(paths: list[str], base: Path, *, further: bool = False) -> Iterator[Question]:
    """All questions about files, some of which also need a sound file. The first opens them, and must be asked.

    With `further` there are also those of `more_questions`, and more of the page.
    """
    traces: dict[str, Trace] = {}

    def opened() -> None:
        traces.update({path: stepscope.load(path) for path in stepscope.load_run(paths).paths})
        traces[str(base)] = _sound(base)

    yield OPEN, opened
    if not traces:
        return
    paths = [path for path in traces if path != str(base)] or [str(base)]

    def run_of(*paths: str) -> Run:
        return Run(paths, traces.__getitem__, paths)

    trace, run, one, sound = traces[paths[0]], run_of(*paths), run_of(paths[0]), run_of(str(base))
    yield "describe", lambda: (repr(trace), trace._repr_html_(), [trace.table(name) for name in trace.tables])
    yield from _of_tables(run, run_of(paths[0], str(base)))
    yield from more_questions.questions(run, one, sound) if further else ()
    for name in figures.names():
        yield f"figure {name}", partial(_figure, trace, name)
    yield "report", partial(_rendered, run)
    yield "report with the base", partial(_rendered, run_of(*paths, str(base)))
    for query in (*SQL, *_of_rows(run)):
        yield f"sql {query[:40]}", partial(stepscope.sql, run, query)
    yield "compare with itself", lambda: str(stepscope.compare(one, one))
    yield "compare with the base", lambda: str(stepscope.compare(sound, one))
    yield "compare the base with it", lambda: str(stepscope.compare(one, sound))
    for kind in exports.names():
        yield f"export {kind}", partial(_exported, kind, run)
        for option in exports.find(kind).options().values():
            for value in option.choices:
                yield f"export {kind} {option.name}={value}", partial(_exported, kind, run, **{option.name: value})
    yield "one-file page", lambda: report_page(run)
    with _page([*paths[:1], str(base)]) as client:
        for address in _addresses(further=further):
            yield f"page /{address}", partial(_requested, client, address)


def _addresses(*, further: bool) -> tuple[str, ...]:
    """What is asked of the page."""
    of_tables = (f"tables/{name}" for name, kind in tables.names() if kind == "analysis")
    return (*_REQUESTS, *(_MORE_REQUESTS if further else ()), *PAGES, *of_tables)


@cache
def _sound(base: Path) -> Trace:
    return stepscope.load(base)


def _of_rows(run: Run) -> Iterator[str]:
    """A query for each table that has rows or cannot be read, and one for all that are empty."""
    empty = []
    for name in TABLES:
        try:
            n_rows = sum(trace.table(name).height for trace in run)
        except StepscopeError:
            n_rows = 1
        if n_rows:
            yield f'SELECT * FROM "{name}" ORDER BY 1 LIMIT 100'
        else:
            empty.append(f'SELECT count(*) FROM "{name}"')
    yield " UNION ALL ".join(empty)


def _of_tables(run: Run, both: Run) -> Iterator[Question]:
    for name, kind in tables.names():
        subject = both if kind == "comparison" else run
        yield f"show {name}", partial(stepscope.show, subject, name)
        options = tables.find(name).options() if kind != "table" else {}
        for option in options.values():
            for value in _values(option):
                yield (
                    f"show {name} {option.name}={value}",
                    partial(stepscope.show, subject, name, **{option.name: value}),
                )
    for change in CHANGES:
        yield f"predict {change}", partial(stepscope.predict, run, change, measured_step="2ms")


def _values(option: Option) -> tuple[Any, ...]:
    """Values of an option other than its default."""
    if option.choices:
        return tuple(value for value in option.choices if value != option.default)
    if option.kind is bool:
        return (not option.default,)
    if option.kind in (int, float):
        return (0, 1, 10**9)
    return ("aten::", "(")


def _figure(trace: Trace, name: str) -> None:
    analysis = tables.find(name)
    frame, _ = tables.collect(trace, analysis, on_missing=lambda *_: None)
    rows = tables.drawn(trace, analysis, frame)
    if rows is not None:
        figures.drawn(name, rows)


def _rendered(run: Run) -> None:
    report = stepscope.report(run)
    for name in renderers.RENDERERS.names():
        if (render := renderers.find(name).report) is not None:
            render(report, renderers.Screen())


def _exported(kind: str, run: Run, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stepscope.export(run, kind, output=Path(folder) / "out" if exports.find(kind).folder else None, **options)


@cache
def _templates() -> Environment:
    return site.environment()


@contextmanager
def _page(paths: list[str]) -> Iterator[TestClient]:
    """The page of some files. Its templates are compiled once, whatever the files."""
    session = Session(paths)
    app.environment = _templates
    try:
        yield TestClient(app.create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    finally:
        session.close()


def _requested(client: TestClient, address: str) -> None:
    """One request. An answer to a script must be JSON that a browser reads."""
    answer = client.get(f"/{address}")
    if answer.status_code >= 500:
        raise AssertionError(f"status {answer.status_code}: {answer.text[:80]}")
    if answer.headers.get("content-type") == "application/json" and _NOT_FINITE.search(answer.text):
        raise AssertionError("not JSON")


def ask(run: Callable[[], object], most_mib: float) -> str:
    """Asks one question: "answered", or the class of the StepscopeError. Raises what breaks the contract."""
    signal.signal(signal.SIGPROF, _alarm)
    reset_peak()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
    except StepscopeError as error:
        if not error.message:
            raise AssertionError("an error without a message") from error
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if (peak := peak_mib()) > most_mib:
        raise MemoryError(f"{peak:.0f} MiB, allowed are {most_mib:.0f}")
    return "answered"


def _alarm(_signal: int, _frame: FrameType | None) -> None:
    raise TookTooLongError


def limit_memory(mib: int) -> None:
    """What this process can allocate at most: an allocation beyond ends it."""
    resource.setrlimit(resource.RLIMIT_DATA, (mib << 20, mib << 20))


def reset_peak() -> None:
    """The peak of memory counts from now, on Linux."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Most memory that this process held since `reset_peak`, or ever where it cannot be reset."""
    if sys.platform == "linux":
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def most_mib(base: Path) -> float:
    """What a question about a changed file may take: three times what the sound file takes, and 200 MB."""
    peak = 0.0
    for name, question in questions([str(base)], base):
        if name in (OPEN, *_HEAVIEST):
            ask(question, float("inf"))
            peak = max(peak, peak_mib())
    return MEMORY_FACTOR * peak + MEMORY_MORE_MIB
