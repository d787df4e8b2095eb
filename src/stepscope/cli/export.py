"""`stepscope export`: writes a run in the format of another tool."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepscope.cli._output import STDOUT, check_target, complain, emit, emit_stream
from stepscope.cli._run import Capture, Counters, Force, MaxBytes, NoProgress, Output, Requests, With, opened, parsed

# Unknown options may belong to the kind, and help needs the kind too.
SETTINGS: dict[str, Any] = {
    "context_settings": {"ignore_unknown_options": True},
    "add_help_option": False,
    "short_help": "Write a run in the format of another tool.",
    "options_metavar": "--to KIND [OPTIONS] [OPTIONS OF THE KIND]",
}


def command(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Trace files, folders or patterns.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="KIND",
            help="Choose the format; 'stepscope export --help' lists all kinds and their options.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    counters: Counters = None,
    capture: Capture = None,
    requests: Requests = None,
    kernel_counters: With = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
    help_wanted: Annotated[
        bool, typer.Option("--help", help="Show this message, with the options of KIND, and exit.")
    ] = False,
) -> None:
    """Write a run in the format of another tool, for its users and for programs that read its output."""
    from stepscope import exports

    if help_wanted:
        emit(_help(ctx, to) + "\n", None)
        return
    if to is None or not arguments:
        raise typer.BadParameter(
            "PATH and --to KIND are needed, as in 'stepscope export trace.json --to tensorboard -o views.json'; "
            f"kinds: {', '.join(exports.names())}"
        )
    kind = exports.find(to)
    paths, options = parsed(kind, arguments, f"stepscope export --to {to} --help")
    if not paths:
        raise typer.BadParameter(f"PATH is missing, as in 'stepscope export trace.json --to {to}'")
    if kind.folder and output in (None, STDOUT):
        raise typer.BadParameter(f"{to} is a folder, which -o has to name, as in '-o kept'")
    with opened(
        paths,
        counters=counters,
        capture=capture,
        requests=requests,
        kernel_counters=kernel_counters,
        max_bytes=max_bytes,
        no_progress=no_progress,
    ) as run:
        check_target(output, run.paths, force=force, folder=kind.folder)

        def open_other(path: str) -> Any:
            with opened([path], max_bytes=max_bytes, no_progress=True) as other:
                return other

        context = exports.Context(open_other, lambda note: complain(f"note: {note}"))
        content = kind(run, context, **options)
        if isinstance(content, exports.Folder):
            content.write(output or "", force=force)
            return
        if isinstance(content, exports.Stream):
            emit_stream(content.pieces, output, force=force)
            return
    emit(content, output, force=force)


def _help(ctx: typer.Context, to: str | None) -> str:
    from stepscope import exports

    kinds = [exports.find(name) for name in (exports.names() if to is None else [to])]
    text = ctx.get_help()
    for kind in kinds:
        text += f"\n\nKind {kind.name}: {kind.doc}"
        for flag, default in (option.usage() for option in kind.options().values()):
            text += f"\n  {flag}  {default}".rstrip()
    return text
