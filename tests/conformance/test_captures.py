"""Replayed graphs of vLLM and SGLang: every kernel has its operator, and operators cost what TraceLens' sheets say."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from stepscope.analyses.costs.matrix import Cost
from stepscope.analyses.costs.op_costs import ARGUMENTS, cost_of
from stepscope.core.schema import DEVICE_WORK
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepscope.core.trace import Trace

PROFILES = {
    "sglang_decode": "sglang_Qwen3-8B_decode.json.gz",
    "vllm_decode_full": "graph_execution.json.gz",
    "vllm_prefilldecode_piecewise": "graph_execution.json.gz",
}
#: What the sheets count and we do not, or by another name; the test of differences says what follows from that.
PRODUCTS = ("aten::mm", "aten::addmm")
EXPERTS = ("pseudo_op::moe_triton_unfused_up", "pseudo_op::moe_triton_unfused_down")
DIFFERENT = {*PRODUCTS, *EXPERTS, "aten::copy_", "aten::max"}


@cache
def opened(shared: Path, name: str) -> Trace:
    return open_trace(str(shared / "traces/tracelens/inference" / name / PROFILES[name]))


@pytest.mark.parametrize("name", PROFILES)
def test_less_than_a_hundredth_of_device_time_has_no_operator(shared: Path, name: str) -> None:
    work = opened(shared, name).spans.filter(pl.col("category").is_in(DEVICE_WORK))
    assert work.filter(pl.col("op_id").is_null())["dur_ns"].sum() < 0.01 * work["dur_ns"].sum()


@pytest.mark.parametrize("name", PROFILES)
def test_the_kernels_of_each_replay_are_those_of_its_capture_in_order(shared: Path, name: str) -> None:
    """Counted in the raw files: launches between begin and end of a capture, and kernels of each graph launch."""
    folder = shared / "traces/tracelens/inference" / name
    (captured,) = [file for file in (folder / "capture_traces").iterdir() if file.name.endswith(".gz")]
    calls = sorted((e for e in events(captured) if e.get("cat") == "cuda_runtime"), key=lambda e: e["ts"])
    graphs: list[list[str]] = []
    is_open = False
    for call in calls:
        is_open = (is_open or "BeginCapture" in call["name"]) and "EndCapture" not in call["name"]
        if "BeginCapture" in call["name"]:
            graphs.append([])
        elif is_open and "kernel" in call["args"]:
            graphs[-1].append(call["args"]["kernel"])
    replay = events(folder / PROFILES[name])
    launches = sorted((e for e in replay if e["name"] == "hipGraphLaunch"), key=lambda e: e["ts"])
    kernels = sorted((e for e in replay if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    of_launch = [[k["name"] for k in kernels if k["args"]["correlation"] == e["args"]["correlation"]] for e in launches]
    assert of_launch == graphs
    joined = opened(shared, name).issues.filter(pl.col("code") == "graphs_joined")["count"]
    assert joined.to_list() == [sum(map(len, graphs))]


def events(path: Path) -> list[dict[str, object]]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def sheet_rows(shared: Path, name: str) -> list[dict[str, str]]:
    rows = []
    for path in (shared / "golden/tracelens/inference" / name).glob("*.csv"):
        rows += csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row.get("GFLOPS_first") and row["Data Moved (MB)_first"]]


def sums_of(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    """Calls, operations and bytes of each operator."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        n = float(row["name_count"])
        numbers = n, n * float(row["GFLOPS_first"]) * 1e9, n * float(row["Data Moved (MB)_first"]) * 2**20
        sums[row["name"]] = [a + b for a, b in zip(sums[row["name"]], numbers, strict=True)]
    return sums


@cache
def our_sums(shared: Path, name: str) -> dict[str, list[float]]:
    table = opened(shared, name).show("roofline").with_columns(pl.col("name").str.replace(r"_\d+$", ""))
    return {row["name"]: [row["calls"], row["flop"], row["bytes"]] for row in table.to_dicts()}


@pytest.mark.parametrize("name", PROFILES)
def test_operators_cost_what_the_sheets_say(shared: Path, name: str) -> None:
    sheets, ours = sums_of(sheet_rows(shared, name)), our_sums(shared, name)
    same = sheets.keys() - DIFFERENT
    assert len(same) >= 4
    assert {n: ours.get(n) for n in same} == {n: pytest.approx(sheets[n], rel=1e-6) for n in same}


@pytest.mark.parametrize("name", PROFILES)
def test_matrix_products_cost_as_much_by_the_name_of_the_operator_around_them(shared: Path, name: str) -> None:
    sheets, ours = sums_of(sheet_rows(shared, name)), our_sums(shared, name)
    around = "aiter::gemm_a16w16" if name == "sglang_decode" else "vllm::rocm_unquantized_gemm"
    of_sheets = [sum(sheets[n][i] for n in PRODUCTS) for i in range(3)]
    of_us = [sum(ours.get(n, [0, 0, 0])[i] or 0 for n in (around, *PRODUCTS)) for i in range(3)]
    assert of_us == pytest.approx(of_sheets, rel=1e-6)


def costs_of(trace: Trace, name: str) -> dict[int, tuple[str, Cost]]:
    """The calls of an operator, with the types of their arguments and their cost."""
    calls = trace.spans.filter((pl.col("category") == "operator") & (pl.col("name").cast(pl.String) == name))
    arguments = calls.select("span_id").join(trace.ops, on="span_id").select("span_id", *ARGUMENTS)
    return {
        call: (str(types), cost)
        for call, shapes, types, values in arguments.iter_rows()
        if isinstance(cost := cost_of(name, shapes, types, values), Cost)
    }


@pytest.mark.parametrize("name", PROFILES)
def test_sheets_count_calls_inside_others_and_calls_without_device_work_and_no_booleans(
    shared: Path, name: str
) -> None:
    trace, ours, sheets = opened(shared, name), our_sums(shared, name), sums_of(sheet_rows(shared, name))
    parents = dict(trace.spans.select("span_id", "parent_id").iter_rows())
    around = {op: list(ancestors(op, parents)) for op in trace.spans["op_id"].drop_nulls().unique()}
    with_work = {*around, *(one for above in around.values() for one in above)}
    known = {call for op in ("aten::copy_", "aten::cumsum") for call in costs_of(trace, op)}
    for op in ("aten::copy_", "aten::max"):
        total = np.array(ours.get(op, [0, 0, 0]), dtype=float)
        for call, (types, cost) in costs_of(trace, op).items():
            is_left_out = call not in with_work or not known.isdisjoint(ancestors(call, parents))
            sign = -1 if "bool" in types else int(is_left_out)
            total += np.array([1, cost.flop, cost.nbytes]) * sign
        assert total.tolist() == pytest.approx(sheets[op], rel=1e-6)


def ancestors(span: int, parents: dict[int, int | None]) -> Iterator[int]:
    while (above := parents[span]) is not None:
        yield (span := above)


@pytest.mark.parametrize("name", PROFILES)
def test_experts_of_the_sheets_have_an_inner_size_that_no_trace_states(shared: Path, name: str) -> None:
    """The sheets take the hidden size for it. We say that what experts cost is unknown."""
    rows = [row for row in sheet_rows(shared, name) if row["name"] in EXPERTS]
    assert len(rows) == (0 if name == "sglang_decode" else 2)
    for row in rows:
        tokens, hidden, inner, topk = (
            int(row[f"param: {n}"]) for n in ("num_tokens", "hidden_dim", "inter_dim", "topk")
        )
        gated = 2 if row["param: gated"] == "True" else 1
        assert inner == hidden
        assert float(row["GFLOPS_first"]) * 1e9 == pytest.approx(2 * tokens * topk * hidden * inner * gated, rel=1e-6)
    assert not rows or our_sums(shared, name)["vllm::moe_forward"][1:] == [None, None]


@pytest.mark.parametrize("name", PROFILES)
def test_the_batch_is_what_a_count_over_the_raw_file_says(shared: Path, name: str) -> None:
    raw = events(shared / "traces/tracelens/inference" / name / PROFILES[name])
    step = next(e for e in raw if e.get("cat") == "user_annotation" and e["name"].startswith("execute_"))
    calls = {e["args"]["correlation"]: e for e in raw if e.get("cat") == "cuda_runtime"}
    work = [
        (e["ts"], e["ts"] + e["dur"], e["args"]["correlation"])
        for e in raw
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and step["ts"] <= calls[e["args"]["correlation"]]["ts"] < step["ts"] + step["dur"]
    ]
    busy, reached = 0.0, 0.0
    for start, end, _ in sorted(work):
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    of_graphs = sum(end - start for start, end, call in work if "Graph" in calls[call]["name"])
    row = opened(shared, name).show("batches").row(0, named=True)
    assert row["dur_ns"] == pytest.approx((reached - step["ts"]) * 1e3, abs=2)
    assert row["busy_ratio"] == pytest.approx(busy / (reached - step["ts"]), rel=1e-5)
    assert row["n_launches"] == len({call for _, _, call in work})
    assert row["n_graphs"] == len({call for _, _, call in work if "Graph" in calls[call]["name"]})
    assert row["graph_ratio"] == pytest.approx(of_graphs / sum(end - start for start, end, _ in work), rel=1e-5)
    tokens = {"sglang_decode": 32, "vllm_decode_full": 32, "vllm_prefilldecode_piecewise": 8192}[name]
    assert row["tokens_per_s"] == pytest.approx(tokens / (reached - step["ts"]) * 1e6)


def test_a_capture_of_another_batch_size_is_refused(shared: Path, tmp_path: Path) -> None:
    folder = shared / "traces/tracelens/inference/sglang_decode"
    shutil.copy(folder / PROFILES["sglang_decode"], tmp_path / "profile.json.gz")
    (tmp_path / "capture_traces").mkdir()
    text = gzip.decompress((folder / "capture_traces/bs_32_rank0.json.gz").read_bytes())
    other = text.replace(b"capture_32_DECODE", b"capture_16_DECODE")
    (tmp_path / "capture_traces/bs_16_rank0.json").write_bytes(other)
    trace = open_trace(str(tmp_path / "profile.json.gz"))
    assert "a size of 32 ran, captured were 16" in " ".join(trace.issues["example"])
    work = trace.spans.filter(pl.col("category").is_in(DEVICE_WORK))
    assert work.filter(pl.col("op_id").is_null())["dur_ns"].sum() > 0.9 * work["dur_ns"].sum()
