"""MFU and fusion on real traces, against plain sums over TraceLens's sheets and walks over the recorders' own files."""

from __future__ import annotations

import ast
import csv
import gzip
import json
from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from test_tracelens_goldens import trace_of

from stepscope.analyses.costs.fusion import ANALYSIS as FUSION
from stepscope.analyses.costs.matrix import Cost
from stepscope.analyses.costs.mfu import ANALYSIS as MFU
from stepscope.analyses.costs.op_costs import cost_of
from stepscope.analyses.costs.roofline import ANALYSIS as ROOFLINE
from stepscope.core.names import kernel_class
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

#: Dense peaks of matrix units, from the makers' documents.
PEAKS = {
    ("h100", "bf16"): 989.4e12,
    ("mi300", "bf16"): 1307.4e12,
    ("h100", "fp32"): 66.9e12,
    ("mi300", "fp32"): 163.4e12,
}
MODELS = (
    "h100/Falconsai_nsfw_image_detection__1016002",
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005",
    "h100/gaunernst_bert-small-uncased__1016001",
    "h100/google_owlv2-large-patch14-ensemble__1016001",
    "mi300/Falconsai_nsfw_image_detection__1016002",
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005",
    "mi300/facebook_timesformer-base-finetuned-k400__1016002",
    "mi300/gaunernst_bert-small-uncased__1016001",
)


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def window_us(events: list[dict[str, Any]]) -> float:
    """What the lone step of a trace took, until the device was done with it; from where earlier work had ended."""
    (step,) = (e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#"))
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    calls = {e["args"]["correlation"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    own = [e for e in device if e["args"]["correlation"] in calls]
    early = [e for e in device if e["args"]["correlation"] not in calls]
    low, high = step["ts"], max(step["ts"] + step["dur"], *(e["ts"] + e["dur"] for e in own))
    begun = min(e["ts"] for e in own)
    if early and max(e["ts"] for e in early) < begun:
        low = max(low, min(begun, max(e["ts"] + e["dur"] for e in early)))
    return float(high - low)


@pytest.mark.parametrize("model", MODELS)
def test_mfu_is_a_plain_sum_over_the_sheet_by_the_peak_and_the_step(shared: Path, model: str) -> None:
    path = shared / "traces/tracelens" / f"{model}.json.gz"
    sums: dict[str, float] = defaultdict(float)
    with (shared / "golden/tracelens" / model / "unified_perf_summary.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kind, _, precision = row["Compute Spec"].partition("_")
            if row["has_perf_model"] == "True" and kind == "matrix":
                sums[precision] += float(row["GFLOPS"]) * 1e9 * int(row["operation_count"])
    trace = trace_of(path)
    by_precision = {row["precision"]: row["flop"] for row in MFU(trace, by="precision").to_dicts()}
    assert by_precision == pytest.approx(dict(sums), rel=1e-4)  # they do not see the bias of convolutions
    (found,) = MFU(trace).to_dicts()
    device = model.partition("/")[0]
    seconds = sum(flop / PEAKS[device, precision] for precision, flop in sums.items())
    window = window_us(events_of(path))
    assert found["window_ns"] == pytest.approx(window * 1e3, abs=2_000)
    assert found["mfu_ratio"] == pytest.approx(seconds / (window / 1e6), rel=1e-3)
    assert found["known_ratio"] == 1.0


def test_mfu_of_a_job_on_a100(shared: Path) -> None:
    """Megatron, one tensor-parallel rank of eight: every product is known, and they take 14 % of the step."""
    path = shared / "traces/more/kineto-multirank/megatron-tp8-a100/megatron_kineto_0.json.gz"
    (row,) = MFU(open_trace(str(path))).to_dicts()
    assert (row["accelerator"], row["precision"], row["known_ratio"]) == ("A100 80GB SXM", "fp16", 1.0)
    assert row["mfu_ratio"] == pytest.approx(row["flop"] / 312e12 / (row["window_ns"] / 1e9))
    assert f"{row['mfu_ratio']:.3f} {row['product_ratio']:.2f} {row['product_mfu_ratio']:.2f}" == "0.097 0.14 0.68"


def test_mfu_is_withheld_where_neither_device_nor_operations_are_known(shared: Path) -> None:
    path = shared / "traces/kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz"
    for row in MFU(open_trace(str(path))).to_dicts():
        assert row["mfu_ratio"] is None
        assert "V100-DGXS-32GB' is not a known accelerator" in row["reason"]


FUSED = {"elementwise", "norm", "softmax", "reduction", "copy", "embedding", "random", "rope", "quantization",
         "optimizer"}  # fmt: skip


def walked(names: list[str]) -> list[tuple[str, ...]]:
    """Runs of fusible kernels in an order of launches."""
    runs = (tuple(run) for fusible, run in groupby(names, key=lambda name: kernel_class(name) in FUSED) if fusible)
    return [run for run in runs if len(run) > 1]


def as_text(run: tuple[str, ...]) -> str:
    counted = ((name, len(list(part))) for name, part in groupby(run))
    return " → ".join(name if n == 1 else f"{name} ×{n}" for name, n in counted)


@pytest.mark.parametrize("table", ["moondream_eval", "bert_pytorch_train"])
def test_runs_of_the_kernel_tables_are_those_of_a_walk(shared: Path, table: str) -> None:
    path = shared / f"reference/kernel_table_{table}.txt"
    rows = [(line[:50].rstrip(), *map(float, line[51:].split())) for line in path.read_text().splitlines()[1:]]
    runs = Counter(map(as_text, walked([str(row[0]) for row in rows])))
    frame = FUSION(open_trace(str(path)))
    assert dict(frame.select("kernels", "n_runs").iter_rows()) == runs
    assert frame["calls"].sum() == sum(len(run) for run in walked([str(row[0]) for row in rows]))
    assert frame["gap_ns"].null_count() == frame.height
    assert (frame["saved_low_ns"] <= frame["saved_high_ns"]).all()
    assert (frame["saved_high_ns"] <= frame["total_ns"]).all()


def test_runs_of_a_trace_are_those_of_a_walk_over_its_streams(shared: Path) -> None:
    """BERT on an H100: one step, in which the host waits only at the end."""
    path = shared / "traces/tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz"
    events = [e for e in events_of(path) if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    expected: Counter[str] = Counter()
    for _, own in groupby(sorted(events, key=lambda e: (e["tid"], e["ts"])), key=lambda e: e["tid"]):
        stream = [e for e in own if e["cat"] == "kernel" or "HtoD" in e["name"] or "DtoH" in e["name"]]
        expected.update(map(as_text, walked([e["name"] for e in stream])))
    frame = FUSION(trace_of(path), max_gap_ns=10**9)
    assert dict(frame.select("kernels", "n_runs").iter_rows()) == expected
    one = FUSION(trace_of(path), by="all", max_gap_ns=10**9).to_dicts()[0]
    assert one["n_runs"] == sum(expected.values())
    assert 0 < one["saved_low_ns"] <= one["saved_high_ns"] < one["total_ns"]


#: How the engines' passes are annotated in the traces behind TraceLens's sheets of attention over a paged cache.
PASSES = {
    "vllm_decode_full": "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
    "vllm_prefilldecode_piecewise": (
        "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"
    ),
    "sglang_decode": "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
}


@pytest.mark.parametrize("folder", PASSES)
def test_attention_over_a_paged_cache_costs_what_the_sheet_says(shared: Path, folder: str) -> None:
    path = shared / "golden/tracelens/inference" / folder / "unified_perf_summary.csv"
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = (r for r in csv.DictReader(file) if "attention" in r["name"] and r["has_perf_model"] == "True")
    arguments = [json.dumps(ast.literal_eval(row[column])) for column in ("Input Dims", "Input type")]
    cost = cost_of(row["name"], *arguments, None, PASSES[folder])
    assert isinstance(cost, Cost), cost
    assert cost.flop == pytest.approx(float(row["GFLOPS"]) * 1e9, rel=1e-6)
    assert cost.nbytes == pytest.approx(float(row["Data Moved (MB)"]) * 2**20, rel=1e-6)
    assert row["Compute Spec"] == f"matrix_{cost.precision}"


def test_attention_over_a_paged_cache_is_priced_in_a_trace_that_holds_its_calls(shared: Path) -> None:
    path = shared / "traces/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz"
    rows = ROOFLINE(open_trace(str(path)), accelerator="MI300X").to_dicts()
    (row,) = (r for r in rows if r["name"] == "vllm::unified_attention_with_output")
    assert row["calls"] == 24
    assert row["flop"] == pytest.approx(24 * 65.010180096e9)
    assert 0 < row["roof_ratio"] < 1
