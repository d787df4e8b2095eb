"""Files that only their own tools can open: the error says which command to run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stepscope.core.errors import UnknownFormat
from stepscope.readers.nsight import UNSUPPORTED, unsupported_suffix

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source

_NSYS = ("a report of Nsight Systems", "nsys export --type sqlite --output {made} {path}")
_UNFINISHED = (
    "an unfinished recording of Nsight Systems",
    "QdstrmImporter --input-file {path}, then nsys export --type sqlite on the report that it writes",
)
#: What a file of each suffix is, and the command that makes one that can be read.
_TOOLS = {
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".qdstrm": _UNFINISHED,
}


def read(source: Source) -> NoReturn:
    """Always raises UnknownFormat, with the command to run."""
    suffix = unsupported_suffix(source.path) or ""
    what, command = _TOOLS[suffix]
    made = UNSUPPORTED[suffix]
    command = command.format(path=source.path, made=Path(source.path).with_suffix(made) if made else "")
    raise UnknownFormat(f"{source.label} is {what}, which only its own tools can open", f"run: {command}")
