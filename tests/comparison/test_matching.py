from __future__ import annotations

import polars as pl
import pytest
from cycle_traces import MAIN, samples_of, spans_of, steps_of, trace_of, training
from msgspec.structs import replace
from observations import observation

from stepscope.comparison.matching import align, as_repeats, matched, of_phase, regrouped, similarity, work_ratio
from stepscope.comparison.observe import observe
from stepscope.core.errors import StepscopeError


def process(name, **facts):
    return observation([100, 100], functions=[(c, "host", name, "operator", 1, 50, 50) for c in (1, 2)], **facts)


def test_ranks_go_together_whatever_their_order():
    pairs, remarks = matched(
        [[process("a", rank=0), process("a", rank=1)]], [[process("b", rank=1), process("b", rank=0)]]
    )
    assert [(p.label, p.base[0].rank, p.other[0].rank, p.matched_by) for p in pairs] == [
        ("rank 0", 0, 0, "rank"), ("rank 1", 1, 1, "rank"),
    ]  # fmt: skip
    assert remarks == ()


def test_repeats_are_gathered_in_their_pair():
    pairs, _ = matched([[process("a")], [process("a")]], [[process("a")]])
    assert [(len(p.base), len(p.other), p.matched_by) for p in pairs] == [(2, 1, "only process")]


def test_a_rank_without_partner_is_left_out_and_said():
    pairs, remarks = matched(
        [[process("a", rank=0), process("a", rank=1)]], [[process("a", rank=0), process("a", rank=7)]]
    )
    assert [p.label for p in pairs] == ["rank 0"]
    assert remarks == (
        "rank 7 of made.json without partner: left out",
        "rank 1 has no partner in every run and is left out",
    )


@pytest.mark.slow
def test_without_ranks_what_does_the_same_goes_together_not_the_same_id():
    base = [process("decode", pid=1), process("route", pid=2)]
    other = [process("route", pid=1), process("decode", pid=2)]
    pairs, _ = matched([base], [other])
    assert [(p.label, p.other[0].pid, p.matched_by) for p in pairs] == [
        ("pid 1", 2, "similarity"),
        ("pid 2", 1, "similarity"),
    ]


def test_equal_processes_go_together_by_id():
    base = [process("decode", pid=1), process("decode", pid=2)]
    pairs, _ = matched([base], [base[::-1]])
    assert [p.other[0].pid for p in pairs] == [1, 2]


def test_processes_that_share_nothing_are_no_pair():
    pairs, remarks = matched([[process("a", pid=1), process("b", pid=2)]], [[process("a", pid=3), process("z", pid=4)]])
    assert [p.label for p in pairs] == ["pid 1"]
    assert len(remarks) == 2


def test_similarity_is_one_for_equal_and_zero_for_disjoint_work():
    assert similarity(process("a"), process("a")) == 1.0
    assert similarity(process("a"), process("b")) == 0.0
    assert similarity(observation([1]), observation([1])) == 0.0


def serving(phases, durations):
    rows = [(c, "host", "f", "operator", 1, d, d) for c, d in enumerate(durations, 1)]
    return observation(
        durations, functions=rows, parts=[(c, "p", d) for c, d in enumerate(durations, 1)], phases=phases
    )


def test_of_several_phases_the_one_with_most_time_in_both_is_compared():
    base = serving(["prefill", "decode", "decode"], [50, 100, 100])
    other = serving(["decode", "prefill"], [100, 50])
    pairs, remarks = matched([[base]], [[other]])
    assert pairs[0].base[0].cycles["dur_ns"].to_list() == [100, 100]
    assert pairs[0].other[0].cycles["dur_ns"].to_list() == [100]
    assert pairs[0].base[0].parts["cycle"].to_list() == [2, 3]
    assert remarks == ("only decode cycles are compared; 2 others are not",)


def test_one_phase_throughout_is_left_as_it_is():
    base = serving(["decode", "decode"], [100, 100])
    pairs, remarks = matched([[base]], [[base]])
    assert pairs[0].base[0] is base
    assert remarks == ()


def test_phases_on_one_side_only_are_not_cut():
    base, other = serving(["decode", "prefill"], [1, 2]), serving([None, None], [3, 4])
    pairs, _ = matched([[base]], [[other]])
    assert pairs[0].base[0].cycles.height == 2


def test_a_phase_keeps_what_belongs_to_its_cycles():
    only = of_phase(serving(["a", "b"], [1, 2]), "b")
    assert only.functions["cycle"].to_list() == [2]
    assert only.cycles["phase"].cast(pl.String).to_list() == ["b"]


def on(device, **facts):
    rows = [(1, device, "gemm", "kernel", 1, 50, None)]
    return observation([100], functions=rows, resources=[(1, device, "sm_clock", None, "MHz", 900.0)], **facts)


def test_runs_on_other_devices_are_called_as_in_the_run_to_act_on():
    pairs, remarks = matched([[on("gpu3")]], [[on("gpu1")]])
    base, other = pairs[0].base[0], pairs[0].other[0]
    for frame in (base.functions, base.resources, other.functions):
        assert frame["device"].cast(pl.String).to_list() == ["gpu1"]
    assert remarks == ("runs used different devices: gpu3 is shown as gpu1",)


def test_runs_on_more_devices_keep_their_names():
    pairs, remarks = matched([[on("gpu3")]], [[observation([1], functions=[
        (1, device, "gemm", "kernel", 1, 5, None) for device in ("gpu0", "gpu1")
    ])]])  # fmt: skip
    assert pairs[0].base[0].functions["device"].cast(pl.String).to_list() == ["gpu3"]
    assert remarks == ()


def test_single_processes_of_other_ranks_are_a_pair():
    pairs, _ = matched([[process("a", rank=1)]], [[process("a", rank=3)]])
    assert [p.matched_by for p in pairs] == ["only process"]


def file(**facts):
    return (observation([100, 100], **facts),)


def layout(files):
    return [len(run) for run in as_repeats(files)]


def test_other_ranks_are_processes_of_one_job():
    assert layout([file(rank=0), file(rank=1), file(rank=2)]) == [3]


def test_a_rank_that_comes_again_is_a_repeat():
    assert layout([file(rank=0), file(rank=1), file(rank=0), file(rank=1)]) == [2, 2]


def test_recordings_of_one_time_are_of_one_job():
    assert layout([file(origin=1000), file(origin=1100)]) == [2]


def test_recordings_of_other_times_are_repeats():
    assert layout([file(origin=1000), file(origin=5000), file(origin=9000)]) == [1, 1, 1]


def test_files_that_say_neither_are_of_one_job():
    assert layout([file(), file(origin=1000)]) == [2]


def test_a_process_without_cycles_says_no_time():
    assert layout([(observation([], origin=5),), file(origin=100)]) == [2]


N = 9


def steps(n=N, **options):
    rows = [(MAIN, 1000 * i, 990, f"ProfilerStep#{i}", "step") for i in range(n)]
    marked = steps_of(*((1000 * i, 1000) for i in range(n)))
    (runs,) = observe(trace_of(spans_of(*rows, *training(n, **options)), steps=marked))
    return runs


def layers(n=N, **options):
    """The same loop, cut into its layers: a step holds four of them."""
    (runs,) = observe(trace_of(spans_of(*training(n, **options))), anchor="aten::linear")
    return runs


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


def with_more_kernels(runs, *names):
    gemm = runs.functions.filter(pl.col("name") == "gemm")
    more = [gemm.with_columns(name=pl.lit(name, gemm.schema["name"])) for name in names]
    return replace(runs, functions=pl.concat([runs.functions, *more]))


@pytest.mark.parametrize("swapped", [False, True])
def test_finer_cycles_are_put_together(swapped):
    fine, coarse = with_more_kernels(layers(), "norm", "rope"), with_more_kernels(steps(), "norm", "rope")
    pair = ([coarse], [fine]) if not swapped else ([fine], [coarse])
    base, other = align(*pair)
    got, same = (other[0], base[0]) if not swapped else (base[0], other[0])
    assert same is coarse
    assert got.anchor == "ProfilerStep"
    assert got.cycles.height == N
    assert got.remarks[-1] == (
        "4 consecutive cycles (aten::linear) count as one of ProfilerStep, by the calls of the same functions"
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
    assert got.remarks[-1] == "cycles are marked by run_batch, not ProfilerStep; same work"
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
