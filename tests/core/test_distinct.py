from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.distinct import map_names

KINDS = [pl.String(), pl.Categorical(), pl.Enum(["a", "b", "c"])]


@given(st.lists(st.sampled_from(["a", "b", "c", None])), st.sampled_from(KINDS))
def test_it_is_as_if_the_function_were_called_for_each_row(values, dtype):
    calls: list[str] = []

    def place(name: str) -> int | None:
        calls.append(name)
        return None if name == "b" else ord(name)

    found = map_names(pl.Series("name", values, dtype=dtype), place, pl.Int64())
    assert found.to_list() == [None if value in (None, "b") else ord(value) for value in values]
    assert (found.name, found.dtype) == ("name", pl.Int64)
    assert sorted(calls) == sorted({value for value in values if value is not None})


@pytest.mark.parametrize("dtype", [pl.Boolean(), pl.String(), pl.Enum(["x"])], ids=str)
def test_values_have_the_type_asked_for(dtype):
    value = True if dtype == pl.Boolean() else "x"
    found = map_names(pl.Series(["a", None], dtype=pl.Categorical()), lambda _: value, dtype)
    assert found.dtype == dtype
    assert found.to_list() == [value, None]
