from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS, run, spans_of

from stepscope.analyses.steps.batches import batches
from stepscope.core.errors import MissingTable
from stepscope.core.schema import OPS


def test_a_batch_lasts_from_its_start_until_its_device_work_is_done():
    table = batches(run(("step[DECODE bs=4]", 0, 10, 5, 100)), TABLE_OF_TRACKS)
    row = table.row(0, named=True)
    assert (row["kind"], row["n_requests"], row["n_tokens"]) == ("decode", 4, 4)
    assert (row["dur_ns"], row["host_ns"], row["busy_ratio"]) == (105_000, 10_000, 100 / 105)
    assert row["tokens_per_s"] == pytest.approx(4 / 105e-6)


def test_a_batch_that_is_queued_early_begins_when_the_one_before_is_done():
    table = batches(run(("step[DECODE bs=4]", 0, 10, 5, 100), ("step[DECODE bs=4]", 20, 10, 105, 100)), TABLE_OF_TRACKS)
    assert table["dur_ns"].to_list() == [105_000, 100_000]
    assert table["busy_ratio"].to_list() == [100 / 105, 1.0]


def test_the_outermost_range_is_the_batch_and_the_one_that_states_most_describes_it():
    inner = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_30(sq30sk900sqsq30sqsk900)"
    spans = spans_of(
        ("user_range", "step[DECODE bs=30]", 0, 50, None),
        ("user_range", inner, 10, 20, None),
        ("runtime", "cudaGraphLaunch", 12, 1, None),
        ("kernel", "k", 20, 60, 2),
    )
    (row,) = batches(spans, TABLE_OF_TRACKS).to_dicts()
    assert (row["ts_ns"], row["dur_ns"]) == (0, 80_000)
    assert (row["n_tokens"], row["kv_tokens"], row["padded_ratio"]) == (30, 900, 1 - 30 / 32)


def test_places_are_those_of_the_unit_that_the_engine_states():
    names = ("execute_128_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq128sk900sqsq512sqsk3600)",  # four tokens each
             "decode[bs=96/128 tok=96 d=96]", "step[EXTEND bs=2 toks=512]")  # fmt: skip
    table = batches(run(*[(name, 100 * i, 10, 100 * i + 5, 50) for i, name in enumerate(names)]), TABLE_OF_TRACKS)
    assert table["padded_ratio"].to_list() == [0.0, 0.25, 0.0]


def test_a_range_around_several_batches_of_a_plain_loop_is_none():
    rows = [("generate", 0, 1000), ("prefill", 0, 100), ("decode", 100, 400), *[("decode_step", 100 + 100 * i, 90)
            for i in range(3)]]  # fmt: skip
    table = batches(spans_of(*[("user_range", *row, None) for row in rows]), TABLE_OF_TRACKS)
    assert table.select("kind", "ts_ns", "dur_ns", "n_requests", "tokens_per_s").rows() == [
        ("prefill", 0, 100_000, None, None),
        *[("decode", 100_000 + 100_000 * i, 90_000, None, None) for i in range(3)],
    ]


def test_requests_and_tokens_of_a_plain_loop_are_those_that_are_embedded():
    rows = [("user_range", "prefill", 0, 100, None), ("user_range", "decode", 100, 50, None),
            ("user_range", "decode", 200, 50, None)]  # fmt: skip
    embeds = [("operator", "aten::embedding", at, 5, None) for at in (10, 20, 110)]
    spans = spans_of(*rows, *embeds)
    ids = spans.filter(pl.col("name").cast(pl.String) == "aten::embedding")["span_id"]
    shapes = ["[[100,64],[4,128],[],[],[]]", "[[512,64],[1,128]]", "[[100,64],[4,1]]"]
    ops = OPS.conform(pl.DataFrame({"span_id": ids, "input_shapes": shapes}))
    table = batches(spans, TABLE_OF_TRACKS, ops)
    assert table.select("n_requests", "n_tokens").rows() == [(4, 512), (4, 4), (None, None)]
    assert table["tokens_per_s"].to_list() == pytest.approx([512 / 100e-6, 4 / 50e-6, None])
    assert batches(spans, TABLE_OF_TRACKS)["n_tokens"].null_count() == 3


def test_nine_of_ten_durations_are_not_above_the_ninth():
    for n, expected in ((1, 10), (2, 20), (10, 90), (11, 100)):
        spans = run(*[("step[DECODE bs=4]", 1000 * i, 5, 1000 * i, 10 * (i + 1)) for i in range(n)])
        assert batches(spans, TABLE_OF_TRACKS, by="kind")["p90_ns"][0] == expected * 1000


def test_kinds_are_summed_up_with_most_time_first():
    rows = [("step[DECODE bs=4]", 100 * i, 10, 100 * i + 10, 20 + 10 * i) for i in range(4)]
    spans = run(*rows, ("step[EXTEND bs=1 toks=1000]", 1000, 10, 1010, 5000))
    table = batches(spans, TABLE_OF_TRACKS, by="kind")
    assert table.select("kind", "n_batches", "dur_ns", "n_tokens").rows() == [
        ("prefill", 1, 5_010_000, 1000.0),
        ("decode", 4, 45_000, 4.0),
    ]
    assert table["tokens_per_s"][1] == pytest.approx(16 / 180e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_law_of_a_kind_is_that_by_which_it_was_made(seed):
    random = np.random.default_rng(seed)
    at, rows = 0, []
    for _ in range(80):
        n, kv = int(random.integers(1, 64)), int(random.integers(1_000, 60_000))
        us = round((2000 + 10 * n + 0.05 * kv) * (1 + 0.01 * random.standard_normal()))
        name = f"step[DECODE bs={n} g_sqsq={n} g_sqsk={kv} g_sk={kv}]"
        rows.append((name, at, 5, at, us))
        at += us + 10
    (law,) = batches(run(*rows), TABLE_OF_TRACKS, by="law").to_dicts()
    # New tokens and requests are the same in decode: one weight is that of both.
    assert (law["per_request_ns"], law["per_token_ns"]) == (pytest.approx(10_000, rel=0.25), None)
    assert law["per_kv_token_ns"] == pytest.approx(50, rel=0.05)
    assert law["base_ns"] == pytest.approx(2_000_000, rel=0.05)
    assert law["error_ratio"] < 0.015


def test_single_batches_that_take_ten_times_as_long_do_not_bend_the_law():
    at, rows = 0, []
    for i in range(60):
        kv = 1000 * (i % 20 + 1)
        us = (2000 + kv // 20) * (10 if i % 15 == 7 else 1)
        rows.append((f"step[DECODE bs=8 g_sqsq=8 g_sqsk={kv} g_sk={kv}]", at, 5, at, us))
        at += us + 10
    (law,) = batches(run(*rows), TABLE_OF_TRACKS, by="law").to_dicts()
    assert law["base_ns"] == pytest.approx(2_000_000, rel=0.01)
    assert law["per_kv_token_ns"] == pytest.approx(50, rel=0.01)


def test_batches_without_device_work_ran_no_model_and_are_no_part_of_the_law():
    at, rows = 0, []
    for i in range(40):
        us = 9 if i % 10 == 9 else 2000 + 10 * (i % 7 + 1)
        rows.append(("user_range", f"step[DECODE bs={i % 7 + 1}]", at, 5, None))
        if i % 10 != 9:
            rows += [("runtime", "cudaGraphLaunch", at + 1, 1, None), ("kernel", "k", at, us, len(rows) + 1)]
        at += us + 10
    (law,) = batches(spans_of(*rows), TABLE_OF_TRACKS, by="law").to_dicts()
    assert (law["n_batches"], law["n_empty"]) == (40, 4)
    assert law["error_ratio"] < 0.001


def test_too_few_batches_have_no_law():
    spans = run(*[("step[DECODE bs=4]", 100 * i, 10, 100 * i + 10, 20) for i in range(11)])
    with pytest.raises(MissingTable, match="12 batches of one kind"):
        batches(spans, TABLE_OF_TRACKS, by="law")


def test_known_operators_give_operations_and_bytes():
    spans = spans_of(
        ("user_range", "step[DECODE bs=8]", 0, 50, None),
        ("operator", "aten::mm", 10, 10, None),
        ("runtime", "cudaLaunchKernel", 12, 1, None),
        ("kernel", "gemm", 60, 20, 2),
    )
    spans = spans.with_columns(op_id=pl.when(pl.col("category") == "kernel").then(1).cast(pl.UInt32))
    arguments = {"input_shapes": ["[[8,4096],[4096,4096]]"], "input_types": ['["c10::BFloat16","c10::BFloat16"]']}
    ops = OPS.conform(pl.DataFrame({"span_id": [1], **arguments}))
    (row,) = batches(spans, TABLE_OF_TRACKS, ops, accelerator="H100 SXM").to_dicts()
    nbytes = 2 * (8 * 4096 + 4096 * 4096 + 8 * 4096)
    assert (row["flop"], row["bytes"], row["known_ratio"]) == (2 * 8 * 4096 * 4096, nbytes, 1.0)
    assert row["mbu_ratio"] == pytest.approx(nbytes / 3.35e12 / 80e-6, rel=1e-3)


def test_ranges_of_other_names_are_no_batches():
    with pytest.raises(MissingTable, match="ranges of batches"):
        batches(run(("forward", 0, 10, 5, 100)), TABLE_OF_TRACKS)


def test_a_batch_without_device_work_lasts_as_long_as_on_the_host():
    spans = spans_of(("user_range", "step[DECODE bs=4]", 5, 10, None))
    (row,) = batches(spans, TABLE_OF_TRACKS).to_dicts()
    assert (row["dur_ns"], row["busy_ratio"]) == (10_000, None)
