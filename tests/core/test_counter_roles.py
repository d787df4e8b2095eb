from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.counter_roles import HARDWARE_VECTOR, measured, preference
from stepscope.core.schema import KERNEL_METRICS

TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


def table(*rows: tuple[int, str, str | None, float | None]) -> pl.DataFrame:
    return KERNEL_METRICS.conform(
        pl.DataFrame(rows, schema=["span_id", "metric", "unit", "value"], orient="row", infer_schema_length=None)
    )


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("tensor", [TENSOR, "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
                    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", "Tensor"]),
        ("dram", ["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                  "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput", "DRAM"]),
        ("sm", ["sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]"]),
        ("duration", ["gpu__time_duration.sum", "gpu__time_duration.max", "Duration"]),
        ("occupancy", ["sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"]),
    ],
)  # fmt: skip
def test_names_of_counters_fill_roles(role, names):
    found = [preference(name, role) for name in names]
    assert None not in found
    assert found[0] == 0
    assert preference("sm__throughput.max.pct_of_peak_sustained_elapsed", role) is None


def test_a_percentage_becomes_a_ratio_and_unknown_is_left_out():
    metrics = table((0, TENSOR, "%", 35.0), (1, TENSOR, "%", None), (2, "other", "%", 1.0), (3, TENSOR, "%", 0.0))
    assert measured(metrics, "tensor").rows() == [(0, pytest.approx(0.35)), (3, 0.0)]
    assert measured(table((0, "Tensor", "ratio", 0.35)), "tensor").rows() == [(0, 0.35)]


def test_the_best_counter_of_each_launch_is_taken():
    hmma, imma = (f"sm__pipe_tensor_op_{t}_cycles_active.avg.pct_of_peak_sustained_elapsed" for t in ("hmma", "imma"))
    metrics = table((0, hmma, "%", 10.0), (0, TENSOR, "%", 12.0), (1, hmma, "%", 10.0), (1, imma, "%", 30.0))
    assert measured(metrics, "tensor").sort("span_id").rows() == [(0, 0.12), (1, 0.3)]


def test_a_counter_that_recurs_counts_once():
    assert measured(table((0, TENSOR, "%", 10.0), (0, TENSOR, "%", 20.0)), "tensor").rows() == [(0, 0.2)]


def test_units_must_fit():
    metrics = table((0, "DRAM Throughput", "byte/s", 2e9), (0, "Duration", "ns", 5.0), (1, "Duration", None, 5.0))
    assert measured(metrics, "dram").is_empty()
    assert measured(metrics, "duration").rows() == [(0, 5.0)]
    assert measured(KERNEL_METRICS.empty(), "dram").is_empty()


def test_the_hardware_vector_has_seventeen_parts():
    assert len(HARDWARE_VECTOR) == 17
    for part, (counter, *_) in HARDWARE_VECTOR.items():
        assert preference(f"{counter}.avg.pct_of_peak_sustained_elapsed", f"vector_{part}") == 0
