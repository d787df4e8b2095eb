from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.whole_numbers import fitted


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, None, 2**40, -(2**40)], pl.Int32(), [1, None, -(2**31), -(2**31)]),
        ([1, -1], pl.UInt32(), [1, 2**32 - 1]),
        ([1.5, float("nan"), 1e300, float("-inf")], pl.Int64(), [1, None, -(2**63), -(2**63)]),
        ([True, None], pl.Int32(), [1, None]),
        (["a", None], pl.Categorical(), ["a", None]),
    ],
)
def test_numbers_that_do_not_fit_become_one_that_no_column_can_hold(values, dtype, expected):
    series = fitted(pl.Series("x", values), dtype)
    assert (series.name, series.dtype, series.to_list()) == ("x", dtype, expected)
