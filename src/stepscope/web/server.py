"""The page as an ASGI application, for a server to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.web.app import create_app
from stepscope.web.guard import is_loopback, rules_for
from stepscope.web.pages.overview import begin
from stepscope.web.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.applications import Starlette

__all__ = ["application", "is_loopback"]


def application(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    counters: str | None = None,
    max_bytes: int | None = None,
    keep_bytes: int = 8 << 30,
) -> Starlette:
    """The page for these files and folders, whose overview begins to be worked out at once.

    `host` is where the server listens: it says by which names it may be called. Beyond loopback give a `token`.
    Raises StepscopeError (nothing there, a token missing).
    """
    if token is None and not is_loopback(host):
        raise StepscopeError(f"without a token nobody may listen on {host}", "give a token, or listen on 127.0.0.1")
    session = Session(paths, counters=counters, max_bytes=max_bytes, keep_bytes=keep_bytes)
    begin(session)
    return create_app(session, rules_for(host, token))
