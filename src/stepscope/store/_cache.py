"""Opened files, kept as stored traces: found again by key, dropped oldest first when they grow too many.

An entry is a folder called after its key. It is written under another name and renamed when it is whole, so that a
process that is killed leaves nothing that is ever read. Who reads an entry holds a lock on its meta.json; only an entry
that nobody holds is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core import units
from stepscope.core.errors import CorruptInput, StepscopeError, UnsupportedVersion
from stepscope.store._folder import META, document_of, read_folder, write_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.core.trace import Trace

__all__ = [
    "Entry",
    "Lock",
    "Place",
    "clear",
    "entries",
    "exclusive_lock",
    "find",
    "find_note",
    "keep",
    "keep_note",
    "place",
    "scratch",
    "shared_lock",
]


_DEFAULT_BYTES, _DEFAULT_SHARE = 5 * 10**9, 0.1
_NO = ("0", "off", "no", "false")


@dataclass(frozen=True, slots=True)
class Place:
    """The folder, and the bytes that it may hold."""

    folder: Path
    limit_bytes: int


def place() -> Place | None:
    """The cache that is in force; None if STEPSCOPE_CACHE turns it off.

    STEPSCOPE_CACHE_DIR names the folder, STEPSCOPE_CACHE_SIZE what it may hold: by default 5 GB, or a tenth of what is
    free on that disk if that is less. Raises StepscopeError (a size that is none).
    """
    if os.environ.get("STEPSCOPE_CACHE", "").lower() in _NO:
        return None
    named = os.environ.get("STEPSCOPE_CACHE_DIR")
    folder = Path(named) if named else _usual_folder()
    size = os.environ.get("STEPSCOPE_CACHE_SIZE")
    if size:
        try:
            return Place(folder, units.parse_size(size))
        except StepscopeError as error:
            raise StepscopeError(f"STEPSCOPE_CACHE_SIZE: {error.message}", error.hint) from None
    return Place(folder, min(_DEFAULT_BYTES, int(_DEFAULT_SHARE * _free_bytes(folder))))


def _usual_folder() -> Path:
    """The user's folder for such things. Source: XDG Base Directory Specification; on macOS and Windows their own."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "stepscope" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "stepscope"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else home / ".cache") / "stepscope"


def _free_bytes(folder: Path) -> int:
    """Free on the disk that the folder lies on, or will."""
    for there in (folder, *folder.parents):
        try:
            return shutil.disk_usage(there).free
        except OSError:
            continue
    return 0


_UNFINISHED, _LOCK, _NOTE = ".new-", ".lock", "note"
_NEW_S = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """A kept file: its path when it was opened, format, unpacked size, its size in the cache, when it was last used."""

    folder: Path
    source: str
    format: str
    source_bytes: int
    stored_bytes: int
    used_unix_ns: int


@dataclass(slots=True)
class _Held:
    """What a folder held when this process last looked, with what it has added since."""

    now_bytes: int
    added_bytes: int = 0


_held: dict[Path, _Held] = {}


def find(where: Place, key: str, *, label: str) -> Trace | None:
    """What is kept under the key, as if it had just been read from `label`; None if there is nothing sound."""
    folder = where.folder / key
    lease = shared_lock(folder / META)
    if lease is None:
        return None
    try:
        document = document_of((folder / META).read_bytes(), str(folder / META), kind="trace")
        if document is None:
            return None
        trace = read_folder(str(folder), document, label=label, lease=lease)
        os.utime(folder / META)
    except (CorruptInput, UnsupportedVersion, OSError):  # whatever happened to it, the file itself is there to be read
        return None
    return trace


def keep(where: Place, key: str, trace: Trace) -> bool:
    """Keep a trace under the key, and drop the least recently used ones beyond the limit. False if it was not kept.

    Raises OSError if the disk does not take it.
    """
    target = where.folder / key
    if target.exists():
        if find(where, key, label="") is not None:  # another process was quicker
            return False
        _removed(target)  # or it was damaged
    return _placed(where, key, lambda inside: write_folder(trace, str(inside), statistics=False))


def find_note(where: Place, key: str) -> bytes | None:
    """The bytes that `keep_note` kept under the key; None if there is nothing whole, or others may have written it."""
    folder = where.folder / key
    lease = shared_lock(folder / META)
    if lease is None:
        return None
    try:
        if _is_writable_by_other_users(where.folder) or _is_writable_by_other_users(folder):
            return None
        document = document_of((folder / META).read_bytes(), str(folder / META), kind=_NOTE)
        content = (folder / _NOTE).read_bytes()
        if document is None or document.get("digest") != _digest(content):
            return None
        os.utime(folder / META)
    except (CorruptInput, OSError):
        return None
    finally:
        lease.close()
    return content


def keep_note(where: Place, key: str, content: bytes, *, source: str, kind: str, source_bytes: int) -> bool:
    """Keep bytes that were made of a file, as `keep` does a trace. Raises OSError."""
    about = {"path": source, "format": kind, "size_bytes": source_bytes}
    text = json.dumps({"stepscope": _NOTE, "digest": _digest(content), "meta": about}).encode("ascii")

    def fill(inside: Path) -> int:
        (inside / _NOTE).write_bytes(content)
        (inside / META).write_bytes(text)
        return len(content) + len(text)

    if (where.folder / key).exists() and find_note(where, key) is None:
        _removed(where.folder / key)
    return not (where.folder / key).exists() and _placed(where, key, fill)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_writable_by_other_users(folder: Path) -> bool:
    """Whether the folder is another user's, or others may write into it: what lies there may be theirs."""
    if os.name != "posix":
        return False
    status = folder.stat()
    return status.st_uid != os.getuid() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _placed(where: Place, key: str, fill: Callable[[Path], int]) -> bool:
    """An entry under the key, which `fill` writes into the folder that it is given; it returns the bytes."""
    target = where.folder / key
    with scratch(where.folder) as folder:
        inside = folder / "entry"
        inside.mkdir(mode=0o700)
        n_bytes = fill(inside)
        if n_bytes > where.limit_bytes:
            return False
        if os.name == "posix":  # elsewhere what may not be written to may not be removed
            for file in inside.iterdir():
                file.chmod(0o400)
        try:
            inside.rename(target)
        except OSError:
            if target.exists():
                return False
            raise
    # To look at all entries after each would take longer than to write it, once there are many.
    held = _held.get(where.folder)
    if held is None or held.now_bytes + n_bytes > where.limit_bytes or held.added_bytes > where.limit_bytes // 20:
        _held[where.folder] = _Held(_shrink(where.folder, where.limit_bytes))
    else:
        held.now_bytes += n_bytes
        held.added_bytes += n_bytes
    return True


def entries(where: Place) -> list[Entry]:
    """All that is kept, most recently used first."""
    known = [entry for folder in _folders(where.folder) if (entry := _entry(folder)) is not None]
    return sorted(known, key=lambda entry: -entry.used_unix_ns)


def clear(where: Place) -> tuple[int, int]:
    """Remove what nobody reads at the moment. Returns how many entries went, and how many stayed."""
    folders = list(_folders(where.folder))
    n_removed = sum(_removed(folder) for folder in folders)
    _sweep(where.folder)
    return n_removed, len(folders) - n_removed


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A folder for things that end with the process; what a killed one leaves is swept away by the next."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = parent / f"{_UNFINISHED}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    lock: Lock | None = None
    try:
        (folder / _LOCK).touch()
        lock = exclusive_lock(folder / _LOCK)
        yield folder
    finally:
        if lock is not None:
            lock.close()
        shutil.rmtree(folder, ignore_errors=True)


def _folders(parent: Path) -> Iterator[Path]:
    try:
        folders = sorted(parent.iterdir())
    except OSError:
        return
    yield from (folder for folder in folders if not folder.name.startswith(".") and (folder / META).exists())


def _entry(folder: Path) -> Entry | None:
    try:
        text = (folder / META).read_bytes()
        where = str(folder / META)
        document = document_of(text, where, kind="trace") or document_of(text, where, kind=_NOTE)
        meta = (document or {}).get("meta", {})
        used = (folder / META).stat().st_mtime_ns
        path, kind, size = str(meta.get("path", "")), str(meta.get("format", "")), int(meta.get("size_bytes", 0))
        return Entry(folder, path, kind, size, _size_of(folder), used)
    except (OSError, StepscopeError):
        return None


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in os.scandir(folder))


def _shrink(parent: Path, limit_bytes: int) -> int:
    """Remove the least recently used entries until the rest fits, and what killed processes left. Returns the rest."""
    _sweep(parent)
    known: list[tuple[int, int, Path]] = []
    for folder in _folders(parent):
        try:
            known.append(((folder / META).stat().st_mtime_ns, _size_of(folder), folder))
        except OSError:  # another process removes it
            continue
    total = sum(size for _, size, _ in known)
    for _, size, folder in sorted(known):
        if total <= limit_bytes:
            break
        if _removed(folder):
            total -= size
    return total


def _removed(folder: Path) -> bool:
    """Take an entry away as a whole, unless someone reads it."""
    lock = exclusive_lock(folder / META)
    if lock is None:
        return False
    if sys.platform == "win32":  # there nothing can be renamed that holds an open file, which is all the lock there is
        lock.close()
    gone = folder.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    try:
        folder.rename(gone)
    except OSError:
        return False
    finally:
        lock.close()
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _sweep(parent: Path) -> None:
    """Remove what killed processes left unfinished: nobody holds its lock."""
    for folder in parent.glob(f"{_UNFINISHED}*"):
        if _is_new(folder):  # perhaps its owner has not come to lock it yet
            continue
        lock = exclusive_lock(folder / _LOCK)
        if lock is None and (folder / _LOCK).exists():
            continue
        if lock is not None:
            lock.close()
        shutil.rmtree(folder, ignore_errors=True)


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < _NEW_S
    except OSError:
        return True


# Where there is no flock (Windows) an open file cannot be removed, which protects its folder as well.
if sys.platform != "win32":
    import fcntl

    def _locked(descriptor: int, *, exclusive: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:  # another has it, or the file system has no locks: then nobody may remove the folder
            return False
        return True

else:

    def _locked(descriptor: int, *, exclusive: bool) -> bool:  # noqa: ARG001
        return True


class Lock:
    """A file held open, until it is closed or nobody has the lock any more."""

    def __init__(self, descriptor: int) -> None:
        self.close = weakref.finalize(self, os.close, descriptor)


def shared_lock(path: Path) -> Lock | None:
    """A lock on the file that others may hold too; None if it is not there or is being removed."""
    return _taken(path, exclusive=False)


def exclusive_lock(path: Path) -> Lock | None:
    """A lock on the file that nobody else holds; None if it is not there or in use."""
    return _taken(path, exclusive=True)


def _taken(path: Path, *, exclusive: bool) -> Lock | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    lock = Lock(descriptor)
    # It may have been removed between the two steps, and even be there anew.
    if _locked(descriptor, exclusive=exclusive) and _is_still(descriptor, path):
        return lock
    lock.close()
    return None


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
