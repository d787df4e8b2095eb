"""Applies a function to each distinct value of a column of names instead of to each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["map_names"]


def map_names(series: pl.Series, fn: Callable[[str], Any], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    """`fn` of every name in a Categorical, Enum or String series, called once per distinct name; null stays null."""
    series = series.cast(pl.Categorical()) if isinstance(series.dtype, pl.String) else series
    if not series.len():
        return pl.Series(series.name, [], dtype=dtype)
    # By the categories' numbers, in NumPy: joining a table of names to the column is several times slower.
    at = series.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    at = at - at.min()
    first = np.full(int(at.max()) + 1, -1, np.int64)
    first[at[::-1]] = np.arange(at.size - 1, -1, -1)
    used = np.flatnonzero(first >= 0)
    mapped = [None if name is None else fn(name) for name in series[first[used]].cast(pl.String)]
    values = pl.Series(series.name, mapped, dtype=dtype)
    first[used] = np.arange(used.size)  # now the place of each number among those in use
    return values.gather(pl.Series(first[at]))
