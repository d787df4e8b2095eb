from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.analyses.common.windows import NOWHERE
from stepscope.analyses.cycles import content as module
from stepscope.analyses.cycles.content import Content, agreement, content_of, counts, is_whole, phases, reach


def content(*rows):
    """From (time, name), names being letters from a on."""
    ordered = sorted(rows)
    codes = np.array([ord(name) - ord("a") for _, name in ordered], np.int64)
    return Content(np.array([t for t, _ in ordered], np.int64), codes, int(codes.max(initial=-1)) + 1)


STEPS = content(*((10 * i + k, name) for i in range(6) for k, name in enumerate("abbbc")))


def test_names_that_come_once_or_twice_tell_nothing():
    names = pl.Series(["a", "a", "a", "b", "b", "c", "a"], dtype=pl.Categorical)
    at = np.array([3, 1, 2, 1, 2, 1, NOWHERE])
    result = content_of(at, names, pl.Series([1] * 7), pl.Series([True] * 7))
    assert (result.at.tolist(), result.code.tolist(), result.n_names) == ([1, 2, 3], [0, 0, 0], 1)


def test_of_too_many_events_those_of_the_longest_names_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 5)
    names = pl.Series(["a"] * 9 + ["b"] * 3, dtype=pl.Categorical)
    at = np.arange(12)
    durations = pl.Series([5] * 9 + [1] * 3)
    every = pl.Series([True] * 12)
    assert content_of(at, names, durations, every).n_names == 1  # at least one name, however often it comes
    assert content_of(at[3:], names[3:], durations[3:], every[3:]).at.size == 6


def test_counts_are_by_turn_and_name():
    result = counts(content((0, "a"), (1, "b"), (9, "b"), (10, "a"), (30, "a")), np.array([0, 10]), np.array([10, 20]))
    assert result.tolist() == [[1, 2], [1, 0]]


def test_true_turns_agree_in_all_names():
    assert agreement(STEPS, np.arange(0, 60, 10)) == 1.0


def test_pieces_of_a_turn_do_not():
    thirds = np.array([10 * i + k for i in range(6) for k in (1, 2, 3)])
    assert agreement(STEPS, thirds) == pytest.approx(1 / 3)  # only b comes once in each


def test_what_comes_only_outside_the_turns_counts_against_them():
    around = content(*((t, "a") for t in range(0, 50, 10)), *((100 + t, "b") for t in range(20)))
    assert agreement(around, np.arange(0, 50, 10)) == 0.5


@pytest.mark.parametrize("starts", [[], [0], [0, 10]])
def test_fewer_than_two_turns_agree_in_nothing(starts):
    assert agreement(STEPS, np.array(starts, np.int64)) == 0.0


def test_no_names_agree_in_nothing():
    assert agreement(content(), np.arange(5)) == 0.0


def test_reach_is_a_share_of_events_not_of_time():
    late = content((0, "a"), *((1000 + 10 * i, "a") for i in range(9)))
    assert reach(late, np.array([1000, 1010, 1020, 1030, 1040, 1050, 1060, 1070, 1080])) == 0.9
    assert reach(late, np.array([0])) == 0.0
    assert reach(content(), np.array([0, 1])) == 0.0


def rows_of(*rows):
    return np.array(rows, float)


def test_turns_at_the_borders_that_lack_much_are_partial():
    result = rows_of([1, 0, 0, 0], [1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [0, 2, 3, 4])
    assert is_whole(result).tolist() == [False, False, True, True, True, True, False]


def test_a_turn_in_the_middle_that_lacks_something_is_a_fact():
    result = rows_of([1, 2], [1, 2], [0, 0], [1, 2], [1, 2])
    assert is_whole(result).all()


def test_more_than_usual_is_not_partial():
    assert is_whole(rows_of([9, 9], [1, 2], [1, 2], [1, 2])).all()


@pytest.mark.parametrize(
    "result",
    [
        rows_of([1], [2]),  # too few to tell
        np.zeros((5, 0)),
        rows_of([1, 0], [2, 0], [3, 0], [4, 0]),  # nothing is steady
        rows_of([0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [1, 1], [1, 1], [1, 1]),
    ],
)
def test_what_cannot_be_told_is_whole(result):
    n = 3 if result.shape == (8, 2) else 0
    assert is_whole(result).tolist() == [False] * n + [True] * (result.shape[0] - n)


def test_never_do_more_than_half_of_the_turns_count_as_partial():
    result = rows_of(*[[0, 1]] * 3, *[[1, 1]] * 2, *[[1, 0]] * 3)
    assert is_whole(result).all()
    assert is_whole(result[1:-1]).tolist() == [True] * 6
    assert is_whole(result[2:-2]).tolist() == [False, True, True, False]


def test_a_turn_is_held_against_those_of_its_own_kind():
    result = rows_of([9, 0], [1, 5], [1, 5], [1, 5], [0, 5], [9, 0])
    assert is_whole(result, ["prefill", *["decode"] * 4, "prefill"]).all()
    assert is_whole(result, ["prefill", *["decode"] * 3, "prefill", "prefill"]).all()
    last = rows_of([9, 0], [1, 5], [1, 5], [1, 5], [0, 0])
    assert is_whole(last, ["prefill", *["decode"] * 4]).tolist() == [True, True, True, True, False]


def phases_of(*cycles, dur_ns=None):
    """The phases of cycles given as lists of names."""
    names = pl.Series([name for cycle in cycles for name in cycle], dtype=pl.Categorical)
    row = np.array([i for i, cycle in enumerate(cycles) for _ in cycle])
    lengths = np.array(dur_ns or [1] * len(cycles))
    return phases(names, row, len(cycles), lengths)


def test_ranges_that_count_requests_tell():
    prefill = "execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)"
    decode = "execute_32_context_0(sq0sk0)_generation_32(sq32sk32785)"
    assert phases_of([prefill], [decode], [decode], ["x"]) == ["prefill", "decode", "decode", None]


def test_a_cycle_with_both_is_a_prefill_and_an_idle_one_is_nothing():
    idle, decode = "execute_0_context_0(x)_generation_0(x)", "execute_1_context_0(x)_generation_1(x)"
    assert phases_of([decode], [decode, "execute_9_context_1(x)_generation_0(x)"]) == ["decode", "prefill"]
    assert phases_of([idle], [decode]) == [None, "decode"]


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("step[EXTEND bs=1 toks=900]", "step[DECODE bs=32]"),
        ("/sglang/srt/model_runner.py(10): forward_extend", "/sglang/srt/model_runner.py(20): forward_decode"),
        ("BatchPrefillWithPagedKVCacheKernel", "BatchDecodeWithPagedKVCacheKernel"),
        ("prefill", "decode"),
    ],
)
def test_names_that_speak_of_one_kind_tell(prefill, decode):
    assert phases_of([prefill], [decode], [decode]) == ["prefill", "decode", "decode"]


def test_one_of_both_names_is_enough_in_programs_that_serve_a_model():
    assert phases_of(["prefill"], ["kv_cache"], ["x"]) == ["prefill", "decode", "decode"]
    assert phases_of(["kv_cache"], ["decode"], ["decode"]) == ["prefill", "decode", "decode"]
    assert phases_of(["prefill"], ["decode"], ["x"]) == ["prefill", "decode", None]
    assert phases_of(["x"], ["decode"], ["decode"]) == [None] * 3


@pytest.mark.parametrize(
    "name",
    [
        "<built-in method decode of bytes object>",
        "codecs.py(3): decode",
        "is_prefill",
        "split_decodes_and_prefills",
    ],
)
def test_names_that_mean_something_else_do_not_tell(name):
    assert phases_of([name], ["x"], ["x"], ["x"]) == [None] * 4


def test_a_name_that_comes_in_all_cycles_tells_nothing():
    assert phases_of(["decode"], ["decode"], ["decode"]) == [None] * 3


def test_without_names_length_tells_in_programs_that_serve_a_model():
    cycles = [["paged_attention"]] * 6
    assert phases_of(*cycles, dur_ns=[50, 10, 10, 11, 10, 9]) == ["prefill", *["decode"] * 5]
    assert phases_of(*cycles, dur_ns=[25, 10, 10, 11, 10, 9]) == [None] * 6
    assert phases_of(*cycles[:3], dur_ns=[50, 10, 10]) == [None] * 3


def test_in_a_training_loop_a_long_step_is_just_that():
    assert phases_of(*[["aten::mm"]] * 6, dur_ns=[50, 10, 10, 11, 10, 9]) == [None] * 6


def test_what_lies_in_no_cycle_does_not_count():
    names = pl.Series(["prefill", "decode", "kv_cache"], dtype=pl.Categorical)
    assert phases(names, np.array([-1, 1, 0]), 2, np.array([1, 1])) == ["prefill", "decode"]
