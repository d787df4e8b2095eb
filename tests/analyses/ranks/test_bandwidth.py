from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.ranks.bandwidth import algorithm_bandwidth, bus_bandwidth


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("allreduce", 1.5), ("reduce_scatter", 0.75), ("allgather", 0.75), ("alltoall", 0.75), ("gather", 0.75),
     ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("send", 1), ("recv", 1), ("send_recv", 1), ("other", None)],
)  # fmt: skip
def test_the_bus_carries_what_each_of_n_ranks_sends(kind, factor):
    frame = pl.DataFrame({"kind": [kind], "size_bytes": [1000], "transfer_ns": [500], "group_size": [4]})
    result = frame.select(a=algorithm_bandwidth(), b=bus_bandwidth()).row(0)
    assert result == (2e9, None if factor is None else 2e9 * factor)


@pytest.mark.parametrize(("size", "time", "n"), [(None, 5, 4), (8, None, 4), (8, 0, 4), (0, 5, 4), (8, 5, 1)])
def test_what_is_not_known_or_no_collective_has_no_bandwidth(size, time, n):
    frame = pl.DataFrame(
        {"kind": ["allreduce"], "size_bytes": [size], "transfer_ns": [time], "group_size": [n]},
        schema_overrides={"size_bytes": pl.Int64, "transfer_ns": pl.Int64},
    )
    assert frame.select(bus_bandwidth()).item() is None
