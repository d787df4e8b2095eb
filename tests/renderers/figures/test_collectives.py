from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.ranks.collectives import COLLECTIVES_OF_RANKS
from stepscope.renderers import figures


def calls(*rows):
    """Rows of rank, start, end, wait; all of one collective."""
    frame = pl.DataFrame(rows, schema=["rank", "start_ns", "end_ns", "wait_ns"], orient="row")
    frame = frame.with_columns(
        total_ns=pl.col("end_ns") - pl.col("start_ns"), ts_ns="start_ns", kind=pl.lit("allreduce")
    )
    frame = frame.with_columns(transfer_ns=pl.col("total_ns") - pl.col("wait_ns"), exchange=pl.lit(0), step=pl.lit(5))
    full = COLLECTIVES_OF_RANKS.conform(frame)
    return full.select(name for name in full.columns if name in frame.columns)


def test_ranks_have_lanes_with_waits_before_transfers():
    frame = calls((0, 0, 5_000_000, 3_000_000), (1, 3_000_000, 5_000_000, 0))
    waits, transfers = figures.drawn("collectives", frame, lambda row: f"/{row['rank']}")["data"]
    assert (waits["y"], waits["base"], waits["x"]) == (["rank 0"], [0.0], [3.0])
    assert (transfers["y"], transfers["base"], transfers["x"]) == (["rank 0", "rank 1"], [3.0, 3.0], [2.0, 2.0])
    assert transfers["customdata"] == ["/0", "/1"]
    assert transfers["text"][1] == "rank 1, allreduce 0, step 5: transfers 2 ms"


def test_of_very_many_calls_those_that_no_eye_could_tell_apart_are_drawn_as_one():
    frame = calls(*((0, i * 100, i * 100 + 60, 10) for i in range(10_000)), (1, 0, 1_000_000, 10))
    _, transfers = figures.drawn("collectives", frame)["data"]
    assert len(transfers["x"]) == 2
    assert transfers["text"][0].startswith("rank 0, 10,000 collectives")


@pytest.mark.parametrize(
    "drawn", [{"ts_ns": [1], "start_ns": [0], "end_ns": [9]}, {"late_ns": [None]}, {"came_last": [0]}]
)
def test_of_one_rank_nothing_is_known_of_waits(drawn):
    frame = pl.DataFrame({"rank": [0], "step": [1], "transfer_ns": [None], "wait_ns": [None], "total_ns": [9], **drawn})
    assert figures.drawn("collectives", COLLECTIVES_OF_RANKS.conform(frame).select(frame.columns)) is None


def lateness(*rows):
    frame = pl.DataFrame(rows, schema=["step", "rank", "late_ns"], orient="row")
    return COLLECTIVES_OF_RANKS.conform(frame).select("step", "rank", "late_ns", "wait_ns", "transfer_ns")


def test_who_is_late_is_a_map_of_ranks_and_steps():
    frame = lateness((1, 0, 2_000_000), (1, 1, -1_000_000), (2, 1, 500_000))
    (cells,) = figures.drawn("collectives", frame, lambda row: f"/{row['step']}/{row['rank']}")["data"]
    assert (cells["x"], cells["y"]) == (["1", "2"], ["rank 0", "rank 1"])
    assert cells["z"] == [[2.0, None], [-1.0, 0.5]]
    assert cells["customdata"] == [["/1/0", None], ["/1/1", "/2/1"]]


def test_of_a_single_step_a_bar_for_each_rank():
    (bars,) = figures.drawn("collectives", lateness((None, 0, 2_000_000), (None, 1, 0)))["data"]
    assert (bars["type"], bars["y"], bars["x"]) == ("bar", ["rank 0", "rank 1"], [2.0, 0.0])


def test_the_label_of_a_rank_that_came_early_has_room_left_of_its_bar():
    early = figures.drawn("collectives", lateness((1, 0, 200_000_000), (1, 1, -237_000)))["layout"]["xaxis"]
    low, high = early["range"]
    assert low < -20
    assert high > 200
    assert "range" not in figures.drawn("collectives", lateness((1, 0, 200_000_000), (1, 1, 0)))["layout"]["xaxis"]


def test_by_rank_waits_and_transfers_add_up():
    frame = pl.DataFrame(
        {"rank": [0, 1], "wait_ns": [4_000_000, 0], "transfer_ns": [1_000_000] * 2, "came_last": [0, 1]}
    )
    waits, transfers = figures.drawn("collectives", frame)["data"]
    assert (waits["x"], transfers["x"]) == ([4.0, 0.0], [1.0, 1.0])


def test_sizes_against_bandwidth():
    frame = pl.DataFrame({
        "exchange": [0, 1, 2], "kind": ["allreduce", "allreduce", "send"], "group_size": [8, 8, 2],
        "step": [1, None, 1], "size_bytes": [1 << 20, 1 << 25, None], "transfer_ns": [1_000_000, 9, 9],
        "wait_ns": [0, 0, 0],
        "bus_bytes_per_s": [1e9, 2e11, 1e9],
    })  # fmt: skip
    drawn = figures.drawn("collectives", frame)
    (points,) = drawn["data"]
    assert (points["name"], points["x"], points["y"]) == ("allreduce, 8 ranks", [1 << 20, 1 << 25], [1e9, 2e11])
    assert points["text"][0] == "allreduce 0, step 1: 1 MiB in 1 ms, 1 GB/s; ranks waited 0 in all"
    assert drawn["layout"]["xaxis"]["ticktext"] == ["1 MiB", "32 MiB"]
