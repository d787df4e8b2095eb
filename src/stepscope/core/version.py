"""The version of this program."""

from __future__ import annotations


def program_version() -> str:
    """The version of this program."""
    from importlib import metadata

    try:
        return metadata.version("stepscope")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+source"
