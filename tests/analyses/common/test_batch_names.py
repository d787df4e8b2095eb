from __future__ import annotations

import time

import pytest

from stepscope.analyses.common.batch_names import Batch, Part, batch_of, is_sampling, plain_batches

NONE, SOME = Part(0, 0, 0, 0, 0), Part(None)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("execute_context_1(512)_generation_3(3)", Batch(Part(1, 512), Part(3, 3))),
        ("execute_context_0(0)_generation_32(32)", Batch(NONE, Part(32, 32))),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            Batch(Part(9, 8155, 8430, 7475785, 7671310), Part(37, 37, 34489, 37, 34489), 8192, 8192),
        ),
        ("step[DECODE bs=32]", Batch(NONE, Part(32, 32), 32, 32)),
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", Batch(NONE, Part(2, 2, 30, 2, 30), 2, 2)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", Batch(Part(2, 12, 20, 80, 120), NONE, 2, 2)),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            Batch(Part(1, 5, 8, 25, 40), Part(1, 1, 12, 1, 12), 2, 2),
        ),
        ("step[mixed bs=5]", Batch(SOME, SOME, 5, 5, Part(5))),
        (
            "step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0]",
            Batch(Part(1, 3, 3, 9, 9), NONE, 1, 1),
        ),
        ("step[TARGET_VERIFY bs=4]", Batch(NONE, Part(4), 4, 4)),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=900 g_sk=450]",
            Batch(NONE, Part(64, 128, 450, 256, 900), 64, 64),
        ),
        ("prefill[bs=2 tok=16384]", Batch(Part(2, 16384), NONE, 2, 2)),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", Batch(Part(2, 14721), NONE, 2, 2)),
        (
            "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3 sqsq=59 sqsk=60 sk=17409 tbo=1]",
            Batch(Part(6, 17408, 17409, 59, 60), NONE, 6, 6),
        ),
        ("eager_decode[bs=64 tok=64 d=64]", Batch(NONE, Part(64, 64), 64, 64)),
        ("decode[bs=117/128 tok=117 d=117]", Batch(NONE, Part(117, 117), 128, 117)),
        (
            "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=900 sk=800]",
            Batch(NONE, Part(32, 128, 800, 512, 900), 32, 32),
        ),
        (
            "decode[bs=128 tok=384 p=2 d=126 sqsq=1 sqsk=2 sk=900]",
            Batch(Part(2), Part(126), 128, 128, Part(128, 384, 900, 1, 2)),
        ),
        ("execute_new_2_cached_0", Batch(Part(2), NONE)),
        ("execute_new_0_cached_30", Batch(NONE, Part(30))),
        ("execute_model: 8 reqs, 8 toks", Batch(NONE, Part(8, 8))),
        ("execute_model: 8 reqs, 512 toks", Batch(SOME, SOME, total=Part(8, 512))),
        ("_forward_step: 2 ctx reqs, 0 gen reqs", Batch(Part(2), NONE)),
        ("[Executor] _forward_step 7: 2 ctx reqs, 512 ctx tokens, 3 gen reqs", Batch(Part(2, 512), Part(3, 3))),
        ("[Executor] _forward_step 7: 0 ctx reqs, 64 gen reqs", Batch(NONE, Part(64, 64))),
        ("executeStep: 2 ctx reqs, 3 gen reqs", Batch(Part(2), Part(3, 3))),
        ("forward", None),
        ("step[IDLE bs=0]", None),
        ("step[DRAFT_EXTEND bs=4]", None),
        ("execute_context_1(x)_generation", None),
        ("ProfilerStep#12", None),
    ],
)
def test_the_names_of_engines_state_what_ran(name, batch):
    assert batch_of(name) == batch


def test_a_batch_is_prefill_decode_or_both():
    kinds = [batch_of(f"execute_context_{c}({c})_generation_{g}({g})").kind for c, g in ((1, 0), (0, 1), (1, 1))]
    assert kinds == ["prefill", "decode", "mixed"]


def test_what_is_known_of_one_part_alone_is_unknown_of_the_whole():
    assert batch_of("executeStep: 2 ctx reqs, 3 gen reqs").whole == Part(5)
    assert batch_of("executeStep: 0 ctx reqs, 3 gen reqs").whole.q == 3
    assert batch_of("step[MIXED bs=5]").whole == Part(5)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["prefill", "decode"], {"prefill": "prefill", "decode": "decode"}),
        (["Prefill", "decode_step_007", "decoder_layer_3"], {"Prefill": "prefill", "decode_step_007": "decode"}),
        (["model.prefill", "decode.one"], {"model.prefill": "prefill", "decode.one": "decode"}),
        (["encode", "decode"], {}),  # images
        (["prefill_cache_of_pages", "decoder"], {}),
    ],
)
def test_loops_without_an_engine_name_prefill_and_decode(names, kinds):
    assert {name: batch.kind for name, batch in plain_batches(names).items()} == kinds


@pytest.mark.parametrize(
    "name", ["step[DECODE " + "a=111111111111111" * 12 + "!", "step[DECODE " + "b" * 400_000 + "]"]
)
def test_a_name_that_is_nearly_one_of_a_batch_costs_no_time(name):
    began = time.process_time()
    batch_of(name)
    assert is_sampling("apply_" * 500_000) is False
    assert time.process_time() - began < 1


def test_a_number_that_nothing_counts_states_nothing():
    assert batch_of(f"execute_context_1({'9' * 5000})_generation_0()") is None
