from __future__ import annotations

import polars as pl
import pytest
from jobs import part

from stepscope.analyses.ranks.collectives import algorithm_bandwidth, bus_bandwidth, collectives
from stepscope.analyses.ranks.groups import Comm

#: Rank 1's clock is 1,000 ahead. It comes 30 late to the first collective, rank 0 comes 10 late to the second.
PARTS = [
    part(0, (0, 50), (90, 100), step=[1, 2], in_bytes=[64, 32]),
    part(1, (1030, 1050), (1080, 1100), step=[1, 2], in_bytes=[64, 32]),
]


def test_each_collective_has_its_size_transfer_waits_and_who_came_last():
    rows = collectives(PARTS).to_dicts()
    assert [r["transfer_ns"] for r in rows] == [20, 10]
    assert [(r["wait_ns"], r["max_wait_ns"], r["last_rank"]) for r in rows] == [(30, 30, 1), (10, 10, 0)]
    assert [(r["size_bytes"], r["step"], r["kind"], r["parallelism"]) for r in rows] == [
        (64, 1, "allreduce", "DP"), (32, 2, "allreduce", "DP"),
    ]  # fmt: skip
    assert rows[0]["algorithm_bytes_per_s"] == rows[0]["bus_bytes_per_s"] == 3.2e9


def test_times_are_true_whatever_the_clocks():
    rows = collectives(PARTS).to_dicts()
    assert [(r["start_ns"], r["end_ns"]) for r in rows] == [(0, 50), (80, 100)]


def test_by_rank_waits_and_how_often_it_came_last():
    rows = collectives(PARTS, by="rank").to_dicts()
    assert [(r["rank"], r["exchanges"], r["wait_ns"], r["came_last"], r["total_ns"]) for r in rows] == [
        (0, 2, 30, 1, 60), (1, 2, 10, 1, 40),
    ]  # fmt: skip
    assert [r["size_bytes"] for r in rows] == [96, 96]


def test_by_group_sums_and_the_bandwidth_of_the_whole():
    (row,) = collectives(PARTS, by="group").to_dicts()
    assert (row["exchanges"], row["unmatched"], row["size_bytes"], row["transfer_ns"]) == (2, 0, 96, 30)
    assert row["bus_bytes_per_s"] == pytest.approx(3.2e9)


def test_by_call_each_rank_has_a_row():
    rows = collectives(PARTS, by="call").select("exchange", "rank", "wait_ns", "status").rows()
    assert rows == [(0, 0, 30, "matched"), (0, 1, 0, "matched"), (1, 0, 0, "matched"), (1, 1, 10, "matched")]


def test_who_lacks_a_collective_is_named():
    three = Comm("0", None, 3, (0, 1, 2))
    parts = [part(r, *[(0, 5), (10, 15)][: 2 - (r == 2)], comms=(three,), seq=[1, 2][: 2 - (r == 2)]) for r in range(3)]
    rows = collectives(parts).to_dicts()
    assert [(r["status"], r["missing"], r["n_ranks"]) for r in rows] == [
        ("matched", None, 3), ("missing on a rank", "2", 2),
    ]  # fmt: skip
    assert collectives(parts, by="group")["unmatched"].to_list() == [1]


def test_of_one_rank_nothing_is_known_of_waits():
    (row,) = collectives([part(0, (0, 50))]).to_dicts()
    assert (row["transfer_ns"], row["wait_ns"], row["last_rank"], row["status"]) == (None, None, None, "one rank only")
    assert row["bus_bytes_per_s"] is None
    (unshared,) = collectives([part(0, (0, 50))], by="rank").to_dicts()
    assert (unshared["wait_ns"], unshared["came_last"]) == (None, 0)


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


def test_by_step_who_is_late_by_its_own_doing():
    parts = [
        part(0, (0, 50), (60, 100), (110, 150), step=[1, 2, 2]),
        part(1, (0, 50), (90, 100), (110, 150), step=[1, 2, 2]),
        part(2, (0, 50), (60, 100), (110, 150), step=[1, 2, 2]),
        part(3, (0, 50), (60, 100), (110, 150), step=[1, 2, 2]),
    ]
    rows = collectives(parts, by="step").filter(step=2).select("rank", "late_ns", "came_last", "exchanges").rows()
    assert rows == [(0, 0, 1, 2), (1, 30, 2, 2), (2, 0, 1, 2), (3, 0, 1, 2)]
    late = collectives(parts, by="call").filter(rank=1).select("step", "late_ns", "ts_ns").rows()
    assert late[1:] == [(2, 30, 90), (2, 0, 110)]
