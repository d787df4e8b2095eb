"""Operations, bytes and roofs against TraceLens's sheets, at 1e-6 relative; where we mean to differ, by how much.

TraceLens prints MiB under the heading MB, which is undone here; its TFLOPS/s and TB/s are decimal, as ours.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace
from test_tracelens_goldens import EAGER, trace_of

from stepscope.analyses.costs.arguments import Arguments
from stepscope.analyses.costs.matrix import Cost
from stepscope.analyses.costs.op_costs import FORMULAS, cost_of
from stepscope.analyses.costs.roofline import ANALYSIS as ROOFLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UNIFIED = "unified_perf_summary"
#: Sheets, and how many different calls with a performance model they hold, over all traces.
SHEETS = {
    "GEMM": 102, "SDPA_fwd": 8, "CONV_fwd": 27, "CONV_bwd": 11, "UnaryElementwise": 101, "BinaryElementwise": 78,
    "Normalization": 55, "Normalization_fwd": 11, "RMSNorm_fwd": 8, "Reduce_fwd": 15, "Reduce_bwd": 1, "RoPE_fwd": 1,
    "InferenceAttention_fwd": 4, "MoE_unfused_fwd": 4, UNIFIED: 330,
}  # fmt: skip
#: Not compared here: attention over paged caches, whose lengths only the engine's annotations tell (they are compared
#: in test_kernel_quality.py); fused experts, whose sizes no argument tells; kernels that Inductor wrote, of which we
#: count the least that they can move.
NOT_MODELLED = (
    "vllm::unified_attention_with_output", "sglang_profiler::attention_paged_attention_ragged", "pseudo_op::moe_",
    "triton_",
)  # fmt: skip


class Call(msgspec.Struct, frozen=True):
    """A row of a sheet: the call, and what TraceLens makes of it (NaN where it does not tell)."""

    name: str
    shapes: list[Any]
    types: list[str]
    values: list[str]
    flop: float
    nbytes: float
    intensity: float
    spec: str

    def arguments(self) -> tuple[str, str, str]:
        """As they stand in the table `ops`."""
        shapes, types, values = (
            json.dumps(part, separators=(",", ":")) for part in (self.shapes, self.types, self.values)
        )
        return shapes, types, values

    def cost(self) -> Cost:
        found = cost_of(self.name, *self.arguments())
        assert isinstance(found, Cost), f"{self.name}: {found}"
        return found

    def has(self, at: int) -> bool:
        return Arguments(self.shapes, self.types, self.values).has(at)

    def with_tensor(self, at: int, shape: list[int] | None, kind: str = "") -> Call:
        """With another tensor, or none, at a position."""
        shapes, types = list(self.shapes), list(self.types)
        shapes[at], types[at] = shape or [], kind if shape else ""
        return replace(self, shapes=shapes, types=types)

    def with_value(self, at: int, value: str) -> Call:
        values = list(self.values)
        values[at] = value
        return replace(self, values=values)


def lists(value: Any) -> Any:
    return [lists(part) for part in value] if isinstance(value, (list, tuple)) else value


def number(text: str | None, factor: float = 1.0) -> float:
    return float(text) * factor if text else math.nan


def rows_of(path: Path) -> Iterator[tuple[Call, dict[str, str]]]:
    suffix = "" if path.stem == UNIFIED else "_first"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("has_perf_model", "True") == "True":
                arguments = [
                    lists(ast.literal_eval(row[f"{c}{suffix}"]))
                    for c in ("Input Dims", "Input type", "Concrete Inputs")
                ]
                flop, moved = number(row[f"GFLOPS{suffix}"], 1e9), number(row[f"Data Moved (MB){suffix}"], 2**20)
                call = Call(
                    row["name"], *arguments, flop, moved, number(row[f"FLOPS/Byte{suffix}"]), row["Compute Spec"]
                )
                yield call, row


def calls_of(shared: Path, sheet: str) -> list[Call]:
    """Each different call of a sheet once, over all folders."""
    paths = sorted((shared / "golden/tracelens").glob(f"**/{sheet}.csv"))
    found = {(c.name, *c.arguments()): c for p in paths if "compare" not in p.parts for c, _ in rows_of(p)}
    return list(found.values())


# Where we mean to differ: how their numbers follow from a formula of ours.
def bias_unseen(call: Call) -> Cost | None:
    """Their convolutions do not see the bias."""
    if call.name == "aten::convolution" and call.has(2):
        return call.with_tensor(2, None).cost()
    return None


def unwanted_gradient(call: Call) -> Cost | None:
    """They count the gradient of a convolution's input although it is not asked for."""
    if call.name == "aten::convolution_backward" and call.values[10].startswith("[False"):
        return call.with_value(10, "[True, True, False]").cost()
    return None


#: Position of weight and bias of norms.
WEIGHTS = {
    "aten::layer_norm": (2, 3), "aten::native_layer_norm": (2, 3), "aten::batch_norm": (1, 2),
    "aten::native_batch_norm": (1, 2), "aten::instance_norm": (1, 2), "aten::group_norm": (2, 3),
    "aten::_fused_rms_norm": (2, 2), "aten::native_batch_norm_backward": (2, 2),
}  # fmt: skip


def absent_weights(call: Call) -> Cost | None:
    """They count weights and biases of norms that have none."""
    if call.name in WEIGHTS and not call.has(WEIGHTS[call.name][0]):
        listed = [int(n) for n in call.values[1].strip("[]").split(",") if n] if "[" in call.values[1] else []
        shape = listed or [call.shapes[0][1]]
        for at in WEIGHTS[call.name]:
            call = call.with_tensor(at, shape, call.types[0])
        return (call.with_value(9, "[True, True, True]") if "backward" in call.name else call).cost()
    return None


def absent_weight_of_rms(call: Call) -> Cost | None:
    if call.name == "aten::_fused_rms_norm_backward" and not call.has(4):
        ours = call.cost()
        return replace(ours, flop=ours.flop + math.prod(call.shapes[1]))
    return None


def groups_for_channels(call: Call) -> Cost | None:
    """They count four vectors of as many numbers as there are groups, not channels."""
    if call.name == "aten::native_group_norm_backward" and call.has(4):
        return call.with_tensor(4, None).cost()
    return None


def miopen_in_inference(call: Call) -> Cost | None:
    """They take the gradient of MIOpen's batch norm, which has no flag of training, for one in inference."""
    if call.name == "aten::miopen_batch_norm_backward":
        n, channels, element = math.prod(call.shapes[0]), call.shapes[0][1], 4
        return replace(call.cost(), flop=4 * n + 3 * channels, nbytes=(2 * n + channels) * element)
    return None


def one_output(call: Call) -> Cost | None:
    """They take every reduction for one to a single element of its first operand."""
    reductions = ("aten::mean", "aten::sum", "aten::linalg_norm", "aten::max", "aten::min")
    if call.name in reductions:
        first = replace(call, name="aten::sum", shapes=call.shapes[:1], types=call.types[:1], values=[""])
        return first.cost() if first.cost() != call.cost() else None
    return None


def widened_in_place(call: Call) -> Cost | None:
    """They let an operator in place write elements of the wider operand's type."""
    if call.name == "aten::add_" and call.types[:2] == ["c10::BFloat16", "float"]:
        return replace(call, name="aten::add").cost()
    return None


def scalar_source(call: Call) -> Cost | None:
    """They take a source without dimensions for one of the target's type."""
    if call.name == "aten::copy_" and call.shapes[1] == [] and call.types[1] == "double":
        return call.with_tensor(1, [1], call.types[0]).cost()
    return None


DIFFERENCES: dict[Callable[[Call], Cost | None], int] = {
    bias_unseen: 16, unwanted_gradient: 2, absent_weights: 11, absent_weight_of_rms: 2, groups_for_channels: 2,
    miopen_in_inference: 4, one_output: 17, widened_in_place: 2, scalar_source: 2,
}  # fmt: skip


def theirs(call: Call) -> tuple[Cost, str]:
    """Our cost as TraceLens counts it, and the difference that it takes, if any."""
    for rule in DIFFERENCES:
        found = rule(call)
        if found is not None:
            return found, rule.__name__
    return call.cost(), ""


def test_operations_bytes_and_intensity_are_those_of_every_sheet(shared: Path) -> None:
    used: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for sheet in SHEETS:
        for call in calls_of(shared, sheet):
            held[sheet] += 1
            if call.name.startswith(NOT_MODELLED):
                used["not modelled"] += 1
                continue
            cost, rule = theirs(call)
            used[rule] += 1
            message = f"{sheet} {call.name} {call.shapes}"
            assert cost.flop == pytest.approx(call.flop, rel=1e-6), message
            if not math.isnan(call.nbytes):  # they do not know the size of a bool
                assert cost.nbytes == pytest.approx(call.nbytes, rel=1e-6), message
                assert cost.flop / cost.nbytes == pytest.approx(call.intensity, rel=1e-6), message
            spec = f"{'matrix' if cost.matrix else 'vector'}_{cost.precision}" if cost.precision else ""
            if call.types[0] != "unsigned char":  # which they take for fp8
                assert spec == call.spec, message
    assert held == SHEETS
    assert {rule: n for rule, n in used.items() if rule not in ("", "not modelled")} == {
        rule.__name__: n for rule, n in DIFFERENCES.items()
    }
    assert used["not modelled"] == 21
    assert used[""] == sum(SHEETS.values()) - sum(DIFFERENCES.values()) - 21


def test_every_sheet_of_costs_is_compared(shared: Path) -> None:
    found = set()
    for path in (shared / "golden/tracelens").glob("**/*.csv"):
        with path.open(encoding="utf-8") as file:
            if "GFLOPS" in file.readline() and "compare" not in path.parts:
                found.add(path.stem)
    assert found - {"op_conv", "df_xla_perf"} == set(SHEETS)  # those two are JAX's, whose trace is not at hand


#: Device events that no arrow ties to a launch are left out by them, and counted by us.
UNTIED = {("perf_model/normalization/normalization_layer_test", name) for name in (
    "aten::batch_norm", "aten::mean", "aten::miopen_batch_norm_backward",
)}  # fmt: skip


@pytest.mark.parametrize("golden", [g for g in EAGER if not g.startswith("generated")])
def test_on_a_trace_calls_and_device_time_are_theirs_too(shared: Path, golden: str) -> None:
    trace = trace_of(shared / "traces/tracelens" / EAGER[golden])
    keys = ("name", "input_shapes", "input_types", "concrete_inputs")
    ours = {tuple(row[k] for k in keys): row for row in ROOFLINE(trace, by="args").to_dicts()}
    counts: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0, 0.0])
    for call, row in rows_of(shared / "golden/tracelens" / golden / f"{UNIFIED}.csv"):
        mine = counts[call.name, *call.arguments()]  # rows that differ in strides alone are one row here
        mine[0] += int(row["operation_count"])
        mine[1] += float(row["Kernel Time (µs)_sum"]) * 1e3
    assert counts
    for key, (n, total_ns) in counts.items():
        found = ours[key]
        assert found["calls"] == n, key
        if (golden, key[0]) not in UNTIED:
            assert found["device_ns"] == pytest.approx(total_ns, rel=1e-3, abs=2), key
        if key[0] in FORMULAS:
            assert found["flop"] == pytest.approx(n * cost_of(*key).flop), key  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["Qwen_Qwen1.5-0.5B-Chat__1016005", "gaunernst_bert-small-uncased__1016001"])
def test_roofs_are_theirs_with_their_peaks(shared: Path, model: str, tmp_path: Path) -> None:
    folder = shared / "golden/tracelens/generated/roofline_MI300X"
    given = json.loads((folder / "MI300X.json").read_text(encoding="utf-8"))
    peaks = {kind: {
        name.removeprefix(f"{kind}_"): rate * 1e12
        for name, rate in given["max_achievable_tflops"].items() if name.startswith(kind)
    } for kind in ("matrix", "vector")}  # fmt: skip
    product = {"name": "MI300X", "memory_bytes_per_s": given["mem_bw_gbps"] * 1e9, "units": 304}
    product |= {"tensor": peaks["matrix"], "vector": peaks["vector"], "match": ["mi300x vf"]}
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"accelerators": [product]}))
    trace = trace_of(shared / "traces/tracelens/mi300" / f"{model}.json.gz")
    keys = ("name", "input_shapes", "input_types", "concrete_inputs")
    ours = {tuple(row[k] for k in keys): row for row in ROOFLINE(trace, by="args", hardware=str(mine)).to_dicts()}
    n = 0
    for call, row in rows_of(folder / model / f"{UNIFIED}.csv"):
        if not row["Roofline Time (µs)_first"] or theirs(call)[1]:
            continue
        n += 1
        found = ours[call.name, *call.arguments()]
        per_call = found["roof_ns"] / found["calls"]
        assert per_call == pytest.approx(float(row["Roofline Time (µs)_first"]) * 1e3, rel=1e-6), call
        assert found["bound"].upper() + "_BOUND" == row["Roofline Bound"], call
        if found["calls"] == int(row["operation_count"]):
            share = per_call * found["calls"] / (float(row["Kernel Time (µs)_sum"]) * 1e3)
            assert found["roof_ratio"] == pytest.approx(share, rel=1e-3)
    assert n > 5


def test_a_product_of_matrices_that_was_checked_by_hand(shared: Path) -> None:
    """8944 × 2816 × 1024 in bf16 on an MI300X: 51.58 GFLOP, 74.46 MB."""
    trace = trace_of(shared / "traces/tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    frame = ROOFLINE(trace, by="args")
    row = next(r for r in frame.to_dicts() if r["input_shapes"] == "[[8944,1024],[1024,2816]]")
    assert row["flop"] / row["calls"] == 2 * 8944 * 2816 * 1024
    assert row["bytes"] / row["calls"] == 2 * (8944 * 1024 + 1024 * 2816 + 8944 * 2816)
    assert (row["accelerator"], row["bound"]) == ("MI300X", "compute")
    assert row["roof_ratio"] == pytest.approx(row["flop"] / 1307.4e12 / (row["device_ns"] / 1e9))
