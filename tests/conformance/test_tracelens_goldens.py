"""Timeline and kernel tables against reference CSVs that TraceLens made from the same traces, at 1e-6 relative.

TraceLens computes with times in µs as doubles. A recorded time of about 1e12 µs has a resolution of about 1e-4 µs
there, so that its sums of thousands of intervals are off by some ns. Both sides of that are tested: in exact ns we
agree to 1e-6 of the total and one such step for each event; on its grid of doubles each value agrees to 1e-6 of itself.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hta_conventions import recorded_us

from stepscope.analyses.kernels.kernels import ANALYSIS as KERNELS
from stepscope.analyses.steps.timeline import ANALYSIS as TIMELINE
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

COLUMNS = {
    "computation_time": "computation_ns",
    "exposed_comm_time": "exposed_communication_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "total_ns",
    "total_comm_time": "communication_ns",
    "total_memcpy_time": "memcpy_ns",
}
EAGER = {
    "h100/Falconsai_nsfw_image_detection__1016002": "h100/Falconsai_nsfw_image_detection__1016002.json.gz",
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005": "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "h100/gaunernst_bert-small-uncased__1016001": "h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "h100/google_owlv2-large-patch14-ensemble__1016001": "h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "mi300/Falconsai_nsfw_image_detection__1016002": "mi300/Falconsai_nsfw_image_detection__1016002.json.gz",
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005": "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi300/facebook_timesformer-base-finetuned-k400__1016002": (
        "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    ),
    "mi300/gaunernst_bert-small-uncased__1016001": "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    "torch_compile_triton/trace": "torch_compile_triton/trace.json.gz",
    "perf_model/normalization/normalization_layer_test": "perf_model/normalization/normalization_layer_test.json.gz",
    "generated/b200/eager_trace": "b200/eager_trace.json.gz",
}
INFERENCE = {
    "inference/sglang_decode": "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "inference/vllm_decode_full": "inference/vllm_decode_full/graph_execution.json.gz",
    "inference/vllm_prefilldecode_piecewise": "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "inference/xdit_sd_3.5": "inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
}
TRACES = EAGER | INFERENCE
#: Made from device work with a launch in the trace only, and how much of all device work that is.
LINKED_ONLY = {
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005": (1198, 1707),
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005": (1054, 1517),
    "perf_model/normalization/normalization_layer_test": (168, 173),
    "inference/xdit_sd_3.5": (8065, 8066),
}
NOT_COMPARABLE = {
    "mi300/resnet_act_checkpoint": "made with recompute detection, which moves kernels between two sets of rows",
    "jax/jax_conv_minimal": "the trace it was made from is not at hand",
    "generated/rocprof": "its trace is rocprofv3 JSON, which the Kineto reader does not read; another definition",
    "compare/h100_vs_mi300_qwen": "the same two timelines side by side",
}


@lru_cache(1)
def trace_of(path: Path) -> Trace:
    return open_trace(str(path))


def on_their_grid(trace: Trace) -> tuple[Trace, float]:
    """The trace with times in the smallest steps that its times in µs as doubles can differ by; and steps per ms."""
    start = recorded_us(trace)
    end = start + trace.spans["dur_ns"].to_numpy() / 1000
    grid = float(np.spacing(start.min()))
    ticks = (start / grid).astype(np.int64)
    lasts = (end / grid).astype(np.int64) - ticks
    spans = trace.spans.with_columns(ts_ns=pl.Series(ticks - ticks.min()), dur_ns=pl.Series(lasts))
    return trace.with_tables(spans=spans), 1000 / grid


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("golden", TRACES)
def test_timeline_equals_gpu_timeline(shared: Path, golden: str) -> None:
    trace = trace_of(shared / "traces/tracelens" / TRACES[golden])
    expected = {
        COLUMNS[r["type"]]: float(r["time ms"])
        for r in rows_of(shared / "golden/tracelens" / golden / "gpu_timeline.csv")
    }
    options = {"linked_only": golden in LINKED_ONLY, "communication": "library"}
    exact = TIMELINE(trace, **options).row(0, named=True)
    if golden in LINKED_ONLY:
        assert (exact["n_events"], TIMELINE(trace)["n_events"][0]) == LINKED_ONLY[golden]
    gridded, per_ms = on_their_grid(trace)
    near = 1e-6 * expected["total_ns"] + exact["n_events"] / per_ms
    assert {c: exact[c] / 1e6 for c in expected} == pytest.approx(expected, rel=0, abs=near)
    rounded = TIMELINE(gridded, **options).row(0, named=True)
    assert {c: rounded[c] / per_ms for c in expected} == pytest.approx(expected, rel=1e-6)


def test_a_multicast_all_reduce_is_communication_but_of_no_collective_library(shared: Path) -> None:
    trace = trace_of(shared / "traces/tracelens/b200/eager_trace.json.gz")
    ours, theirs = TIMELINE(trace), TIMELINE(trace, communication="library")
    same = ["busy_ns", "idle_ns", "total_ns", "memcpy_ns", "exposed_memcpy_ns"]
    assert ours.select(same).equals(theirs.select(same))
    moved = KERNELS(trace).filter("communication")["name"].cast(pl.String).to_list()
    (multimem,) = (name for name in moved if "nccl" not in name)
    assert multimem.startswith("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(")
    assert ours["communication_ns"][0] - theirs["communication_ns"][0] == 2_119_548


@pytest.mark.parametrize("golden", EAGER)
def test_kernels_equal_kernel_summary(shared: Path, golden: str) -> None:
    trace = trace_of(shared / "traces/tracelens" / EAGER[golden])
    rows = rows_of(shared / "golden/tracelens" / golden / "kernel_summary.csv")
    expected: dict[tuple[str, str, int], dict[str, float]] = {}
    for r in rows:
        key = (r["Kernel name"], _their_op(r["Parent cpu_op"]), int(r["Kernel stream"]))
        assert key not in expected
        expected[key] = {
            "calls": int(r["Kernel duration (µs)_count"]),
            "total_ns": 1e3 * float(r["Kernel duration (µs)_sum"]),
            "mean_ns": 1e3 * float(r["Kernel duration (µs)_mean"]),
            "min_ns": 1e3 * float(r["Kernel duration (µs)_min"]),
            "max_ns": 1e3 * float(r["Kernel duration (µs)_max"]),
            "share_ratio": float(r["Percent of kernels time (%)"]) / 100,
        }
    by_op = KERNELS(trace, by="op")
    streams = dict(KERNELS(trace, by="stream").select("name", "stream").rows())
    ours = {(r["name"], r["op"] or "", streams[r["name"]]): r for r in by_op.to_dicts()}
    assert set(ours) == set(expected)
    for key, row in expected.items():
        assert {c: ours[key][c] for c in row} == pytest.approx(row, rel=1e-6), key

    by_name: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for (name, _, _), row in expected.items():
        by_name[name][0] += row["calls"]
        by_name[name][1] += row["total_ns"]
    default = {name: [calls, ns] for name, calls, ns in KERNELS(trace).select("name", "calls", "total_ns").rows()}
    assert default.keys() == by_name.keys()
    for name, row in by_name.items():
        assert default[name] == pytest.approx(row, rel=1e-6)


def _their_op(parent: str) -> str:
    """Their parent of a kernel launched outside any operator is the launch itself; we have none then."""
    return "" if parent == "cuLaunchKernelEx" else parent


@pytest.mark.parametrize("golden", EAGER)
def test_share_of_the_total_follows_from_both_tables(shared: Path, golden: str) -> None:
    trace = trace_of(shared / "traces/tracelens" / EAGER[golden])
    rows = rows_of(shared / "golden/tracelens" / golden / "kernel_summary.csv")
    total = TIMELINE(trace, linked_only=golden in LINKED_ONLY)["total_ns"][0]
    expected = sum(float(r["Percent of total time (%)"]) for r in rows)
    assert 100 * KERNELS(trace)["total_ns"].sum() / total == pytest.approx(expected, rel=1e-6)


def test_every_reference_timeline_is_compared_or_has_a_reason_not_to_be(shared: Path) -> None:
    folder = shared / "golden/tracelens"
    found = {path.parent.relative_to(folder).as_posix() for path in folder.glob("**/gpu_timeline.csv")}
    assert found == TRACES.keys() | NOT_COMPARABLE.keys()
