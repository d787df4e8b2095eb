"""The traces of a job as a folder: a folder for each trace inside it, and meta.json, which is written last."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, WouldOverwrite
from stepscope.store._folder import META, VERSION, read_document, write_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.trace import Trace

__all__ = ["traces_in", "write_run"]


def traces_in(folder: str) -> list[str]:
    """Folders of stored traces: the folder itself, or those that its meta.json names; empty if it is not a store.

    Raises CorruptInput.
    """
    if read_document(folder, kind="trace") is not None:
        return [folder]
    document = read_document(folder, kind="run")
    if document is None:
        return []
    names = document.get("traces")
    if not isinstance(names, list) or not all(
        isinstance(n, str) and n == Path(n).name not in ("", "..") for n in names
    ):
        raise CorruptInput("meta.json does not name its traces", path=files.joined(folder, META))
    return [files.joined(folder, name) for name in names]


def write_run(traces: Iterable[tuple[str, Trace]], folder: str, *, force: bool = False) -> int:
    """Write traces, each under its name, into a new folder, which appears when it is complete. Returns their number.

    At a URL, meta.json is written last, and nothing is read without it. `force` replaces a folder that is a store.
    Raises WouldOverwrite, StepscopeError.
    """
    there = files.exists(folder)
    if there:
        if not force:
            raise WouldOverwrite(folder)
        if read_document(folder, kind="run") is None:
            raise StepscopeError(
                f"{folder} is not a folder of stored traces, so it is not replaced", "choose another -o"
            )
    if files.is_url(folder):
        if there:
            files.remove_folder(folder)
        return _filled(traces, folder)
    target = Path(folder).resolve()
    part, old = (target.with_name(f".{target.name}.{secrets.token_hex(4)}.{end}") for end in ("part", "old"))
    try:
        part.mkdir(parents=True)
        try:
            n = _filled(traces, str(part))
            if there:
                target.rename(old)
            part.rename(target)
        finally:
            for left in (part, old):
                shutil.rmtree(left, ignore_errors=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise StepscopeError(f"cannot write {folder}: {reason}") from None
    return n


def _filled(traces: Iterable[tuple[str, Trace]], folder: str) -> int:
    names = []
    for name, trace in traces:
        inside = files.joined(folder, name)
        if not files.is_url(folder):
            Path(inside).mkdir()
        write_folder(trace, inside)
        names.append(name)
    text = json.dumps({"stepscope": "run", "version": VERSION, "traces": names}, indent=1).encode("ascii")
    path = files.joined(folder, META)
    if files.is_url(folder):
        files.write(path, text)
    else:
        Path(path).write_bytes(text)
    return len(names)
