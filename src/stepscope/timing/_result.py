"""The result of a benchmark: a table with a row for each case and function, and the text that people read.

Arguments are columns between the keys.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core import units
from stepscope.core.report import Block
from stepscope.core.table import Column, Table
from stepscope.timing._arrays import ArraySpec
from stepscope.timing._equal import TOLERANCES
from stepscope.timing._statistics import LEVEL, speedup, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.timing._equal import Difference
    from stepscope.timing._measure import Budget, Clock, Timings
    from stepscope.timing._sweep import Case


ROLES = pl.Enum(["function", "reference"])
_KEYS = (
    Column("case", pl.Int64(), "number of the case, from 1, in the order of the sweep", key=True),
    Column("role", ROLES, "whether it is the function, or the reference that it is compared with", key=True),
    Column("function", pl.String(), "module and name of what was called", key=True),
)
_MEASURES = (
    Column("median_ns", pl.Float64(), "median time of a call", "ns"),
    Column("median_low_ns", pl.Float64(), "lower bound of the median's interval", "ns"),
    Column("median_high_ns", pl.Float64(), "upper bound of the median's interval", "ns"),
    Column("confidence_ratio", pl.Float64(), "level of this interval; 95 % or a little more from 6 repeats on",
           "ratio"),
    Column("min_ns", pl.Float64(), "least time", "ns"),
    Column("mean_ns", pl.Float64(), "mean time", "ns"),
    Column("p95_ns", pl.Float64(), "95th percentile", "ns"),
    Column("max_ns", pl.Float64(), "largest time", "ns"),
    Column("n_repeats", pl.Int64(), "times measured"),
    Column("n_inner", pl.Int64(), "calls in a row that make one repeat, whose time is their mean"),
    Column("n_outliers", pl.Int64(), "repeats above the third quartile by more than 3 interquartile ranges; left in"),
    Column("overhead_ns", pl.Float64(), "the same call of a function that does nothing; all times include it", "ns"),
    Column("clock", pl.String(), "the clock that was read"),
    Column("clock_device", pl.String(), "the device that was waited for"),
    Column("speedup", pl.Float64(), "median of the reference divided by that of the function: above 1 is faster"),
    Column("speedup_low", pl.Float64(), "lower bound of the speedup's interval"),
    Column("speedup_high", pl.Float64(), "upper bound of the speedup's interval"),
    Column("speedup_confidence_ratio", pl.Float64(), "level of this interval; 95 % or more from 7 repeats on",
           "ratio"),
    Column("n_elements", pl.Int64(), "elements of the result"),
    Column("equal_ratio", pl.Float64(), "share of elements that equal those of the reference", "ratio"),
    Column("max_abs_error", pl.Float64(), "largest distance of an element from the reference"),
    Column("max_rel_error", pl.Float64(), "largest distance divided by the reference's element, where that is not 0"),
    Column("result_dtype", pl.String(), "element types that were compared"),
    Column("rel_tolerance", pl.Float64(), "relative tolerance of these types, the widest if there are several"),
    Column("abs_tolerance", pl.Float64(), "absolute tolerance of these types, the widest if there are several"),
    Column("within_tolerance", pl.Boolean(), "whether every element is within the tolerance"),
)  # fmt: skip
#: The columns of every benchmark. The arguments and variables of the cases stand between `function` and `median_ns`.
BENCH = Table("bench", "time of a function for each case, with that of a reference", (*_KEYS, *_MEASURES))


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """One case: the times of the function and, if there is one, of the reference, and how their results differ."""

    case: Case
    timings: tuple[Timings, ...]
    clocks: tuple[Clock, ...]
    difference: Difference | None = None


class Bench(msgspec.Struct, frozen=True, eq=False):
    """A finished benchmark: print it, or take its `frame`, whose columns `table` describes.

    `outcomes` hold every single time. `arguments` has the column of each argument, because a few names are taken.
    """

    function: str
    reference: str | None
    outcomes: tuple[Outcome, ...]
    budget: Budget
    gc_enabled: bool
    table: Table
    frame: pl.DataFrame
    arguments: Mapping[str, str]
    to_text: Callable[[Bench], str] | None = None

    @property
    def n_differing(self) -> int | None:
        """Number of cases whose results differ by more than the tolerance; null without a reference."""
        if self.reference is None:
            return None
        return sum(o.difference is not None and o.difference.within_tolerance is False for o in self.outcomes)

    @property
    def n_not_compared(self) -> int:
        """Number of cases whose functions returned nothing that could be compared."""
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
    statistics = summary(timings.times_ns)
    interval = statistics.interval
    return {
        "median_ns": statistics.median,
        "median_low_ns": interval and interval.low,
        "median_high_ns": interval and interval.high,
        "confidence_ratio": interval and interval.level,
        "min_ns": statistics.min,
        "mean_ns": statistics.mean,
        "p95_ns": statistics.p95,
        "max_ns": statistics.max,
        "n_repeats": statistics.n,
        "n_inner": timings.n_inner,
        "n_outliers": statistics.n_outliers,
        "overhead_ns": timings.overhead_ns,
        "clock": clock.name,
        "clock_device": clock.device,
    }


def _comparison(outcome: Outcome) -> dict[str, Any]:
    if len(outcome.timings) < 2 or outcome.difference is None:
        return {}
    ratio, interval = speedup(outcome.timings[0].times_ns, outcome.timings[1].times_ns)
    difference = outcome.difference
    return {
        "speedup": ratio,
        "speedup_low": interval and interval.low,
        "speedup_high": interval and interval.high,
        "speedup_confidence_ratio": interval and interval.level,
        "n_elements": difference.n_elements,
        "equal_ratio": difference.equal_ratio,
        "max_abs_error": difference.max_abs_error,
        "max_rel_error": difference.max_rel_error,
        "result_dtype": ", ".join(dtype for dtype, _, _ in difference.tolerances) or None,
        "rel_tolerance": max((rtol for _, rtol, _ in difference.tolerances), default=None),
        "abs_tolerance": max((atol for _, _, atol in difference.tolerances), default=None),
        "within_tolerance": difference.within_tolerance,
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
    """Arguments as text: 'n=4, x=float32[16, 32]'."""
    return ", ".join(f"{name}={_cell(value, pl.String())}" for name, value in arguments.items())


TIMES = ("median_ns", "median_low_ns", "median_high_ns", "min_ns", "mean_ns", "p95_ns", "n_repeats")
COMPARISON = (
    "speedup", "speedup_low", "speedup_high", "equal_ratio", "max_abs_error", "max_rel_error", "within_tolerance",
)  # fmt: skip
#: A share of outliers, or a distance of mean from median, that is worth a sentence.
MANY_OUTLIERS, FAR_MEAN = 0.05, 0.1
#: Where the host's clock and the device's differ by more than this, something is not on the device's stream.
FAR_WALL, FAR_WALL_NS = 2.0, 50_000


def text(bench: Bench, draw: Callable[[Block], str]) -> str:
    """The blocks as `draw` draws them, one below the other."""
    return "\n".join(draw(block) for block in blocks(bench))


def blocks(bench: Bench) -> tuple[Block, ...]:
    """The times, a row for each case and function; with a reference also the comparison, a row for each case.

    Arguments that are the same in all cases are in the blocks' notes, as are arrays whose shapes are in other columns.
    """
    keys = _telling(bench)
    frame = bench.frame
    inner = ["n_inner"] if (frame["n_inner"] > 1).any() else []
    times = Block(
        "times", bench.table, frame.select("function", *keys, *TIMES, *inner), note=" ".join(_times_note(bench))
    )
    if bench.reference is None:
        return (times,)
    compared = frame.filter(pl.col("role") == "function").select("function", *keys, *COMPARISON)
    return times, Block("comparison", bench.table, compared, note=" ".join(_comparison_note(bench)))


def _telling(bench: Bench) -> list[str]:
    """The columns of arguments that differ between cases, without arrays of known shape; for one case its numbers."""
    first = bench.frame.filter(pl.col("role") == "function")
    one = first.height == 1
    shapes_are_shown = one or bool(bench.outcomes[0].case.variables)
    columns = [column for column in bench.arguments.values() if one or first[column].n_unique() > 1]
    return [column for column in columns if not (shapes_are_shown and _arrays(first[column]))]


def _arrays(values: pl.Series) -> bool:
    return values.dtype == pl.String and bool(values.str.contains(r"^\w+\[[\d, ]*\]$").all())


def _times_note(bench: Bench) -> list[str]:
    frame, budget = bench.frame, bench.budget
    levels = frame["confidence_ratio"].drop_nulls()
    sentences = [*_same_in_all(bench)]
    if levels.is_empty():
        sentences.append("A single repeat has no interval.")
    elif _number(levels.min()) < LEVEL:
        sentences.append(
            f"Low and high bound the median at {units.percent(_number(levels.min()))} only, for want of repeats "
            "(order statistics, exact)."
        )
    else:
        sentences.append(f"Low and high bound the median at {units.percent(LEVEL)} or more (order statistics, exact).")
    clocks = " and ".join(dict.fromkeys(frame["clock"]))
    devices = ", ".join(device for device in dict.fromkeys(frame["clock_device"]) if device != "cpu")
    sentences.append(
        f"Clock: {clocks}{f' ({devices})' if devices else ''}; {_calls(budget.warmup)} of warm-up, garbage "
    )
    sentences[-1] += f"collector {'on' if bench.gc_enabled else 'off'} as it was."
    if (frame["n_inner"] > 1).any():
        most = units.duration(_number(frame.filter(pl.col("n_inner") > 1)["overhead_ns"].max()))
        sentences.append(
            "Inner: calls in a row that make one repeat, as a single call is too short. To call a function that does "
            f"nothing takes up to {most}, which is in the times."
        )
    return [*sentences, *_outliers(bench), *_off_stream(bench)]


def _calls(n: int) -> str:
    return "1 call" if n == 1 else f"{n:,} calls"


def _same_in_all(bench: Bench) -> list[str]:
    """Arguments that have no column, as far as they are the same in all cases."""
    shown = _telling(bench)
    hidden = [name for name, column in bench.arguments.items() if column not in shown]
    cases = [{**outcome.case.variables, **outcome.case.arguments} for outcome in bench.outcomes]
    same = [n for n in hidden if all(n in case for case in cases) and len({described({n: c[n]}) for c in cases}) == 1]
    if not same:
        return []
    return [f"{'With' if len(cases) == 1 else 'In all cases:'} {described({n: cases[0][n] for n in same})}."]


def _outliers(bench: Bench) -> list[str]:
    frame = bench.frame
    many = frame.filter(pl.col("n_outliers") > MANY_OUTLIERS * pl.col("n_repeats"))
    pulled = frame.filter((pl.col("mean_ns") / pl.col("median_ns") - 1).abs() > FAR_MEAN)
    n_all, n_out = int(frame["n_repeats"].sum()), int(frame["n_outliers"].sum())
    if not n_out or (many.is_empty() and pulled.is_empty()):
        return []
    said = f"{n_out:,} of {n_all:,} repeats took far longer than the others: more than 3 interquartile ranges above "
    return [said + "the third quartile. They are left in; they pull the mean, not the median."]


def _off_stream(bench: Bench) -> list[str]:
    """A note on times by events if the host's clock measured much more."""
    far = []
    for outcome in bench.outcomes:
        for timings, clock in zip(outcome.timings, outcome.clocks, strict=True):
            device, wall = (float(np.median(times)) for times in (timings.times_ns, timings.wall_ns))
            if clock.event and wall > FAR_WALL * device and wall - device > FAR_WALL_NS:
                far.append((wall - device, wall, device))
    if not far:
        return []
    _, wall, device = max(far)
    said = f"By the host's clock a call takes up to {units.duration(wall)}, by events {units.duration(device)}: "
    return [said + "waiting for the device, or work on another stream."]


def _comparison_note(bench: Bench) -> list[str]:
    speedups = bench.frame["speedup_confidence_ratio"].drop_nulls()
    level = "" if speedups.is_empty() else f" at {units.percent(min(_number(speedups.min()), LEVEL))} or more"
    sentences = [f"Speedup: median of {bench.reference} by that of {bench.function}"]
    sentences[0] += f", with bounds{level} (from the intervals of both medians)." if level else "."
    differences = [outcome.difference for outcome in bench.outcomes if outcome.difference]
    used = list(dict.fromkeys(one for difference in differences for one in difference.tolerances))
    if used:
        source = ", from torch.testing.assert_close" if all(_is_default(*one) for one in used) else ""
        said = "; ".join(f"{dtype}: {rtol:g}, {atol:g}" for dtype, rtol, atol in used)
        sentences.append(f"Tolerance, relative and absolute, of {said}{source}.")
    if bench.n_not_compared:
        cases = "1 case" if bench.n_not_compared == 1 else f"{bench.n_not_compared:,} cases"
        sentences.append(f"In {cases} nothing was given back that could be compared.")
    return sentences


def _is_default(dtype: str, rtol: float, atol: float) -> bool:
    return TOLERANCES.get(dtype, (0.0, 0.0)) == (rtol, atol)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
