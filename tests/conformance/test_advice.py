"""Advice on real recordings of many recorders and frameworks: it names only what exists there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import pytest

import stepscope
from stepscope.analyses.advice.recommendations import recommendations
from stepscope.core.remedies import recording_of

if TYPE_CHECKING:
    from pathlib import Path

MINDSPORE = "traces/more/ascend/mindspore-PROF-2device/PROF_000001_20230818142704322_COJGGGCANRMICFBC"
RECORDINGS = (
    "traces/tracelens/b200/eager_trace.json.gz",
    "traces/tracelens/mi300/resnet_act_checkpoint.json.gz",
    "traces/hta/mtia_inference_trace/mtia_inference_rank_0.json.gz",
    "traces/hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "traces/more/ascend/torch_npu-2rank-text/level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json.gz",
    "traces/more/ascend/msprof-analyze/trace_view.json.gz",
    f"{MINDSPORE}/device_0/timeline/msprof_0_2_1.json.gz",
    "traces/more/tpu-jax-trace/2026_01_11_21_26_41.trace.json.gz",
    "traces/more/nsys-multigpu/h100_2gpu_1s.sqlite",
    "nsight/nsys-sqlite/a100-tf-nerf-casio.2021.5.sqlite",
    "nsight/nsys-sqlite/t4-power-iteration-nvtx-2025.3.sqlite",
    "nsight/rocprof/mi350x-908_results.json.gz",
    "traces/more/rocm-rpd/vllm-fp8-mytrace.rpd.gz",
    "paddle/gpu/flash_attn_reconstruction/trace.json.gz",
)
_TORCH = (
    r"torch\.|non_blocking|DataLoader|num_workers|autocast|expandable_segments|with_stack|pin_memory|TORCH_|foreach"
)
#: Words, and what a recording must be for them: field and values.
ONLY_FOR = {
    _TORCH: ("framework", {"PyTorch"}),
    r"torch\.compile": ("device", {"cuda", "rocm", "xpu"}),
    r"paddle\.|RecordEvent": ("framework", {"PaddlePaddle"}),
    r"\bjax": ("framework", {"JAX/XLA"}),
    r"CUDA": ("device", {"cuda"}),
    r"\bHIP": ("device", {"rocm"}),
    r"profiler\.step|ProfilerActivity": ("recorder", {"kineto", "paddle"}),
    r"nsys profile|NVTX": ("recorder", {"nsys"}),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_advice_names_what_the_recorder_or_the_framework_does_not_have(shared: Path, name: str) -> None:
    trace = stepscope.load(str(shared / name))
    report = trace.report()
    about = recording_of(trace.meta, trace.spans, trace.devices)
    said = [text for finding in report.findings for text in finding.details if text.startswith("→")]
    said += [text for text in report.quality if "No launch" not in text]
    t = trace
    rules = recommendations(t.spans, t.tracks, t.devices, t.steps, t.kernels, t.transfers, t.allocations)
    said += rules["text"].cast(pl.String).to_list()
    for words, (field, only) in ONLY_FOR.items():
        if getattr(about, field) not in only:
            assert [text for text in said if re.search(words, text)] == [], (words, about)
