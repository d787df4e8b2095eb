from __future__ import annotations

import pytest
from jobs import part

from stepscope.analyses.ranks.message_sizes import message_sizes
from stepscope.core.errors import MissingTable


def test_sizes_are_counted_in_bins_that_double():
    sizes = [0, 1, 2, 3, 4, 1000, None]
    rows = [(100 * i, 100 * i + 10) for i in range(7)]
    parts = [part(r, *rows, in_bytes=sizes, out_bytes=sizes) for r in (0, 1)]
    table = message_sizes(parts)
    assert table.select("from_bytes", "below_bytes", "exchanges", "size_bytes").rows() == [
        (0, 1, 1, 0), (1, 2, 1, 1), (2, 4, 2, 5), (4, 8, 1, 4), (512, 1024, 1, 1000), (None, None, 1, None),
    ]  # fmt: skip
    assert table["exchanges_ratio"].sum() == pytest.approx(1)
    assert table["bus_bytes_per_s"].to_list()[4] == pytest.approx(1000 / 10e-9)
    assert table["mean_transfer_ns"].to_list() == [10.0] * 6


def test_kinds_are_apart():
    parts = [part(r, (0, 10), (20, 30, "allgather")) for r in (0, 1)]
    assert sorted(message_sizes(parts)["kind"].to_list()) == ["allgather", "allreduce"]


def test_without_sizes_it_says_what_to_record():
    with pytest.raises(MissingTable, match="sizes") as caught:
        message_sizes([part(0, (0, 10), in_bytes=[None], out_bytes=[None])])
    assert "shapes of operators" in caught.value.hint
