from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.step_breakdown import ANALYSIS, PARTS, STEP_BREAKDOWN, divided, step_breakdown
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import enclosing, union
from stepscope.core.schema import SPANS, TRACKS
from stepscope.core.schema import STEPS as TRACE_STEPS
from stepscope.core.trace import Meta, Trace

HOST, OTHER_THREAD, STREAM = 0, 1, 7
TRACKS_3 = TRACKS.conform(pl.DataFrame({"track_id": [HOST, OTHER_THREAD, STREAM], "rank": [3] * 3}))
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
NO_STEPS = TRACE_STEPS.empty()

Row = tuple[int, int, int, str, str]


def spans_of(*rows: Row) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category), sorted here; parents of host spans are worked out."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category")
    frame = pl.DataFrame(sorted(rows, key=lambda r: (r[0], r[1], -r[2])), schema=columns, orient="row")
    ts, dur, track = (frame[c].to_numpy().astype(np.int64) for c in ("ts_ns", "dur_ns", "track_id"))
    parents = pl.Series("parent_id", enclosing(ts, ts + dur, track)).replace(-1, None)
    return SPANS.conform(frame.with_row_index("span_id").with_columns(parents))


def steps_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=("step", "ts_ns", "dur_ns"), orient="row")
    return TRACE_STEPS.conform(frame.with_columns(rank=3, source=pl.lit("annotation")))


STEP_OF_100 = steps_of((7, 0, 100))
SPANS_OF_ALL = spans_of(
    (HOST, 0, 100, "ProfilerStep#7", "step"),
    (HOST, 0, 30, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader"),
    (HOST, 30, 40, "aten::mm", "operator"),
    (HOST, 35, 10, "cudaLaunchKernel", "runtime"),
    (HOST, 40, 4, "cuLaunchKernel", "driver"),
    (HOST, 70, 10, "gloo:all_reduce", "user_range"),
    (HOST, 80, 10, "python", "python"),
    (STREAM, 20, 5, "gemm", "kernel"),
    (STREAM, 24, 5, "Memcpy HtoD", "memcpy"),
    (STREAM, 29, 5, "Memset", "memset"),
    (STREAM, 33, 5, NCCL, "kernel"),
)


def parts(frame: pl.DataFrame, row: int = 0) -> dict[str, int]:
    return {part: frame[f"{part}_ns"][row] for part in PARTS}


def test_each_moment_goes_to_the_first_part_that_is_there() -> None:
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, STEP_OF_100)
    assert parts(got) == {
        "kernel": 5, "memcpy": 4, "memset": 5, "communication": 4 + 10, "runtime": 7, "dataloader": 20,
        "cpu_exec": 70 - 45, "other": 20,
    }  # fmt: skip
    assert got.select("step", "rank", "total_ns", "ts_ns").rows() == [(7, 3, 100, 0)]
    assert got["communication_share_ratio"][0] == 0.14


def test_what_communicates_can_be_said() -> None:
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, STEP_OF_100, communication="gemm")
    assert parts(got)["kernel"] == 5
    assert parts(got)["communication"] == 4 + 10
    with pytest.raises(StepscopeError, match="not a regular expression"):
        step_breakdown(SPANS_OF_ALL, TRACKS_3, STEP_OF_100, communication="(")


def test_by_part_is_the_average_step() -> None:
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, steps_of((7, 0, 50), (8, 50, 50)), by="part")
    assert got["part"].to_list() == list(PARTS)
    assert got["mean_ns"].to_list() == [2.5, 2.0, 2.5, 7.0, 3.5, 10.0, 12.5, 10.0]
    assert got["share_ratio"].sum() == pytest.approx(1)


def test_steps_without_length_have_no_shares() -> None:
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, steps_of((7, 50, 0)))
    assert got.select("total_ns", "kernel_share_ratio").rows() == [(0, None)]
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, steps_of((7, 50, 0)), by="part")
    assert got["share_ratio"].null_count() == len(PARTS)


def test_without_steps_the_recording_is_the_step() -> None:
    got = step_breakdown(SPANS_OF_ALL, TRACKS_3, NO_STEPS)
    assert got.select("step", "rank", "total_ns", "other_ns").rows() == [(None, 3, 100, 20)]


def test_the_host_alone_is_enough() -> None:
    host = SPANS_OF_ALL.filter(pl.col("track_id") == HOST)
    got = parts(step_breakdown(host, TRACKS_3, STEP_OF_100))
    assert (got["kernel"], got["communication"], got["dataloader"], got["cpu_exec"]) == (0, 10, 30, 30)


def test_a_trace_of_neither_host_nor_device_says_what_to_record() -> None:
    frames = SPANS_OF_ALL.filter(pl.col("category") == "python")
    with pytest.raises(MissingTable) as caught:
        step_breakdown(frames, TRACKS_3, NO_STEPS)
    assert caught.value.topic == "host"


@pytest.mark.parametrize("by", ["step", "part"])
def test_the_analysis_returns_what_its_table_declares(by: str) -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": SPANS_OF_ALL, "tracks": TRACKS_3, "steps": STEP_OF_100})
    got = ANALYSIS(trace, by=by)
    assert dict(got.schema) == {name: STEP_BREAKDOWN.dtypes[name] for name in got.columns}


def test_levels_take_what_those_before_them_left() -> None:
    levels = [(name, union(np.array(starts), np.array(ends))) for name, starts, ends in (
        ("a", [0], [4]), ("b", [2, 8], [6, 9]), ("c", [], []),
    )]  # fmt: skip
    got = divided(levels, np.array([0, 5]), np.array([5, 10]))
    assert {name: ns.tolist() for name, ns in got.items()} == {"a": [4, 0], "b": [1, 2], "c": [0, 0], "other": [0, 3]}


KINDS = {
    "kernel": ("gemm", "kernel"), "memcpy": ("copy", "memcpy"), "memset": ("fill", "memset"),
    "communication": (NCCL, "kernel"), "runtime": ("call", "runtime"), "dataloader": ("next", "dataloader"),
    "cpu_exec": ("aten::mm", "operator"), "nothing": ("frame", "python"),
}  # fmt: skip
events = st.tuples(
    st.sampled_from([HOST, OTHER_THREAD]), st.integers(0, 40), st.integers(0, 15), st.sampled_from(sorted(KINDS))
)


@pytest.mark.slow
@given(st.lists(events, min_size=1, max_size=15), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_parts_equal_counting_each_nanosecond_and_add_up_to_the_step(
    some: list[tuple[int, int, int, str]], start: int, first: int, second: int
) -> None:
    device = ("kernel", "memcpy", "memset", "communication")
    some = [*some, (HOST, 0, 1, "cpu_exec")]  # so that there is something in any case
    rows = [(STREAM if kind in device else track, ts, dur, *KINDS[kind]) for track, ts, dur, kind in some]
    spans = spans_of(*rows)
    got = step_breakdown(spans, TRACKS_3, steps_of((1, start, first), (2, start + first, second)))
    at = {kind: {t for _, ts, dur, k in some if k == kind for t in range(ts, ts + dur)} for kind in KINDS}
    for i in range(got.height):
        left = set(range(got["ts_ns"][i], got["ts_ns"][i] + got["total_ns"][i]))
        for part in PARTS:
            mine = left if part == "other" else left & at[part]
            assert got[f"{part}_ns"][i] == len(mine), part
            left -= mine
    assert got.select(pl.sum_horizontal(f"{part}_ns" for part in PARTS)).to_series().equals(got["total_ns"])
