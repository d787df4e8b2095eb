"""Real runs as observations: cycles found and marked, parts that sum, own times, the clock of the right GPU."""

from __future__ import annotations

import polars as pl
import pytest

import stepscope
from stepscope.analyses.cycles.cycles import find_cycles
from stepscope.comparison import observe
from stepscope.comparison.matching import align
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import STEPS

FAULTLAB = ("cpu_contention", "ddp_straggler", "no_fault_1", "no_fault_2", "slow_dataloader", "slow_op")
PRISM = "latencyprism/DeepDive/Data/Processed"
CASES = (
    "SGLang/cpu_compute_squeeze_out", "SGLang/cpu_frequency_reduction", "SGLang/gpu_instability",
    "SGLang/gpu_memory_squeeze_out_PCIe", "vLLM/gpu_instability",
)  # fmt: skip
#: Traces whose steps are marked, and how many there are.
MARKED = {
    "traces/kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz": 6,
    "traces/kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz": 6,
    "traces/hta/trace_diff/control/control.json.gz": 6,
    "traces/hta/nccl_parser_config/nccl_data.json.gz": 3,
    "traces/more/kineto-cudagraph/cifar10-train-v100/cudagraph.pt.trace.json.gz": 5,
    "traces/more/kineto-cudagraph/cifar10-train-v100/no_cudagraph.pt.trace.json.gz": 5,
    "traces/more/kineto-cudagraph/vit-infer-v100-many/cuda_graph.pt.trace.json.gz": 5,
    "traces/more/kineto-recent/t4-amp-vs-fp32/amp.pt.trace.json.gz": 3,
    "traces/tracelens/mi300/resnet_act_checkpoint.json.gz": 3,
    "faultlab/no_fault_1/normal0/trace.json.gz": 25,
    "faultlab/cpu_contention/abnormal/trace.json.gz": 25,
    "faultlab/ddp_straggler/normal1/rank2/trace.json.gz": 25,
}


def seen(shared, path):
    return observe(stepscope.load(shared / path))


def prism(shared, case, side):
    return seen(shared, f"{PRISM}/{case}/{side}_perf_data/result_perf_data.csv.gz")


def complete(observed):
    return observed.cycles.filter("is_complete")


def mean_part(observed, part):
    return observed.parts.filter(pl.col("part") == part)["total_ns"].sum() / observed.cycles.height


def median_mu(observed, device, metric):
    rows = observed.resources.filter(pl.col("device") == device, pl.col("metric") == metric, pl.col("name").is_null())
    return rows["mu"].median()


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.split("/", 1)[1])
def test_the_turns_of_the_loop_are_found_where_marks_are_taken_away(shared, path):
    trace = stepscope.load(shared / path)
    assert trace.steps.height == MARKED[path]
    found = find_cycles(trace.spans, trace.tracks, STEPS.empty(), trace.devices)
    assert found.frame.height == MARKED[path]
    marked = find_cycles(trace.spans, trace.tracks, trace.steps, trace.devices).frame
    assert found.frame["dur_ns"][:-1].median() == pytest.approx(marked["dur_ns"][:-1].median(), rel=0.15)


@pytest.mark.parametrize("case", FAULTLAB)
def test_recorded_training_runs_are_whole(shared, case):
    paths = sorted((shared / "faultlab" / case).rglob("trace.json.gz"))
    assert len(paths) in (3, 12)
    for path in paths:
        (observed,) = observe(stepscope.load(path))
        assert (observed.anchor, observed.source, observed.remarks) == ("ProfilerStep", "annotation", ())
        assert observed.cycles["is_complete"].sum() == 25
        sums = observed.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
        assert sums["total_ns"].to_list() == observed.cycles["dur_ns"].to_list()
        # One host thread does it all; Gloo's threads are apart.
        own = (
            observed.functions.filter(pl.col("name") != "gloo:all_reduce")
            .group_by("cycle")
            .agg(pl.col("self_ns").sum())
        )
        step = observed.functions.filter(pl.col("name") == "ProfilerStep").sort("cycle")["total_ns"]
        assert own.sort("cycle")["self_ns"].to_list() == step.to_list()
        cycles_of_each = observed.resources.group_by("device", "metric").len()["len"].to_list()
        assert cycles_of_each == [25] * 26  # 25 counters, and what tensors hold


def test_a_slow_loader_shows_in_its_part(shared):
    (base,), (other,) = (
        seen(shared, f"faultlab/slow_dataloader/{side}/trace.json.gz") for side in ("normal0", "abnormal")
    )
    assert mean_part(other, "data loading") - mean_part(base, "data loading") == pytest.approx(30e6, rel=0.1)
    for part in ("operators", "python and other"):
        assert mean_part(other, part) == pytest.approx(mean_part(base, part), rel=0.15)


def test_the_straggler_works_while_the_others_wait(shared):
    ranks = [seen(shared, f"faultlab/ddp_straggler/abnormal/rank{rank}/trace.json.gz")[0] for rank in range(4)]
    waits = [mean_part(observed, "exposed communication") for observed in ranks]
    assert waits.index(min(waits)) == 2
    assert [observed.rank for observed in ranks] == [0, 1, 2, 3]


def test_the_attribution_of_a_real_run_agrees_with_plain_sums(shared):
    trace = stepscope.load(shared / "faultlab/no_fault_1/normal0/trace.json.gz")
    found = stepscope.show(trace, "attribution")
    plain = trace.spans.filter(pl.col("category") == "operator").group_by("step", pl.col("name").cast(pl.String)).agg(
        calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
    )  # fmt: skip
    rows = found.filter(pl.col("category") == "operator").select(
        pl.col("cycle").cast(pl.Int32).alias("step"), pl.col("name").cast(pl.String), "calls", "total_ns"
    )
    assert rows.unique().sort("step", "name").equals(plain.sort("step", "name"))
    assert found.filter(pl.col("metric") == "process_cpu_usage", pl.col("name") == "ProfilerStep")["mu"].mean() > 50


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("side", ["normal", "abnormal"])
def test_latencyprisms_shares_are_those_of_our_tables(shared, case, side):
    results = stepscope.load(shared / PRISM / case / f"{side}_perf_data" / "result_perf_data.csv.gz")
    for observed in observe(results):
        recorded = results.result("attribution").filter(pl.col("pid") == observed.pid)
        recorded = recorded.group_by("cycle", "device", "name").agg(pl.col("recorded_beta").first())
        both = observed.functions.join(recorded, on=["cycle", "device", "name"]).join(observed.cycles, on="cycle")
        assert both.height == observed.functions.height == recorded.height
        beta = 100 * both["total_ns"] / both["dur_ns"]
        assert (beta - both["recorded_beta"]).abs().max() < 1e-4
        sums = observed.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
        assert sums["total_ns"].to_list() == observed.cycles["dur_ns"].to_list()
        assert observed.source == "recorded"
        assert complete(observed).height >= max(observed.cycles.height * 0.6, 5)


def test_a_gpu_has_its_own_clock(shared):
    for case, device, low in (("SGLang/gpu_instability", "gpu7", 210.0), ("vLLM/gpu_instability", "gpu3", 210.0)):
        (base,), (other,) = (prism(shared, case, side) for side in ("normal", "abnormal"))
        assert 1150 <= median_mu(base, device, "gpu_sm_frequency") <= 1410
        assert median_mu(other, device, "gpu_sm_frequency") == low
        assert median_mu(base, device, "gpu_mem_frequency") == median_mu(other, device, "gpu_mem_frequency") == 1593.0


def test_resources_are_in_units_that_people_know(shared):
    (base,) = prism(shared, "SGLang/gpu_instability", "normal")
    oncpu = base.resources.filter(pl.col("name") == "oncpu")
    of_process = oncpu.filter(pl.col("metric") == "process_cpu_usage")
    assert set(of_process["device"]) == {"process"}
    assert of_process["mu"].median() == pytest.approx(112, abs=1)  # percent of one core; the file has 1.75 % of all 64
    clock = oncpu.filter(pl.col("metric") == "cpu_frequency")
    assert (set(clock["unit"]), round(clock["mu"].median())) == ({"MHz"}, 3500)


def test_layers_become_steps(shared):
    base, other = prism(shared, "SGLang/cpu_frequency_reduction", "normal"), prism(
        shared, "SGLang/cpu_frequency_reduction", "abnormal"
    )  # fmt: skip
    assert (base[0].anchor, other[0].anchor) == ("Scheduler.run_batch", "Qwen3DecoderLayer._wrapped_call_impl")
    (same,), (steps,) = align(base, other)
    assert same is base[0]
    assert steps.cycles.height == 3
    assert steps.cycles["is_complete"].all()
    ratio = complete(steps)["dur_ns"].median() / complete(same)["dur_ns"].median()
    assert ratio == pytest.approx(3.7, abs=0.1)
    gemm = "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn"
    calls = [one.functions.filter(pl.col("name") == gemm)["calls"].median() for one in (same, steps)]
    assert calls == [65, 65]


def test_two_programs_are_not_aligned(shared):
    with pytest.raises(StepscopeError, match="cannot be compared: cycles are calls of"):
        align(prism(shared, "SGLang/gpu_instability", "normal"), prism(shared, "vLLM/gpu_instability", "normal"))


def test_prefill_and_decode_of_a_serving_engine(shared):
    (observed,) = seen(shared, "traces/more/rocm-rpd/vllm-fp8-mytrace.rpd.gz")
    assert observed.anchor == "execute_model"
    assert observed.cycles["phase"].to_list() == ["prefill"] * 2 + ["decode"] * 20
    prefill, decode = (
        complete(observed).filter(pl.col("phase") == kind)["dur_ns"].median() for kind in ("prefill", "decode")
    )
    assert prefill > 20 * decode


def test_each_process_of_a_machines_recording_is_observed(shared):
    first, second = seen(shared, "traces/more/nsys-multigpu/mfu_2gpu_before.sqlite")
    assert (first.label, second.label) == ("pid 144", "pid 145")
    assert {one for seen in (first, second) for one in seen.functions["device"].unique()} == {"host", "gpu0", "gpu1"}
