"""The C sources of this tree, compiled for tests whether or not the installation has them compiled."""

from __future__ import annotations

import shutil
import subprocess

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
_OPTIONS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def library_of(source, folder):
    """The path of the library; warnings of the compiler are errors."""
    path = folder / f"{source.stem}.so"
    subprocess.run([COMPILER, *_OPTIONS, "-o", str(path), str(source)], check=True)
    return path
