from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.analyses.cycles.cycle_phases import phases


def told(*cycles, dur_ns=None):
    """The phases of cycles given as lists of names."""
    names = pl.Series([name for cycle in cycles for name in cycle], dtype=pl.Categorical)
    row = np.array([i for i, cycle in enumerate(cycles) for _ in cycle])
    lengths = np.array(dur_ns or [1] * len(cycles))
    return phases(names, row, len(cycles), lengths)


def test_ranges_that_count_requests_tell():
    prefill = "execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)"
    decode = "execute_32_context_0(sq0sk0)_generation_32(sq32sk32785)"
    assert told([prefill], [decode], [decode], ["x"]) == ["prefill", "decode", "decode", None]


def test_a_cycle_with_both_is_a_prefill_and_an_idle_one_is_nothing():
    idle, decode = "execute_0_context_0(x)_generation_0(x)", "execute_1_context_0(x)_generation_1(x)"
    assert told([decode], [decode, "execute_9_context_1(x)_generation_0(x)"]) == ["decode", "prefill"]
    assert told([idle], [decode]) == [None, "decode"]


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
    assert told([prefill], [decode], [decode]) == ["prefill", "decode", "decode"]


def test_one_of_both_names_is_enough_in_programs_that_serve_a_model():
    assert told(["prefill"], ["kv_cache"], ["x"]) == ["prefill", "decode", "decode"]
    assert told(["kv_cache"], ["decode"], ["decode"]) == ["prefill", "decode", "decode"]
    assert told(["prefill"], ["decode"], ["x"]) == ["prefill", "decode", None]
    assert told(["x"], ["decode"], ["decode"]) == [None] * 3


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
    assert told([name], ["x"], ["x"], ["x"]) == [None] * 4


def test_a_name_that_comes_in_all_cycles_tells_nothing():
    assert told(["decode"], ["decode"], ["decode"]) == [None] * 3


def test_without_names_length_tells_in_programs_that_serve_a_model():
    cycles = [["paged_attention"]] * 6
    assert told(*cycles, dur_ns=[50, 10, 10, 11, 10, 9]) == ["prefill", *["decode"] * 5]
    assert told(*cycles, dur_ns=[25, 10, 10, 11, 10, 9]) == [None] * 6
    assert told(*cycles[:3], dur_ns=[50, 10, 10]) == [None] * 3


def test_in_a_training_loop_a_long_step_is_just_that():
    assert told(*[["aten::mm"]] * 6, dur_ns=[50, 10, 10, 11, 10, 9]) == [None] * 6


def test_what_lies_in_no_cycle_does_not_count():
    names = pl.Series(["prefill", "decode", "kv_cache"], dtype=pl.Categorical)
    assert phases(names, np.array([-1, 1, 0]), 2, np.array([1, 1])) == ["prefill", "decode"]
