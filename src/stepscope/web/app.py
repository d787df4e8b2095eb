"""The page as an ASGI application: its routes and its parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepscope.core.errors import StepscopeError
from stepscope.readers import NO_SIDE_FILES, SideFiles
from stepscope.renderers.figures import plotly_path
from stepscope.web.guard import Guard, Rules, is_loopback, rules_for
from stepscope.web.pages import calls, handlers, marks, memory, overview, sql, what_if
from stepscope.web.pages.site import Site, endpoint, environment, no_such_page, static_path
from stepscope.web.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.web.pages.site import Handler


def application(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    side: SideFiles = NO_SIDE_FILES,
    max_bytes: int | None = None,
    keep_bytes: int = 8 << 30,
) -> Starlette:
    """The page for these files and folders, whose overview begins to be worked out at once.

    `host` is where the server listens: it says by which names it may be called. Beyond loopback give a `token`.
    Raises StepscopeError (nothing there, a token missing).
    """
    if token is None and not is_loopback(host):
        raise StepscopeError(f"listening on {host} needs a token", "give a token, or listen on 127.0.0.1")
    session = Session(paths, side=side, max_bytes=max_bytes, keep_bytes=keep_bytes)
    overview.begin(session)
    return create_app(session, rules_for(host, token))


def create_app(session: Session, rules: Rules | None = None) -> Starlette:
    """The ASGI app for these inputs. `rules` say who may ask; by default only pages of this machine's loopback."""
    site = Site(session, environment())

    def at(path: str, handler: Handler) -> Route:
        return Route(path, endpoint(site, handler), methods=["GET"])

    routes = [
        at("/", overview.overview),
        at("/overview", overview.overview),
        at("/timeline", handlers.timeline),
        at("/compare", handlers.compare_page),
        at("/tables", handlers.tables),
        at("/tables/{name}", handlers.table),
        at("/download/{name}.{suffix}", handlers.download),
        at("/sql", sql.sql_page),
        at("/download/sql/rows.{suffix}", sql.sql_download),
        at("/api/progress", calls.progress),
        at("/api/trace/{index:int}/layout", calls.layout_of),
        at("/api/trace/{index:int}/window", calls.window),
        at("/api/trace/{index:int}/span/{span:int}", calls.span),
        at("/api/trace/{index:int}/statistics", calls.statistics),
        at("/api/trace/{index:int}/search", calls.search),
        at("/api/trace/{index:int}/marks", marks.marks),
        at("/api/trace/{index:int}/what-if", what_if.predicted),
        at("/api/trace/{index:int}/memory/layout", memory.layout),
        at("/api/trace/{index:int}/memory/window", memory.window),
        at("/api/trace/{index:int}/memory/moment", memory.at_moment),
        at("/api/trace/{index:int}/memory/stack/{stack:int}", memory.stack),
        at("/static/plotly.min.js", _plotly),
        Mount("/static", StaticFiles(directory=static_path())),
        at("/{page}", handlers.page),
    ]
    lost = partial(no_such_page, site)
    app = Starlette(
        routes=routes, middleware=[Middleware(Guard, rules=rules or Rules())], exception_handlers={404: lost, 405: lost}
    )
    app.state.session = session
    return app


async def _plotly(site: Site, request: Request) -> Response:  # noqa: ARG001  every handler gets these
    headers = {"cache-control": "private, max-age=86400"}
    return FileResponse(plotly_path(), media_type="text/javascript", headers=headers)
