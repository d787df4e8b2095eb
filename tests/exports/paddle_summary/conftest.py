"""Small recordings, read from profiles made in the test."""

from __future__ import annotations

import paddle_profiles as made
import pytest

from stepscope.exports.paddle_summary._tree import tree_of
from stepscope.readers import open_trace


@pytest.fixture
def trace(tmp_path):
    """A function from trees (see `paddle_profiles`), or from nothing for the usual training, to a trace."""

    def read(*threads, **more):
        path = tmp_path / "profile.pb"
        path.write_bytes(made.profile(*threads, **more) if threads else made.training())
        return open_trace(str(path))

    return read


@pytest.fixture
def tree(trace):
    """The same as the tree that summaries are made of."""
    return lambda *threads: tree_of(trace(*threads))
