from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from cycle_traces import MAIN, samples_of, spans_of, steps_of, trace_of, training

from stepscope.comparison.align import align, regrouped, work_ratio
from stepscope.comparison.observe import observe
from stepscope.core.errors import StepscopeError

N = 9


def steps(n=N, **options):
    rows = [(MAIN, 1000 * i, 990, f"ProfilerStep#{i}", "step") for i in range(n)]
    marked = steps_of(*((1000 * i, 1000) for i in range(n)))
    (seen,) = observe(trace_of(spans_of(*rows, *training(n, **options)), steps=marked))
    return seen


def layers(n=N, **options):
    """The same loop, cut into its layers: a step holds four of them."""
    (seen,) = observe(trace_of(spans_of(*training(n, **options))), anchor="aten::linear")
    return seen


def test_cycles_of_one_kind_stay_as_they_are():
    base, other = steps(), steps(5)
    assert align([base], [other]) == ([base], [other])


def test_a_python_function_may_have_moved_by_some_lines():
    base, other = replace(steps(), anchor="train.py(30): step"), replace(steps(), anchor="train.py(45): step")
    same, renamed = align([base], [other])
    assert same[0] is base
    assert [one.anchor for one in renamed] == ["train.py(30): step"]


def test_the_work_in_a_cycle_tells_how_many_make_one():
    ratio, share, n = work_ratio(layers(), steps())
    assert (ratio, share, n) == (4.0, 1.0, 1)  # of device work there is the gemm alone
    assert work_ratio(steps(), layers())[0] == 0.25


def with_more_kernels(seen, *names):
    gemm = seen.functions.filter(pl.col("name") == "gemm")
    more = [gemm.with_columns(name=pl.lit(name, gemm.schema["name"])) for name in names]
    return replace(seen, functions=pl.concat([seen.functions, *more]))


@pytest.mark.parametrize("swapped", [False, True])
def test_finer_cycles_are_put_together(swapped):
    fine, coarse = with_more_kernels(layers(), "norm", "rope"), with_more_kernels(steps(), "norm", "rope")
    pair = ([coarse], [fine]) if not swapped else ([fine], [coarse])
    base, other = align(*pair)
    got, same = (other[0], base[0]) if not swapped else (base[0], other[0])
    assert same is coarse
    assert got.anchor == "ProfilerStep"
    assert got.cycles.height == N
    assert got.notes[-1] == (
        "4 cycles in succession (aten::linear) are taken as one of ProfilerStep, by the calls of the same functions"
    )
    calls = got.functions.filter(pl.col("name") == "gemm")["calls"]
    assert calls.to_list() == [4] * N


def test_all_repeats_are_aligned_to_the_coarsest():
    fine, coarse = with_more_kernels(layers(), "norm", "rope"), with_more_kernels(steps(), "norm", "rope")
    base, other = align([fine, coarse], [fine])
    assert [one.anchor for one in (*base, *other)] == ["ProfilerStep"] * 3


def test_the_same_work_under_another_name_is_said():
    base = with_more_kernels(steps(), "norm", "rope")
    other = replace(base, anchor="run_batch")
    _, (got,) = align([base], [other])
    assert got.notes[-1] == "cycles are marked by run_batch, not ProfilerStep; same work"
    assert got.cycles is other.cycles


def test_cycles_with_nothing_in_common_are_refused():
    other = replace(steps(), anchor="run_batch", functions=steps().functions.clear())
    with pytest.raises(StepscopeError, match=r"calls of run_batch .* of ProfilerStep .* only 0 functions") as caught:
        align([steps()], [other])
    assert "--anchor" in caught.value.hint


def test_cycles_whose_work_is_no_multiple_are_refused():
    base = with_more_kernels(steps(), "norm", "rope")
    third = pl.when(pl.col("name") == "norm").then(7).when(pl.col("name") == "rope").then(30).otherwise("calls")
    other = replace(base, anchor="run_batch", functions=base.functions.with_columns(calls=third))
    with pytest.raises(StepscopeError, match="33% of functions agree on one"):
        align([base], [other])
    half = replace(base, anchor="run_batch", functions=base.functions.with_columns(calls=pl.col("calls") * 3 // 2))
    with pytest.raises(StepscopeError, match="not a whole multiple"):
        align([base], [half])


def test_groups_hold_as_many_complete_cycles_as_can_be():
    fine = layers(3)
    complete = pl.Series([False, *[True] * 11])
    fine = replace(fine, cycles=fine.cycles.with_columns(is_complete=complete))
    got = regrouped(fine, 5, "step")
    assert got.cycles["is_complete"].to_list() == [True, True]
    assert got.cycles["ts_ns"][0] == fine.cycles["ts_ns"][2]


def test_a_group_lasts_from_its_first_start_to_its_last_end_and_its_parts_sum_to_it():
    fine = layers(5)
    got = regrouped(fine, 4, "step")
    assert got.cycles.select("cycle", "dur_ns").rows() == [(1, 1000), (2, 1000), (3, 1000), (4, 1000), (5, 790)]
    assert got.cycles["is_complete"].to_list() == [True] * 4 + [False]
    apart = replace(fine, cycles=fine.cycles.with_columns(dur_ns=pl.col("dur_ns") - 7))
    parts = fine.parts.with_columns(
        total_ns=pl.col("total_ns") - pl.when(pl.col("part") == "python and other").then(7).otherwise(0)
    )
    got = regrouped(replace(apart, parts=parts), 4, "step")
    sums = got.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
    assert sums["total_ns"].to_list() == got.cycles["dur_ns"].to_list()
    assert "other" not in got.parts["part"].cast(pl.String).to_list()


def test_where_parts_have_a_rest_what_lies_between_belongs_to_it():
    fine = layers(5)
    only = pl.DataFrame({"cycle": fine.cycles["cycle"], "total_ns": fine.cycles["dur_ns"]}).with_columns(
        part=pl.lit("computation")
    )
    gone = fine.cycles.filter(pl.col("cycle") % 4 != 2)
    got = regrouped(replace(fine, cycles=gone, parts=only), 3, "step")
    sums = got.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
    assert sums["total_ns"].to_list() == got.cycles["dur_ns"].to_list()
    assert set(got.parts["part"].cast(pl.String)) == {"computation", "other"}


def test_resources_are_averaged_by_time():
    samples = samples_of(*((50 * i, "host", "load", float(i // 20), "MHz") for i in range(100)))
    (fine,) = observe(trace_of(spans_of(*training(5)), counters=samples), anchor="aten::linear")
    got = regrouped(fine, 4, "step")
    (coarse,) = observe(trace_of(spans_of(*training(5)), counters=samples), anchor="load")
    assert got.resources.schema == coarse.resources.schema
    weighted = (fine.resources["mu"] * fine.cycles["dur_ns"])[:4].sum() / 1000
    assert got.resources["mu"][0] == pytest.approx(weighted)
    assert got.resources["n_samples"][0] == fine.resources["n_samples"][:4].sum()


def test_work_per_cycle_grows_with_the_group():
    fine = layers(5)
    got = regrouped(fine, 4, "step")
    assert got.workload["calls_per_cycle"].to_list() == [4 * x for x in fine.workload["calls_per_cycle"]]


def test_phases_that_differ_within_a_group_are_unknown():
    fine = layers(2)
    kinds = pl.Series([*["decode"] * 6, *["prefill"] * 2], dtype=pl.Categorical)
    got = regrouped(replace(fine, cycles=fine.cycles.with_columns(phase=kinds)), 4, "step")
    assert got.cycles["phase"].to_list() == ["decode", None]


def test_too_few_cycles_to_make_one_are_refused():
    with pytest.raises(StepscopeError, match="only 8 cycles of aten::linear were recorded, and 64 make one of step"):
        regrouped(layers(2), 64, "step")
