"""The cache of opened files: stored traces and small values under keys. The least recently used are removed first.

An entry is a folder named after its key. It is written under another name and renamed when it is complete, so that what
a killed process leaves is never read. A reader of an entry holds a lock on its meta.json, and an entry is removed only
if nobody holds that lock. The file `digest` in it is a digest of its key and of all its other files. It is checked
whenever an entry is opened, and an entry that does not fit it, or that other users may have written, is removed.
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
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.errors import CorruptInput, StepscopeError, UnsupportedVersion
from stepscope.core.machine import CacheWarning, distrust_of
from stepscope.store._folder import META, parse_document, read_folder, write_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stepscope.core.machine import CacheFolder
    from stepscope.core.trace import Trace

_UNFINISHED, _LOCK, _VALUE, _DIGEST = ".new-", ".lock", "note", "digest"
_NEW_S = 60


class Entry(msgspec.Struct, frozen=True):
    """A cached file: its path when it was opened, format, unpacked size, size in the cache, and time of last use."""

    folder: Path
    source: str
    format: str
    source_bytes: int
    stored_bytes: int
    used_unix_ns: int


class _Usage(msgspec.Struct):
    """How many bytes a folder holds, as far as this process knows, and how many of them it has added."""

    now_bytes: int
    added_bytes: int = 0


_usage: dict[Path, _Usage] = {}


def find_trace(where: CacheFolder, key: str, *, label: str) -> Trace | None:
    """The trace under the key, as if it had just been read from `label`; None if there is none, or it is damaged."""
    folder = where.folder / key
    lease = _lease(where, key)
    if lease is None:
        return None
    try:
        document = parse_document((folder / META).read_bytes(), str(folder / META), kind="trace")
        if document is None:
            return None
        trace = read_folder(str(folder), document, label=label, lease=lease)
        os.utime(folder / META)
    except (CorruptInput, UnsupportedVersion, OSError):  # the original file can be read instead
        return None
    return trace


def put_trace(where: CacheFolder, key: str, trace: Trace) -> bool:
    """Store a trace under the key, and remove the least recently used entries beyond the limit. False if not stored.

    Raises OSError if it cannot be written.
    """
    if find_trace(where, key, label="") is not None:  # another process was quicker
        return False
    return _write_entry(where, key, lambda inside: write_folder(trace, str(inside), statistics=False))


def find_value(where: CacheFolder, key: str) -> bytes | None:
    """The bytes that `put_value` stored under the key; None if there are none, or they are damaged."""
    folder = where.folder / key
    lease = _lease(where, key)
    if lease is None:
        return None
    try:
        content = (folder / _VALUE).read_bytes()
        os.utime(folder / META)
    except OSError:
        return None
    finally:
        lease.close()
    return content


def put_value(where: CacheFolder, key: str, content: bytes, *, source: str, kind: str, source_bytes: int) -> bool:
    """Store bytes under the key, as `put_trace` stores a trace. False if not stored. Raises OSError."""
    about = {"path": source, "format": kind, "size_bytes": source_bytes}
    text = json.dumps({"stepscope": _VALUE, "meta": about}).encode("ascii")

    def fill(inside: Path) -> int:
        (inside / _VALUE).write_bytes(content)
        (inside / META).write_bytes(text)
        return len(content) + len(text)

    return find_value(where, key) is None and _write_entry(where, key, fill)


def _lease(where: CacheFolder, key: str) -> Lock | None:
    """A lock on the entry under the key; None if there is none. A damaged entry is removed."""
    folder = where.folder / key
    if not os.path.lexists(folder):
        return None
    lease = None
    try:
        problem = _foreign_part(folder)
        if not problem:
            lease = shared_lock(folder / META)
            if lease is None and (folder / META).exists():  # being removed, or on a file system without locks
                return None
            if lease is not None and (folder / _DIGEST).read_bytes() == _digest(folder, key):
                return lease
            problem = "its content is not what was written"
    except OSError as error:
        problem = str(error)
    if lease is not None:
        lease.close()
    remove_damaged(where, key, problem)
    return None


def _foreign_part(folder: Path) -> str:
    """What of an entry other users may have written, and why; empty if nothing."""
    if distrust := distrust_of(folder, stat.S_ISDIR):
        return f"it {distrust}"
    files = ((file.name, distrust_of(file, stat.S_ISREG)) for file in folder.iterdir())
    return next((f"{name} in it {distrust}" for name, distrust in files if distrust), "")


def _digest(folder: Path, key: str) -> bytes:
    """A digest of the key and of the names and contents of all files of an entry. Raises OSError."""
    digest = hashlib.sha256(key.encode())
    for path in sorted(folder.iterdir()):
        if path.name != _DIGEST:
            with path.open("rb") as file:
                digest.update(f"\n{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest().encode()


def remove_damaged(where: CacheFolder, key: str, problem: str) -> None:
    """Remove an entry that cannot be used, and warn of it."""
    folder = where.folder / key
    if _remove(folder) or os.path.lexists(folder):  # else another process removed it
        text = f"an entry of the cache is not used, and its file is read again: {folder}: {problem}"
        warnings.warn(text, CacheWarning, stacklevel=1)


def _write_entry(where: CacheFolder, key: str, fill: Callable[[Path], int]) -> bool:
    """Write an entry under the key. `fill` writes its files into the folder that it gets, and returns their bytes."""
    target = where.folder / key
    with scratch_folder(where.folder) as folder:
        inside = folder / "entry"
        inside.mkdir(mode=0o700)
        n_bytes = fill(inside)
        (inside / _DIGEST).write_bytes(_digest(inside, key))
        if n_bytes > where.limit_bytes:
            return False
        if os.name == "posix":  # elsewhere a read-only file cannot be removed
            for file in inside.iterdir():
                file.chmod(0o400)
        try:
            inside.rename(target)
        except OSError:
            if target.exists():
                return False
            raise
    # Looking at all entries each time would take longer than writing one, once there are many.
    usage = _usage.get(where.folder)
    if usage is None or usage.now_bytes + n_bytes > where.limit_bytes or usage.added_bytes > where.limit_bytes // 20:
        _usage[where.folder] = _Usage(_shrink(where.folder, where.limit_bytes))
    else:
        usage.now_bytes += n_bytes
        usage.added_bytes += n_bytes
    return True


def entries(where: CacheFolder) -> list[Entry]:
    """All entries, most recently used first."""
    known = [entry for folder in _folders(where.folder) if (entry := _entry(folder)) is not None]
    return sorted(known, key=lambda entry: -entry.used_unix_ns)


def clear(where: CacheFolder) -> tuple[int, int]:
    """Remove all entries that nobody is reading. Returns how many were removed, and how many remain."""
    folders = list(_folders(where.folder))
    n_removed = sum(_remove(folder) for folder in folders)
    _sweep(where.folder)
    return n_removed, len(folders) - n_removed


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder. If this process is killed, another process removes the folder."""
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
        _delete(folder)


def _folders(parent: Path) -> Iterator[Path]:
    try:
        folders = sorted(parent.iterdir())
    except OSError:
        return
    yield from (folder for folder in folders if not folder.name.startswith(".") and (folder / META).exists())


def _entry(folder: Path) -> Entry | None:
    try:
        if _foreign_part(folder):
            return None
        text = (folder / META).read_bytes()
        where = str(folder / META)
        document = parse_document(text, where, kind="trace") or parse_document(text, where, kind=_VALUE)
        meta = (document or {}).get("meta", {})
        used = (folder / META).stat().st_mtime_ns
        path, kind, size = str(meta.get("path", "")), str(meta.get("format", "")), int(meta.get("size_bytes", 0))
        return Entry(folder, path, kind, size, _size_of(folder), used)
    except (OSError, StepscopeError):
        return None


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in os.scandir(folder))


def _shrink(parent: Path, limit_bytes: int) -> int:
    """Remove leftovers of killed processes and the least recently used entries beyond the limit. Returns its size."""
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
        if _remove(folder):
            total -= size
    return total


def _remove(folder: Path) -> bool:
    """Remove an entry, unless somebody is reading it. Returns whether it was removed."""
    lock = exclusive_lock(folder / META)
    if lock is None and not _is_broken(folder):
        return False
    if lock is not None and sys.platform == "win32":  # a folder with an open file, the lock, cannot be renamed there
        lock.close()
    gone = folder.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    try:
        folder.rename(gone)
    except OSError:
        return False
    finally:
        if lock is not None:
            lock.close()
    _delete(gone)
    return True


def _is_broken(folder: Path) -> bool:
    """Whether what lies in the place of an entry is none that anybody may be reading."""
    try:
        return bool(_foreign_part(folder)) or not (folder / META).exists()
    except OSError:
        return False


def _delete(path: Path) -> None:
    """Delete a folder, or whatever lies in the place of one; what a link points to stays."""
    try:
        path.unlink()
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove the unfinished folders of killed processes, whose locks nobody holds."""
    for folder in parent.glob(f"{_UNFINISHED}*"):
        if _is_new(folder):  # its owner may not have locked it yet
            continue
        lock = exclusive_lock(folder / _LOCK)
        if lock is None and (folder / _LOCK).exists():
            continue
        if lock is not None:
            lock.close()
        _delete(folder)


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < _NEW_S
    except OSError:
        return True


# Without flock (Windows), an open file cannot be removed, which protects its folder too.
if sys.platform != "win32":
    import fcntl

    _READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in the place of a file does not block

    def _locked(descriptor: int, *, exclusive: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:  # somebody else has it, or the file system has no locks: do not remove the folder
            return False
        return True

else:
    _READ = os.O_RDONLY

    def _locked(descriptor: int, *, exclusive: bool) -> bool:  # noqa: ARG001
        return True


class Lock:
    """A locked file, which is open until `close` is called or this object is gone."""

    def __init__(self, descriptor: int) -> None:
        self.close = weakref.finalize(self, os.close, descriptor)


def shared_lock(path: Path) -> Lock | None:
    """A lock on the file that others may hold too; None if the file does not exist or is being removed."""
    return _open_locked(path, exclusive=False)


def exclusive_lock(path: Path) -> Lock | None:
    """A lock on the file that nobody else holds; None if the file does not exist or is in use."""
    return _open_locked(path, exclusive=True)


def _open_locked(path: Path, *, exclusive: bool) -> Lock | None:
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    lock = Lock(descriptor)
    # It may have been removed between the two steps, and even created again.
    if _locked(descriptor, exclusive=exclusive) and _is_still(descriptor, path):
        return lock
    lock.close()
    return None


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
