"""`stepscope hang`: asks a job that stands still what its processes do, and who holds up the others."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from stepscope.cli._output import complain, emit, renderer_for, screen
from stepscope.core.errors import StepscopeError

SETTINGS: dict[str, Any] = {"short_help": "Ask a job that stands still which rank holds it up."}


def command(
    pids: Annotated[
        list[int] | None,
        typer.Option("--pid", min=1, metavar="N", help="A process of the job: its launcher, or one of its ranks."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="all|0-7,9", help="Ask these ranks only; without --pid, of the only job of this machine."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="The new folder for what was learnt.", show_default="hang-DATE-TIME"
        ),
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="terminal|markdown|json", help="Choose the format.")
    ] = None,
) -> None:
    """Ask the processes of a job what they do right now, and say which rank holds up the others.

    The job is the process, those below it, and all processes of this machine with the same master address and port.
    Their Python and native stacks come from py-spy, their states from the kernel. Dumps of PyTorch's flight recorder
    are taken where the job writes them. The job is not changed. stepscope report DIR reads the folder again.
    """
    from stepscope.api import verbs
    from stepscope.core import units
    from stepscope.record.hang import ask_job
    from stepscope.renderers import Screen

    if not pids and ranks is None:
        raise typer.BadParameter("name a process of the job, or --ranks all", param_hint="--pid N")
    wanted = None if ranks in (None, "all") else _ranks(ranks or "")
    renderer = renderer_for(format_name, None, "terminal")
    if renderer.report is None:
        raise typer.BadParameter(f"a report is not written as {renderer.name}", param_hint="--format")
    folder = Path(output or time.strftime("hang-%Y%m%d-%H%M%S"))
    if folder.exists():
        raise StepscopeError(f"{folder} is there already", "name another folder with -o")
    folder, n_processes, n_dumps = ask_job(pids or (), folder, ranks=wanted)
    run = verbs.load_run(str(folder))
    shown = screen() if renderer.name == "terminal" else Screen()
    emit(renderer.report(verbs.report(run), shown), None, renderer=renderer)
    dumps = units.counted(n_dumps, "dump") if n_dumps else "no dumps of a flight recorder"
    asked = units.counted(n_processes, "process", "processes")
    complain(f"note: {folder} has the stacks of {asked} and {dumps}")


def _ranks(text: str) -> set[int]:
    """The ranks in a list such as 0-7,9."""
    wanted: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip())
        if match is None:
            raise typer.BadParameter(f"{part} is no rank; write all, or a list such as 0-7,9", param_hint="--ranks")
        wanted |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return wanted
