"""`stepscope mcp`: serves agents, on standard input and output or on loopback."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from stepscope.cli._output import complain
from stepscope.cli._run import MaxBytes, keep_freed_memory, size_of
from stepscope.core.errors import MissingExtra, StepscopeError

SETTINGS: dict[str, Any] = {"short_help": "Answer the questions of a language-model agent."}


def command(
    roots: Annotated[list[str], typer.Argument(metavar="ROOT", help="Folders below which the agent may read traces.")],
    http: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="Listen on this port of loopback, with a token that is printed; 0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    max_bytes: MaxBytes = None,
) -> None:
    """Serve the Model Context Protocol: open, report, show, sql, compare, predict and explain, all read-only.

    Without --http it talks on standard input and output, as agents start servers. No answer is longer than 8 kB. Needs
    the extra 'agents'. 'stepscope skill' says how an agent gets from a slow run to a measured fix.
    """
    try:
        import mcp  # noqa: F401  only whether it is there
    except ImportError:
        raise MissingExtra("stepscope mcp", "agents") from None
    from stepscope.agents.roots import Runs
    from stepscope.agents.server import server

    folders = tuple(Path(root).resolve() for root in roots)
    for folder, name in zip(folders, roots, strict=True):
        if not folder.is_dir():
            raise StepscopeError(f"{name} is no folder", "name folders that hold traces")
    keep_freed_memory()
    made = server(Runs(folders, None if max_bytes is None else size_of(max_bytes)))
    if http is None:
        made.run("stdio")
        return
    import uvicorn

    from stepscope.cli.serve import listening
    from stepscope.web.guard import Guard, Rules

    token = secrets.token_urlsafe(24)
    app = Guard(made.streamable_http_app(json_response=True, stateless_http=True), Rules(token=token, takes_posts=True))
    listener = listening("127.0.0.1", http)
    complain(f"stepscope answers agents at http://127.0.0.1:{listener.getsockname()[1]}/mcp")
    complain(f"with the header Authorization: Bearer {token}")
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, server_header=False)).run([listener])
