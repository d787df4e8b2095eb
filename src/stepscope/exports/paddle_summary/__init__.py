"""The text that PaddlePaddle's profiler prints as its summary, byte for byte, from a trace that stepscope has read.

It is here for those who know it, with its oddities; `stepscope report` answers the same questions without them.

Source: the output of PaddlePaddle 3.3.1 and its `profiler_statistic`, whose rules each module tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from stepscope.core.errors import UnknownName
from stepscope.exports.export import Export
from stepscope.exports.paddle_summary._items import SortedBy
from stepscope.exports.paddle_summary._kernels import kernel_summary
from stepscope.exports.paddle_summary._memory import memory_summary
from stepscope.exports.paddle_summary._model import distribution_summary, model_summary
from stepscope.exports.paddle_summary._operators import operator_summary
from stepscope.exports.paddle_summary._overview import device_summary, overview_summary
from stepscope.exports.paddle_summary._perf import costs_of_ranges, perf_summary
from stepscope.exports.paddle_summary._ranges import memory_manipulation_summary, user_defined_summary
from stepscope.exports.paddle_summary._text import TimeUnit
from stepscope.exports.paddle_summary._tree import tree_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import polars as pl

    from stepscope.core.trace import Run, Trace
    from stepscope.exports.export import Context

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
    the program called its samples. Everything else is as Paddle names it. The section that Paddle adds with_flops is
    not made: profiles do not hold what it is made of.

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
    if tree.steps_ns:  # all that follows is relative to it
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
    found = next((view for view in VIEWS if view.lower().removesuffix("view") == plain), None)
    if found is None:
        raise UnknownName("view", name, VIEWS)
    return found


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
    """The text that PaddlePaddle's `Profiler.summary` prints, of each profile one after the other.

    `views` are names of views with commas between, as in `OperatorView,KernelView`; without it all are printed. `steps`
    is the JSON file of a training loop's own timer, for the Perf Summary, which no profile holds; `approximate` makes
    that table from the ranges of the steps instead, and says so. Everything else is as Paddle names it.

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
