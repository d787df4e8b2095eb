"""What a benchmark gives: a table with a row for each case and function, its arguments as columns between the keys."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.schema import Column, Table
from stepscope.timing._arrays import ArraySpec
from stepscope.timing._statistics import speedup, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.timing._clock import Clock
    from stepscope.timing._equal import Difference
    from stepscope.timing._measure import Budget, Timings
    from stepscope.timing._sweep import Case

ROLES = pl.Enum(["function", "reference"])
_KEYS = (
    Column("case", pl.Int64(), "number of the case, from 1 in the order of the sweep", key=True),
    Column("role", ROLES, "whether it is the function, or the reference that it is compared with", key=True),
    Column("function", pl.String(), "module and name of what was called", key=True),
)
_MEASURES = (
    Column("median_ns", pl.Float64(), "median time of a call", "ns"),
    Column("median_low_ns", pl.Float64(), "lower bound of the median's interval", "ns"),
    Column("median_high_ns", pl.Float64(), "upper bound of the median's interval", "ns"),
    Column("confidence_ratio", pl.Float64(), "level that this interval has; 95 % or a little more from 6 repeats on",
           "ratio"),
    Column("min_ns", pl.Float64(), "least time", "ns"),
    Column("mean_ns", pl.Float64(), "mean time", "ns"),
    Column("p95_ns", pl.Float64(), "95th percentile", "ns"),
    Column("max_ns", pl.Float64(), "largest time", "ns"),
    Column("n_repeats", pl.Int64(), "times measured"),
    Column("n_inner", pl.Int64(), "calls in a row that make one repeat, whose time is their mean"),
    Column("n_outliers", pl.Int64(), "repeats above the third quartile by more than 3 interquartile ranges; left in"),
    Column("overhead_ns", pl.Float64(), "what the same call of a function that does nothing takes; contained in all "
           "times", "ns"),
    Column("clock", pl.String(), "the clock that was read"),
    Column("clock_device", pl.String(), "the device that was waited for"),
    Column("speedup", pl.Float64(), "median of the reference by that of the function: above 1 is faster"),
    Column("speedup_low", pl.Float64(), "lower bound of the speedup's interval"),
    Column("speedup_high", pl.Float64(), "upper bound of the speedup's interval"),
    Column("speedup_confidence_ratio", pl.Float64(), "level that this interval has; 95 % or more from 7 repeats on",
           "ratio"),
    Column("n_elements", pl.Int64(), "elements of the result"),
    Column("equal_ratio", pl.Float64(), "share of elements that equal those of the reference", "ratio"),
    Column("max_abs_error", pl.Float64(), "largest distance of an element from the reference"),
    Column("max_rel_error", pl.Float64(), "largest distance by the size of the reference's element, where not 0"),
    Column("result_dtype", pl.String(), "element types that were compared"),
    Column("rel_tolerance", pl.Float64(), "relative tolerance of these types, the widest if there are several"),
    Column("abs_tolerance", pl.Float64(), "absolute tolerance of these types, the widest if there are several"),
    Column("within_tolerance", pl.Boolean(), "whether no element is further off"),
)  # fmt: skip
#: The columns of every benchmark. The arguments and variables of the cases stand between `function` and `median_ns`.
BENCH = Table("bench", "time of a function for each case, beside that of a reference", (*_KEYS, *_MEASURES))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One case: the times of the function and, if there is one, of the reference, and how their results differ."""

    case: Case
    timings: tuple[Timings, ...]
    clocks: tuple[Clock, ...]
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """A finished benchmark: print it, or take its `frame`, whose columns `table` tells.

    `outcomes` hold every single time. `arguments` says the column of each argument, as a few names are taken.
    """

    function: str
    reference: str | None
    outcomes: tuple[Outcome, ...]
    budget: Budget
    gc_enabled: bool
    table: Table
    frame: pl.DataFrame
    arguments: Mapping[str, str]
    to_text: Callable[[Bench], str] | None = field(default=None, repr=False)

    @property
    def n_differing(self) -> int | None:
        """Cases whose results differ by more than the tolerance; null without a reference."""
        if self.reference is None:
            return None
        return sum(o.difference is not None and o.difference.within_tolerance is False for o in self.outcomes)

    @property
    def n_not_compared(self) -> int:
        """Cases whose functions gave back nothing that could be compared."""
        return sum(o.difference is None or o.difference.within_tolerance is None for o in self.outcomes)

    def __str__(self) -> str:
        return repr(self) if self.to_text is None else self.to_text(self).rstrip("\n")

    def __repr__(self) -> str:
        against = f" against {self.reference}" if self.reference else ""
        n = len(self.outcomes)
        return f"Bench({self.function}{against}, {n} {'case' if n == 1 else 'cases'})"


def result(
    function: str, reference: str | None, outcomes: Sequence[Outcome], budget: Budget, *, gc_enabled: bool
) -> Bench:
    """The table of all outcomes, the function before the reference in each case."""
    shown = [{**o.case.variables, **o.case.arguments} for o in outcomes]
    names = list(dict.fromkeys(name for one in shown for name in one))
    columns = {name: _argument_column(name, names, [one.get(name) for one in shown]) for name in names}
    table = Table(BENCH.name, BENCH.doc, (*_KEYS, *columns.values(), *_MEASURES))
    labels = [function] if reference is None else [function, reference]
    rows = []
    for number, (outcome, given) in enumerate(zip(outcomes, shown, strict=True), 1):
        cells = {column.name: _cell(given.get(name), column.dtype) for name, column in columns.items()}
        for at, label in enumerate(labels):
            keys = {"case": number, "role": ROLES.categories[at], "function": label}
            rows.append({**keys, **cells, **_times(outcome, at), **(_comparison(outcome) if at == 0 else {})})
    frame = pl.DataFrame(rows, schema=dict(table.dtypes))
    called = {name: column.name for name, column in columns.items()}
    return Bench(function, reference, tuple(outcomes), budget, gc_enabled, table, frame, called)


def _times(outcome: Outcome, at: int) -> dict[str, Any]:
    timings, clock = outcome.timings[at], outcome.clocks[at]
    found = summary(timings.times_ns)
    interval = found.interval
    return {
        "median_ns": found.median,
        "median_low_ns": interval and interval.low,
        "median_high_ns": interval and interval.high,
        "confidence_ratio": interval and interval.level,
        "min_ns": found.min,
        "mean_ns": found.mean,
        "p95_ns": found.p95,
        "max_ns": found.max,
        "n_repeats": found.n,
        "n_inner": timings.n_inner,
        "n_outliers": found.n_outliers,
        "overhead_ns": timings.overhead_ns,
        "clock": clock.name,
        "clock_device": clock.device,
    }


def _comparison(outcome: Outcome) -> dict[str, Any]:
    if len(outcome.timings) < 2 or outcome.difference is None:
        return {}
    ratio, interval = speedup(outcome.timings[0].times_ns, outcome.timings[1].times_ns)
    found = outcome.difference
    return {
        "speedup": ratio,
        "speedup_low": interval and interval.low,
        "speedup_high": interval and interval.high,
        "speedup_confidence_ratio": interval and interval.level,
        "n_elements": found.n_elements,
        "equal_ratio": found.equal_ratio,
        "max_abs_error": found.max_abs_error,
        "max_rel_error": found.max_rel_error,
        "result_dtype": ", ".join(dtype for dtype, _, _ in found.tolerances) or None,
        "rel_tolerance": max((rtol for _, rtol, _ in found.tolerances), default=None),
        "abs_tolerance": max((atol for _, _, atol in found.tolerances), default=None),
        "within_tolerance": found.within_tolerance,
    }


def _argument_column(name: str, names: Sequence[str], values: Sequence[Any]) -> Column:
    """A column for an argument, under another name if ours has one like it or it is a position."""
    called = name
    while called in BENCH.dtypes or called.isdecimal() or (called != name and called in names):
        called = f"arg_{called}"
    dtype: pl.DataType = pl.String()
    kinds = Counter(type(value) for value in values if value is not None)
    if kinds.keys() == {bool}:
        dtype = pl.Boolean()
    elif kinds.keys() == {int} and all(value is None or abs(value) < 2**63 for value in values):
        dtype = pl.Int64()
    elif float in kinds and kinds.keys() <= {int, float}:
        dtype = pl.Float64()
    return Column(called, dtype, f"what was passed as {name}, or was its size", key=True)


def _cell(value: Any, dtype: pl.DataType) -> Any:
    if value is None or not isinstance(dtype, pl.String):
        return value
    if isinstance(value, str):
        return value
    if isinstance(value, ArraySpec):
        return str(value)
    if isinstance(value, list):
        return json.dumps([_cell(v, dtype) if isinstance(v, ArraySpec | list) else v for v in value], default=str)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
    return str(value)


def described(arguments: Mapping[str, Any]) -> str:
    """Arguments in words: 'n=4, x=float32[16, 32]'."""
    return ", ".join(f"{name}={_cell(value, pl.String())}" for name, value in arguments.items())
