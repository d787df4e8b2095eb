"""The state of a launch in a few letters: how many threads, and how busy it kept what, each low, middle or high."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.kernels.kernel_launches import kernel_launches, with_ratios, with_threads
from stepscope.core.errors import MissingTable, UnknownName

States = Literal["auto", "casio", "tensor-dram"]
STATES = ("auto", "casio", "tensor-dram")

#: Below the first is L, above the second H; the limits themselves are M.
THREADS, RATIO = (4_000, 32_000), (0.1, 0.7)
#: Percentages as doubles divided by 100 may lie off a limit by the last bit.
_SLACK = 1e-12


def launches_with_state(
    spans: pl.DataFrame, kernels: pl.DataFrame | None, metrics: pl.DataFrame | None, states: str, *, needed_by: str
) -> pl.DataFrame:
    """Kernel launches in order, with `state`; null where what it needs was not measured.

    `casio`: threads, multiprocessors, memory (a launch of few threads is `L**`, whatever else). `tensor-dram`: tensor
    cores, memory. `auto`: casio's where some launch has all three. Redzone checkers are left out, as casio does.
    Raises MissingTable, UnknownName (states).
    """
    if states not in STATES:
        raise UnknownName("kind of states", states, STATES)
    launches = kernel_launches(spans, needed_by=needed_by, without_trials=True)
    launches = with_threads(with_ratios(launches, metrics, needed_by=needed_by), kernels)
    threads = letter("threads", *THREADS)
    sm, dram, tensor = (letter(name, *RATIO) for name in ("sm_ratio", "dram_ratio", "tensor_ratio"))
    casio = pl.when(threads == "L").then(pl.lit("L**")).otherwise(threads + sm + dram)
    launches = launches.with_columns(casio=casio, tensor_dram=tensor + dram)
    if states == "auto":
        is_full = launches.select(pl.all_horizontal(pl.col("threads", "sm_ratio", "dram_ratio").is_not_null()).any())
        states = "casio" if is_full.item() else "tensor-dram"
    launches = launches.with_columns(state=pl.col(states.replace("-", "_")))
    if launches["state"].null_count() == launches.height:
        what = {"casio": "threads, SM and DRAM use of kernels", "tensor-dram": "tensor-core and DRAM use of kernels"}
        raise MissingTable(what[states], needed_by=needed_by, hint="try another --states")
    return launches.drop("casio", "tensor_dram")


def letter(column: str, low: float, high: float) -> pl.Expr:
    """L below `low`, H above `high`, M between and at the limits; null if unknown."""
    value = pl.col(column)
    found = pl.when(value < low - _SLACK).then(pl.lit("L")).when(value > high + _SLACK).then(pl.lit("H"))
    return pl.when(value.is_not_null()).then(found.otherwise(pl.lit("M")))
