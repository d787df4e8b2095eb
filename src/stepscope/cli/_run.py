"""Opens the run that a command line names: shared options, sizes, progress."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli._progress import progress
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.trace import Run

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="Trace files, folders or patterns.")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE; its suffix chooses the format.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
MaxBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Refuse files that unpack to more than SIZE (20GB).", show_default=False),
]
Counters = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Counters of the run, if they are not in counters.csv next to it.", show_default=False
    ),
]
With = Annotated[
    str | None,
    typer.Option(
        "--with", metavar="FILE", help="A profile of ncu, whose counters are joined to the kernels.", show_default=False
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Read with N processes; 0 reads in this one. Default: one per core."),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Limit the memory of all processes together (16GB). Default: 80 % of the free memory.",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Read on the workers of Dask: tcp://host:8786, a scheduler file, or local."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a rank is missing, unreadable or duplicate.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]


@contextmanager
def opened(
    paths: Sequence[str],
    counters: str | None = None,
    kernel_counters: str | None = None,
    max_bytes: str | None = None,
    *,
    no_progress: bool,
) -> Iterator[Run]:
    """The run at the paths. Raises StepscopeError if there is none, typer.BadParameter for a wrong size."""
    from stepscope.api.verbs import load_run
    from stepscope.cli._allocator import keep_freed_memory

    keep_freed_memory()

    limit = None if max_bytes is None else size_of(max_bytes)
    _let_interrupts_through()
    files: list[str] = []
    with progress(files, wanted=not no_progress) as tell:
        run = load_run(paths, counters=counters, kernel_counters=kernel_counters, max_bytes=limit, progress=tell)
        files += run.paths
        yield run


def _let_interrupts_through() -> None:
    # Polars, imported by now, takes SIGINT in such a way that a blocked read (a pipe, a dead network folder) starts
    # again instead of ending.
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(signal.SIGINT, True)


def size_of(text: str, *, option: str = "--max-bytes") -> int:
    """Bytes of a size such as 20GB. Raises typer.BadParameter."""
    from stepscope.core import units

    try:
        return units.parse_size(text)
    except StepscopeError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}", param_hint=option) from None


def seconds_of(text: str, *, option: str, default_unit: str = "") -> float:
    """Seconds of a duration such as 90s or 1h30m; a plain number is in the default unit. Raises typer.BadParameter."""
    from stepscope.core import units

    try:
        return units.parse_duration(text, default_unit=default_unit) / 1e9
    except StepscopeError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}", param_hint=option) from None
