"""The server's routes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepscope.figures import plotly_path
from stepscope.web import _calls, _html, _overview, _sql
from stepscope.web._guard import Guard, Rules
from stepscope.web._site import Site, endpoint, environment, not_found, static_path

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.web._session import Session
    from stepscope.web._site import Handler

__all__ = ["create_app"]


def create_app(session: Session, rules: Rules | None = None) -> Starlette:
    """The ASGI app for these inputs. `rules` say who may ask; by default only pages of this machine's loopback."""
    site = Site(session, environment())

    def at(path: str, handler: Handler) -> Route:
        return Route(path, endpoint(site, handler), methods=["GET"])

    routes = [
        at("/", _overview.overview),
        at("/overview", _overview.overview),
        at("/timeline", _html.timeline),
        at("/compare", _html.compare_page),
        at("/tables", _html.tables),
        at("/tables/{name}", _html.table),
        at("/download/{name}.{suffix}", _html.download),
        at("/sql", _sql.sql_page),
        at("/download/sql/rows.{suffix}", _sql.sql_download),
        at("/api/progress", _calls.progress),
        at("/api/trace/{index:int}/layout", _calls.layout_of),
        at("/api/trace/{index:int}/window", _calls.window),
        at("/api/trace/{index:int}/span/{span:int}", _calls.span),
        at("/api/trace/{index:int}/statistics", _calls.statistics),
        at("/api/trace/{index:int}/search", _calls.search),
        at("/static/plotly.min.js", _plotly),
        Mount("/static", StaticFiles(directory=static_path())),
        at("/{page}", _html.page),
    ]
    lost = partial(not_found, site)
    app = Starlette(
        routes=routes, middleware=[Middleware(Guard, rules=rules or Rules())], exception_handlers={404: lost, 405: lost}
    )
    app.state.session = session
    return app


async def _plotly(site: Site, request: Request) -> Response:  # noqa: ARG001  every handler gets these
    headers = {"cache-control": "private, max-age=86400"}
    return FileResponse(plotly_path(), media_type="text/javascript", headers=headers)
