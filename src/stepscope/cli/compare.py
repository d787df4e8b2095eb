"""`stepscope compare`: whether two runs differ, by how much, where the difference went, and what caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import Counters, Force, MaxBytes, NoProgress, Output, opened
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from stepscope.comparison import Comparison
    from stepscope.core.report import Block, Report
    from stepscope.core.trace import Run
    from stepscope.renderers import Renderer, Screen

_RUN_OPTIONS = ("--base", "--other")
_GATE = regex(r"(?P<what>slower|faster|larger)(:(?P<percent>\d+(\.\d+)?)\s*%)?|different")
GATE_FAILED = 3
OWN_TABLES = ("kinds", "parts", "attribution", "resources", "effects", "memory-growth", "batch-changes", "ruled-out")


class _ManyPaths(TyperCommand):
    """`--base A B` means `--base A --base B`: it takes all arguments up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spelled_out, side = [], ""
        for word in args:
            if word.startswith("-") and word != "-":
                side = word if word in _RUN_OPTIONS else ""
                spelled_out += [] if side else [word]
            else:
                spelled_out += [side, word] if side else [word]
        return super().parse_args(ctx, spelled_out)


SETTINGS: dict[str, Any] = {
    "cls": _ManyPaths,
    "short_help": "Compare two runs: do they differ, where did the time go, what caused it?",
}


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BASE OTHER | CASE]", help="Two runs, or a folder that holds folders normal… and abnormal…."
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option("--base", metavar="PATH…", help="Name the base and its repeats.", show_default=False),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--other", metavar="PATH…", help="Name the other run and its repeats.", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help=f"Print one table: {', '.join(OWN_TABLES)}, or any result table.",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="slower:3%|larger:3%|different",
            help="Exit with 3 if the second run is slower by this, holds more memory at its peak, or differs.",
            show_default=False,
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name the function, range or kernel whose calls mark the cycles.", show_default=False
        ),
    ] = None,
    output: Output = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="terminal|markdown|json|csv|csv-raw", help="Choose the format.", show_default=False
        ),
    ] = None,
    force: Force = False,
    counters: Counters = None,
    capture: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A capture of replayed graphs, as in report. Twice: of the base, of the other.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Requests to the engine, as in report. Twice: of the base, of the other.",
            show_default=False,
        ),
    ] = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Say whether two runs differ, by how much and how sure, where the difference went, and what caused it.

    A run is a file, a folder of ranks, or a pattern. Name repeats if you have them, as in --base A1 A2 --other B1 B2:
    they show how much healthy runs differ. A folder that holds folders normal… and abnormal… names both runs. Any
    other single folder, and three or more runs, are grouped by what their processes do.
    """
    from stepscope.api import comparing, verbs
    from stepscope.api.loading import with_side_files
    from stepscope.core.trace import Run

    if fail_on is not None and _GATE.fullmatch(fail_on) is None:
        reason = f"not a condition: {fail_on}; write slower, slower:3%, larger:3% or different"
        raise typer.BadParameter(reason, param_hint="--fail-on")
    left, right = _base_and_other(paths or [], base or [], other or [])
    renderer = renderer_for(format_name, output, "terminal")
    settings: dict[str, Any] = {"counters": counters, "max_bytes": max_bytes, "no_progress": no_progress}
    captures, measured = _of_each(capture, "--capture"), _of_each(requests, "--requests")
    with opened([*left, *right], capture=captures[0], requests=measured[0], **settings) as run:
        check_target(output, run.paths, force=force)
        if right:
            # Not parts of `run`: a file that is on both sides is only once in it.
            _, options = comparing.split_options(run.named)
            one, two = verbs.load_run(left), verbs.load_run(right)
            other_opener = with_side_files(run.open_trace, capture=captures[1], requests=measured[1])
            runs = (
                Run(one.paths, run.open_trace, (*one.named, *options)),
                Run(two.paths, other_opener, two.named),
            )
        elif len(left) == 1 and (is_case := comparing.split_case(run)) is not None:
            runs = is_case
        elif len(run.paths) > 1:
            emit(_grouped(comparing.group(run), renderer, output), output, force=force, renderer=renderer)
            return
        else:
            hint = "name two runs, the base first, or a folder that holds a folder normal… and a folder abnormal…"
            raise StepscopeError("this is one recording only, so there is nothing to compare it with", hint)
        if table is not None and table not in OWN_TABLES:
            text = _side_by_side(runs, table, renderer, output)
            emit(text, output, force=force, renderer=renderer)
            return
        result = comparing.compare_two_runs(*runs, anchor=anchor)
    text = _written(result, table, renderer, output, [*left, *right])
    emit(text, output, force=force, renderer=renderer)
    if fail_on is not None and (reason := _failed(result, fail_on)):
        complain(f"failed: {reason}", colour=typer.colors.RED)
        raise typer.Exit(GATE_FAILED)


def _of_each(paths: list[str] | None, option: str) -> tuple[str | None, str | None]:
    """What belongs to the base and to the other: a single path belongs to both."""
    if paths is not None and len(paths) > 2:
        raise typer.BadParameter("give it once, or for the base and for the other", param_hint=option)
    return (paths[0], paths[-1]) if paths else (None, None)


def _base_and_other(paths: list[str], base: list[str], other: list[str]) -> tuple[list[str], list[str]]:
    """The paths of base and other; other is empty if one folder holds both."""
    if base or other:
        if paths:
            raise typer.BadParameter(f"{paths[0]} is neither base nor other: name all runs with --base and --other")
        if not (base and other):
            missing = "--other" if base else "--base"
            raise typer.BadParameter(f"{missing} is missing, as in 'stepscope compare --base A1 A2 --other B1'")
        return base, other
    if len(paths) == 2:
        return paths[:1], paths[1:]
    if paths:
        return paths, []
    raise typer.BadParameter("BASE and OTHER are needed, as in 'stepscope compare run1 run2'")


def _written(
    result: Comparison, table: str | None, renderer: Renderer, output: str | None, named: list[str]
) -> str | bytes:
    from stepscope.renderers import Screen
    from stepscope.reports.comparison import comparison, tables

    shown = Screen() if output else screen()
    if table is not None:
        return _drawn(renderer, tables(result)[table], shown)
    if renderer.report is None:
        hint = f"name a table with --table: {', '.join(OWN_TABLES)}"
        raise typer.BadParameter(f"a comparison is not written as {renderer.name}; {hint}", param_hint="--format")
    report = comparison(result)
    if renderer.name == "html":
        from stepscope.web.pages.single_file import comparison_page

        return comparison_page(report, named)
    return renderer.report(report, shown)


def _grouped(report: Report, renderer: Renderer, output: str | None) -> str | bytes:
    from stepscope.renderers import Screen

    if renderer.report is None:
        raise typer.BadParameter(f"groups are not written as {renderer.name}", param_hint="--format")
    return renderer.report(report, Screen() if output else screen())


def _side_by_side(runs: tuple[Run, Run], name: str, renderer: Renderer, output: str | None) -> str | bytes:
    from stepscope.api import comparing
    from stepscope.renderers import Screen

    return _drawn(
        renderer, comparing.compare_table(*runs, name, on_missing=_left_out), Screen() if output else screen()
    )


def _drawn(renderer: Renderer, block: Block, shown: Screen) -> str | bytes:
    if renderer.table is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    return renderer.table(block, shown)


def _failed(result: Comparison, condition: str) -> str:
    """Why --fail-on fails; empty if it does not. A change counts if it is certain and larger than the drift."""
    gate = _GATE.fullmatch(condition)
    step = result.proof
    if gate is not None and gate["what"] == "larger":
        return _grew(result, float(gate["percent"] or 0) / 100)
    if gate is None or gate["what"] is None:
        return f"the runs are different ({result.reason})" if result.verdict == "different" else ""
    if step is None or not step.base:
        return ""
    relative = step.delta / step.base * (1 if gate["what"] == "slower" else -1)
    limit = float(gate["percent"] or 0) / 100
    return f"{abs(relative):.1%} {gate['what']}, more than {limit:.1%}" if relative > limit else ""


def _left_out(label: str, error: StepscopeError) -> None:
    complain(f"warning: {label} is left out: {error.message}")


def _grew(result: Comparison, least: float) -> str:
    """Why --fail-on larger fails: a device's peak of memory in use grew by this share or more, and clearly."""
    import polars as pl

    from stepscope.core.units import percent

    peaks = result.effects.filter(pl.col("measure") == "peak_allocated_bytes", "is_different", pl.col("delta") > 0)
    rows = peaks.filter((pl.col("ratio") - 1 >= least) | pl.col("ratio").is_null()).sort("ratio", nulls_last=False)
    if rows.is_empty():
        return ""
    device, ratio = rows.select(pl.col("device").cast(pl.String), "ratio").row(-1)
    return f"{device} holds {'more' if ratio is None else f'{percent(ratio - 1)} more'} memory at its peak"
