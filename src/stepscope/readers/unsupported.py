"""Files that only their own tools can open: what to run instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from stepscope.core.errors import UnknownFormat
from stepscope.readers.common.reader import Reader

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source


@dataclass(frozen=True, slots=True)
class _Sealed:
    """How such a file is known, what it is, and the command that makes one that can be read."""

    suffix: str
    what: str
    command: str
    makes: str | None


_FILES = (
    _Sealed(".nsys-rep", "a report of Nsight Systems", "nsys export --type sqlite --output {makes} {path}", ".sqlite"),
    _Sealed(".qdrep", "a report of Nsight Systems", "nsys export --type sqlite --output {makes} {path}", ".sqlite"),
    _Sealed(
        ".qdstrm",
        "an unfinished recording of Nsight Systems",
        "QdstrmImporter --input-file {path}, then nsys export --type sqlite on the report that it writes",
        None,
    ),
    _Sealed(".pftrace", "a Perfetto trace", "traceconv json {path} {makes}", ".json"),
    _Sealed(".perfetto-trace", "a Perfetto trace", "traceconv json {path} {makes}", ".json"),
)


def sniff(path: str, head: bytes) -> float:
    """Known by their names. Where the file that can be read lies beside it, that one is taken."""
    name = Path(path)
    found = _by_name(path)
    if found is not None and not head.startswith((b"SQLite", b"{", b"[")):
        made = found.makes is not None and name.with_suffix(found.makes).exists()
        return 0.3 if made else 0.9
    return 0.0


def read(source: Source) -> NoReturn:
    """Always raises UnknownFormat, with the command to run."""
    found = next(sealed for sealed in _FILES if source.path.lower().endswith(sealed.suffix))
    makes = str(Path(source.path).with_suffix(found.makes)) if found.makes else ""
    command = found.command.format(path=source.path, makes=makes)
    raise UnknownFormat(f"{source.label} is {found.what}, which only its own tools can open", f"run: {command}")


def _by_name(path: str) -> _Sealed | None:
    return next((sealed for sealed in _FILES if path.lower().endswith(sealed.suffix)), None)


READER = Reader(
    name="sealed",
    doc="Nsight Systems reports, Perfetto traces: recognised, and answered with the command to run",
    sniff=sniff,
    read=read,
    provides=(),
)
