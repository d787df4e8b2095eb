"""The page inside TensorBoard: a tab for the traces below its log folder, as torch.profiler's handler leaves them.

TensorBoard loads this module through the entry point `tensorboard_plugins`; it comes with the extra `[tensorboard]`.
It speaks WSGI, so each request runs our ASGI app once. The package a2wsgi does this too, but it hides the traceback of
an unexpected error, and leaves a file open if the browser goes away in the middle of an answer.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tensorboard.plugins import base_plugin

from stepscope.core.errors import StepscopeError
from stepscope.web.app import create_app
from stepscope.web.guard import Rules
from stepscope.web.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
    from starlette.types import ASGIApp, Message


_NAME = "stepscope"
_PREFIX = f"/data/plugin/{_NAME}"
#: TensorBoard runs this module in a frame, which it leads to the page.
_ENTRY = b"export function render() { document.location.href = './overview'; }\n"


class Plugin(base_plugin.TBPlugin):
    """TensorBoard's tab of stepscope. Nothing is read before a page is asked for."""

    plugin_name = _NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._folder = str(context.logdir)
        self._lock = threading.Lock()
        self._page: Application | None = None

    def get_plugin_apps(self) -> dict[str, Application]:
        """The routes below `/data/plugin/stepscope`."""
        return {"/index.js": _entry, "/*": self._serve}

    def is_active(self) -> bool:
        """Whether there are traces below the log folder."""
        return self._ready() is not None

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The name of the tab and the address of its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name=_NAME)

    def _ready(self) -> Application | None:
        with self._lock:
            if self._page is None:
                try:
                    session = Session([self._folder])
                except StepscopeError:  # no trace yet: one may come while TensorBoard runs
                    return None
                # TensorBoard decides which requests are allowed, and under which host names.
                self._page = as_wsgi(create_app(session, Rules(any_host=True, framed=True)), prefix=_PREFIX)
            return self._page

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        page = self._ready()
        if page is None:
            start_response("404 Not Found", [("content-type", "text/plain")])
            return [b"There is no trace below the log folder."]
        return page(environ, start_response)


def _entry(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    del environ
    start_response("200 OK", [("content-type", "text/javascript"), ("x-content-type-options", "nosniff")])
    return [_ENTRY]


#: Requests answered at once: a browser asks for as many of one host.
_THREADS = 6


def as_wsgi(app: ASGIApp, *, prefix: str) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """The app under `prefix` of a WSGI server, which passes the whole path. Bodies of requests are not read."""
    # The server's thread may have an event loop of its own, in which no other can run.
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stepscope-wsgi")

    def answer(scope: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        return asyncio.run(_answer(app, scope))

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, headers, body = threads.submit(answer, _scope(environ, prefix)).result()
        start_response(f"{status} ", headers)
        return [body]

    return application


def _scope(environ: dict[str, Any], prefix: str) -> dict[str, Any]:
    root = environ.get("SCRIPT_NAME", "") + prefix
    # WSGI hands on the bytes of a path as Latin-1 text.
    inner = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace").removeprefix(prefix)
    names = {key: value for key, value in environ.items() if key.startswith("HTTP_")}
    headers = [(k[5:].replace("_", "-").lower().encode(), v.encode("latin-1")) for k, v in names.items()]
    if environ.get("CONTENT_LENGTH"):
        headers.append((b"content-length", environ["CONTENT_LENGTH"].encode("latin-1")))
    path = root + (inner or "/")
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"), "path": path, "raw_path": quote(path).encode(),
        "root_path": root, "query_string": environ.get("QUERY_STRING", "").encode("latin-1"), "headers": headers,
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)), "client": None,
    }  # fmt: skip


async def _answer(app: ASGIApp, scope: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    status, headers, parts = 500, list[tuple[str, str]](), list[bytes]()

    pending = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        # Nothing follows, not even that the client has gone: an app that listens for that waits until it is cancelled.
        return pending.pop() if pending else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend((k.decode("latin-1"), v.decode("latin-1")) for k, v in message.get("headers", []))
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, headers, b"".join(parts)
