"""The state of a watch survives a file; values that are no time are left out."""

from __future__ import annotations

import json

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.watching.streams import SCHEMA, Cycles, Stream, follow, load_state, save_state


def test_state_survives_a_file_and_a_damaged_one_is_refused(tmp_path):
    new = Cycles("process 1", 7, 100, (0, *range(1000, 1099)), (1,) * 100)
    stream, _, interval = follow(Stream(), new, 1e-6)
    assert interval.shape == (99, 3)
    save_state(tmp_path / "state", {"process 1": stream})
    assert load_state(tmp_path / "state") == {"process 1": stream}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    for text in ("", "[]", "{}", json.dumps({SCHEMA: {"a": {"model": 1}}})):
        (tmp_path / "state").write_text(text)
        with pytest.raises(StepscopeError, match="no state of a watch"):
            load_state(tmp_path / "state")
