from __future__ import annotations

import polars as pl
import pytest

from stepscope.reports._phrases import counted, ranges, shares, sum_of


def test_counts_agree_with_their_noun() -> None:
    assert counted(1, "kernel") == "1 kernel"
    assert counted(1212.4, "kernel") == "1,212 kernels"
    assert counted(2.54, "gap") == "2.5 gaps"
    assert counted(2, "batch", "batches") == "2 batches"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0"), ([3, 1, 2], "1–3"), ([0, 1, 4], "0–1, 4"), ([1, 3, 5, 7, 9], "1 … 9"), (range(8), "0–7")],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_only_parts_worth_naming_are_named() -> None:
    assert shares([("a", 0.62), ("b", 0.3), ("c", 0.04)]) == "a 62 %, b 30 %"
    assert shares([("a", 0.97), ("b", 0.03)]) == "a"
    assert shares([]) == ""


def test_the_sum_of_nothing_is_nothing() -> None:
    assert sum_of(pl.Series([], dtype=pl.Int64)) == 0
    assert sum_of(pl.Series([1, None, 2])) == 3
