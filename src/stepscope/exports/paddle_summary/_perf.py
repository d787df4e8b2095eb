"""Paddle's Perf Summary: what a training loop's own timer measured, in Paddle's arithmetic.

The first ten steps are warm-up. Of N steps those from the tenth on are summed, N − 9 values, and the sum is divided by
N − 10: a mean may exceed the maximum. A value that is a new maximum is not looked at as a minimum: the first one never
is, and the minimum of an ever slower loop stays infinite.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.schema import STEP_COSTS
from stepscope.exports.paddle_summary._text import centred

if TYPE_CHECKING:
    from collections.abc import Iterable

_SKIPPED = 10
_WIDTH = 100
_APPROXIMATE = "Approximated from the ranges of the steps: the timer's own costs are in no trace."


def perf_summary(costs: pl.DataFrame, ips_unit: str | None = None) -> str:
    """The block, from a `step_costs` table; empty for ten steps or fewer, as in Paddle.

    Costs that were not measured by the timer are said to be approximate. `ips_unit` is what samples are called.
    """
    steps = costs.filter(pl.col("kind") == "step").sort("n_before", maintain_order=True)
    n = steps.height - _SKIPPED
    if n <= 0:
        return ""
    counted = steps.filter(pl.col("n_before") >= _SKIPPED - 1)
    reads = costs.filter((pl.col("kind") == "reader") & (pl.col("n_before") >= _SKIPPED))["cost_s"].to_list()
    batch = counted["cost_s"].to_list()
    samples = counted["n_samples"].to_list()
    whole = sum(batch)
    if steps["n_samples"].null_count():  # a single step without a number of samples makes it steps
        unit, mean_ips, rates = "steps/s", n / whole if whole else 0.0, [1 / cost for cost in batch if cost]
    else:
        unit, mean_ips = f"{ips_unit or 'samples'}/s", sum(samples) / whole if whole else 0.0
        rates = [count / cost for count, cost in zip(samples, batch, strict=True) if cost]
    mean_batch, mean_read = whole / n, sum(reads) / n
    lines = [centred("Perf Summary", _WIDTH, "=")]
    if (costs["source"] == "ranges").any():
        lines.append(_APPROXIMATE)
    share = mean_read / mean_batch if mean_batch else 0.0
    if share:
        lines.append(f"Reader Ratio: {share * 100:.3f}%")
    lines += [f"Time Unit: s, IPS Unit: {unit}", _cells("", "avg", "max", "min")]
    if mean_read:
        lines.append(_numbers("reader_cost", mean_read, reads))
    lines += [_numbers("batch_cost", mean_batch, batch), _numbers("ips", mean_ips, rates)]
    return "".join(f"{line}\n" for line in lines)


def costs_of_ranges(steps: pl.DataFrame) -> pl.DataFrame:
    """A `step_costs` table from the trace's `steps`: from each start to the next, the last one's own length."""
    ordered = steps.sort("ts_ns")
    to_next = pl.col("ts_ns").shift(-1) - pl.col("ts_ns")
    found = ordered.select(
        kind=pl.lit("step"),
        n_before=pl.int_range(pl.len()),
        cost_s=to_next.fill_null(pl.col("dur_ns")) / 1e9,
        source=pl.lit("ranges"),
    )
    return STEP_COSTS.conform(found)


def _numbers(name: str, mean: float, values: Iterable[float]) -> str:
    most, least = 0.0, inf
    for value in values:
        if value > most:
            most = value
        elif value < least:
            least = value
    return _cells(name, *(f"{number:.5f}" for number in (mean, most, least)))


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.center(15) for cell in cells)} |"
