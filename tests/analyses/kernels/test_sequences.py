from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.kernels.sequences import SEQUENCES, sequences
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import SPANS


def spans_of(*rows: tuple[int, int, int, str, str, int | None]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category, op_id), already sorted."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category", "op_id")
    return SPANS.conform(pl.DataFrame(rows, schema=columns, orient="row").with_row_index("span_id"))


def softmax(
    track: int, at: int, first: int, kernels: tuple[str, ...]
) -> list[tuple[int, int, int, str, str, int | None]]:
    """A matching call at `at` (row `first`) with an inner one; its kernels, the last of the outer call."""
    outer = [(track, at, 50, "aten::softmax", "operator", None), (track, at + 5, 20, "aten::exp", "operator", None)]
    owners = [first + 1] * (len(kernels) - 1) + [first]
    work = [(9, at + 10 * k, 7, name, "kernel", op) for k, (name, op) in enumerate(zip(kernels, owners, strict=True))]
    return outer + work


def joined(*calls: tuple[int, tuple[str, ...]]) -> pl.DataFrame:
    host, work = [], []
    for k, (at, kernels) in enumerate(calls):
        rows = softmax(0, at, 2 * k, kernels)
        host, work = host + rows[:2], work + rows[2:]
    return spans_of(*host, *work)


def test_calls_that_launch_the_same_kernels_in_the_same_order_are_one_pattern() -> None:
    got = sequences(joined((0, ("max", "exp", "div")), (100, ("max", "div", "exp")), (200, ("max", "exp", "div"))))
    assert got.rows() == [
        ("aten::softmax", "max | exp | div", 2, 3, 42, 100),
        ("aten::softmax", "max | div | exp", 1, 3, 21, 50),
    ]
    assert dict(got.schema) == dict(SEQUENCES.dtypes)


def test_order_is_that_of_starting_on_the_device() -> None:
    spans = spans_of(
        (0, 0, 50, "aten::f", "operator", None),
        (0, 1, 5, "aten::g", "operator", None),
        (8, 90, 1, "late", "kernel", 0),
        (9, 10, 1, "early", "kernel", 1),
        (9, 20, 1, "middle", "memset", 0),
    )
    assert sequences(spans)["pattern"].to_list() == ["early | middle | late"]


def test_only_the_outermost_match_counts_and_only_with_enough_kernels() -> None:
    spans = joined((0, ("max", "exp", "div")), (100, ("max", "div")))
    assert sequences(spans)["name"].to_list() == ["aten::softmax"]
    assert sequences(spans, operator="exp", min_kernels=1).rows() == [("aten::exp", "max | exp", 1, 2, 14, 20),
                                                                      ("aten::exp", "max", 1, 1, 7, 20)]  # fmt: skip


def test_a_match_does_not_take_the_kernels_of_other_threads_or_of_calls_after_it() -> None:
    spans = spans_of(
        (0, 0, 10, "aten::f", "operator", None),
        (0, 20, 10, "other", "operator", None),
        (1, 5, 3, "other", "operator", None),
        (9, 0, 1, "k", "kernel", 0),
        (9, 1, 1, "k", "kernel", 1),
        (9, 2, 1, "k", "kernel", 2),
    )
    assert sequences(spans, min_kernels=1)["n_kernels"].to_list() == [1]


def test_nothing_found_says_what_was_looked_for() -> None:
    spans = joined((0, ("max", "exp", "div")))
    with pytest.raises(MissingTable, match=r"'nope'.*at least 3"):
        sequences(spans, operator="nope")
    with pytest.raises(MissingTable, match="at least 4"):
        sequences(spans, min_kernels=4)
    with pytest.raises(StepscopeError, match="min_kernels"):
        sequences(spans, min_kernels=0)
