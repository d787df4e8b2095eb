"""The injected fault is named first in every labelled case; healthy runs, and halves of them, have no cause.

What is asserted is what lab/diagnosis.py prints: cases with all of their healthy runs and with each alone,
healthy runs against each other, and each against itself, split in halves and into odd and even cycles.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab"))
import diagnosis

pytestmark = pytest.mark.exhaustive

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LATENCYPRISM = (
    "SGLang/cpu_compute_squeeze_out",
    "SGLang/cpu_frequency_reduction",
    "SGLang/gpu_instability",
    "SGLang/gpu_memory_squeeze_out_PCIe",
    "vLLM/gpu_instability",
)
FAULTLAB = ("cpu_contention", "ddp_straggler", "no_fault_1", "no_fault_2", "slow_dataloader", "slow_op")


def folder(shared: Path, case: str) -> Path:
    if case in FAULTLAB:
        return shared / "faultlab" / case
    return shared / "latencyprism" / "DeepDive" / "Data" / "Processed" / case


@pytest.mark.parametrize("case", [*LATENCYPRISM, *FAULTLAB])
def test_the_fault_is_named_first_and_healthy_runs_have_no_cause(shared: Path, case: str):
    found = [diagnosis.tried(trial) for trial in diagnosis.trials_of(folder(shared, case))]
    assert len(found) >= 5
    wrong = [(f.trial.label, f.trial.accepted, f.first, f.outcome.verdict) for f in found if not f.is_right]
    assert wrong == []


def test_what_is_said_of_a_locked_clock_can_be_acted_on(shared: Path):
    trial = next(diagnosis.trials_of(folder(shared, "SGLang/gpu_instability")))
    cause = diagnosis.tried(trial).outcome.causes[0]
    assert cause.statement.startswith("GPU 7's SM clock fell from 1,")
    assert "to 210 MHz (−82 %); every compute kernel on it slowed 3." in cause.statement
    assert cause.statement.endswith("memory clock unchanged: locked or throttled clock.")
    assert cause.certainty == "certain"


def test_traffic_of_a_neighbour_surfaces_though_its_carrier_is_small(shared: Path):
    trial = next(diagnosis.trials_of(folder(shared, "SGLang/gpu_memory_squeeze_out_PCIe")))
    cause = diagnosis.tried(trial).outcome.causes[0]
    assert cause.category == "interconnect_pcie"
    assert "PCIe traffic of GPU" in cause.statement
    assert "GB/s" in cause.statement


def test_the_late_rank_is_named_with_what_makes_it_late(shared: Path):
    trial = next(diagnosis.trials_of(folder(shared, "ddp_straggler")))
    cause = diagnosis.tried(trial).outcome.causes[0]
    assert cause.rank == 2
    assert "aten::mm" in cause.statement


def test_element_types_are_named(shared: Path):
    trial = next(diagnosis.trials_of(folder(shared, "slow_op")))
    assert "double instead of float" in diagnosis.tried(trial).outcome.causes[0].statement
