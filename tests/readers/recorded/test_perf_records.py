from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.recorded.perf_records import record_starts, words_at


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(0, 40))
def test_records_are_found_one_after_the_other(sizes, cut):
    content = b"".join(struct.pack("<IHH", i, 0, 8 * n) + b"\xff" * (8 * n - 8) for i, n in enumerate(sizes))
    cut = min(cut, len(content))
    content = content[: len(content) - cut]
    expected, at = [], 0
    for n in sizes:
        if at + 8 * n <= len(content):
            expected.append(at)
        at += 8 * n
    starts = record_starts(content)
    assert starts.tolist() == expected
    assert words_at(content, starts).tolist() == list(range(len(expected)))


def test_a_record_without_a_size_ends_the_walk():
    content = struct.pack("<IHH", 1, 0, 8) + struct.pack("<IHH", 2, 0, 0) + struct.pack("<IHH", 3, 0, 8)
    assert record_starts(content).tolist() == [0]
    assert record_starts(b"").tolist() == []
    assert words_at(content, np.array([0, 8])).tolist() == [1, 2]
