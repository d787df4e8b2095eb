from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.timing._arrays import ArraySpec
from stepscope.timing._equal import difference
from stepscope.timing._measure import Budget, Clock, Timings
from stepscope.timing._result import BENCH, Outcome, blocks, described, result, text
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


STEADY = tuple(range(100, 120))


def timed_case(arguments, variables=None, *, times=STEADY, wall=None, inner=1, clock=None, found=None):
    own = np.array(times, dtype=np.float64)
    one = Timings(own, own if wall is None else np.array(wall, dtype=np.float64), inner, 80.0)
    n = 1 if found is None else 2
    return Outcome(Case(arguments, variables or {}), (one,) * n, (clock or Clock(),) * n, found)


def drawn(*outcomes, **options):
    reference = "m:g" if outcomes[0].difference else None
    return blocks(result("m:f", reference, outcomes, Budget(), **{"gc_enabled": True, **options}))


def test_people_see_times_and_a_comparison_with_what_tells_the_cases_apart():
    found = difference(np.ones(2), np.ones(2))
    cases = [timed_case({"n": n, "flag": True}, found=found) for n in (1, 2)]
    times, compared = drawn(*cases)
    assert times.frame.columns == [
        "function", "n", "median_ns", "median_low_ns", "median_high_ns", "min_ns", "mean_ns", "p95_ns", "n_repeats",
    ]  # fmt: skip
    assert times.frame.select("function", "n").rows() == [("m:f", 1), ("m:g", 1), ("m:f", 2), ("m:g", 2)]
    assert compared.frame.select("function", "n", "equal_ratio").rows() == [("m:f", 1, 1.0), ("m:f", 2, 1.0)]
    assert "In all cases: flag=True." in times.note
    assert "Speedup: median of m:g by that of m:f, with bounds at 95 % or more" in compared.note
    assert "of float64: 1e-07, 1e-07, from torch.testing.assert_close." in compared.note
    assert (
        text(result("m:f", "m:g", cases, Budget(), gc_enabled=True), lambda block: block.title) == "times\ncomparison"
    )


def test_the_clock_warm_up_and_collector_are_told():
    (times,) = drawn(timed_case({}, clock=Clock("CUDA events of torch", "cuda:0")), gc_enabled=False)
    assert "Clock: CUDA events of torch (cuda:0); 3 calls of warm-up, garbage collector off as it was." in times.note
    assert "bound the median at 95 % or more" in times.note


def test_of_one_case_scalars_have_a_column_and_arrays_a_note():
    (times,) = drawn(timed_case({"n": 4, "x": ArraySpec((4,))}))
    assert "n" in times.frame.columns
    assert "x" not in times.frame.columns
    assert "With x=float32[4]." in times.note


def test_arrays_have_a_column_unless_variables_tell_their_shapes():
    shapes = [{"x": ArraySpec((n,))} for n in (4, 8)]
    (times,) = drawn(*(timed_case(one) for one in shapes))
    assert times.frame["x"].to_list() == ["float32[4]", "float32[8]"]
    (times,) = drawn(*(timed_case(one, {"n": one["x"].shape[0]}) for one in shapes))
    assert times.frame["n"].to_list() == [4, 8]
    assert "x" not in times.frame.columns
    assert "In all cases" not in times.note


def test_inner_loops_are_shown_with_what_a_call_costs_by_itself():
    (times,) = drawn(timed_case({}, inner=500))
    assert times.frame["n_inner"].to_list() == [500]
    assert "a function that does nothing takes up to 80 ns, which is in the times." in times.note


def test_too_few_repeats_are_said_with_the_level_that_they_reach():
    assert "bound the median at 94 % only, for want of repeats" in drawn(timed_case({}, times=STEADY[:5]))[0].note
    assert "A single repeat has no interval." in drawn(timed_case({}, times=STEADY[:1]))[0].note
    found = difference(np.ones(2), np.ones(2))
    assert "by that of m:f." in drawn(timed_case({}, times=STEADY[:1], found=found))[1].note


def test_outliers_are_told_where_they_matter():
    assert "took far longer" not in drawn(timed_case({}))[0].note
    (times,) = drawn(timed_case({}, times=(*STEADY, 10_000)))
    assert "1 of 21 repeats took far longer" in times.note
    (times,) = drawn(timed_case({}, times=(*STEADY, *STEADY, *STEADY, *STEADY, 200)))
    assert "took far longer" not in times.note  # one in many, which pulls nothing


def test_what_events_do_not_see_is_told():
    clock = Clock("CUDA events of torch", "cuda:0", (), object)
    assert "host's clock" not in drawn(timed_case({}, clock=clock))[0].note
    (times,) = drawn(timed_case({}, clock=clock, wall=[9_000_000] * 20))
    assert "By the host's clock a call takes up to 9 ms, by events 110 ns" in times.note


def test_a_tolerance_of_the_user_s_own_has_no_source():
    found = difference(np.ones(2), np.ones(2), {"float64": (0.5, 0.0)})
    _, compared = drawn(timed_case({}, found=found))
    assert compared.note.endswith("of float64: 0.5, 0.")


def test_what_could_not_be_compared_is_told():
    _, compared = drawn(timed_case({}, found=difference(None, None)))
    assert compared.note.endswith("In 1 case nothing was given back that could be compared.")
    _, compared = drawn(*[timed_case({}, found=difference(None, None))] * 2)
    assert "In 2 cases nothing" in compared.note
