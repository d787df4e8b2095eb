from __future__ import annotations

import pytest

from stepscope.readers import open_trace


@pytest.fixture
def read(tmp_path):
    """Writes the bytes of a file and opens it."""

    def read_(data, name="profile.pb"):
        path = tmp_path / name
        path.write_bytes(data)
        return open_trace(str(path))

    return read_
