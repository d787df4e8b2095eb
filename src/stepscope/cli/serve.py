"""`stepscope serve`: serves the page on loopback."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from stepscope.cli._output import complain
from stepscope.cli._run import Capture, Counters, MaxBytes, Paths, Requests, size_of
from stepscope.core.errors import StepscopeError

SETTINGS: dict[str, Any] = {"short_help": "Show traces as a page in the browser, with a timeline."}


def command(
    paths: Paths,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Listen on this address. Other than on loopback, the page needs a token, which is printed.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="N", help="Listen on this port; 0 takes a free one.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    counters: Counters = None,
    capture: Capture = None,
    requests: Requests = None,
    max_bytes: MaxBytes = None,
    keep: Annotated[
        str, typer.Option(metavar="SIZE", help="Use so much memory for traces that have been read.")
    ] = "8GiB",
) -> None:
    """Show traces as a page in the browser, until interrupted.

    Several files or a folder are the ranks of one job, and a folder is watched for new files. Only this machine can
    reach the page, unless you give --host.
    """
    from stepscope.cli._run import keep_freed_memory
    from stepscope.readers import SideFiles
    from stepscope.web.app import application
    from stepscope.web.guard import is_loopback

    keep_freed_memory()
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    limit = None if max_bytes is None else size_of(max_bytes)
    side = SideFiles.of(counters, capture, requests)
    app = application(paths, host=host, token=token, side=side, max_bytes=limit, keep_bytes=size_of(keep))
    listener = listening(host, port)
    import uvicorn  # while the application reads already

    address = _address(host, listener.getsockname()[1], token)
    complain(f"stepscope serves {address}")
    complain(
        "Press Ctrl-C to stop."
        if token is None
        else "Anybody who has this address can read the traces. Press Ctrl-C to stop."
    )
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", server_header=False, ws="none",
        http="h11",
        limit_concurrency=256, timeout_keep_alive=30, h11_max_incomplete_event_size=32_768, timeout_graceful_shutdown=1,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn has ended in order, and hands on what ended it
        complain("stopped")
    finally:
        app.state.session.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises StepscopeError if it cannot."""
    with ExitStack() as undo:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)  # who comes before the server has started waits
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "choose another --port or --host"
            raise StepscopeError(f"cannot listen on {host}:{port}: {reason}", hint) from None
        undo.pop_all()
        return listener


def _address(host: str, port: int, token: str | None) -> str:
    shown = socket.getfqdn() if host in ("0.0.0.0", "::", "") else host  # noqa: S104  compared, not bound here
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
