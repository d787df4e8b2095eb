"""Functions whose time is in compiled code, by samples of Python's lock, and those that compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.diagnosis.cores import HALF_CORE, outside_cores, ran, ran_in_all
from stepscope.comparison.diagnosis.io import at_disk, blocked
from stepscope.comparison.diagnosis.sampled import (
    APART,
    MOSTLY_WORKERS,
    fetching,
    growing,
    grown,
    in_functions,
    is_new,
    only_in_slow_steps,
    seems_tail,
    waiting,
)
from stepscope.comparison.model import OPERATORS
from stepscope.comparison.stack_functions import COMPILING
from stepscope.comparison.statistics import at_most

if TYPE_CHECKING:
    from stepscope.comparison.diagnosis.case import View

#: A function is mostly in compiled code if its thread holds Python's lock for less than half of its time, by so many
#: samples or more.
_HALF_ON_LOCK, _LEAST_EXPECTED = 0.5, 5.0
#: Small calls hold the lock for a fifth of their time or more: that is what samples must make unlikely.
_OF_SMALL_CALLS, _UNLIKELY = 0.2, 0.15
#: A function does what it did if it took that part of a cycle before.
_WAS_THERE = 0.01
#: The part of a function's added time that must be added processor time.
_AT_WORK = 0.5
#: Functions of frameworks that wait for a device and bring a value back.
_READS = r"^(?:\w+\.)*_?(?:value|item|numpy|tolist|synchronize|block_until_ready) \((?:jax|torch|paddle|cupy)/"


def compiling() -> pl.Expr:
    """Whether a `function` compiles, or calls a compiler and uses there and then what that makes."""
    return pl.col("function").str.contains(COMPILING)


def slower(view: View) -> pl.DataFrame:
    """What `grown` gives of functions that do the same as in the base, only slower: slow operators without a profile.

    They were there in the base, are mostly in compiled code, as samples of Python's lock show, use more processor time,
    and the other functions in which the process works became slower much less.
    """
    rows = grown(view).filter(~waiting() & ~fetching())
    rows = rows.filter(
        (pl.col("n_expected") >= _LEAST_EXPECTED)
        & (pl.col("on_lock_ratio") < _HALF_ON_LOCK)
        & (pl.col("low") >= _WAS_THERE * view.base_ns / view.stretch)
    )
    rest = in_functions(view).filter(~waiting()).join(rows, on="function", how="anti")
    ends = [(float(each["low"].sum()), float(each["high"].sum())) for each in (rows, rest)]
    ratios = [high / low if low else 1.0 for low, high in ends]
    return rows if _is_at_work(view, rows) and ratios[0] >= APART * max(ratios[1], 1.0) else rows.clear()


def added(view: View) -> pl.DataFrame:
    """What `grown` gives of functions in which the process hardly was before, and which compute in compiled code.

    They hold Python's lock for less time than small calls do, and use processor time. Other causes are functions that
    are in slow steps alone or take longer and longer. Empty where other processes use the cores too: a thread that
    waits for a core is found without the lock.
    """
    is_known = waiting() | fetching() | compiling() | pl.col("function").str.contains(_READS)
    rows = grown(view).filter(is_new() & ~is_known)
    if rows.is_empty():
        return rows
    was_there = pl.col("low") >= _WAS_THERE * view.base_ns / view.stretch
    rows = rows.filter(~was_there & (pl.col("n_expected") > 0) & (pl.col("on_lock_ratio") <= _OF_SMALL_CALLS))
    rows = rows.filter(~only_in_slow_steps(view)) if seems_tail(view) else rows
    for explained in (growing(view), at_disk(view)):
        rows = rows.join(explained, on="function", how="anti", maintain_order="left")
    n = float(rows["n_expected"].sum())
    held = float((rows["on_lock_ratio"] * rows["n_expected"]).sum())
    is_off_lock = n >= _LEAST_EXPECTED and at_most(round(held), round(n), _OF_SMALL_CALLS) < _UNLIKELY
    has_cores = (outside_cores(view) or 0.0) < HALF_CORE
    return rows if is_off_lock and has_cores and _is_at_work(view, rows) else rows.clear()


def outside_of_operators(view: View, rows: pl.DataFrame) -> float:
    """How much of what functions take longer no operator of a profile has. Units: ns, per step of the run.

    The calls of a server that were profiled are a few of all, so there all of it counts.
    """
    longer, within = float(rows["delta"].sum()), view.part(OPERATORS)
    is_known = within.is_known and not view.pair.answers_requests
    return max(longer - max(within.delta, 0.0) / view.stretch, 0.0) if is_known else longer


def _is_at_work(view: View, rows: pl.DataFrame) -> bool:
    """Whether half of what functions take longer is added processor time: of the process, or of workers too.

    Something else may use as much, so the process must not be asleep for as long, either.
    """
    longer = float(rows["delta"].sum())
    of_workers = float((rows["delta"] * rows["worker_ratio"]).sum()) > MOSTLY_WORKERS * longer
    own = ran_in_all(view) if of_workers else ran(view)
    is_asleep = blocked(view).rose(by=_AT_WORK * longer)
    return own.is_known and own.delta >= _AT_WORK * longer and not is_asleep
