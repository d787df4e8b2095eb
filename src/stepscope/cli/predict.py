"""`stepscope predict`: what a change is worth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import Capture, Force, MaxBytes, NoProgress, Output, Paths, opened
from stepscope.core.errors import StepscopeError

SETTINGS: dict[str, Any] = {"short_help": "Say what a change is worth.", "options_metavar": "[OPTIONS]"}


def command(
    arguments: Paths,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--if",
            metavar="'SUBJECT: CHANGE'",
            help="A change, as in 'class gemm: 2x' or 'loader: hidden'; several are made together.",
            show_default=False,
        ),
    ] = None,
    measured_step: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Length of a step without the profiler (1.9ms), to scale to.", show_default=False
        ),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="table|csv|csv-raw|json|parquet|md", help="Choose the format."),
    ] = None,
    output: Output = None,
    force: Force = False,
    capture: Capture = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Say how long a step would take with a change, between which bounds, and what would hold it up next.

    Without --if the standard questions are answered, largest gain first. docs/predict.md lists the subjects and changes
    and says how it works.
    """
    from stepscope.api import verbs
    from stepscope.core.report import Block
    from stepscope.query import tables
    from stepscope.renderers import Screen

    renderer = renderer_for(format_name, output, "table")
    if renderer.table is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    with opened(arguments, capture=capture, max_bytes=max_bytes, no_progress=no_progress) as run:
        check_target(output, run.paths, force=force)
        frame = verbs.predict(run, changes or (), measured_step=measured_step, on_missing=_left_out)
    reasons = frame["reason"].drop_nulls().unique(maintain_order=True)
    note = f"Bounds: {'; '.join(reasons)}." if len(reasons) else ""
    shown = frame.drop("reason") if renderer.name in ("terminal", "markdown") else frame
    block = Block("predictions", tables.described("predictions", shown), shown, note=note)
    emit(renderer.table(block, Screen() if output else screen()), output, force=force, renderer=renderer)


def _left_out(label: str, error: StepscopeError) -> None:
    complain(f"note: {label} is left out: {error.message}")
