"""Literal kernel launches without a clock, for the tests of kernel analyses."""

from __future__ import annotations

import polars as pl

from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS

DURATION, TENSOR, DRAM, SM = (
    "gpu__time_duration.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
)  # fmt: skip
GEMM, POINTWISE, NORM = "ampere_sgemm_32x128_nt", "vectorized_elementwise_kernel", "layer_norm_kernel"


def spans_of(*launches: tuple[str, int | None]) -> pl.DataFrame:
    """Launches in order, each a name and a duration in ns."""
    frame = pl.DataFrame(launches, schema={"name": pl.String, "dur_ns": pl.Int64}, orient="row")
    return SPANS.conform(frame.with_row_index("span_id").with_columns(track_id=0, category=pl.lit("kernel")))


def percents(**columns: list[float | None]) -> pl.DataFrame:
    """Counters in percent, a list with a value for each launch: tensor, dram, sm, or any other name."""
    known = {"tensor": TENSOR, "dram": DRAM, "sm": SM}
    rows = [(i, known.get(name, name), "%", v) for name, values in columns.items() for i, v in enumerate(values)]
    schema = {"span_id": pl.UInt32, "metric": pl.String, "unit": pl.String, "value": pl.Float64}
    return KERNEL_METRICS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def sizes_of(*threads: int) -> pl.DataFrame:
    """A launch of one block for each number of threads."""
    ones = {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"}
    frame = pl.DataFrame([{"span_id": i, **ones, "block_x": n} for i, n in enumerate(threads)])
    return KERNELS.conform(frame)
