"""The command `stepscope`: one file per verb, each with a `command` whose docstring is its help.

Nothing heavy is imported before a verb runs: `--help` needs neither polars nor numpy.
"""

from __future__ import annotations

import io
import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer._click.exceptions import UsageError

from stepscope.cli._output import complain
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Verbs that run functions and jobs of others.
RUNS_CODE = ("bench", "record", "watch")
#: Verbs that read the files and folders among their arguments, and end.
_READS = ("report", "show", "compare", "predict", "sql", "export")
#: Text of some 500,000 events, in so many files.
_LITTLE_BYTES, _FEW_FILES = 200_000_000, 1_000
_EPILOG = "Start with: stepscope report TRACE"
#: Modules of this package, in the order of the help.
VERBS = (
    "report",
    "show",
    "compare",
    "predict",
    "history",
    "serve",
    "sql",
    "record",
    "watch",
    "hang",
    "export",
    "tables",
    "formats",
    "bench",
    "cache",
    "mcp",
    "skill",
    "schema",
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code: 0 fine, 1 bad input or refused, 2 usage, 3 a gate failed."""
    verbs = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    command = typer.main.get_command(_app(verbs))
    warnings.showwarning = _show_warning
    try:
        code = command.main(list(arguments), "stepscope", obj=tuple(arguments), standalone_mode=False)
    except UsageError as error:
        shown = io.StringIO()
        error.show(shown)
        complain_of(shown.getvalue())
        return error.exit_code
    except StepscopeError as error:
        complain(f"error: {error.message}", colour=typer.colors.RED)
        if error.hint:
            complain(f"hint: {error.hint}")
        return error.exit_code
    return int(code or 0)


def complain_of(text: str) -> None:
    """Write lines to standard error."""
    # Names of files in arguments, and of whatever they hold in errors, may be made to mislead a terminal.
    for line in text.rstrip().split("\n"):
        complain(line)


def _app(verbs: Sequence[str] = VERBS) -> typer.Typer:
    # Plain help and tracebacks: rich doubles the time of --help.
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback(epilog=_EPILOG)(_root)
    for name in verbs:
        verb: Any = import_module(f"stepscope.cli.{name}")
        app.command(name, **verb.SETTINGS)(verb.command)
    return app


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """A warning of ours in one line, and those of other packages as Python shows them."""
    is_ours = category.__module__.startswith("stepscope.")
    complain_of(f"note: {message}" if is_ours else warnings.formatwarning(message, category, filename, lineno))


def _version(wanted: bool) -> None:
    if wanted:
        from stepscope.core.version import program_version

        typer.echo(f"stepscope {program_version()}")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001  its callback has dealt with it
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Say where the time of a training or inference step went."""
    # OpenBLAS starts a thread and a buffer per core when numpy is imported; nothing of ours multiplies matrices, and
    # one thread halves the time of that import. Functions that are measured, and jobs that are recorded, do.
    if ctx.invoked_subcommand in RUNS_CODE:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if ctx.invoked_subcommand in _READS and hold_little(ctx.obj):
        os.environ.setdefault("POLARS_MAX_THREADS", "1")


def hold_little(arguments: Iterable[str]) -> bool:
    """Whether there are files and folders among the arguments, and hold less than about 200 MB when unpacked.

    With little to do, threads of Polars wake each other for longer than they work: with one, a report takes 5 % less.
    """
    from stepscope.core import files

    n_files = n_bytes = 0
    for path in filter(os.path.exists, arguments):
        in_folder = (os.path.join(root, name) for root, _, names in os.walk(path) for name in names)  # noqa: PTH118
        for file in in_folder if os.path.isdir(path) else (path,):  # noqa: PTH112
            n_bytes += files.unpacked_bytes(file)
            n_files += 1
            if n_bytes > _LITTLE_BYTES or n_files > _FEW_FILES:
                return False
    return n_bytes > 0
