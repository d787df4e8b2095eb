"""The page inside TensorBoard: a tab for the traces below its log folder, as torch.profiler's handler leaves them.

TensorBoard loads this module through the entry point `tensorboard_plugins`; it comes with the extra `[tensorboard]`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

from stepscope.core.errors import StepscopeError
from stepscope.web.app import create_app
from stepscope.web.guard import Rules
from stepscope.web.session.session import Session
from stepscope.web.wsgi import as_wsgi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

__all__ = ["Plugin"]

_NAME = "stepscope"
_PREFIX = f"/data/plugin/{_NAME}"
#: TensorBoard runs this module in a frame, which it leads to the page.
_ENTRY = b"export function render() { document.location.href = './overview'; }\n"


class Plugin(base_plugin.TBPlugin):
    """TensorBoard's tab of stepscope. Nothing is read before somebody looks."""

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
        """How the tab is called and where its script is."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name=_NAME)

    def _ready(self) -> Application | None:
        with self._lock:
            if self._page is None:
                try:
                    session = Session([self._folder])
                except StepscopeError:  # no trace yet: one may come while TensorBoard runs
                    return None
                # Who may ask, and by which name, is TensorBoard's to decide.
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
