from __future__ import annotations

import numpy as np
import pytest
from windows_of import unpacked

from stepscope.web.timeline.wire import pack


def test_what_is_packed_comes_out_again_aligned_to_eight_bytes():
    arrays = {"a": np.array([1, 2, 3], "u2"), "b": np.array([0.5]), "none": np.empty(0, "u1")}
    data = pack({"name": "süß <b>"}, arrays)
    header, found = unpacked(data)
    assert header["name"] == "süß <b>"
    assert found == {"a": [1, 2, 3], "b": [0.5], "none": []}
    assert (4 + int.from_bytes(data[:4], "little")) % 8 == 0
    assert all(one["offset"] % 8 == 0 for one in header["arrays"])


def test_other_types_are_refused():
    with pytest.raises(KeyError):
        pack({}, {"a": np.array([1], "i8")})


def test_lone_surrogates_do_not_break_the_header():
    header, _ = unpacked(pack({"name": "a\ud800b"}, {}))
    assert header["name"] == "a?b"
