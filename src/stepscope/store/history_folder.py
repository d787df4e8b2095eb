"""A store of runs: a folder, or a prefix of an object store, with two small files for each run.

`KEY.head.json` is what a list of runs needs, `KEY.digest.json.zst` all that is known of the run. The digest is written
first, so a run whose head exists is whole. Files are never changed, so several jobs may add runs at the same time.
Thousands of small objects are slow to read one by one: from time to time their heads are written once more as one file,
`heads-….jsonl`, and the single files are removed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import zstandard

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD, _DIGEST, _PACK = ".head.json", ".digest.json.zst", ".jsonl"
_KEY = regex(r"[0-9a-f]{24}")
#: So many single heads are written as one file.
_MOST_SINGLE = 256
_MOST_BYTES = 1 << 20


def put(store: str, key: str, head: bytes, digest: bytes) -> bool:
    """Add a run; False if it is there already. Raises StepscopeError."""
    known = heads(store)
    if any(name == key for name, _, _ in known):
        return False
    files.write(files.joined(store, key + _DIGEST), zstandard.compress(digest))
    files.write(files.joined(store, key + _HEAD), head)
    single = [(path, data) for _, path, data in known if path.endswith(_HEAD)]
    if len(single) >= _MOST_SINGLE:
        _pack(store, single)
    return True


def heads(store: str) -> list[tuple[str, str, bytes]]:
    """Key, path and content of the head of each run; none if there is no such folder. Raises StepscopeError."""
    if not files.exists(store):
        return []
    if not files.is_folder(store):
        raise StepscopeError(f"{store} is a file, and a store of runs is a folder", "name a folder, new or old")
    return list({key: (key, path, data) for key, path, data in _read(store)}.values())


def digest(store: str, key: str) -> bytes:
    """The digest of a run, as it was added. Raises StepscopeError, CorruptInput."""
    path = files.joined(store, key + _DIGEST)
    with files.opened(path) as file, files.reaching(path):
        data = file.read(_MOST_BYTES)
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
    except zstandard.ZstdError as error:
        raise CorruptInput(f"cannot be unpacked: {error}", "add the run again", path=path) from None


def _read(store: str) -> Iterator[tuple[str, str, bytes]]:
    for path in files.files_in(store, deep=False):
        name = files.split(path)[1]
        if name.endswith(_HEAD) and _KEY.fullmatch(name.removesuffix(_HEAD)):
            yield name.removesuffix(_HEAD), path, _content(path)
        elif name.startswith("heads-") and name.endswith(_PACK):
            for line in _content(path).splitlines():
                key, _, data = line.partition(b"\t")
                yield key.decode("ascii", "replace"), path, data


def _content(path: str) -> bytes:
    with files.opened(path) as file, files.reaching(path):
        return file.read()


def _pack(store: str, single: list[tuple[str, bytes]]) -> None:
    """Write many heads as one file, then remove them. A run that is in both counts once."""
    lines = [files.split(path)[1].removesuffix(_HEAD).encode() + b"\t" + data for path, data in sorted(single)]
    content = b"\n".join(lines) + b"\n"
    name = f"heads-{hashlib.sha256(content).hexdigest()[:24]}{_PACK}"
    files.write(files.joined(store, name), content)
    for path, _ in single:
        files.remove(path)
