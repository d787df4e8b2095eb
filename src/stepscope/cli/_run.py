"""Opens the run that a command line names: shared options, sizes, progress."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.core.errors import StepscopeError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.core.options import HasOptions, Option
    from stepscope.core.trace import Run


_WIDTH = 30
_EVERY_S = 0.1


@contextmanager
def progress(paths: Sequence[str], *, wanted: bool) -> Iterator[Callable[[str, int], None] | None]:
    """The `progress` function for `load_run`; None without a terminal. The line is erased at the end.

    `paths` may be filled in until reading begins.
    """
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    sizes: dict[str, int] = {}
    read: dict[str, int] = {}
    drawn_at = time.monotonic()

    def tell(path: str, n_bytes: int) -> None:
        nonlocal drawn_at
        if not sizes:
            sizes.update({p: _size(p) for p in paths})
        if path not in read:  # files are read one after the other: earlier ones are done
            read.update({earlier: sizes.get(earlier, 0) for earlier in read})
        read[path] = n_bytes
        now = time.monotonic()
        if now - drawn_at >= _EVERY_S:
            drawn_at = now
            _draw(min(sum(read.values()) / max(sum(sizes.values()), 1), 1.0), len(read), len(paths))

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def ranks_done(*, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A function that shows how many files are done; None without a terminal. The line is erased at the end."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    drawn_at = 0.0

    def tell(n_done: int, n_files: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if n_files > 1 and now - drawn_at >= _EVERY_S:
            drawn_at = now
            _draw(n_done / n_files, n_done, n_files)

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _draw(ratio: float, at: int, n_files: int) -> None:
    bar = "#" * round(ratio * _WIDTH)
    files = f"  file {at} of {n_files}" if n_files > 1 else ""
    sys.stderr.write(f"\rreading [{bar:<{_WIDTH}}] {ratio:4.0%}{files}\x1b[K")
    sys.stderr.flush()


def _size(path: str) -> int:
    """Bytes on disk; 0 if unknown (a member of an archive, a remote file)."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


# Parameters of glibc's mallopt, from <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system block by block.

    A reader takes and frees the same few megabytes for each block of the file. glibc would return them each time, which
    costs page faults: a tenth of the reading time. Does nothing without glibc.
    """
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_MMAP_THRESHOLD, 32 << 20)
            tune(_TRIM_THRESHOLD, 512 << 20)
            tune(_TOP_PAD, 16 << 20)
            tune(_ARENA_MAX, 1)  # else each thread keeps what it frees for itself


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
Capture = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The trace in which replayed graphs were captured, or a folder, if not in capture_traces.",
        show_default=False,
    ),
]
Requests = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="What requests to the engine took, if not in requests.jsonl next to it.",
        show_default=False,
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
    capture: str | None = None,
    requests: str | None = None,
    no_progress: bool,
) -> Iterator[Run]:
    """The run at the paths. Raises StepscopeError if there is none, typer.BadParameter for a wrong size."""
    from stepscope.api.verbs import load_run

    keep_freed_memory()

    limit = None if max_bytes is None else size_of(max_bytes)
    _let_interrupts_through()
    files: list[str] = []
    with progress(files, wanted=not no_progress) as tell:
        run = load_run(
            paths, counters=counters, capture=capture, requests=requests, kernel_counters=kernel_counters,
            max_bytes=limit, progress=tell,
        )  # fmt: skip
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


def flags_of(owner: HasOptions) -> dict[str, Option]:
    """The options of an analysis or export by flag, with `--no-…` for each switch."""
    flags = {}
    for option in owner.options().values():
        flags[option.flag] = option
        if option.kind is bool:
            flags["--no-" + option.flag.removeprefix("--")] = option
    return flags


def parsed(owner: HasOptions, arguments: Sequence[str], help_with: str) -> tuple[list[str], dict[str, Any]]:
    """The paths and options in the arguments after the table's name; `help_with` is the command that lists options.

    Raises typer.BadParameter, which ends with exit code 2, for an unknown option or a value that does not fit.
    """
    known = flags_of(owner)
    paths: list[str] = []
    options: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        flag, has_value, value = word.partition("=")
        option = known.get(flag)
        if option is None:
            raise typer.BadParameter(_unknown(owner, flag, help_with))
        if option.kind is bool:
            if has_value:
                raise typer.BadParameter(f"{flag} takes no value")
            options[option.name] = flag == option.flag
            continue
        if not has_value:
            if not rest:
                raise typer.BadParameter(f"{flag} needs a value: {option.values}")
            value = rest.pop(0)
        options[option.name] = _decoded(option, value)
    return paths, options


def _unknown(owner: HasOptions, flag: str, help_with: str) -> str:
    own, n_more = nearest(flag, (option.flag for option in owner.options().values()))
    more = f" and {n_more} more" if n_more else ""
    has = f"it has {', '.join(own)}{more}" if own else "it has no options of its own"
    return f"{owner.name} has no option {flag}: {has}, and see '{help_with}'"


def _decoded(option: Option, text: str) -> Any:
    try:
        return option.decode(text, called=option.flag)
    except StepscopeError as error:
        raise typer.BadParameter(error.message) from None
