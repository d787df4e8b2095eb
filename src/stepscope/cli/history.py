"""`stepscope history`: keeps a digest of each run, and says from which run on the step changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import Force, MaxBytes, NoProgress, Output, opened
from stepscope.cli.compare import GATE_FAILED
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from stepscope.comparison.history.series import Series
    from stepscope.core.errors import StepscopeError

SETTINGS: dict[str, Any] = {"short_help": "Remember runs, and say from which run on the step changed."}
_GATE = regex(r"regression(:(?P<percent>\d+(\.\d+)?)\s*%)?")


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="STORE | add RUN…", help="A folder or URL of digests, or add and the traces of a run."),
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="STORE", help="Where add writes the digest.", show_default=False)
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="With add: a name for the run.", show_default=False)] = "",
    commit: Annotated[
        str,
        typer.Option(
            metavar="HASH", help="With add: the commit that was run. Default: $GITHUB_SHA.", show_default=False
        ),
    ] = "",
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="regression[:3%]",
            help="Exit with 3 if one of the last runs began a regression of this size.",
            show_default=False,
        ),
    ] = None,
    within: Annotated[int, typer.Option(min=1, metavar="N", help="How many of the last runs --fail-on judges.")] = 5,
    output: Output = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="terminal|markdown|json|html|csv|csv-raw|parquet", help="Choose the format."),
    ] = None,
    force: Force = False,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Keep a digest of each run in STORE, and say from which run on the step takes another time, and why.

    add writes a few kilobytes for each run. The series is judged as a whole: a change is a regression only if the
    machine, the versions and the work stayed the same. If the recordings around the last change are still there, they
    are compared, and the cause is named. docs/history.md has a recipe for CI.
    """
    if fail_on is not None and _GATE.fullmatch(fail_on) is None:
        raise typer.BadParameter(
            f"not a condition: {fail_on}; write regression or regression:3%", param_hint="--fail-on"
        )
    if arguments[0] == "add":
        if to is None or len(arguments) == 1:
            raise typer.BadParameter("name a run and a store, as in 'stepscope history add RUN --to STORE'")
        _add(arguments[1:], to, label, commit, max_bytes, no_progress=no_progress)
        return
    if to is not None or label or commit:
        raise typer.BadParameter("--to, --label and --commit belong to 'stepscope history add RUN --to STORE'")
    if len(arguments) > 1:
        raise typer.BadParameter(
            f"name one store, not {len(arguments)}; to add runs: stepscope history add RUN --to STORE"
        )
    check_target(output, [], force=force)
    _show(arguments[0], output, format_name, fail_on, within, force=force)


def _add(paths: list[str], store: str, label: str, commit: str, max_bytes: str | None, *, no_progress: bool) -> None:
    from stepscope.api.history import add_to_history
    from stepscope.core import units

    with opened(paths, max_bytes=max_bytes, no_progress=no_progress) as run:
        head, is_new = add_to_history(run, store, label=label, commit=commit or os.environ.get("GITHUB_SHA", ""))
    steps = f"{units.counted(head.n_cycles, 'step')} of {units.duration(head.step_ns)}"
    complain(f"added: {steps}" if is_new else f"note: this recording is in {store} already ({steps})")


def _show(
    store: str, output: str | None, format_name: str | None, fail_on: str | None, within: int, *, force: bool
) -> None:
    from stepscope.api.history import compare_last_change, history
    from stepscope.renderers import Screen
    from stepscope.reports.history import history_block, history_report

    renderer = renderer_for(format_name, output, "terminal")
    series = history(store, on_damage=_left_out)
    shown = Screen() if output else screen()
    if renderer.name in ("terminal", "markdown", "json") and renderer.report is not None:
        text: str | bytes = renderer.report(history_report(series, store, compare_last_change(series)), shown)
    elif renderer.table is not None:
        text = renderer.table(history_block(series), shown)
    else:
        raise typer.BadParameter(f"a history is not written as {renderer.name}", param_hint="--format")
    emit(text, output, force=force, renderer=renderer)
    if fail_on is not None and (reason := _failed(series, fail_on, within)):
        complain(f"failed: {reason}", colour=typer.colors.RED)
        raise typer.Exit(GATE_FAILED)


def _failed(series: Series, condition: str, within: int) -> str:
    """Why --fail-on fails; empty if it does not."""
    from stepscope.core import units

    gate = _GATE.fullmatch(condition)
    limit = float((gate and gate["percent"]) or 0) / 100
    recent = [c for c in series.changes if c.kind == "regression" and c.at >= len(series.heads) - within]
    worst = max(recent, key=lambda change: change.ratio, default=None)
    if worst is None or worst.ratio <= limit:
        return ""
    return f"{units.percent(worst.ratio)} slower since run {worst.at + 1}"


def _left_out(error: StepscopeError) -> None:
    complain(f"warning: left out: {error.message}")
