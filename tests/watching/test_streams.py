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


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("test", "stall", "n"), "x"),
        (("test", "stall", "n"), 50),  # blocks of which no value is known
        (("test", "slow", "since"), None),
        (("test", "creep", "position"), 10**9),
        (("test", "stall", "chunk_position"), -1),
        (("test", "stall", "top"), [1.0, 2.0]),
        (("test", "stall", "held"), [float("nan")]),
        (("test", "slow", "early"), 1e300),
        (("test", "errors"), [0.0] * 500),
        (("test", "usual"), float("inf")),
        (("test", "n_usual"), 2**40),
        (("model", "recent"), [1e300]),
        (("model", "moments"), [float("nan")] * 32),
        (("model", "information"), [[0.0] * 32] * 31),
        (("model", "errors"), [10**400]),
        (("epoch",), -1),
        (("n",), 2**60),
        (("n_cycles",), [1]),
    ],
)
def test_a_state_with_numbers_that_no_watch_learns_is_refused(tmp_path, place, value):
    new = Cycles("process 1", 7, 100, (0, *range(1000, 1099)), (1,) * 100)
    save_state(tmp_path / "state", {"process 1": follow(Stream(), new, 1e-6)[0]})
    document = json.loads((tmp_path / "state").read_text())
    part = document[SCHEMA]["process 1"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "state").write_text(json.dumps(document))
    with pytest.raises(StepscopeError, match="no state of a watch"):
        load_state(tmp_path / "state")
