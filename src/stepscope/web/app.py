"""The server's routes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepscope.renderers.figures import plotly_path
from stepscope.web.guard import Guard, Rules
from stepscope.web.pages import calls, html, overview, sql
from stepscope.web.pages.site import Site, endpoint, environment, not_found, static_path

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.web.pages.site import Handler
    from stepscope.web.session.session import Session

__all__ = ["create_app"]


def create_app(session: Session, rules: Rules | None = None) -> Starlette:
    """The ASGI app for these inputs. `rules` say who may ask; by default only pages of this machine's loopback."""
    site = Site(session, environment())

    def at(path: str, handler: Handler) -> Route:
        return Route(path, endpoint(site, handler), methods=["GET"])

    routes = [
        at("/", overview.overview),
        at("/overview", overview.overview),
        at("/timeline", html.timeline),
        at("/compare", html.compare_page),
        at("/tables", html.tables),
        at("/tables/{name}", html.table),
        at("/download/{name}.{suffix}", html.download),
        at("/sql", sql.sql_page),
        at("/download/sql/rows.{suffix}", sql.sql_download),
        at("/api/progress", calls.progress),
        at("/api/trace/{index:int}/layout", calls.layout_of),
        at("/api/trace/{index:int}/window", calls.window),
        at("/api/trace/{index:int}/span/{span:int}", calls.span),
        at("/api/trace/{index:int}/statistics", calls.statistics),
        at("/api/trace/{index:int}/search", calls.search),
        at("/static/plotly.min.js", _plotly),
        Mount("/static", StaticFiles(directory=static_path())),
        at("/{page}", html.page),
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
