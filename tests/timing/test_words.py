from __future__ import annotations

import numpy as np

from stepscope.timing._arrays import ArraySpec
from stepscope.timing._clock import Clock
from stepscope.timing._equal import difference
from stepscope.timing._measure import Budget, Timings
from stepscope.timing._result import Outcome, result
from stepscope.timing._sweep import Case
from stepscope.timing._words import blocks, text

STEADY = tuple(range(100, 120))


def outcome(arguments, variables=None, *, times=STEADY, wall=None, inner=1, clock=None, found=None):
    own = np.array(times, dtype=np.float64)
    one = Timings(own, own if wall is None else np.array(wall, dtype=np.float64), inner, 80.0)
    n = 1 if found is None else 2
    return Outcome(Case(arguments, variables or {}), (one,) * n, (clock or Clock(),) * n, found)


def drawn(*outcomes, **options):
    reference = "m:g" if outcomes[0].difference else None
    return blocks(result("m:f", reference, outcomes, Budget(), **{"gc_enabled": True, **options}))


def test_people_see_times_and_a_comparison_with_what_tells_the_cases_apart():
    found = difference(np.ones(2), np.ones(2))
    cases = [outcome({"n": n, "flag": True}, found=found) for n in (1, 2)]
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
    (times,) = drawn(outcome({}, clock=Clock("CUDA events of torch", "cuda:0")), gc_enabled=False)
    assert "Clock: CUDA events of torch (cuda:0); 3 calls of warm-up, garbage collector off as it was." in times.note
    assert "bound the median at 95 % or more" in times.note


def test_of_one_case_scalars_have_a_column_and_arrays_a_note():
    (times,) = drawn(outcome({"n": 4, "x": ArraySpec((4,))}))
    assert "n" in times.frame.columns
    assert "x" not in times.frame.columns
    assert "With x=float32[4]." in times.note


def test_arrays_have_a_column_unless_variables_tell_their_shapes():
    shapes = [{"x": ArraySpec((n,))} for n in (4, 8)]
    (times,) = drawn(*(outcome(one) for one in shapes))
    assert times.frame["x"].to_list() == ["float32[4]", "float32[8]"]
    (times,) = drawn(*(outcome(one, {"n": one["x"].shape[0]}) for one in shapes))
    assert times.frame["n"].to_list() == [4, 8]
    assert "x" not in times.frame.columns
    assert "In all cases" not in times.note


def test_inner_loops_are_shown_with_what_a_call_costs_by_itself():
    (times,) = drawn(outcome({}, inner=500))
    assert times.frame["n_inner"].to_list() == [500]
    assert "a function that does nothing takes up to 80 ns, which is in the times." in times.note


def test_too_few_repeats_are_said_with_the_level_that_they_reach():
    assert "bound the median at 94 % only, for want of repeats" in drawn(outcome({}, times=STEADY[:5]))[0].note
    assert "A single repeat has no interval." in drawn(outcome({}, times=STEADY[:1]))[0].note
    found = difference(np.ones(2), np.ones(2))
    assert "by that of m:f." in drawn(outcome({}, times=STEADY[:1], found=found))[1].note


def test_outliers_are_told_where_they_matter():
    assert "took far longer" not in drawn(outcome({}))[0].note
    (times,) = drawn(outcome({}, times=(*STEADY, 10_000)))
    assert "1 of 21 repeats took far longer" in times.note
    (times,) = drawn(outcome({}, times=(*STEADY, *STEADY, *STEADY, *STEADY, 200)))
    assert "took far longer" not in times.note  # one in many, which pulls nothing


def test_what_events_do_not_see_is_told():
    clock = Clock("CUDA events of torch", "cuda:0", (), object)
    assert "host's clock" not in drawn(outcome({}, clock=clock))[0].note
    (times,) = drawn(outcome({}, clock=clock, wall=[9_000_000] * 20))
    assert "By the host's clock a call takes up to 9 ms, by events 110 ns" in times.note


def test_a_tolerance_of_the_user_s_own_has_no_source():
    found = difference(np.ones(2), np.ones(2), {"float64": (0.5, 0.0)})
    _, compared = drawn(outcome({}, found=found))
    assert compared.note.endswith("of float64: 0.5, 0.")


def test_what_could_not_be_compared_is_told():
    _, compared = drawn(outcome({}, found=difference(None, None)))
    assert compared.note.endswith("In 1 case nothing was given back that could be compared.")
    _, compared = drawn(*[outcome({}, found=difference(None, None))] * 2)
    assert "In 2 cases nothing" in compared.note
