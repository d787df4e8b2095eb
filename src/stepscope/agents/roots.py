"""Which files an agent may name, and the handles of the runs that it opened."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope import readers, store
from stepscope.api import verbs
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.core.trace import Run

_MOST_PATHS, _LONGEST_PATH = 256, 4_096
_MOST_HANDLES = 1_000
_HANDLE = regex("run-[0-9a-f]{12}")
_HINT = "name a file, folder or pattern below one of the roots that the server was started with, or a handle from open"


@dataclass(slots=True)
class Runs:
    """The runs below `roots` that were opened. A handle depends on the paths alone, so a later session knows it too."""

    roots: tuple[Path, ...]
    max_bytes: int | None = None
    _opened: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def open(self, named: Sequence[str]) -> tuple[str, Run]:
        """The handle and the run of these paths. Raises StepscopeError if a file is not below a root."""
        if not named or len(named) > _MOST_PATHS:
            raise StepscopeError(f"{len(named)} paths were named", f"name 1 to {_MOST_PATHS}, or their folder")
        paths = tuple(str(self._below(name)) for name in named)
        run = self._checked(paths)
        handle = "run-" + hashlib.blake2b(json.dumps(paths).encode(), digest_size=6).hexdigest()
        self._opened.pop(handle, None)
        self._opened[handle] = paths
        if len(self._opened) > _MOST_HANDLES:
            del self._opened[next(iter(self._opened))]
        store.remember(handle, json.dumps(paths).encode(), source=paths[0], kind="handle of an agent")
        return handle, run

    def find(self, name: str) -> tuple[str, Run]:
        """The run of a handle, or of a path. Raises StepscopeError."""
        if name not in self._opened:
            noted = store.remembered(name) if _HANDLE.fullmatch(name) else None
            if noted is None and _HANDLE.fullmatch(name):
                raise StepscopeError(f"no run has the handle {name}", "open its paths again")
            # What the cache holds is a path like any other: it must be below a root of this session.
            return self.open([name] if noted is None else json.loads(noted))
        return name, self._checked(self._opened[name])

    def _checked(self, paths: tuple[str, ...]) -> Run:
        run = verbs.load_run(paths, max_bytes=self.max_bytes)
        for path in run.paths:
            for file in (path, *readers.side_files(path)):
                self._below(file)
        return run

    def _below(self, name: str) -> Path:
        refused = StepscopeError(f"{name[:200]} is not below a root of this server", _HINT)
        if not name or len(name) > _LONGEST_PATH or "\0" in name or files.is_url(name) or name.startswith("~"):
            raise refused
        for root in self.roots:
            try:
                path = (root / name).resolve()
                # The path of a pattern, or of a member of an archive, is not that of a file.
                if path.is_relative_to(root) and (root == self.roots[-1] or path.exists() or files.matching(str(path))):
                    return path
            except (OSError, RuntimeError, ValueError):
                continue
        raise refused
