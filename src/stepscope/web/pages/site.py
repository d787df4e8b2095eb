"""What all pages share: the session, the templates, and how long a request waits for an answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from stepscope.core import files, units
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.report import printable_text
from stepscope.renderers import figures
from stepscope.web.pages.drilldown import address_of_part, address_of_whole
from stepscope.web.pages.links import Links
from stepscope.web.pages.rows import sheet
from stepscope.web.pages.sections import NAVIGATION
from stepscope.web.session import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from concurrent.futures import Future

    from starlette.requests import Request

    from stepscope.web.session import Session

    Handler = Callable[["Site", Request], Awaitable[Response]]


_HERE = Path(__file__).parents[1]
#: How long a request waits for an answer: a page before it says that it is being worked out, a call before it gives up.
_PAGE_PATIENCE_S, _CALL_PATIENCE_S = 0.4, 25.0
#: How often a waiting request renews its question and checks whether the browser has left.
_ASK_AGAIN_S = 1.0
_WAIT_HEADER = "x-stepscope-wait"
_MOST_INPUTS = 4_096


class Waiting(Exception):
    """The answer is not ready yet."""


class Site(msgspec.Struct, frozen=True):
    """State that all handlers share."""

    session: Session
    templates: jinja2.Environment


def static_path() -> Path:
    """The folder of scripts and styles."""
    return _HERE / "static"


def environment() -> jinja2.Environment:
    """Templates; everything put into them is escaped, and made printable."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    templates.filters |= {
        "duration": units.duration,
        "percent": units.percent,
        "count": units.count,
        "size": units.size,
    }
    templates.filters["figure_of"] = lambda block: (
        None if block.drawn is None else figures.drawn(block.table.name, block.drawn)
    )
    templates.filters["sheet_of"] = lambda block: sheet(block.frame, block.table)
    templates.globals |= {"address_of_part": address_of_part, "address_of_whole": address_of_whole}
    templates.filters["json_text"] = json.dumps
    return templates


def _printable(value: object) -> object:
    return printable_text(value) if type(value) is str else value  # Markup has been through here


def endpoint(site: Site, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """A handler for a route: with our own errors as pages, or as JSON where a script asked."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(site, request)
        except Waiting:
            return _still_waiting(site, request)
        except StepscopeError as error:
            status = 503 if isinstance(error, Busy) else 404 if isinstance(error, UnknownName) else 400
            if "/api/" in request.url.path:
                return JSONResponse({"error": error.message, "hint": error.hint}, status)
            return html(site, request, "error.html", status, title="This did not work", error=error)

    return answer


async def no_such_page(site: Site, request: Request, error: Exception) -> Response:
    """The page for an unknown address."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    cause = StepscopeError("There is no such page.", "the menu above leads to all of them")
    return html(site, request, "error.html", status, title="Not found", error=cause)


def _still_waiting(site: Site, request: Request) -> Response:
    if "/api/" in request.url.path:
        body = {
            "error": "this takes a long time",
            "hint": "the server is still working on it; reload the page",
            "waiting": True,
        }
        return JSONResponse(body, 503, {"retry-after": "1"})
    return html(site, request, "waiting.html", 202, title="Working")


async def ask(site: Site, request: Request, key: Hashable, work: Callable[[], Any]) -> Any:
    """The answer, if it is ready within the waiting time of the request. Raises Waiting, StepscopeError."""
    return (await answers(site, request, [(key, work)]))[0]


async def answers(site: Site, request: Request, questions: Sequence[tuple[Hashable, Callable[[], Any]]]) -> list[Any]:
    """The same for several questions, which are answered at the same time."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    patience = _PAGE_PATIENCE_S
    if "/api/" in request.url.path or "/download/" in request.url.path or request.headers.get(_WAIT_HEADER):
        patience = _CALL_PATIENCE_S
    until = loop.time() + patience
    watched: list[Future[Any]] = []

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the browser has left, and the event loop has ended
            loop.call_soon_threadsafe(there.set)

    while True:
        # Asking again shows that somebody still waits: the session drops other questions.
        futures = [site.session.ask(key, work) for key, work in questions]
        if all(answer.done() for answer in futures):
            return [_result(answer) for answer in futures]
        for answer in futures:
            if answer not in watched:
                watched.append(answer)
                answer.add_done_callback(wake)
        with suppress(TimeoutError):
            await asyncio.wait_for(there.wait(), min(max(until - loop.time(), 0.0), _ASK_AGAIN_S))
        there.clear()
        if not all(answer.done() for answer in futures) and (loop.time() >= until or await request.is_disconnected()):
            raise Waiting


def _result(answer: Future[Any]) -> Any:
    if answer.cancelled():  # dropped just when it was asked for
        raise Waiting
    error = answer.exception()
    if error is not None:
        raise error.with_traceback(None)  # it is raised for everyone who asks: its frames would pile up
    return answer.result()


def inputs_of(site: Site, request: Request, name: str = "t") -> tuple[int, ...]:
    """Inputs chosen in the address; all if none are. Raises StepscopeError (no such input)."""
    text = request.query_params.get(name, "")
    known = site.session.inputs()
    if not text:
        return tuple(one.index for one in known)
    numbers = text.split(",")[:_MOST_INPUTS]
    if not all(word.isascii() and word.isdigit() and len(word) < 8 for word in numbers):
        raise StepscopeError(f"{name}={text[:40]!r} does not name traces", "traces are numbers, as in t=0,2")
    chosen = tuple(dict.fromkeys(int(word) for word in numbers))
    for index in chosen:
        site.session.path(index)
    return chosen


def links_to(site: Site, request: Request, inputs: Sequence[int]) -> Links:
    """Makes addresses of pages about some of the inputs."""
    return links_of(site.session, inputs, request.scope.get("root_path", "").rstrip("/"))


def links_of(session: Session, inputs: Sequence[int], root: str = "") -> Links:
    """Addresses about these inputs, of an app mounted under `root`."""
    labels = files.labels_of([session.path(i) for i in inputs])
    of_label = dict(zip(labels, inputs, strict=True))
    return Links(root, tuple(inputs), len(session.inputs()), session.of_rank(inputs), of_label)


def html(site: Site, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A template filled in, with what every page shows."""
    known = site.session.inputs()
    try:
        inputs = inputs_of(site, request)
    except StepscopeError:
        inputs = tuple(one.index for one in known)
    links = context.pop("links", None) or links_to(site, request, inputs)
    here = request.url.path.removeprefix(links.root) or "/"
    text = site.templates.get_template(template).render(
        links=links, navigation=NAVIGATION, here=here, all_inputs=known, chosen=inputs, one_file=False, **context
    )
    return HTMLResponse(text, status, {"cache-control": "no-store"})
