from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.remedies import REMEDIES, Recording, recording_of, remedy
from stepscope.core.schema import DEVICES, SPANS
from stepscope.core.trace import Meta

TORCH = Recording("kineto", "PyTorch", "cuda")
#: Words that exist for some recordings only, and for which.
ONLY_FOR = {
    "torch.compile": ("framework", ("PyTorch",)), "foreach": ("framework", ("PyTorch",)),
    "non_blocking": ("framework", ("PyTorch",)), "DataLoader": ("framework", ("PyTorch",)),
    "num_workers": ("framework", ("PyTorch",)), "autocast": ("framework", ("PyTorch",)),
    "expandable_segments": ("framework", ("PyTorch",)), "with_stack": ("framework", ("PyTorch",)),
    "TORCH_LOGS": ("framework", ("PyTorch",)), "pin_memory": ("framework", ("PyTorch",)),
    "paddle.": ("framework", ("PaddlePaddle",)), "RecordEvent": ("framework", ("PaddlePaddle",)),
    "jax": ("framework", ("JAX/XLA",)), "tf.": ("framework", ("TensorFlow",)),
    "torch_xla": ("framework", ("PyTorch/XLA",)), "CUDA graphs": ("device", ("cuda",)),
    "CUDA_": ("device", ("cuda",)), "HIP": ("device", ("rocm",)),
    "profiler.step": ("recorder", ("kineto", "paddle")), "ProfilerActivity": ("recorder", ("kineto",)),
    "nsys": ("recorder", ("nsys", "nsys-stats")), "NVTX": ("recorder", ("nsys", "nsys-stats")),
}  # fmt: skip
EVERY = [
    Recording(recorder, framework, device)
    for recorder in ("kineto", "nsys", "rocprof", "paddle", "xplane", "")
    for framework in ("PyTorch", "PaddlePaddle", "JAX/XLA", "TensorFlow", "PyTorch/XLA", "")
    for device in ("cuda", "rocm", "xpu", "npu", "tpu", "mtia", "cpu", "")
]


@pytest.mark.parametrize("row", REMEDIES, ids=lambda row: f"{row.topic}-{row.frameworks}-{row.devices}")
def test_each_remedy_is_given_to_some_recording_and_only_to_those_that_it_is_for(row):
    given = [one for one in EVERY if remedy(row.topic, one) == row.text]
    assert given
    assert all(row.applies_to(one) for one in given)
    for word, (field, only) in ONLY_FOR.items():
        if word in row.text:
            assert {getattr(one, field) for one in given} <= set(only), word


def test_the_most_particular_remedy_of_a_topic_comes_first():
    for number, row in enumerate(REMEDIES):
        later = [other for other in REMEDIES[number + 1 :] if other.topic == row.topic]
        bounds = (row.frameworks, row.devices, row.recorders)
        assert any(bounds) or not later, f"nothing after {row.text!r} is ever given"


def test_an_unknown_recording_gets_what_holds_for_all():
    assert remedy("launching", Recording()) == "fewer, larger launches: fused operators, a larger batch"
    assert "torch.compile" in remedy("launching", TORCH)
    assert remedy("steps", Recording("rocprof")) == ""
    with pytest.raises(KeyError):
        remedy("no such topic", TORCH)


def test_an_inference_engine_is_known_by_its_names_and_has_no_loop_to_mark():
    for name in ("vllm::all_reduce", "vllm/v1/worker.py(9): run", "/w/sglang/srt/x.py(1): f", "execute_context_1(8)_g"):
        about = recording_of(Meta("x", "kineto", framework="PyTorch"), spans_of_names(name), DEVICES.empty())
        assert about.engine, name
        assert remedy("steps", about) == ""
    assert not recording_of(None, spans_of_names("my_vllm_test", "execute_plan"), DEVICES.empty()).engine


def spans_of_names(*names):
    return SPANS.conform(pl.DataFrame({"name": list(names)}))


def test_pytorch_is_known_by_its_operators_where_the_file_does_not_say():
    spans = SPANS.conform(pl.DataFrame({"name": ["aten::mm"], "category": ["operator"]}))
    devices = DEVICES.conform(pl.DataFrame({"device_id": [0, 1], "type": ["cpu", "npu"]}))
    assert recording_of(Meta("x", "kineto", framework="Ascend"), spans, devices) == Recording(
        "kineto", "PyTorch", "npu"
    )
    assert recording_of(None, SPANS.empty(), DEVICES.empty()) == Recording()
    assert recording_of(Meta("x", "kineto", framework="Ascend"), SPANS.empty(), devices).framework == ""
    assert recording_of(Meta("x", "xplane", framework="JAX/XLA"), spans, devices).framework == "JAX/XLA"
