"""Pairs of real recordings: what differs in kind, the verdict, and that its text says nothing twice.

The verdict follows from the interval, not from what is known of the runs: two machines may well be inconclusive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import stepscope
from stepscope.reports.comparison import comparison

if TYPE_CHECKING:
    from pathlib import Path

GRAPHS = "traces/cuda-graph-pairs"
RESNET = "traces/kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz"
MEGATRON = "traces/more/kineto-multirank/megatron-tp8-a100/megatron_kineto_{}.json.gz"
PRISM = "latencyprism/DeepDive/Data/Processed"


@dataclass(frozen=True)
class Expected:
    """What is to be said of a pair: kinds, the verdict on the step time, and the causes."""

    base: str
    other: str
    kinds: tuple[str, ...] = ()
    verdict: str = "inconclusive"
    causes: tuple[str, ...] = ()


def graph(name):
    return f"{GRAPHS}/{name}.pt.trace.json.gz"


PAIRS = {
    "A100 and V100, 8 and 2 ranks, smaller shapes": Expected(
        "traces/hta/trace_diff/control/control.json.gz", "traces/hta/trace_diff/test/test.json.gz",
        ("hardware", "job", "program", "kernels", "shapes"), "different",
    ),
    "V100 and RTX 3080": Expected(
        graph("ViT_v100"), graph("ViT_rtx3080"), ("hardware",), "different",
    ),
    "V100 and RTX 3080, scattering": Expected(
        graph("Cifar10_v100_training_no_cudagraph_batch4"), graph("Cifar10_rtx3080_training_no_cudagraph_batch4"),
        ("hardware", "kernels"),
    ),
    "with and without graphs": Expected(
        graph("Cifar10_v100_training_no_cudagraph_batch4"), graph("Cifar10_v100_training_cudagraph_batch4"),
        ("program",), "different",
    ),
    "batches of 4 and 50": Expected(
        graph("Cifar10_v100_training_no_cudagraph_batch4"), graph("Cifar10_v100_training_no_cudagraph_batch50"),
        ("kernels", "shapes"), "inconclusive", ("workload_change",),
    ),
    "validation and training": Expected(
        graph("Cifar10_v100_validation_no_cudagraph_batch4"), graph("Cifar10_v100_training_no_cudagraph_batch4"),
        ("program", "kernels"), "different", ("workload_change",),
    ),
    "two models": Expected(
        graph("ViT_v100_many_images_cuda_graph"), graph("timeSformer_v100_many_videos_cuda_graph"),
        ("kernels", "shapes"), "different", ("host_overhead",),
    ),
    "two models on two machines": Expected(
        "traces/kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
        graph("Cifar10_v100_training_no_cudagraph_batch4"),
        ("hardware", "recorder", "program", "kernels", "shapes"), "different", ("workload_change",),
    ),
    "fp32 and mixed precision, 3 cycles": Expected(
        "traces/more/kineto-recent/t4-amp-vs-fp32/fp32.pt.trace.json.gz",
        "traces/more/kineto-recent/t4-amp-vs-fp32/amp.pt.trace.json.gz",
        ("program", "kernels"), "inconclusive",
    ),
    "one cycle": Expected(MEGATRON.format(0), MEGATRON.format(4)),
    "one cycle, twice as fast": Expected(
        graph("ViT_v100_one_image_no_cuda_graph"), graph("ViT_v100_one_image_cuda_graph"), ("program",),
    ),
    "one cycle of two models": Expected(
        "traces/tracelens/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        "traces/tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz",
        ("kernels", "shapes"), "inconclusive", ("workload_change",),
    ),
    "the same job recorded twice": Expected(
        RESNET, "traces/kineto/resnet50_num_workers_0/worker0.1623143566756.pt.trace.json.gz", (), "different",
    ),
    "a run and itself": Expected(RESNET, RESNET, (), "no_difference"),
    "one cycle and itself": Expected(MEGATRON.format(0), MEGATRON.format(0)),
    "a locked clock": Expected(
        f"{PRISM}/SGLang/gpu_instability/normal_perf_data/result_perf_data.csv.gz",
        f"{PRISM}/SGLang/gpu_instability/abnormal_perf_data/result_perf_data.csv.gz",
        (), "inconclusive", ("gpu_frequency",),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(shared: Path):
    made = {}

    def outcome(name):
        if name not in made:
            pair = PAIRS[name]
            made[name] = stepscope.compare(shared / pair.base, shared / pair.other)
        return made[name]

    return outcome


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
each = pytest.mark.parametrize("name", PAIRS)


@each
def test_kinds_verdict_and_causes_are_those_of_an_expert(outcomes, name):
    outcome, expected = outcomes(name), PAIRS[name]
    assert tuple(dict.fromkeys(outcome.kinds["kind"])) == expected.kinds
    assert outcome.step_verdict == expected.verdict
    assert tuple(cause.category for cause in outcome.causes) == expected.causes


@each
def test_the_verdict_follows_from_the_interval(outcomes, name):
    outcome = outcomes(name)
    step = outcome.step_time
    assert (step.low is None) == (min(step.n_base, step.n_other) < 2)
    if step.low is None:
        assert outcome.step_verdict == "inconclusive"
        assert "no interval" in comparison(outcome).headline
    if outcome.step_verdict == "different":
        assert step.excludes_zero or outcome.typical_step.excludes_zero
    if outcome.verdict == "different" != outcome.step_verdict:
        assert "not proven" in comparison(outcome).headline
        assert outcome.causes


@each
def test_bars_are_each_of_their_own_run_and_sum_to_its_step(outcomes, name):
    outcome = outcomes(name)
    for bar in comparison(outcome).bars:
        assert sum(part.ratio for part in bar.parts) == pytest.approx(1, abs=0.01)
        assert 0 < bar.length <= 1
    assert max(bar.length for bar in comparison(outcome).bars) == 1


@each
def test_nothing_is_said_twice(outcomes, name):
    report = comparison(outcomes(name))
    prose = [report.headline, *report.quality]
    prose += [text for finding in report.findings for text in (finding.title, *finding.details)]
    sentences = [s.strip() for text in prose for s in re.split(r"(?<=[.:;])\s", text) if len(s) > 20]
    assert sorted({s for s in sentences if sentences.count(s) > 1}) == []
    value = r"[\d,.]+ (?:ns|µs|ms|s|MHz|%|MiB|GiB|MB/s|GB/s)"
    changes = [change for text in prose for change in re.findall(f"{value} → {value}", text)]
    assert sorted({c for c in changes if changes.count(c) > 1}) == []


def test_another_version_is_said_and_changes_no_verdict(shared: Path):
    trace = stepscope.load(shared / RESNET)
    versions = [
        replace(trace, meta=replace(trace.meta, framework_version=version, facts={"cuda_driver_version": driver}))
        for version, driver in (("2.3.0", "12040"), ("2.4.1", "12080"))
    ]
    outcome = stepscope.compare(*versions)
    assert outcome.kinds.select("kind", "base", "other").rows() == [
        ("driver", "12.4", "12.8"), ("framework", "2.3.0", "2.4.1"),
    ]  # fmt: skip
    assert (outcome.verdict, outcome.causes) == ("no_difference", ())
    assert comparison(outcome).headline.startswith("Runs that differ in driver, framework · No difference")


def test_the_order_of_the_files_of_a_run_does_not_matter(shared: Path):
    files = [shared / MEGATRON.format(rank) for rank in range(2)]
    one, two = (stepscope.compare(files, again) for again in (files, files[::-1]))
    assert [(p.label, p.matched_by) for p in one.pairs] == [(p.label, p.matched_by) for p in two.pairs]
    assert one.step_time.delta == two.step_time.delta == 0
    assert (one.verdict, one.causes) == (two.verdict, two.causes)


def test_runs_of_unequal_length_are_compared_by_their_mean_cycle(shared: Path):
    files = [shared / "faultlab/no_fault_1" / run / "trace.json.gz" for run in ("normal0", "normal1", "abnormal")]
    outcome = stepscope.compare(files[:2], files[2])
    assert (outcome.step_time.n_base, outcome.step_time.n_other) == (50, 25)
    assert (outcome.verdict, outcome.causes, outcome.kinds.height) == ("no_difference", (), 0)
