"""The text that PaddlePaddle's profiler prints as its summary, byte for byte, from a trace that stepscope has read.

It repeats the flaws of that text; `stepscope report` answers the same questions without them.

Source: the output of PaddlePaddle 3.3.1 and its `profiler_statistic`, whose rules each module describes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, get_args

import polars as pl

from stepscope.core.errors import UnknownName
from stepscope.core.schema import STEP_COSTS
from stepscope.exports import Export
from stepscope.exports.paddle_summary._operators import (
    kernel_summary,
    memory_manipulation_summary,
    memory_summary,
    operator_summary,
    user_defined_summary,
)
from stepscope.exports.paddle_summary._overview import (
    device_summary,
    distribution_summary,
    model_summary,
    overview_summary,
)
from stepscope.exports.paddle_summary._text import SortedBy, TimeUnit, centred
from stepscope.exports.paddle_summary._tree import tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.core.trace import Run, Trace
    from stepscope.exports import Context

__all__ = ["EXPORT", "VIEWS", "SortedBy", "TimeUnit", "View", "approximate_costs", "summary"]


View = Literal[
    "DeviceView", "OverView", "ModelView", "DistributedView", "KernelView", "OperatorView", "MemoryView",
    "MemoryManipulationView", "UDFView",
]  # fmt: skip
VIEWS: tuple[str, ...] = get_args(View)
_UNITS: tuple[str, ...] = get_args(TimeUnit)
_ORDERS: tuple[str, ...] = get_args(SortedBy)


def summary(
    trace: Trace,
    *,
    time_unit: TimeUnit = "ms",
    sorted_by: SortedBy = "CPUTotal",
    op_detail: bool = True,
    thread_sep: bool = False,
    views: Iterable[str] | None = None,
    steps: pl.DataFrame | None = None,
    ips_unit: str | None = None,
) -> str:
    """What `Profiler.summary` of PaddlePaddle 3.3.1 prints for this recording.

    `views` are names of VIEWS, with or without `View` and in any case; None is all. `steps` (a `step_costs` table: read
    from a side file, or `approximate_costs`) adds the Perf Summary, whose numbers no trace holds; `ips_unit` is what
    the program called its samples. Everything else has Paddle's names. The section that Paddle adds with `with_flops`
    is left out, because profiles do not hold the numbers in it.

    Raises StepscopeError (not a trace of Paddle), UnknownName (unit, order, view).
    """
    for what, value, known in (("time unit", time_unit, _UNITS), ("order", sorted_by, _ORDERS)):
        if value not in known:
            raise UnknownName(what, value, known)
    wanted = VIEWS if views is None else [_view(name) for name in views]
    tree = tree_of(trace)
    tables: dict[str, Callable[[], str]] = {
        "OverView": lambda: overview_summary(tree, time_unit),
        "ModelView": lambda: model_summary(tree, time_unit),
        "DistributedView": lambda: distribution_summary(tree, time_unit),
        "OperatorView": lambda: operator_summary(
            tree, time_unit, sorted_by, op_detail=op_detail, thread_sep=thread_sep
        ),
        "KernelView": lambda: kernel_summary(tree, time_unit, sorted_by),
        "MemoryManipulationView": lambda: memory_manipulation_summary(tree, time_unit),
        "UDFView": lambda: user_defined_summary(tree, time_unit, sorted_by, thread_sep=thread_sep),
        "MemoryView": lambda: memory_summary(tree, trace.allocations, trace.reservations),
    }
    text = "" if steps is None else perf_summary(steps, ips_unit)
    if "DeviceView" in wanted:
        text += device_summary(tree, trace.meta.facts)
    if tree.steps_ns:  # everything below is relative to it
        text += "".join(table() for view, table in tables.items() if view in wanted)
    return text + "\n"


def approximate_costs(trace: Trace) -> pl.DataFrame:
    """Costs of steps from the lengths of their ranges, as a `step_costs` table, where the timer's own are lost.

    Source: a step's cost is the time from its start to the next one's; the timer measures the same between its calls.
    Raises MissingTable (no steps).
    """
    return costs_of_ranges(trace.require("steps", needed_by="Perf Summary"))


def _view(name: str) -> str:
    plain = name.lower().replace("_", "").removesuffix("view")
    match = next((view for view in VIEWS if view.lower().removesuffix("view") == plain), None)
    if match is None:
        raise UnknownName("view", name, VIEWS)
    return match


def paddle_summary(
    run: Run,
    context: Context,
    *,
    time_unit: TimeUnit = "ms",
    sorted_by: SortedBy = "CPUTotal",
    op_detail: bool = True,
    thread_sep: bool = False,
    views: str | None = None,
    steps: str | None = None,
    approximate: bool = False,
    ips_unit: str | None = None,
) -> str:
    """The text that PaddlePaddle's `Profiler.summary` prints, for one profile after the other.

    `views` are names of views separated by commas, as in `OperatorView,KernelView`; by default all are printed. `steps`
    is the JSON file of a training loop's own timer for the Perf Summary, which no profile holds. `approximate` makes
    that table from the ranges of the steps instead, and says so. The other options have Paddle's names.

    Units: those of `time_unit`.
    Raises StepscopeError (not a profile of Paddle, no costs in `steps`), UnknownName (view).
    """
    wanted = None if views is None else [name.strip() for name in views.split(",") if name.strip()]
    timed = None
    if steps is not None:
        (side,) = context.open_run(steps)
        timed = side.require("step_costs", needed_by="Perf Summary")
    texts = []
    for trace in run:
        costs = approximate_costs(trace) if approximate and timed is None else timed
        texts.append(
            summary(
                trace, time_unit=time_unit, sorted_by=sorted_by, op_detail=op_detail, thread_sep=thread_sep,
                views=wanted, steps=costs, ips_unit=ips_unit,
            )
        )  # fmt: skip
    return "".join(texts)


EXPORT = Export("paddle-summary", "the text of PaddlePaddle's Profiler.summary, byte for byte", paddle_summary)


_SKIPPED = 10
_WIDTH = 100
_APPROXIMATE = "Approximated from the ranges of the steps: the timer's own costs are in no trace."


def perf_summary(costs: pl.DataFrame, ips_unit: str | None = None) -> str:
    """The block, from a `step_costs` table; empty for ten steps or fewer, as in Paddle.

    The block calls costs approximate if the timer did not measure them. `ips_unit` is the name of samples.
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
    costs = ordered.select(
        kind=pl.lit("step"),
        n_before=pl.int_range(pl.len()),
        cost_s=to_next.fill_null(pl.col("dur_ns")) / 1e9,
        source=pl.lit("ranges"),
    )
    return STEP_COSTS.conform(costs)


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
