from __future__ import annotations

import time

import pytest

from stepscope.analyses.common.batch_names import Batch, Part, batch_of, is_sampling

NONE = Part(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("execute_context_1(512)_generation_3(3)", Batch(Part(1, 512), Part(3, 3))),
        ("execute_context_0(0)_generation_32(32)", Batch(NONE, Part(32, 32))),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            Batch(Part(9, 8155, 8430, 7475785, 7671310), Part(37, 37, 34489, 37, 34489), 8192),
        ),
        ("step[DECODE bs=32]", Batch(NONE, Part(32, 32), 32)),
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", Batch(NONE, Part(2, 2, 30, 2, 30), 2)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", Batch(Part(2, 12, 20, 80, 120), NONE, 2)),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            Batch(Part(1, 5, 8, 25, 40), Part(1, 1, 12, 1, 12), 2),
        ),
        ("prefill[bs=2 tok=16384]", Batch(Part(2, 16384), NONE, 2)),
        ("eager_decode[bs=64 tok=64 d=64]", Batch(NONE, Part(64, 64), 64)),
        ("[Executor] _forward_step 7: 2 ctx reqs, 512 ctx tokens, 3 gen reqs", Batch(Part(2, 512), Part(3, 3))),
        ("[Executor] _forward_step 7: 0 ctx reqs, 64 gen reqs", Batch(NONE, Part(64, 64))),
        ("executeStep: 2 ctx reqs, 3 gen reqs", Batch(Part(2), Part(3, 3))),
        ("forward", None),
        ("step[IDLE bs=0]", None),
        ("step[MIXED bs=5]", None),
        ("execute_context_1(x)_generation", None),
        ("ProfilerStep#12", None),
    ],
)
def test_the_names_of_engines_state_what_ran(name, batch):
    assert batch_of(name) == batch


def test_a_batch_is_prefill_decode_or_both():
    kinds = [batch_of(f"execute_context_{c}({c})_generation_{g}({g})").kind for c, g in ((1, 0), (0, 1), (1, 1))]
    assert kinds == ["prefill", "decode", "mixed"]


def test_tokens_are_unknown_if_those_of_one_part_are():
    assert batch_of("executeStep: 2 ctx reqs, 3 gen reqs").tokens is None
    assert batch_of("executeStep: 0 ctx reqs, 3 gen reqs").tokens == 3


@pytest.mark.parametrize("name", ["step[DECODE " + "a=111111111111111" * 12 + "!", "prefill[" + "b1=1" * 400])
def test_a_name_that_is_nearly_one_of_a_batch_costs_no_time(name):
    began = time.process_time()
    assert batch_of(name) is None
    assert is_sampling("apply_" * 500_000) is False
    assert time.process_time() - began < 1
