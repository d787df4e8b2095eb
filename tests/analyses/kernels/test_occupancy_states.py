from __future__ import annotations

import polars as pl
import pytest
from kernel_launches_of import GEMM, percents, sizes_of, spans_of

from stepscope.analyses.kernels.occupancy_states import launches_with_state, letter
from stepscope.core.errors import MissingTable, UnknownName


def test_limits_themselves_are_in_the_middle() -> None:
    frame = pl.DataFrame({"v": [3999, 4000, 32_000, 32_001, None]})
    assert frame.select(letter("v", 4_000, 32_000)).to_series().to_list() == ["L", "M", "M", "H", None]
    ratios = pl.DataFrame({"v": [p / 100 for p in (9.99, 10, 70, 70.01)]})
    assert ratios.select(letter("v", 0.1, 0.7)).to_series().to_list() == ["L", "M", "M", "H"]


def states(kind: str, **counters: list[float | None]) -> list[str | None]:
    n = max(map(len, counters.values()))
    spans = spans_of(*[(GEMM, 1)] * n)
    sizes = sizes_of(*[40_000, 3_000, 4_000][:n])
    return launches_with_state(spans, sizes, percents(**counters), kind, needed_by="x")["state"].to_list()


def test_states_of_casio_have_three_letters_and_few_threads_are_one_state() -> None:
    assert states("casio", sm=[80, 80, 50], dram=[5, 5, None]) == ["HHL", "L**", None]


def test_states_of_tables_have_two_letters() -> None:
    assert states("tensor-dram", tensor=[80, 0], dram=[5, 20]) == ["HL", "LM"]


def test_the_finer_states_are_taken_where_they_can() -> None:
    assert states("auto", sm=[80], dram=[5], tensor=[1]) == ["HHL"]
    assert states("auto", dram=[5], tensor=[1]) == ["LL"]


def test_what_cannot_be_told_is_an_error() -> None:
    with pytest.raises(MissingTable, match="x needs threads, SM and DRAM"):
        states("casio", tensor=[5], dram=[5])
    with pytest.raises(MissingTable, match="x needs tensor-core"):
        states("auto", dram=[5])
    with pytest.raises(UnknownName, match="nope"):
        states("nope", dram=[5])
