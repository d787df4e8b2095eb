"""A benchmark for people: a table of times, a table of the comparison, and notes on what the numbers rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core import units
from stepscope.core.report import Block
from stepscope.timing._equal import TOLERANCES
from stepscope.timing._result import described
from stepscope.timing._statistics import LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.timing._result import Bench

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

    Arguments that are the same in all cases stand in the notes, as do arrays whose shapes other columns tell.
    """
    keys = _telling(bench)
    frame = bench.frame
    inner = ["n_inner"] if (frame["n_inner"] > 1).any() else []
    times = Block("times", bench.table, frame.select("function", *keys, *TIMES, *inner), note=" ".join(_notes(bench)))
    if bench.reference is None:
        return (times,)
    compared = frame.filter(pl.col("role") == "function").select("function", *keys, *COMPARISON)
    return times, Block("comparison", bench.table, compared, note=" ".join(_comparison_notes(bench)))


def _telling(bench: Bench) -> list[str]:
    """The columns of arguments that tell cases apart, without arrays whose shapes are told; of one case its numbers."""
    first = bench.frame.filter(pl.col("role") == "function")
    one = first.height == 1
    told = one or bool(bench.outcomes[0].case.variables)
    columns = [column for column in bench.arguments.values() if one or first[column].n_unique() > 1]
    return [column for column in columns if not (told and _arrays(first[column]))]


def _arrays(values: pl.Series) -> bool:
    return values.dtype == pl.String and bool(values.str.contains(r"^\w+\[[\d, ]*\]$").all())


def _notes(bench: Bench) -> list[str]:
    frame, budget = bench.frame, bench.budget
    levels = frame["confidence_ratio"].drop_nulls()
    notes = [*_same_in_all(bench)]
    if levels.is_empty():
        notes.append("A single repeat has no interval.")
    elif _number(levels.min()) < LEVEL:
        notes.append(
            f"Low and high bound the median at {units.percent(_number(levels.min()))} only, for want of repeats "
            "(order statistics, exact)."
        )
    else:
        notes.append(f"Low and high bound the median at {units.percent(LEVEL)} or more (order statistics, exact).")
    clocks = " and ".join(dict.fromkeys(frame["clock"]))
    devices = ", ".join(device for device in dict.fromkeys(frame["clock_device"]) if device != "cpu")
    notes.append(f"Clock: {clocks}{f' ({devices})' if devices else ''}; {_calls(budget.warmup)} of warm-up, garbage ")
    notes[-1] += f"collector {'on' if bench.gc_enabled else 'off'} as it was."
    if (frame["n_inner"] > 1).any():
        most = units.duration(_number(frame.filter(pl.col("n_inner") > 1)["overhead_ns"].max()))
        notes.append(
            "Inner: calls in a row that make one repeat, as a single one is too short. To call a function that does "
            f"nothing takes up to {most}, which is in the times."
        )
    return [*notes, *_outliers(bench), *_off_stream(bench)]


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
    """Of times by events: the host's clock says much more."""
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


def _comparison_notes(bench: Bench) -> list[str]:
    speedups = bench.frame["speedup_confidence_ratio"].drop_nulls()
    level = "" if speedups.is_empty() else f" at {units.percent(min(_number(speedups.min()), LEVEL))} or more"
    notes = [f"Speedup: median of {bench.reference} by that of {bench.function}"]
    notes[0] += f", with bounds{level} (from the intervals of both medians)." if level else "."
    found = [outcome.difference for outcome in bench.outcomes if outcome.difference]
    used = list(dict.fromkeys(one for difference in found for one in difference.tolerances))
    if used:
        source = ", from torch.testing.assert_close" if all(_is_default(*one) for one in used) else ""
        said = "; ".join(f"{dtype}: {rtol:g}, {atol:g}" for dtype, rtol, atol in used)
        notes.append(f"Tolerance, relative and absolute, of {said}{source}.")
    if bench.n_not_compared:
        cases = "1 case" if bench.n_not_compared == 1 else f"{bench.n_not_compared:,} cases"
        notes.append(f"In {cases} nothing was given back that could be compared.")
    return notes


def _is_default(dtype: str, rtol: float, atol: float) -> bool:
    return TOLERANCES.get(dtype, (0.0, 0.0)) == (rtol, atol)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
