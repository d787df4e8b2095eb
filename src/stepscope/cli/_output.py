"""Writes to standard output, or to a file that appears only when it is complete."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from stepscope.core import files
from stepscope.core.errors import StepscopeError, WouldOverwrite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.renderers import Renderer, Screen

STDOUT = "-"
_DRAWN = "█▒░→·"


def screen() -> Screen:
    """Width and colour of standard output: those of the terminal, else 100 columns without colour."""
    from stepscope.renderers import Screen

    tty = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if tty else 100
    return Screen(width=max(width, 40), colour=tty and coloured(), unicode=_can_write(_DRAWN))


def coloured() -> bool:
    """Whether the user wants colour on a terminal. Source: no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def renderer_for(format_name: str | None, output: str | None, default: str) -> Renderer:
    """The renderer of the requested format, or of the file's suffix, or the default."""
    from stepscope import renderers

    if format_name is not None:
        return renderers.find(format_name)
    return renderers.by_suffix(output) if output not in (None, STDOUT) else renderers.find(default)


def check_target(output: str | None, inputs: Sequence[str], *, force: bool, folder: bool = False) -> None:
    """Check before any work that the output may be written. Raises WouldOverwrite, StepscopeError."""
    if output is None or output == STDOUT:
        return
    if files.is_url(output):
        if not force and files.exists(output):
            raise WouldOverwrite(output)
    elif folder and Path(output).exists():
        _check_folder(output, inputs, force=force)
    else:
        _check_file(output, inputs, force=force)


def _check_folder(output: str, inputs: Sequence[str], *, force: bool) -> None:
    if not force:
        raise WouldOverwrite(output)
    target = Path(output).resolve()
    if any(target in (here := Path(path).resolve(), *here.parents) for path in inputs):
        raise StepscopeError(f"cannot write {output}: it contains one of the inputs", "choose another -o")


def _check_file(output: str, inputs: Sequence[str], *, force: bool) -> None:
    target = Path(output)
    if target.is_dir():
        raise StepscopeError(f"cannot write {output}: it is a folder", "name a file in it")
    if not target.parent.is_dir():
        raise StepscopeError(f"cannot write {output}: there is no folder {target.parent}", "create it first")
    if target.exists() and any(Path(p).exists() and target.samefile(p) for p in inputs):
        raise StepscopeError(f"cannot write {output}: it is one of the inputs", "choose another -o FILE")
    if target.is_file() and not force:
        raise WouldOverwrite(output)


def emit(content: str | bytes, output: str | None, *, force: bool = False, renderer: Renderer | None = None) -> None:
    """Write to a file, or to standard output if none is named, there with control characters escaped.

    `renderer` is what made the text, if it was one: that for terminals may use colours, and exact text goes to a pipe
    as it is. Raises WouldOverwrite, StepscopeError.
    """
    from stepscope.core.report import printable_lines

    if output is not None and output != STDOUT:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
        if files.is_url(output):
            if not force and files.exists(output):
                raise WouldOverwrite(output)
            files.write(output, data)
            return
        _write_file(Path(output).resolve(), data, force=force)  # a link stays, what it points to is replaced
        return
    if isinstance(content, bytes):
        raise StepscopeError("this format is binary and is not written to a terminal", "name a file with -o FILE")
    tty = sys.stdout.isatty()
    if renderer is None or tty or not renderer.exact:
        content = printable_lines(content, colours=tty and renderer is not None and renderer.name == "terminal")
    _write_stdout(content)


def emit_stream(pieces: Iterable[str], output: str | None, *, force: bool = False) -> None:
    """Write text piece by piece, to standard output or to a file, which is compressed if it is called .gz or .zst.

    Raises WouldOverwrite, StepscopeError.
    """
    if output is None or output == STDOUT:
        for piece in pieces:
            emit(piece, output)
        return
    data = _packed((piece.encode("utf-8", "backslashreplace") for piece in pieces), output)
    if files.is_url(output):
        emit(b"".join(data), output, force=force)
    else:
        _write_file(Path(output).resolve(), data, force=force)


def _packed(pieces: Iterator[bytes], output: str) -> Iterator[bytes]:
    if output.endswith(".gz"):
        from isal import isal_zlib

        packer: Any = isal_zlib.compressobj(level=2, wbits=31)
    elif output.endswith(".zst"):
        import zstandard

        packer = zstandard.ZstdCompressor().compressobj()
    else:
        yield from pieces
        return
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def complain(text: str, *, colour: str = "") -> None:
    """Write a line to standard error, with control characters escaped."""
    from stepscope.core.report import printable

    text = printable(text)
    if colour and sys.stderr.isatty() and coloured():
        head, colon, rest = text.partition(":")
        text = typer.style(head + colon, fg=colour, bold=True) + rest
    try:
        sys.stderr.write(_writable(text, sys.stderr) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        _close(sys.stderr)


def _write_file(target: Path, data: bytes | Iterable[bytes], *, force: bool) -> None:
    # A terminal, pipe or device is written to, not replaced.
    special = target.exists() and not target.is_file()
    part = target if special else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb" if special else "xb") as file:
                for piece in (data,) if isinstance(data, bytes) else data:
                    file.write(piece)
            if special:
                return
            if target.exists() and not force:
                raise WouldOverwrite(str(target))
            part.replace(target)
        finally:
            if not special:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise StepscopeError(f"cannot write {target}: {error.strerror or error}") from None


def _write_stdout(text: str) -> None:
    try:
        sys.stdout.write(_writable(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough, which is no error. The rest goes nowhere, or Python would complain
        # when it flushes at exit.
        _close(sys.stdout)
        raise typer.Exit(0) from None
    except OSError as error:
        _close(sys.stdout)
        hint = "make room on its disk, or name a file elsewhere with -o FILE"
        raise StepscopeError(f"cannot write to standard output: {error.strerror or error}", hint) from None


def _close(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _writable(text: str, stream: TextIO) -> str:
    """The text with escapes for characters that the stream's encoding lacks."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_write(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
