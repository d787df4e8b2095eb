from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.timing._arrays import ArraySpec
from stepscope.timing._clock import Clock
from stepscope.timing._equal import difference
from stepscope.timing._measure import Budget, Timings
from stepscope.timing._result import BENCH, Outcome, described, result
from stepscope.timing._sweep import Case


def timings(*values, inner=1):
    times = np.array(values, dtype=np.float64)
    return Timings(times, times, inner, 50.0)


def outcome(arguments=None, variables=None, *, both=False, found=None):
    own = (timings(*range(10, 20)), timings(*range(20, 40, 2)))[: 1 + both]
    return Outcome(Case(arguments or {}, variables or {}), own, (Clock(), Clock("other", "cuda:0"))[: 1 + both], found)


def made(*outcomes, reference=None):
    return result("m:f", reference, outcomes, Budget(), gc_enabled=True)


def test_a_row_is_a_function_in_a_case_and_what_compares_them_stands_with_the_function():
    found = difference(np.ones(4, np.float32), np.array([1, 1, 1, 1.5], np.float32))
    bench = made(outcome({"n": 1}, both=True, found=found), outcome({"n": 2}, both=True, found=found), reference="m:g")
    assert bench.frame.columns == list(bench.table.dtypes)
    assert bench.frame.select("case", "role", "function", "n").rows() == [
        (1, "function", "m:f", 1), (1, "reference", "m:g", 1), (2, "function", "m:f", 2), (2, "reference", "m:g", 2),
    ]  # fmt: skip
    own, other = bench.frame.head(2).to_dicts()
    assert (own["median_ns"], own["min_ns"], own["mean_ns"], own["max_ns"]) == (14.5, 10.0, 14.5, 19.0)
    assert (own["median_low_ns"], own["median_high_ns"], own["n_repeats"]) == (11.0, 18.0, 10)
    assert (own["clock"], own["clock_device"], other["clock"], other["clock_device"]) == (
        "wall clock", "cpu", "other", "cuda:0",
    )  # fmt: skip
    assert own["speedup"] == 29 / 14.5
    assert own["speedup_low"] < 2 < own["speedup_high"]
    assert (own["n_elements"], own["equal_ratio"], own["max_abs_error"], own["within_tolerance"]) == (
        4,
        0.75,
        0.5,
        False,
    )
    assert (own["result_dtype"], own["rel_tolerance"], own["abs_tolerance"]) == ("float32", 1.3e-6, 1e-5)
    assert other["speedup"] is other["equal_ratio"] is other["within_tolerance"] is None
    assert bench.n_differing == 2
    assert repr(bench) == str(bench) == "Bench(m:f against m:g, 2 cases)"


def test_without_a_reference_nothing_is_compared():
    bench = made(outcome())
    assert bench.frame["speedup"].to_list() == [None]
    assert (bench.n_differing, bench.table.dtypes) == (None, BENCH.dtypes)
    assert repr(bench) == "Bench(m:f, 1 case)"


def test_what_gave_back_nothing_was_not_compared():
    bench = made(outcome(both=True, found=difference(None, None)), reference="m:g")
    assert (bench.n_differing, bench.n_not_compared) == (0, 1)
    assert bench.frame["within_tolerance"][0] is None
    assert bench.frame["result_dtype"][0] is None


def test_arguments_are_columns_of_their_type_between_the_keys_and_the_measures():
    arguments = {
        "n": 3, "rate": 0.5, "flag": True, "kind": "a", "x": ArraySpec((2, 3)), "axes": [0, ArraySpec((1,))],
        "huge": 2**70, "given": np.ones((2, 2), np.int8), "nothing": None,
    }  # fmt: skip
    bench = made(outcome(arguments, {"size": 8}), outcome({"rate": 2, "n": None}, {"size": 9}))
    columns = bench.frame.columns
    assert columns[3 : columns.index("median_ns")] == ["size", *arguments]
    assert [bench.frame.schema[name] for name in ("size", "n", "rate", "flag", "kind", "huge", "nothing")] == [
        pl.Int64, pl.Int64, pl.Float64, pl.Boolean, pl.String, pl.String, pl.String,
    ]  # fmt: skip
    assert bench.frame.row(0, named=True)["x"] == "float32[2, 3]"
    assert bench.frame.row(0, named=True)["axes"] == '[0, "float32[1]"]'
    assert bench.frame.row(0, named=True)["given"] == "int8[2, 2]"
    assert bench.frame["x"][1] is None
    assert all(column.key for column in bench.table.columns[: columns.index("median_ns")])


@pytest.mark.parametrize(("name", "column"), [("clock", "arg_clock"), ("0", "arg_0"), ("case", "arg_case"), ("x", "x")])
def test_an_argument_that_is_called_like_a_column_of_ours_gets_another(name, column):
    bench = made(outcome({name: 5}))
    assert bench.arguments == {name: column}
    assert bench.frame[column].to_list() == [5]


def test_an_argument_that_has_the_other_name_already_keeps_it():
    bench = made(outcome({"clock": 1, "arg_clock": 2}))
    assert bench.arguments == {"clock": "arg_arg_clock", "arg_clock": "arg_clock"}


def test_a_single_repeat_has_no_interval():
    bench = made(Outcome(Case({}, {}), (timings(5),), (Clock(),)))
    assert bench.frame.select("median_ns", "median_low_ns", "confidence_ratio").row(0) == (5.0, None, None)


def test_arguments_in_words():
    assert (
        described({"n": 3, "x": ArraySpec((2,)), "kind": "a", "none": None}) == "n=3, x=float32[2], kind=a, none=None"
    )
