"""What version() says, installed or not."""

from __future__ import annotations

from importlib import metadata

from stepscope.core import version


def test_the_version_of_a_source_tree_is_told_as_such(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    assert version.program_version()
    monkeypatch.setattr(metadata, "version", missing)
    assert version.program_version() == "0+source"
