"""One interface to local paths and to the URLs that fsspec understands (s3://, gs://, memory:// …).

fsspec is imported when the first URL is met. Failures of object stores raise the same errors as those of files.
"""

# os.path returns False where Path raises: names too long, folders that may not be searched.
# ruff: noqa: PTH110, PTH112, PTH118, PTH123, PTH207
from __future__ import annotations

import glob
import itertools
import os
import re
import stat
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, cast

from stepscope.core.errors import MissingExtra, StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_URL = regex(r"[A-Za-z][A-Za-z0-9+.\-]+(::[A-Za-z][A-Za-z0-9+.\-]+)*://")  # two letters: C:// is a drive
_RANK = regex(r"(?:^|[._\-/])rank[._\-]?(\d+)(?=[._\-/]|$)", re.IGNORECASE)
_MOST_RANK = 2**31 - 1
#: How many times bigger a file gets when unpacked: a compressed file, a table of a store.
_PACKED, _STORED = 12, 25
_PACKINGS = (".gz", ".zst", ".xz", ".bz2", ".zip")
_REMOTE_BYTES = 100_000_000
#: Names that PyTorch gives to dumps of its flight recorder; the name of a host may come before the rank.
DUMP = regex(r"(?:(?:nccl|comm_lib)_trace_rank|_dump)_(?:[^/\\]*_)?(\d{1,9})\Z")
_SUFFIXES = regex(r"(\.(pt|trace|json|gz|zst|zip|xz|bz2))+$", re.IGNORECASE)
#: Object stores whose packages the extra `cloud` installs.
_CLOUD = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl")
#: Exceptions of packages behind fsspec that are no OSErrors, if those packages are imported.
_FOREIGN = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
    ("aiohttp", "ClientError"),
)


def is_url(path: str) -> bool:
    """Whether the path is a URL and not the name of a local file.

    >>> is_url("s3://bucket/rank0.json.gz"), is_url("runs/rank0.json.gz"), is_url("C://rank0.json.gz")
    (True, False, False)
    """
    return _URL.match(path) is not None


def joined(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """The folder of a file, and its name there."""
    if is_url(path):
        folder, _, name = path.rstrip("/").rpartition("/")
        return folder, name
    return os.path.split(path)


def absolute(path: str) -> str:
    """The absolute path; a URL is returned as it is."""
    return path if is_url(path) else os.path.abspath(path)  # noqa: PTH100  Path.absolute keeps a/../b


def exists(path: str) -> bool:
    """Whether there is a file or folder. Raises StepscopeError if an object store cannot be asked."""
    if not is_url(path):
        return os.path.exists(path)
    with reaching(path):
        system, inner = _system(path)
        return bool(system.exists(inner))


def is_folder(path: str) -> bool:
    """Whether there is a folder. Raises StepscopeError if an object store cannot be asked."""
    if not is_url(path):
        return os.path.isdir(path)
    with reaching(path):
        system, inner = _system(path)
        return bool(system.isdir(inner))


def opened(path: str) -> IO[bytes]:
    """The file, opened for reading. Raises StepscopeError."""
    with reaching(path):
        if not is_url(path):
            return open(path, "rb")
        system, inner = _system(path)
        return cast("IO[bytes]", system.open(inner, "rb"))


def size_of(path: str) -> int:
    """Size of the file as stored. Raises StepscopeError (also for a pipe or device, which has none)."""
    with reaching(path):
        if is_url(path):
            system, inner = _system(path)
            return int(system.info(inner)["size"] or 0)
        status = os.stat(path)  # noqa: PTH116  as the rest
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        msg = f"cannot read {path}: it is a pipe or a device, which can be read only once"
        raise StepscopeError(msg, "write it to a file first; packed files need no unpacking")
    return status.st_size


def unpacked_bytes(path: str) -> int:
    """Roughly how many bytes a trace unpacks to. For an object store it is a guess: asking for each file is slow."""
    if is_url(path):
        return _REMOTE_BYTES
    try:
        if is_folder(path):
            return sum(map(unpacked_bytes, files_in(path, deep=False)))
        size = size_of(path)
    except StepscopeError:  # reading it will say what is wrong
        return 0
    name = path.lower()
    return size * (_PACKED if name.endswith(_PACKINGS) else _STORED if name.endswith(".parquet") else 1)


def files_in(folder: str, *, deep: bool) -> list[str]:
    """Paths of the files in a folder, with `deep` also of those below it, sorted. Raises StepscopeError."""
    if is_url(folder):
        with reaching(folder):
            system, inner = _system(folder)
            paths = system.find(inner, maxdepth=None if deep else 1)
            return sorted(_url_of(path, system, folder) for path in paths)
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise StepscopeError(f"cannot read {folder}: {error.strerror or error}", "check its owner and mode") from None
    here = itertools.islice(os.walk(folder), None if deep else 1)
    return sorted(os.path.join(root, name) for root, _, names in here for name in names)


def is_pattern(path: str) -> bool:
    """Whether the path has a wildcard: `*`, `?`, `[`."""
    return glob.has_magic(path)


def matching(pattern: str) -> list[str]:
    """Files and folders that match the pattern, sorted. Raises StepscopeError."""
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    with reaching(pattern):
        system, inner = _system(pattern)
        return sorted(_url_of(path, system, pattern) for path in system.glob(inner))


def state_of(path: str) -> tuple[object, ...] | None:
    """A value that changes whenever the file's content does; None if the file system has nothing of the kind.

    Of a local file: device, inode, size, and the times of the last change of content and of anything. Raises
    StepscopeError.
    """
    with reaching(path):
        if not is_url(path):
            status = os.stat(path)  # noqa: PTH116
            return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        system, inner = _system(path)
        system.invalidate_cache()
        facts = system.info(inner)
    versions = [
        str(facts[name]) for name in ("ETag", "etag", "md5Hash", "generation", "LastModified") if facts.get(name)
    ]
    return (facts["size"], *versions) if versions else None


def write(path: str, content: bytes) -> None:
    """Write a file that appears whole or not at all; folders on its way are made. Raises StepscopeError."""
    with reaching(path, doing="write"):
        if is_url(path):
            system, inner = _system(path)
            system.makedirs(inner.rpartition("/")[0], exist_ok=True)
            system.pipe_file(inner, content)
            return
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100  as the rest
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        part = os.path.join(folder, f".{name}.{os.getpid()}.part")
        try:
            with open(part, "xb") as file:
                file.write(content)
            os.replace(part, path)  # noqa: PTH105
        finally:
            with suppress(OSError):
                os.unlink(part)  # noqa: PTH108


def remove(path: str) -> None:
    """Remove a file, if it is there. Raises StepscopeError."""
    with reaching(path, doing="remove"):
        if is_url(path):
            system, inner = _system(path)
            if system.exists(inner):
                system.rm(inner)
            return
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108


def remove_folder(path: str) -> None:
    """Remove all objects below a URL. Raises StepscopeError."""
    with reaching(path, doing="remove"):
        system, inner = _system(path)
        system.rm(inner, recursive=True)


def _system(url: str) -> tuple[Any, str]:
    return cast("tuple[Any, str]", import_module("fsspec.core").url_to_fs(url))


def _url_of(path: str, system: Any, like: str) -> str:
    """The URL of an object, spelled like the user's URL `like`: some have a third slash."""
    url = str(system.unstrip_protocol(path))
    return url if ":///" in like else url.replace(":///", "://", 1)


@contextmanager
def reaching(path: str, *, doing: str = "read") -> Iterator[None]:
    """Turn errors of the file system or an object store into StepscopeErrors."""
    try:
        yield
    except ImportError as error:
        scheme = path.split(":", 1)[0]
        if scheme in _CLOUD:
            raise MissingExtra(f"{scheme}://", "cloud") from None
        raise StepscopeError(f"cannot {doing} {path}: {error}", "install the package that fsspec names") from None
    except _failures() as error:
        raise unreachable(path, error, doing=doing) from None


def _failures() -> tuple[type[BaseException], ...]:
    foreign = [getattr(sys.modules[module], name) for module, name in _FOREIGN if module in sys.modules]
    return (OSError, ValueError, *foreign)


def unreachable(path: str, error: BaseException, *, doing: str = "read") -> StepscopeError:
    """The error for a file that cannot be opened."""
    hints = {
        FileNotFoundError: "check the path; a pattern must be quoted or match something",
        IsADirectoryError: "give a folder to a verb that takes several traces, as in stepscope report DIR",
        PermissionError: f"you are not allowed to {doing} this file: check its owner and mode",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    reason = getattr(error, "strerror", None) or error
    # fsspec raises FileNotFoundError with nothing but the path.
    if is_url(path) and isinstance(error, FileNotFoundError):
        reason = "no such file"
    hint = hint or ("check the URL, and the credentials of this machine" if is_url(path) else "check the path")
    return StepscopeError(f"cannot {doing} {path}: {reason}", hint)


def rank_in(path: str) -> int | None:
    """The number after the last `rank` in the path; None if there is none, or one too large for a rank.

    >>> rank_in("run/rank3/trace.json"), rank_in("drank7.json")
    (3, None)
    """
    numbers = _RANK.findall(path)
    if not numbers or len(numbers[-1]) > 10:
        return None
    number = int(numbers[-1])
    return number if number <= _MOST_RANK else None


def rank_of_dump(path: str) -> int | None:
    """The rank in the name that PyTorch gives to a dump of its flight recorder; None for any other name.

    >>> rank_of_dump("run/nccl_trace_rank_host-a_12"), rank_of_dump("_dump_3"), rank_of_dump("rank3.json")
    (12, 3, None)
    """
    match = DUMP.search(path)
    return None if match is None else int(match[1])


def labels_of(paths: Sequence[str]) -> list[str]:
    """A short name for each file, unique among them: its stem, or as much of its path as makes it unique.

    >>> labels_of(["run/cycle0/trace.json.gz", "run/cycle1/trace.json.gz"])
    ['cycle0/trace', 'cycle1/trace']
    """
    pure = [PurePath(path.replace("\\", "/")) for path in paths]
    stems = [_stem(path.name) for path in pure]
    if len(set(stems)) == len(stems):
        return stems
    shared = os.path.commonpath([path.parent for path in pure])
    labels = [_stem(str(path.relative_to(shared)) if shared else str(path)) for path in pure]
    return labels if len(set(labels)) == len(labels) else list(paths)


def _stem(name: str) -> str:
    return _SUFFIXES.sub("", name) or name
