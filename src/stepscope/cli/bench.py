"""`stepscope bench`: how long a Python function takes, and how it compares with a reference."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import Force, NoProgress, Output
from stepscope.core.errors import FunctionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.core.report import Block
    from stepscope.renderers import Screen
    from stepscope.timing import Bench

SETTINGS: dict[str, Any] = {"short_help": "Measure how long a Python function takes, and compare it with a reference."}
_LITERALS = {"True": True, "False": False, "None": None}  # Python's spellings of JSON's true, false and null
_DIFFERS = 3


def command(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="The function to time, for example attention:forward.")
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Compare time and result with this function."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read arguments and their combinations from a TOML or JSON file.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an argument in every case, as JSON or text; may be repeated."),
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Call each function N times before measuring.")] = 3,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measure each function N times in each case.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Measure for S seconds instead (default: 1 s), at least 7 times.", show_default=False
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Make arrays of torch or paddle here. Default: the accelerator if there is one."
        ),
    ] = None,
    dtype_tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="DTYPE=RTOL[,ATOL]", help="Set the tolerance for an element type; may be repeated."),
    ] = None,
    fail_on_difference: Annotated[
        bool, typer.Option("--fail-on-difference", help="Exit with 3 if a result is not within tolerance.")
    ] = False,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|csv|csv-raw|json|parquet|md",
            help="Choose the format; table and md round numbers.",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Time a Python function: median with its confidence interval, minimum, mean, 95th percentile.

    Modules are searched for in the current folder too. Write an array as {"shape": [16, 32], "dtype": "float32",
    "seed": 0}. The time includes the work of torch's and paddle's devices, measured with CUDA events where possible.
    What the function prints goes to stderr.
    """
    from stepscope.api import verbs

    _check_usage(function, against, repeats, seconds, fail_on_difference=fail_on_difference)
    arguments = dict(_argument(word) for word in arg or ())
    tolerances = dict(_tolerance(word) for word in dtype_tolerance or ())
    renderer = renderer_for(format_name, output, "table")
    draw = renderer.table
    if draw is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    check_target(output, [sweep] if sweep else [], force=force)
    try:
        with _imports_from_here(), _progress(wanted=not no_progress) as tell, contextlib.redirect_stdout(sys.stderr):
            bench = verbs.bench(
                function,
                against=against,
                sweep=sweep,
                arguments=arguments,
                warmup=warmup,
                repeats=repeats,
                seconds=seconds,
                device=device,
                tolerances=tolerances,
                progress=tell,
            )
    except FunctionFailed as error:
        from stepscope.timing import own_traceback

        for line in own_traceback(error).splitlines():
            complain(line)
        raise
    from stepscope.core.report import Block
    from stepscope.renderers import Screen

    where = Screen() if output else screen()
    for_people = renderer.name in {"terminal", "markdown"}
    content = (
        _text(bench, draw, where) if for_people else draw(Block(bench.table.name, bench.table, bench.frame), where)
    )
    emit(content, output, force=force, renderer=renderer)
    if fail_on_difference:
        _gate(bench)


def _check_usage(
    function: str, against: str | None, repeats: int | None, seconds: float | None, *, fail_on_difference: bool
) -> None:
    from stepscope.timing import is_a_name

    for hint, name in (("MODULE:FUNCTION", function), ("--against", against)):
        if name is not None and not is_a_name(name):
            raise typer.BadParameter(f"{name} is not of the form MODULE:FUNCTION, as in numpy:sort", param_hint=hint)
    if repeats is not None and seconds is not None:
        raise typer.BadParameter("give --repeats or --seconds, not both", param_hint="--seconds")
    if seconds is not None and not 0 < seconds < math.inf:
        raise typer.BadParameter(f"{seconds:g} is not a time above 0", param_hint="--seconds")
    if fail_on_difference and against is None:
        raise typer.BadParameter(
            "it needs --against, so that there is something to compare", param_hint="--fail-on-difference"
        )


def _argument(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{word} is not of the form NAME=VALUE, as in n=1024", param_hint="--arg")
    if value in _LITERALS:
        return name, _LITERALS[value]
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _tolerance(word: str) -> tuple[str, tuple[float, float]]:
    dtype, _, values = word.partition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not dtype or len(numbers) not in {1, 2} or not all(0 <= number < math.inf for number in numbers):
        raise typer.BadParameter(
            f"{word} is not of the form DTYPE=RTOL[,ATOL], as in float16=1e-2,1e-3", param_hint="--dtype-tolerance"
        )
    return dtype, (numbers[0], numbers[1] if len(numbers) == 2 else 0.0)


@contextmanager
def _imports_from_here() -> Iterator[None]:
    """Import from the current folder too, as `python -m` does and an installed command does not."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


@contextmanager
def _progress(*, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show the number of the case on standard error, if that is a terminal; it is erased at the end."""
    stream = sys.stderr
    if not (wanted and stream.isatty()):
        yield None
        return

    def tell(n_done: int, n_cases: int) -> None:
        stream.write(f"\rmeasuring case {n_done + 1} of {n_cases}\x1b[K")
        stream.flush()

    try:
        yield tell
    finally:
        stream.write("\r\x1b[K")
        stream.flush()


def _text(bench: Bench, draw: Callable[[Block, Screen], str | bytes], where: Screen) -> str:
    from stepscope import timing

    return timing.text(bench, lambda block: str(draw(block, where)))


def _gate(bench: Bench) -> None:
    counts = (
        (bench.n_differing, "differ by more than the tolerance"),
        (bench.n_not_compared, "returned nothing to compare"),
    )
    said = [f"{n} of {len(bench.outcomes)} cases {what}" for n, what in counts if n]
    if said:
        complain(f"error: {', '.join(said)}", colour=typer.colors.RED)
        raise typer.Exit(_DIFFERS)
