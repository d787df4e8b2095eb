"""Where the cache of opened files lies, and how big it may grow, as the environment and the system say."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from stepscope.core import units
from stepscope.core.errors import StepscopeError

__all__ = ["Place", "place"]

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
