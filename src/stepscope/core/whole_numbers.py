"""Numbers in columns of whole types, which may be too narrow for them."""

from __future__ import annotations

import numpy as np
import polars as pl


def no_number(dtype: pl.DataType) -> int:
    """The value of a whole type that no column can hold (see `soundness.limits_of`): it is noticed, and counted."""
    ends = np.iinfo(str(dtype).lower())
    return int(ends.min or ends.max)


def fitted(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The values in that type. Numbers that do not fit a whole type become its `no_number`; NaN becomes null."""
    if values.dtype == dtype:
        return values
    if not (dtype.is_integer() and values.dtype.is_numeric()):
        return values.cast(dtype)
    values = values.fill_nan(None) if values.dtype.is_float() else values
    cast = values.cast(dtype, strict=False)
    if cast.null_count() == values.null_count():
        return cast
    end = pl.lit(no_number(dtype), dtype)
    return pl.select(pl.coalesce(cast, pl.when(values.is_not_null()).then(end)).alias(values.name)).to_series()
