from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.steps.steps import ANALYSIS, STEPS, host_time, steps
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import enclosing
from stepscope.core.schema import SPANS, TRACKS
from stepscope.core.schema import STEPS as TRACE_STEPS
from stepscope.core.trace import Meta, Trace

HOST_TRACKS = TRACKS.conform(pl.DataFrame({"track_id": [0, 1, 2], "rank": [3, 3, 3]}))


def spans_of(*rows: tuple[int, int, int, str, str, int | None]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category, step), sorted here; host parents are worked out."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category", "step")
    frame = pl.DataFrame(sorted(rows, key=lambda r: (r[0], r[1], -r[2])), schema=columns, orient="row")
    ts, dur, track = (frame[c].to_numpy().astype(np.int64) for c in ("ts_ns", "dur_ns", "track_id"))
    parents = pl.Series("parent_id", enclosing(ts, ts + dur, track)).replace(-1, None)
    return SPANS.conform(frame.with_row_index("span_id").with_columns(parents))


def steps_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Steps of rank 3 from (step, ts_ns, dur_ns)."""
    frame = pl.DataFrame(rows, schema=("step", "ts_ns", "dur_ns"), orient="row")
    return TRACE_STEPS.conform(frame.with_columns(rank=3, source=pl.lit("annotation")))


SPANS_OF_TWO = spans_of(
    (0, 0, 90, "ProfilerStep#7", "step", 7),
    (0, 5, 20, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader", 7),
    (0, 10, 10, "aten::stack", "operator", 7),
    (0, 30, 30, "aten::mm", "operator", 7),
    (0, 40, 10, "cudaLaunchKernel", "runtime", 7),
    (0, 100, 60, "ProfilerStep#8", "step", 8),
    (0, 110, 10, "cudaLaunchKernel", "runtime", 8),
    (0, 125, 10, "cudaStreamSynchronize", "runtime", 8),
    (2, 50, 70, "gemm", "kernel", 7),
    (2, 130, 10, "gemm", "kernel", 8),
)


def test_a_step_lasts_until_the_next_one_starts_on_the_device_if_that_lags_behind() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((7, 0, 90), (8, 100, 60)))
    assert got.select("step", "rank", "ts_ns", "window_ns", "host_window_ns", "host_ns", "late_ns").rows() == [
        (7, 3, 0, 120, 100, 90, 30), (8, 3, 120, 40, 60, 60, -20),
    ]  # fmt: skip


def test_a_step_ends_itself_where_the_next_number_is_missing() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((7, 0, 90), (9, 100, 60)))
    assert got["window_ns"].to_list() == [120, 40]
    assert got["host_window_ns"].to_list() == [90, 60]


def test_device_time_counts_where_it_ran_and_kernels_count_where_they_were_queued() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((7, 0, 90), (8, 100, 60)))
    assert got.select("computation_ns", "idle_ns", "n_kernels", "n_launches").rows() == [(70, 50, 1, 1), (10, 30, 1, 1)]
    assert got["busy_ratio"].to_list() == [70 / 120, 10 / 40]


def test_host_time_divides_into_loading_operators_and_the_rest() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((7, 0, 90), (8, 100, 60)))
    assert got.select("dataloader_ns", "operator_ns", "other_host_ns").row(0) == (20, 30, 50)


def test_without_device_work_the_host_columns_stand_alone() -> None:
    spans = SPANS_OF_TWO.filter(pl.col("category") != "kernel")
    got = steps(spans, HOST_TRACKS, steps_of((7, 0, 90), (8, 100, 60)))
    assert got["operator_ns"].to_list() == [30, 0]
    for column in ("computation_ns", "idle_ns", "busy_ratio", "n_kernels"):
        assert got[column].null_count() == 2, column


def test_a_slow_step_stands_out_against_the_median() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((1, 0, 10), (2, 10, 10), (3, 20, 40)))
    assert got["of_median_ratio"].to_list() == [1.0, 1.0, 4.0]


def test_no_steps_says_how_to_get_them() -> None:
    with pytest.raises(MissingTable) as caught:
        ANALYSIS(Trace(Meta("x", "kineto"), {"spans": SPANS_OF_TWO, "tracks": HOST_TRACKS}))
    assert "profiler.step()" in caught.value.hint


def test_the_result_has_the_declared_columns() -> None:
    got = steps(SPANS_OF_TWO, HOST_TRACKS, steps_of((7, 0, 90)))
    assert dict(got.schema) == dict(STEPS.dtypes)


#: Host spans: track, start, length, category; a window: start and length.
HOST_WORK = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from(["operator", "dataloader", "python"]),
    ),
    max_size=12,
)
WINDOW = (st.integers(0, 30), st.integers(0, 20))


@pytest.mark.slow
@given(HOST_WORK, *WINDOW)
def test_without_a_device_collectives_are_apart(host: list[tuple[int, int, int, str]], low: int, length: int) -> None:
    """What is called gloo is no operator, nor is an operator of its thread meanwhile: it counts where none runs."""
    kinds = {"operator": "aten::mm", "dataloader": "next", "python": "gloo:all_reduce"}
    spans = spans_of(
        *((track, ts, dur, kinds[c], "user_range" if c == "python" else c, None) for track, ts, dur, c in host)
    )
    window = set(range(low, low + length))
    loaded, worked, called = (
        {(track, t) for track, ts, dur, c in host if c == category for t in range(ts, ts + dur)}
        for category in ("dataloader", "operator", "python")
    )
    loaded, ran, talked = (window & {t for _, t in moments} for moments in (loaded, worked - called, called))
    got = host_time(spans, np.array([low]), np.array([low + length]), collectives_apart=True)
    assert got["operator_ns"].to_list() == [len(ran - loaded)]
    assert got["exposed_communication_ns"].to_list() == [len(talked - ran - loaded)]
    assert sum(lengths[0] for lengths in got.values()) == length


@given(HOST_WORK, *WINDOW)
def test_host_time_equals_counting_each_nanosecond(
    host: list[tuple[int, int, int, str]], low: int, length: int
) -> None:
    spans = spans_of(*((track, ts, dur, "x", category, None) for track, ts, dur, category in host))
    window = set(range(low, low + length))

    def at(category: str) -> set[int]:
        return window & {t for _, ts, dur, c in host if c == category for t in range(ts, ts + dur)}

    got = host_time(spans, np.array([low]), np.array([low + length]))
    assert got["dataloader_ns"].to_list() == [len(at("dataloader"))]
    assert got["operator_ns"].to_list() == [len(at("operator") - at("dataloader"))]
    assert got["other_host_ns"].to_list() == [len(window - at("operator") - at("dataloader"))]
