"""Values of spans by their ids, and the innermost span of some kind around another."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from device_traces import HOST, STREAM_7, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.span_lookup import (
    at_or_around,
    callers,
    in_rows,
    nearest_span,
    of_spans,
    own_time,
    parents_of,
    row_numbers,
)
from stepscope.core.intervals import NO_ROW, enclosing
from stepscope.core.schema import FRAMES

SPANS_6 = spans_of(
    (HOST, 0, 5, "cudaLaunchKernel", "runtime"),
    kernel(STREAM_7, 10, 5, "gemm", 0),
    (STREAM_7, 15, 5, "Stream Sync", "sync"),
    (STREAM_7, 20, 5, "Memcpy HtoD (Pageable -> Device)", "memcpy"),
    (STREAM_7, 30, 5, "Memset (Device)", "memset"),
    kernel(STREAM_7, 40, 5, "gemm"),
)


def test_values_of_spans_are_found_in_whole_and_in_filtered_tables() -> None:
    ids = pl.Series([5, None, 3, 0], dtype=pl.UInt32)
    assert of_spans(SPANS_6, ids, "ts_ns").to_list() == [40, None, 20, 0]
    assert of_spans(SPANS_6.filter(pl.col("span_id") != 0), ids, "ts_ns").to_list() == [40, None, 20, None]
    assert of_spans(SPANS_6.head(0), ids, "ts_ns").to_list() == [None] * 4
    assert of_spans(SPANS_6.sort("ts_ns", descending=True).head(3), ids, "ts_ns").to_list() == [40, None, 20, None]


def test_values_are_those_of_the_rows_that_are_asked_for() -> None:
    assert in_rows(SPANS_6["ts_ns"], np.array([5, 0, 5])).to_list() == [40, 0, 40]
    assert in_rows(SPANS_6["name"], np.empty(0, np.int64)).to_list() == []


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.one_of(st.none(), st.integers(0, 9))), st.booleans())
def test_rows_are_found_by_their_ids_in_any_order(known: list[int], ids: list[int | None], is_sorted: bool) -> None:
    have = pl.Series(sorted(known) if is_sorted else known, dtype=pl.UInt32)
    rows = row_numbers(have, pl.Series(ids, dtype=pl.UInt32)).tolist()
    for number, row in zip(ids, rows, strict=True):
        assert row == (have.to_list().index(number) if number in known else NO_ROW)


def test_the_nearest_span_is_that_span_or_one_around_it() -> None:
    spans = spans_of(
        (HOST, 0, 9, "outer", "operator"),
        (HOST, 1, 7, "wanted", "operator"),
        (HOST, 2, 2, "inner", "operator"),
        (HOST, 5, 2, "wanted", "operator"),
        parent_id=[None, 0, 1, 1],
    )
    ids = pl.Series([2, 3, 0, None], dtype=pl.UInt32)
    wanted = nearest_span(spans, ids, (spans["name"] == "wanted").to_numpy())
    assert wanted.to_list() == [1, 3, None, None]
    filtered = spans.filter(pl.col("span_id") > 0)  # the ids are no row numbers then
    near = nearest_span(filtered, ids, (filtered["name"] == "wanted").to_numpy())
    assert near.to_list() == [1, 3, None, None]


#: A function opens a range, returns, and the range goes on; later a kernel is launched in the range.
OPENED = spans_of(
    (HOST, 0, 100, "main", "python"),
    (HOST, 10, 10, "__enter__", "python"),
    (HOST, 12, 5, "_record_function_enter", "python"),
    (HOST, 15, 70, "my range", "user_range"),
    (HOST, 16, 1, "still within __enter__", "python"),
    (HOST, 30, 20, "aten::mm", "operator"),
    (HOST, 32, 5, "cudaLaunchKernel", "runtime"),
    parent_id=[None, 0, 1, 2, 3, 3, 5],
)


def test_own_time_is_what_wanted_spans_within_do_not_cover() -> None:
    wanted = OPENED["category"].is_in(["python", "runtime"]).to_numpy()
    assert own_time(OPENED, wanted).tolist() == [100 - 10 - 5, 10 - 5, 5 - 1, 1, 5]


def test_functions_that_have_returned_are_not_callers() -> None:
    assert of_spans(OPENED, pl.Series(callers(OPENED, 6, FRAMES.empty()), dtype=pl.UInt32), "name").to_list() == [
        "aten::mm", "my range", "main",
    ]  # fmt: skip
    assert callers(OPENED, 4, FRAMES.empty()) == [3, 2, 1, 0]  # they had not returned yet
    assert callers(OPENED, 0, FRAMES.empty()) == []


def test_a_function_that_has_returned_is_not_the_nearest_one() -> None:
    is_python = (OPENED["category"] == "python").to_numpy()
    assert at_or_around(OPENED, is_python).tolist() == [0, 1, 2, 2, 4, 0, 0]
    assert at_or_around(OPENED, is_python, itself=False).tolist() == [-1, 0, 1, 2, 2, 0, 0]
    ids = pl.Series([6, 4, 3], dtype=pl.UInt32)
    assert nearest_span(OPENED, ids, is_python).to_list() == [0, 4, 2]


def test_parents_are_rows():
    assert parents_of(OPENED).tolist() == [-1, 0, 1, 2, 3, 3, 5]


@pytest.mark.parametrize("categories", [("python",), ("operator", "runtime"), ("python", "user_range", "operator")])
def test_own_time_of_many_threads_is_that_of_each(categories: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    n = OPENED.height
    shifted = OPENED.with_columns(pl.col("parent_id") + n, pl.col("span_id") + n, track_id=pl.lit(9, pl.UInt32))
    both = pl.concat([OPENED, shifted])
    wanted = both["category"].is_in(categories).to_numpy()
    monkeypatch.setattr("stepscope.core.intervals.stretches.__defaults__", (1,))
    assert own_time(both, wanted).tolist() == own_time(OPENED, wanted[:n]).tolist() * 2


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 12), st.booleans()), max_size=25))
def test_what_is_around_a_span_is_what_was_open_as_it_began(made: list[tuple[int, int, int, bool]]) -> None:
    rows = sorted(made, key=lambda r: (r[0], r[1], -r[2]))
    track, start, length = (np.array([r[i] for r in rows], np.int64) for i in range(3))
    parents = enclosing(start, start + length, track)
    spans = spans_of(
        *((r[0], r[1], r[2], "x", "python") for r in rows), parent_id=[None if p < 0 else p for p in parents.tolist()]
    )
    wanted = np.array([r[3] for r in rows], np.bool_)
    for i, (thread, at, _, _) in enumerate(rows):
        open_ = [j for j in range(i) if rows[j][0] == thread and rows[j][1] + rows[j][2] > at]
        assert callers(spans, i, FRAMES.empty()) == open_[::-1]
        around = next((j for j in open_[::-1] if wanted[j]), -1)
        assert at_or_around(spans, wanted, itself=False)[i] == around
        assert at_or_around(spans, wanted)[i] == (i if wanted[i] else around)
        assert at_or_around(spans, wanted, np.array([i]), itself=False).tolist() == [around]
        ids = pl.Series([i], dtype=pl.UInt32)
        near = nearest_span(spans, ids, wanted).to_list()
        assert near == [None if not wanted[i] and around < 0 else i if wanted[i] else around]
