"""Tells what a new function does in slow steps alone from what it does in all: each has a cause of its own.

A function that the base hardly has may sleep in a few steps in one line, and compute in all of them in others. What is
known of it as a whole then fits neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation, Pair

#: The base hardly has a function that takes so many times as large a share.
HARDLY_THERE = 4.0
#: A line is in slow steps alone if this part of its time is beyond what as many other steps have.
_MOSTLY_SLOW = 0.5
#: Where a line takes longer and longer, late steps are slow too: the last third of the run has so many times as much.
_STEADY = 2.0
#: A part of a function is told from the rest if it has this part of the function's time, and of all time, at least.
_LEAST_OF_FUNCTION, _LEAST_OF_TIME = 0.1, 0.01
_LINE = r":\d+\)$"
#: What adds up over lines, and what is a mean over their time.
_SUMS = ("share_ratio", "early_ratio", "late_ratio", "slow_ratio", "n_visits", "n_expected")
_MEANS = ("worker_ratio", "fetch_ratio", "n_independent")


def by_line(pair: Pair) -> Pair:
    """The pair whose other run has the lines of a new function that are in slow steps alone as one of their own.

    It is named by the line with most time, as in `main (train.py:12)`, and the rest like the function.
    """
    usual = _usual(pair.base)
    if usual is None or all(run.python_lines is None or run.python_lines.is_empty() for run in pair.other):
        return pair
    return replace(pair, other=tuple(_split(run, usual) for run in pair.other))


def _usual(base: Sequence[Observation]) -> pl.DataFrame | None:
    """The share of each function in the base, as the mean of its repeats; None if it was not sampled."""
    frames = [run.python_functions for run in base if run.python_functions is not None]
    if not frames:
        return None
    return pl.concat(frames).group_by("function").agg(usual=pl.col("share_ratio").sum() / len(frames))


def _split(run: Observation, usual: pl.DataFrame) -> Observation:
    functions, lines = run.python_functions, run.python_lines
    if functions is None or lines is None:
        return run
    both = functions.join(usual, on="function", how="left")
    new = both.filter(pl.col("share_ratio") >= HARDLY_THERE * pl.col("usual").fill_null(0.0))
    lines = lines.with_columns(owner=pl.col("function").str.replace(_LINE, ")"))
    parts = _parts(lines.filter(pl.col("owner").is_in(new["function"].implode())))
    rest = functions.join(parts, left_on="function", right_on="owner", how="anti", maintain_order="left")
    split = pl.concat([rest, parts.select(functions.columns)])
    return replace(run, python_functions=split.sort("share_ratio", "function", descending=[True, False]))


def _parts(lines: pl.DataFrame) -> pl.DataFrame:
    """The two parts of each function, `owner`, that has lines in slow steps alone; other functions are left out."""
    share, of_line = pl.col("share_ratio"), pl.col("function") != pl.col("owner")
    is_steady = pl.col("late_ratio") <= _STEADY * pl.col("early_ratio")
    is_slow = of_line & is_steady & (pl.col("slow_ratio") >= _MOSTLY_SLOW * share)
    on_lock = pl.col("on_lock_ratio") * pl.col("n_expected")
    parts = lines.group_by("owner", is_slow=is_slow).agg(
        pl.col(_SUMS).sum(),
        *((pl.col(name) * share).sum() / share.sum() for name in _MEANS),
        pl.col("n_samples", "n_all_visits").first(),
        function=pl.col("function").sort_by(share).last(),
        on_lock_ratio=(on_lock.sum() / pl.col("n_expected").sum()).fill_nan(None),
    )
    named = pl.when("is_slow").then("function").otherwise("owner")
    is_much = (share >= _LEAST_OF_FUNCTION * share.sum().over("owner")) & (share >= _LEAST_OF_TIME)
    return parts.with_columns(function=named).filter(is_much.all().over("owner") & (pl.len().over("owner") > 1))
