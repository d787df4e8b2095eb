from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.program import call_stacks as module
from stepscope.analyses.program.call_stacks import call_stacks
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.intervals import enclosing
from stepscope.core.schema import SPANS


def spans_of(*rows: tuple[int, int, int, str, str], **links: list[int | None]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category), sorted here; parents are worked out."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category")
    frame = pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        pl.Series(name, values, dtype=pl.UInt32) for name, values in links.items()
    )
    frame = frame.sort("track_id", "ts_ns", -pl.col("dur_ns"), maintain_order=True).with_row_index("span_id")
    ts, dur, track = (frame[c].to_numpy().astype(np.int64) for c in ("ts_ns", "dur_ns", "track_id"))
    parents = pl.Series("parent_id", enclosing(ts, ts + dur, track)).replace(-1, None)
    on_host = ~pl.col("category").is_in(["kernel", "memcpy"])
    return SPANS.conform(frame.with_columns(parents).with_columns(pl.when(on_host).then("parent_id")))


def times(frame: pl.DataFrame) -> dict[str, int]:
    return dict(frame.select("stack", "self_ns").rows())


TRAINING = spans_of(
    (0, 0, 100, "train.py(3): step", "python"),
    (0, 10, 60, "aten::addmm", "operator"),
    (0, 20, 15, "cudaLaunchKernel", "runtime"),
    (0, 80, 10, "aten::view", "operator"),
    (7, 40, 500, "gemm", "kernel"),
    (7, 600, 30, "orphan", "kernel"),
    launch_id=[None, None, None, None, 2, None],
    op_id=[None, None, 1, None, 1, None],
)


def test_host_time_is_that_of_each_call_without_those_inside_it() -> None:
    got = call_stacks(TRAINING, of="host")
    assert times(got) == {
        "train.py(3): step;aten::addmm": 45,
        "train.py(3): step": 30,
        "train.py(3): step;aten::addmm;cudaLaunchKernel": 15,
        "train.py(3): step;aten::view": 10,
    }
    assert got["share_ratio"].sum() == pytest.approx(1)


def test_device_work_lies_below_the_calls_that_queued_it() -> None:
    assert times(call_stacks(TRAINING)) == {"train.py(3): step;aten::addmm;gemm": 500, "orphan": 30}


def test_inverted_the_innermost_call_comes_first() -> None:
    assert times(call_stacks(TRAINING, inverted=True)) == {"gemm;aten::addmm;train.py(3): step": 500, "orphan": 30}


def test_a_stretch_of_time_cuts_calls_and_work_at_its_bounds() -> None:
    got = call_stacks(TRAINING, of="host", begin_ns=25, end_ns=85)
    assert times(got) == {
        "train.py(3): step;aten::addmm": 35,
        "train.py(3): step": 10,
        "train.py(3): step;aten::addmm;cudaLaunchKernel": 10,
        "train.py(3): step;aten::view": 5,
    }
    assert times(call_stacks(TRAINING, begin_ns=500, end_ns=610)) == {
        "train.py(3): step;aten::addmm;gemm": 40,
        "orphan": 10,
    }


def test_a_range_that_outlasts_the_function_that_opened_it_belongs_to_the_caller_of_that_function() -> None:
    spans = spans_of(
        (0, 0, 100, "train", "python"),
        (0, 10, 5, "enter", "python"),
        (0, 12, 80, "forward", "user_range"),
        (0, 20, 60, "aten::mm", "operator"),
    )
    assert times(call_stacks(spans)) == {
        "train": 100 - 5 - 80 + 3,
        "train;enter": 5,
        "train;forward": 20,
        "train;forward;aten::mm": 60,
    }


def test_steps_are_one_and_can_be_chosen() -> None:
    spans = spans_of(
        (0, 0, 100, "ProfilerStep#1", "step"),
        (0, 10, 20, "f", "operator"),
        (0, 100, 100, "ProfilerStep#2", "step"),
        (0, 110, 30, "f", "operator"),
    ).with_columns(step=pl.Series([1, 1, 2, 2], dtype=pl.Int32))
    assert times(call_stacks(spans)) == {"step": 150, "step;f": 50}
    assert times(call_stacks(spans, step=2)) == {"step": 70, "step;f": 30}
    with pytest.raises(UnknownName, match="3"):
        call_stacks(spans, step=3)


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(MissingTable, match="device"):
        call_stacks(TRAINING.filter(pl.col("category") != "kernel"), of="device")
    with pytest.raises(StepscopeError, match="empty"):
        call_stacks(TRAINING, begin_ns=90, end_ns=10)
    with pytest.raises(StepscopeError, match="empty"):
        call_stacks(TRAINING, begin_ns=10**30)
    assert call_stacks(TRAINING, begin_ns=-(10**30), end_ns=10**30).equals(call_stacks(TRAINING))


def test_the_deepest_calls_count_for_those_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEEPEST", 2)
    spans = spans_of(*((0, at, 100 - 2 * at, f"f{at}", "python") for at in range(5)))
    assert times(call_stacks(spans)) == {"f0": 2, "f0;f1": 98}


def test_after_the_longest_stacks_comes_one_row_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_STACKS", 2)
    spans = spans_of(*((0, 100 * at, 10 + at, f"f{at}", "operator") for at in range(4)))
    assert call_stacks(spans).select("stack", "calls", "self_ns").rows() == [
        ("f3", 1, 13), ("f2", 1, 12), ("(other stacks)", 2, 21),
    ]  # fmt: skip


def brute_force(spans: pl.DataFrame) -> dict[str, int]:
    """The calls that are open at each instant of each thread, from the one that began first."""
    sums: dict[str, int] = {}
    rows = spans.select("track_id", "ts_ns", "dur_ns", "name").rows()
    for track in {row[0] for row in rows}:
        for at in range(200):
            stack = [name for t, ts, dur, name in rows if t == track and ts <= at < ts + dur]
            if stack:
                sums[";".join(stack)] = sums.get(";".join(stack), 0) + 1
    return sums


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90), st.integers(1, 60)), max_size=12))
def test_each_instant_counts_for_the_calls_that_are_open(rows: list[tuple[int, int, int]]) -> None:
    nested: list[tuple[int, int, int]] = []
    for track, start, length in sorted(rows, key=lambda row: (row[0], row[1], -row[2])):
        crosses = any(t == track and s < start < s + n < start + length for t, s, n in nested)
        if not crosses:
            nested.append((track, start, length))
    spans = spans_of(*((track, start, length, f"f{start % 7}", "operator") for track, start, length in nested))
    if nested:
        assert times(call_stacks(spans)) == brute_force(spans)
