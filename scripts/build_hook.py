"""Compiles what is optional in C for a wheel, or for an editable installation, where there is a C compiler on Linux.

Everywhere else, and with STEPSCOPE_PURE_PYTHON=1, the wheel is one for any machine: Python and NumPy do the same. What
is compiled calls nothing of Python's, so one wheel serves all versions of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (Path("src/stepscope/readers/chrome/scan.c"), Path("src/stepscope/core/nesting.c"))
OPTIONS = ("-O3", "-std=c11", "-shared", "-fPIC")


class CompiledParts(BuildHookInterface[Any]):
    """The hook that hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  the name is hatchling's
        """Compile, and name the machine in the wheel's tag if that went well."""
        root = Path(self.root)
        for source in SOURCES:
            library = source.with_name(f"_{source.stem}.so")
            if compiled(root / source, root / library):
                build_data["artifacts"].append(str(library))
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compiled(source: Path, library: Path) -> bool:
    """Whether the library is there now."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    if sys.platform != "linux" or compiler is None or os.environ.get("STEPSCOPE_PURE_PYTHON") == "1":
        return False
    done = subprocess.run([compiler, *OPTIONS, "-o", str(library), str(source)], capture_output=True, check=False)
    return done.returncode == 0
