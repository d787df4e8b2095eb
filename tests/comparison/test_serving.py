from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS, run

from stepscope.api.comparing import compare_two_runs
from stepscope.comparison.serving import at_equal_work, compare_batches, observe_batches
from stepscope.core.trace import Meta, Run, Trace
from stepscope.reports.comparison import comparison

NAME = "step[DECODE bs={0} g_sqsq={0} g_sqsk={1} g_sk={1}]"


def served(sizes, factor=1.0, seed=0, kv=100):
    """A run of decode steps of 1 ms and 10 µs a request, a little noisy, each after a prefill of 512 tokens in ten."""
    random, at, rows = np.random.default_rng(seed), 0, []
    for number, n in enumerate(sizes):
        us = round((1000 + 10 * n) * factor * (1 + 0.01 * random.standard_normal()))
        rows.append((NAME.format(n, n * kv), at, us - 2, at + 1, us - 1))
        at += us + 1
        if number % 10 == 0:
            rows.append(("step[EXTEND bs=1 toks=512]", at, 2998, at + 1, 2999))
            at += 3001
    return Trace(Meta("p.json", "kineto"), {"spans": run(*rows), "tracks": TABLE_OF_TRACKS})


def changes(base, other):
    return compare_batches([observe_batches(base)], [observe_batches(other)])


SMALL, LARGE = [8, 16] * 30, [16, 32] * 30


def test_other_sizes_are_no_change_of_time():
    table = changes(served(SMALL), served(LARGE, seed=1))
    assert table.select("kind", "size").rows() == [
        ("decode", None), ("prefill", None), ("decode", 16), ("prefill", 512),
    ]  # fmt: skip
    assert table["ratio"].to_list() == pytest.approx([1.0] * 4, abs=0.01)
    assert not table["is_different"].any()
    assert table["base_batches"].to_list() == [30, 6, 30, 6]


def test_slower_batches_of_equal_size_are_different():
    table = changes(served(SMALL), served(LARGE, factor=1.2, seed=1))
    first = table.row(0, named=True)
    assert first["ratio"] == pytest.approx(1.2, abs=0.01)
    assert first["low_ratio"] < 1.2 < first["high_ratio"]
    assert table["is_different"].to_list() == [True, False, True, False]
    assert first["other_ns"] == pytest.approx(1_160_000 * 1.2, rel=0.01)
    assert at_equal_work(table).startswith("at equal work decode takes 1.20× as long (1.1")
    assert "prefill takes 1.00× as long" in at_equal_work(table)


def test_longer_contexts_are_other_work():
    table = changes(served(SMALL), served(SMALL, kv=1000))
    assert table["kind"].unique().to_list() == ["prefill"]
    nothing = changes(served([8] * 3).with_tables(), served([9] * 3))
    assert at_equal_work(nothing.filter(pl.col("kind") == "decode")) == "no batch of equal work is in both runs"


def test_single_batches_have_no_interval():
    table = changes(served([8]), served([8], factor=1.5))
    row = table.row(0, named=True)
    assert (row["ratio"], row["low_ratio"], row["is_different"]) == (pytest.approx(1.5, rel=0.05), None, False)


def test_without_batches_there_is_nothing_to_observe():
    assert observe_batches(Trace(Meta("p.json", "kineto"), {})).is_empty()


def test_compare_begins_with_equal_work():
    traces = {"a": served(SMALL), "b": served(LARGE, factor=1.2, seed=1)}
    result = compare_two_runs(*(Run((name,), traces.__getitem__) for name in traces))
    report = comparison(result)
    assert report.headline.startswith("At equal work decode takes 1.20× as long")
    assert any(block.title == "Batches at equal work" for block in report.tables)
    assert report.document["batches"][0]["is_different"]


def test_steps_that_differ_because_their_batches_do_are_no_difference():
    traces = {"a": served(SMALL), "b": served(LARGE, seed=3)}
    result = compare_two_runs(*(Run((name,), traces.__getitem__) for name in traces))
    assert result.step_time.ratio > 1.05
    assert (result.verdict, result.reason) == ("no_difference", "steps differ because the batches do")
    assert result.proof is None


def test_runs_in_which_nothing_else_repeats_are_compared_by_their_batches():
    traces = {"a": served([8]), "b": served([8])}
    result = compare_two_runs(*(Run((name,), traces.__getitem__) for name in traces))
    assert result.verdict == "inconclusive"
    assert result.reason.startswith("at equal work decode takes 1.00× as long (1 size)")
    assert "Inconclusive: at equal work" in comparison(result).headline
