from __future__ import annotations

import polars as pl
from observations import observation

from stepscope.comparison.matching import matched, of_phase, similarity


def process(name, **facts):
    return observation([100, 100], functions=[(c, "host", name, "operator", 1, 50, 50) for c in (1, 2)], **facts)


def test_ranks_go_together_whatever_their_order():
    pairs, notes = matched(
        [[process("a", rank=0), process("a", rank=1)]], [[process("b", rank=1), process("b", rank=0)]]
    )
    assert [(p.label, p.base[0].rank, p.other[0].rank, p.matched_by) for p in pairs] == [
        ("rank 0", 0, 0, "rank"), ("rank 1", 1, 1, "rank"),
    ]  # fmt: skip
    assert notes == ()


def test_repeats_are_gathered_in_their_pair():
    pairs, _ = matched([[process("a")], [process("a")]], [[process("a")]])
    assert [(len(p.base), len(p.other), p.matched_by) for p in pairs] == [(2, 1, "only process")]


def test_a_rank_without_partner_is_left_out_and_said():
    pairs, notes = matched(
        [[process("a", rank=0), process("a", rank=1)]], [[process("a", rank=0), process("a", rank=7)]]
    )
    assert [p.label for p in pairs] == ["rank 0"]
    assert notes == (
        "rank 7 of made.json without partner: left out",
        "rank 1 has no partner in every run and is left out",
    )


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
    pairs, notes = matched([[process("a", pid=1), process("b", pid=2)]], [[process("a", pid=3), process("z", pid=4)]])
    assert [p.label for p in pairs] == ["pid 1"]
    assert len(notes) == 2


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
    pairs, notes = matched([[base]], [[other]])
    assert pairs[0].base[0].cycles["dur_ns"].to_list() == [100, 100]
    assert pairs[0].other[0].cycles["dur_ns"].to_list() == [100]
    assert pairs[0].base[0].parts["cycle"].to_list() == [2, 3]
    assert notes == ("only decode cycles are compared; 2 others are not",)


def test_one_phase_throughout_is_left_as_it_is():
    base = serving(["decode", "decode"], [100, 100])
    pairs, notes = matched([[base]], [[base]])
    assert pairs[0].base[0] is base
    assert notes == ()


def test_phases_on_one_side_only_are_not_cut():
    base, other = serving(["decode", "prefill"], [1, 2]), serving([None, None], [3, 4])
    pairs, _ = matched([[base]], [[other]])
    assert pairs[0].base[0].cycles.height == 2


def test_a_phase_keeps_what_belongs_to_its_cycles():
    cut = of_phase(serving(["a", "b"], [1, 2]), "b")
    assert cut.functions["cycle"].to_list() == [2]
    assert cut.cycles["phase"].cast(pl.String).to_list() == ["b"]


def on(device, **facts):
    rows = [(1, device, "gemm", "kernel", 1, 50, None)]
    return observation([100], functions=rows, resources=[(1, device, "sm_clock", None, "MHz", 900.0)], **facts)


def test_runs_on_other_devices_are_called_as_in_the_run_to_act_on():
    pairs, notes = matched([[on("gpu3")]], [[on("gpu1")]])
    base, other = pairs[0].base[0], pairs[0].other[0]
    for frame in (base.functions, base.resources, other.functions):
        assert frame["device"].cast(pl.String).to_list() == ["gpu1"]
    assert notes == ("ran on other devices: gpu3 stands under gpu1",)


def test_runs_on_more_devices_keep_their_names():
    pairs, notes = matched([[on("gpu3")]], [[observation([1], functions=[
        (1, device, "gemm", "kernel", 1, 5, None) for device in ("gpu0", "gpu1")
    ])]])  # fmt: skip
    assert pairs[0].base[0].functions["device"].cast(pl.String).to_list() == ["gpu3"]
    assert notes == ()


def test_single_processes_of_other_ranks_are_a_pair():
    pairs, _ = matched([[process("a", rank=1)]], [[process("a", rank=3)]])
    assert [p.matched_by for p in pairs] == ["only process"]
