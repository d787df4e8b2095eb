"""Where a process' main thread was, and what worked for it while it waited, from samples of Python stacks.

While the main thread waits for a pool of threads or of worker processes, what these do is what its time goes to. So
their functions count in place of its waits, and two runs of a server or of a pool differ in the functions that do the
work. Who held Python's lock is known from samples of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.model import TIMED_STEPS, Answers, LockHeld
from stepscope.comparison.stack_functions import (
    COMPILES,
    FROM_QUEUE,
    SLEEPS,
    WAITING_FUNCTIONS,
    gets_data,
    named,
    named_up_to_queue,
)
from stepscope.comparison.whole_run import slow_steps
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import reached

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stepscope.core.intervals import Ints
    from stepscope.core.trace import Trace

#: When a visit of a stack begins and ends.
_ENDS = (pl.col("ts_ns"), pl.col("ts_ns") + pl.col("dur_ns"))
#: Threads that take items from a queue and are none of those that answer requests: loaders' and pools' own, and logs'.
_OTHER_TAKER = r"\((?:torch/utils/data/|multiprocessing/|logging/)"
#: What steps are called that calls of a model mark, and those that the job marks itself.
_OF_MODEL, _OWN_MARKS = "module calls", "named ranges"
#: A main thread does nothing but start and end others if it waits for this part of its time.
ONLY_WAITS = 0.95
#: A thread answers requests if it calls the model for this part of the time in which steps ran, and is there for so
#: much of it. The main thread does not if it does so for less than that.
_CALLS, _IS_THERE = 0.02, 0.5
#: A main thread sleeps in a line of the program if it stays there for so long, while other threads answer requests; or
#: if it is there for this part of its time, and so many samples of Python's lock never find it holding that.
_SLEEPS_NS, _MUCH, _LEAST_SAMPLED = 10**9, 0.1, 10.0
#: Part of the time of steps from which on they are those of a server that waits for requests.
_SOME_WAITS = 0.5
#: A line of a function is looked at if it has this part of the time, and less than nearly all of the function's.
_LEAST_LINE, _NEARLY_ALL = 0.01, 0.9


class MainThread(msgspec.Struct, frozen=True):
    """What samples say of a main thread: its `functions`, and `worked`, TIMED_STEPS without the time in which it waits.

    `worked` is empty if steps were not timed, or not sampled. See `main_thread` for the columns of `functions`.
    `lines` has the same of the lines in which much of the time is, with the line in `function`, and of the rest of
    their functions. `answers` are those of threads which make the calls of a model that mark steps, if the main thread
    does not.
    """

    functions: pl.DataFrame
    lines: pl.DataFrame
    worked: pl.DataFrame
    answers: Answers | None = None


def main_thread(
    trace: Trace,
    pid: int | None,
    low_ns: int,
    high_ns: int | None = None,
    steps: pl.DataFrame | None = None,
    siblings: Collection[int] = (),
) -> MainThread | None:
    """Each Python function's own share of the main thread's time from `low_ns` to `high_ns`; None without stacks.

    Of that time only what TIMED_STEPS cover counts, if there are any: no profile slowed them, or was written meanwhile.
    While the thread waits, functions in which the process' pools of threads work count, and those of worker processes,
    unless `siblings` says that other processes are observed too. Of several that work at once each counts in part.
    So do those of threads that take their work from a queue, also while the main thread sleeps; and, of a job that
    marks its steps itself, those of the threads that do most, if its main thread only waits and none has a queue.

    Columns: function, share_ratio (0..1), worker_ratio (the part of that in which a pool's thread or a worker process
    is in the function, and the main thread waits), fetch_ratio (the part of that in which a function that makes
    batches, as its name says, called it), early_ratio and late_ratio (its share of the first and of the last
    third of that time), slow_ratio (how much longer it takes in slow steps than in as many others, as a part of that
    time), n_samples (of the whole thread), and n_independent: as many samples, taken at random, would scatter as much.
    Samples that follow one another in one stack are a single visit of it, and one that stands for a long time counts
    for all of that time, so there are fewer of these. n_visits and n_all_visits count the visits of the function and of
    all. on_lock_ratio is the part of the function's time in which a thread that was in it held Python's lock, by
    samples of its own, of which n_expected would be such if it held the lock all the time; null without such samples.
    """
    if pid is None or trace.stack_samples.is_empty():
        return None
    stacks = named(trace.stacks)
    stacks = stacks.with_columns(gets_data(trace.stacks, trace.stack_samples.filter(pl.col("tid") == pid)))
    samples = trace.stack_samples.filter(pl.col("ts_ns") >= low_ns)
    if high_ns is not None:
        length = pl.min_horizontal("dur_ns", high_ns - pl.col("ts_ns"))
        samples = samples.filter(pl.col("ts_ns") < high_ns).with_columns(dur_ns=length)
    is_main = (pl.col("tid") == pl.col("pid")) & (pl.col("pid") == pid)
    visits = samples.filter(~pl.col("on_gil") & (pl.col("dur_ns") > 0))
    visits = visits.join(stacks, on="stack_id").with_row_index("visit")
    mine = visits.filter(is_main)
    if steps is not None and _within(mine, steps).is_empty():
        steps = None
    works = ~pl.col("waits") & ~pl.col("function").str.starts_with(FROM_QUEUE)
    of_process = (pl.col("pid") == pid) & ~is_main
    in_pool = pl.col("is_pool_thread") & of_process
    in_worker = pl.col("is_worker_process") & (pl.col("pid") != pid)
    in_helpers = in_pool if set(siblings) - {pid} else in_pool | in_worker
    at_work, own = visits.filter(works & in_helpers), mine
    mine = _with_work_of(own, at_work, steps)
    worked = TIMED_STEPS.empty() if steps is None else _worked(mine.filter(works), steps)
    takers = _takers(visits.filter(of_process))
    if not takers and steps is not None and _is_marked_by(_OWN_MARKS, steps) and _only_waits(mine):
        takers = _busiest(_within(visits.filter(of_process & works), steps))
    if takers:
        at_work = visits.filter(works & (in_helpers | (of_process & pl.col("tid").is_in(takers))))
        mine = _with_work_of(_with_sleep(own, samples.filter("on_gil")), at_work, steps)
    if not mine["dur_ns"].sum():
        return None
    is_theirs = pl.col("pid").is_in([pid, *at_work["pid"].unique()])
    held = samples.filter(pl.col("on_gil") & is_theirs).join(stacks, on="stack_id")
    lock_samples = held, visits.filter(is_theirs)
    functions, lines = _functions_and_lines(mine, is_main, steps, worked, lock_samples)
    answers = None if steps is None else _answers(visits.filter(of_process), works, steps, lock_samples, own, takers)
    return MainThread(functions, lines, worked, answers)


def _functions_and_lines(
    mine: pl.DataFrame,
    is_main: pl.Expr,
    steps: pl.DataFrame | None,
    worked: pl.DataFrame,
    lock_samples: tuple[pl.DataFrame, pl.DataFrame],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`MainThread.functions` and `lines` of these visits; `lock_samples` are what `_on_lock` needs."""
    functions = _functions(mine, is_main, steps, worked, _on_lock(*lock_samples))
    time, whole = pl.col("dur_ns").sum(), int(mine["dur_ns"].sum())
    times = mine.group_by("function", "place").agg(time).with_columns(of_function=time.over("function"))
    is_some = pl.col("dur_ns").is_between(_LEAST_LINE * whole, _NEARLY_ALL * pl.col("of_function"))
    some = times.filter(is_some)
    if some.is_empty():
        return functions, functions.clear()
    is_split = pl.col("function").is_in(some["function"].implode())
    place = pl.when(pl.col("place").is_in(some["place"].implode())).then("place").otherwise("function")
    name = pl.when(is_split).then(place).otherwise(None)
    on_lock = _on_lock(*(each.with_columns(function=name) for each in lock_samples))
    lines = _functions(mine.with_columns(function=name), is_main, steps, worked, on_lock)
    return functions, lines.filter(pl.col("function").is_not_null())


def _functions(
    mine: pl.DataFrame, is_main: pl.Expr, steps: pl.DataFrame | None, worked: pl.DataFrame, on_lock: pl.DataFrame
) -> pl.DataFrame:
    """`MainThread.functions` of these visits; `on_lock` says how long threads held Python's lock in each function."""
    compiles = pl.col("function").is_in(mine["calls_compiler"].drop_nulls().unique().implode())
    function = pl.when(compiles).then(pl.lit(COMPILES) + pl.col("function")).otherwise("function")
    mine, on_lock = (each.with_columns(function=function) for each in (mine, on_lock))
    is_worker = pl.col("dur_ns").filter(~is_main).sum() / pl.col("dur_ns").sum()
    gets_data = pl.col("dur_ns").filter("gets_data").sum() / pl.col("dur_ns").sum()
    share = pl.col("dur_ns").sum() / int(mine["dur_ns"].sum())
    functions = mine.group_by("function").agg(share_ratio=share, worker_ratio=is_worker, fetch_ratio=gets_data)
    functions = functions.filter(pl.col("share_ratio") > 0).sort("share_ratio", "function", descending=[True, False])
    early, late = (_share_of_third(mine, last=last) for last in (False, True))
    whole = mine.group_by("visit", "function").agg(pl.col("dur_ns", "n_samples").sum())
    counted = functions.with_columns(
        n_samples=pl.lit(round(whole["n_samples"].sum())), n_independent=_independent(functions, whole)
    ).with_columns(n_all_visits=pl.lit(whole.height))
    n_visits = whole.group_by("function").agg(n_visits=pl.len())
    for more in (n_visits, early, late, _longer_in_slow_steps(mine, steps, worked), on_lock):
        counted = counted.join(more, on="function", how="left", maintain_order="left")
    return counted


def _answers(
    visits: pl.DataFrame,
    works: pl.Expr,
    steps: pl.DataFrame,
    lock_samples: tuple[pl.DataFrame, pl.DataFrame],
    main: pl.DataFrame,
    takers: Collection[int],
) -> Answers | None:
    """The same of the threads, of these visits, that do the steps in place of the `main` one, if they do.

    They call the model, if its calls mark steps; or the job marks them, and they take their work from a queue
    (`takers`) while the main thread only waits. They take turns, so each of them counts for an equal part of a step,
    with all its waits for others.
    """
    of_model, is_own = _is_marked_by(_OF_MODEL, steps), _is_marked_by(_OWN_MARKS, steps)
    whole = float((steps["dur_ns"] * steps["n_steps"]).sum())
    calls, there = pl.col("dur_ns").filter("calls_model").sum() / whole, pl.col("dur_ns").sum() / whole
    threads = _within(visits, steps).group_by("tid").agg(calls=calls, there=there).filter(pl.col("there") >= _IS_THERE)
    if of_model and (_within(main, steps).select(calls).item() or 0.0) < _CALLS:
        threads = threads.filter(pl.col("calls") >= _CALLS)
    elif is_own and _only_waits(_within(main, steps)):
        threads = threads.filter(pl.col("tid").is_in(pl.Series(list(takers), dtype=threads["tid"].dtype).implode()))
    else:
        return None
    if threads.is_empty():
        return None
    mine = _within(visits.filter(pl.col("tid").is_in(threads["tid"].implode())), steps)
    worked = _worked_by_turns(mine, works, steps)
    functions, lines = _functions_and_lines(mine, pl.lit(value=False), steps, worked, lock_samples)
    n_works, n_waits = mine.filter(works).height, mine.filter(~works).height / threads.height
    time = pl.col("dur_ns")
    idle = mine.group_by("tid", maintain_order=True).agg(time.filter(~works).sum() / time.sum())["dur_ns"]
    return Answers(functions, lines, worked, n_works, n_waits, is_own, tuple(idle))


def _is_marked_by(source: str, steps: pl.DataFrame) -> bool:
    """Whether that marks all of these TIMED_STEPS."""
    return bool(steps["source"].cast(pl.String).eq_missing(source).all())


def _only_waits(main: pl.DataFrame) -> bool:
    """Whether a main thread does nothing else, by these visits of it: by their names, or as it hardly runs."""
    time = pl.col("dur_ns")
    waits, runs, whole = main.select(
        waits=time.filter("waits").sum(), runs=(time * pl.col("oncpu_ratio").fill_null(1.0)).sum(), whole=time.sum()
    ).row(0)
    return bool(whole > 0 and (waits >= ONLY_WAITS * whole or runs <= (1 - ONLY_WAITS) * whole))


def waiting_ratio(functions: pl.DataFrame | None) -> float:
    """The part of its time in which the main thread waits and nothing works for it; 0 if it was not sampled.

    `functions` are those of a `MainThread`.
    """
    if functions is None:
        return 0.0
    return float(functions.filter(pl.col("function").str.contains(WAITING_FUNCTIONS))["share_ratio"].sum())


def _takers(visits: pl.DataFrame) -> list[int]:
    """The threads that take their work from a queue, of the visits of all threads but the main one.

    Threads that are named like them, but for a number, do the same, and may never be found to wait.
    """
    takes = pl.col("function").str.starts_with(FROM_QUEUE) & ~pl.col("function").str.contains(_OTHER_TAKER)
    threads = visits.with_columns(kind=kind_of_thread())
    kinds = threads.filter(takes)["kind"].unique()
    is_taker = takes | ((pl.col("kind") != "") & pl.col("kind").is_in(kinds.implode()))
    return threads.filter(is_taker)["tid"].unique().to_list()


def _busiest(at_work: pl.DataFrame) -> list[int]:
    """The threads that do most of the work, of these visits of threads at work: those named alike go together."""
    time = pl.col("dur_ns").sum()
    kinds = at_work.group_by(kind=kind_of_thread()).agg(time, pl.col("tid").unique()).sort("dur_ns", "kind")
    return [] if kinds.is_empty() else kinds["tid"][-1].to_list()


def kind_of_thread() -> pl.Expr:
    """The name of a `thread` with `#` for each number: threads named alike do the same."""
    return pl.col("thread").cast(pl.String).fill_null("").str.replace_all(r"\d+", "#")


def _with_sleep(mine: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """The main thread's visits, of which long ones in one line are sleep, as are lines that never hold Python's lock.

    At work it is found in many lines, and holds the lock now and then, which samples say that found it `held`.
    """
    time = pl.col("dur_ns").sum().over("stack_id")
    each_ns = float(held["dur_ns"].sum()) / max(float(held["n_samples"].sum()), 1.0)
    is_known = (time >= _MUCH * pl.col("dur_ns").sum()) & (time >= _LEAST_SAMPLED * each_ns) & (each_ns > 0)
    never_holds = is_known & ~pl.col("stack_id").is_in(held["stack_id"].implode())
    sleeps = ~pl.col("waits") & ((pl.col("dur_ns") >= _SLEEPS_NS) | never_holds)
    name = pl.when(sleeps).then(pl.lit(SLEEPS) + pl.col("function")).otherwise("function")
    return mine.with_columns(function=name, waits=pl.col("waits") | sleeps)


def _with_work_of(mine: pl.DataFrame, at_work: pl.DataFrame, steps: pl.DataFrame | None) -> pl.DataFrame:
    """The main thread's visits while TIMED_STEPS ran, with what `at_work` did in place of its waits."""
    mine = _within(mine, steps)
    return _with_work(mine, _within(at_work, steps)) if at_work.height and mine.height else mine


def _with_work(mine: pl.DataFrame, at_work: pl.DataFrame) -> pl.DataFrame:
    """The main thread's visits, with what `at_work` did in place of its waits; of k at a time each counts a k-th.

    A visit of `at_work` may cover several waits: its pieces have its number in `visit`.
    """
    mine, at_work = (each.with_columns(pl.col("n_samples").cast(pl.Float64)) for each in (mine, at_work))
    waits = mine.filter("waits").sort("ts_ns")
    starts, ends = (waits.select(at).to_series().to_numpy() for at in _ENDS)
    ends = np.minimum(ends, np.append(starts[1:], np.iinfo(np.int64).max))  # rounding may let them overlap by 1 ns
    low, high = (at_work.select(at).to_series().to_numpy() for at in _ENDS)
    row, wait = reached(low, high, (starts, ends))
    low, high = np.maximum(low[row], starts[wait]), np.minimum(high[row], ends[wait])
    time = _parts(low, high)
    work = at_work[row].with_columns(ts_ns=pl.Series(low), of_wait=pl.Series(time))
    taken = np.bincount(wait, time, minlength=waits.height).astype(np.float64)  # of none it makes integers
    rest = waits.with_columns(of_wait=pl.col("dur_ns") - pl.Series(taken))
    both = pl.concat([work, rest]).with_columns(
        n_samples=pl.col("n_samples") * pl.col("of_wait") / pl.col("dur_ns"),
        dur_ns=pl.col("of_wait").round().cast(pl.Int64),
    )
    return pl.concat([mine.filter(~pl.col("waits")), both.filter(pl.col("dur_ns") > 0).drop("of_wait")])


def _parts(low: Ints, high: Ints) -> NDArray[np.float64]:
    """The length of each interval [low, high), where each moment of k of them counts a k-th for each."""
    edges = distinct_values(np.concatenate((low, high)))
    first, end = np.searchsorted(edges, low), np.searchsorted(edges, high)
    n = edges.size
    at_once = np.cumsum(np.bincount(first, minlength=n) - np.bincount(end, minlength=n))[:-1]
    passed = np.concatenate(([0.0], np.cumsum(np.diff(edges) / np.maximum(at_once, 1))))
    each: NDArray[np.float64] = passed[end] - passed[first]
    return each


def _on_lock(held: pl.DataFrame, visits: pl.DataFrame) -> pl.DataFrame:
    """The part of each function's time in which its thread held Python's lock, and how many samples could show it."""
    if held.is_empty():
        return pl.DataFrame(schema={"function": pl.String, "n_expected": pl.Float64, "on_lock_ratio": pl.Float64})
    each_ns = float(held["dur_ns"].sum()) / float(held["n_samples"].sum())
    time = pl.col("dur_ns").sum().cast(pl.Float64)
    rows = visits.group_by("function").agg(time=time, n_expected=time / each_ns)
    rows = rows.join(held.group_by("function").agg(held=time), on="function", how="left")
    ratio = (pl.col("held").fill_null(0.0) / pl.col("time")).clip(0.0, 1.0)
    return rows.select("function", "n_expected", on_lock_ratio=ratio)


def _within(visits: pl.DataFrame, steps: pl.DataFrame | None) -> pl.DataFrame:
    """The visits while TIMED_STEPS ran, on a clock that stands still between them; all if there are no steps."""
    if steps is None or steps.is_empty():
        return visits
    begin, passed = _clock(steps)
    times = np.stack((begin, begin + np.diff(passed)), 1).ravel()
    clock = np.stack((passed[:-1], passed[1:]), 1).ravel()
    low, high = (np.interp(visits.select(at).to_series().to_numpy(), times, clock) for at in _ENDS)
    inside = visits.with_columns(ts_ns=pl.Series(low).cast(pl.Int64), dur_ns=pl.Series(high - low).cast(pl.Int64))
    return inside.filter(pl.col("dur_ns") > 0)


def _share_of_third(visits: pl.DataFrame, *, last: bool) -> pl.DataFrame:
    """Each function's share of the time of visits in the first third of the time that they cover, or in the last."""
    begin, end = int(visits["ts_ns"].to_numpy().min()), int((visits["ts_ns"] + visits["dur_ns"]).to_numpy().max())
    third = (end - begin) // 3
    low, high = (end - third, end) if last else (begin, begin + third)
    inside = pl.min_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), high) - pl.max_horizontal("ts_ns", low)
    lengths = visits.select("function", length=inside.clip(0))
    whole = max(int(lengths["length"].sum()), 1)
    return lengths.group_by("function").agg(
        (pl.col("length").sum() / whole).alias("late_ratio" if last else "early_ratio")
    )


def _clock(steps: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each of TIMED_STEPS begins, and where it begins and ends on a clock that stands still between them (ns).

    The clock has one place more than there are steps: the end of each is the begin of the next.
    """
    begin = steps["ts_ns"].to_numpy().astype(np.float64)
    length = (steps["dur_ns"] * steps["n_steps"]).to_numpy()
    length = np.minimum(length, np.append(np.diff(begin), np.inf))  # one that overlaps the next is cut
    return begin, np.concatenate(([0.0], np.cumsum(length)))


def _worked(at_work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """TIMED_STEPS that last as long as the main thread is, on the clock of `_within`, in these visits meanwhile."""
    clock = _clock(steps)[1].astype(np.int64)
    low, high = (at_work.select(at).to_series().to_numpy() for at in _ENDS)
    row, step = reached(low, high, (clock[:-1], clock[1:]))
    inside = np.minimum(high[row], clock[1:][step]) - np.maximum(low[row], clock[:-1][step])
    worked = np.bincount(step, inside, minlength=steps.height) / steps["n_steps"].to_numpy()
    return TIMED_STEPS.conform(steps.with_columns(dur_ns=pl.Series(worked)))


def _worked_by_turns(mine: pl.DataFrame, works: pl.Expr, steps: pl.DataFrame) -> pl.DataFrame:
    """TIMED_STEPS that last as long as a thread is at work meanwhile, on average over the threads of these visits."""
    busy, whole = (_worked(part, steps) for part in (mine.filter(works), mine))
    share = pl.Series((busy["dur_ns"] / whole["dur_ns"]).fill_nan(0.0))
    return TIMED_STEPS.conform(steps.with_columns(dur_ns=pl.col("dur_ns") * share))


def _longer_in_slow_steps(mine: pl.DataFrame, steps: pl.DataFrame | None, worked: pl.DataFrame) -> pl.DataFrame:
    """Each function's `slow_ratio`. The visits are on the clock that `_within` made.

    Where steps wait for requests, those are slow that take long without their waits.
    """
    rows = mine.select("function", "ts_ns", "dur_ns")
    slow = np.zeros(0, np.bool_)
    if steps is not None:
        at_work, whole = (float((each["dur_ns"] * each["n_steps"]).sum()) for each in (worked, steps))
        waits = at_work <= (1 - _SOME_WAITS) * whole
        slow, _ = slow_steps(worked if waits else steps, is_sampled=waits)
    if steps is None or not slow.any():
        return rows.group_by("function").agg(slow_ratio=pl.lit(0.0))
    _, clock = _clock(steps)
    counts = steps["n_steps"].to_numpy()
    of_slow = np.concatenate(([0.0], np.cumsum(np.where(slow, np.diff(clock), 0.0))))
    low, high = (np.interp(rows.select(at).to_series().to_numpy(), clock, of_slow) for at in _ENDS)
    n_slow = counts[slow].sum() / counts[~slow].sum()
    inside, whole = pl.Series(high - low), float(rows["dur_ns"].sum())
    sums = rows.with_columns(inside=inside).group_by("function").agg(pl.col("inside", "dur_ns").sum())
    usual = (pl.col("dur_ns") - pl.col("inside")) * n_slow
    return sums.select("function", slow_ratio=(pl.col("inside") - usual).clip(0.0) / whole)


def lock_held(trace: Trace, pid: int | None, low_ns: int, high_ns: int | None = None) -> Mapping[str, LockHeld] | None:
    """How long each thread held Python's lock from `low_ns` to `high_ns`; None without stacks.

    Threads go by their names, with `#` for a number: those alike count as one.
    """
    if not trace.stack_samples["on_gil"].any():
        return None
    mine = trace.stack_samples.filter((pl.col("pid") == pid) & (pl.col("ts_ns") >= low_ns))
    if high_ns is not None:
        mine = mine.filter(pl.col("ts_ns") < high_ns)
    if mine.is_empty():
        return None
    end = int((mine["ts_ns"] + mine["dur_ns"]).to_numpy().max()) if high_ns is None else high_ns
    length = max(end - low_ns, 1)
    name = kind_of_thread().alias("thread")
    sums = (pl.col(column).filter("on_gil").sum() for column in ("dur_ns", "n_samples"))
    stacks = named_up_to_queue(trace.stacks).select("stack_id", "function", "is_pool_thread", "calls_model")
    mine = mine.join(stacks, on="stack_id", how="left")
    takes = pl.col("tid").is_in(_takers(mine.filter(pl.col("tid") != pid)))
    answers = pl.col("is_pool_thread") | takes | (pl.col("calls_model") & (pl.col("tid") != pid))
    rows = mine.group_by(name).agg(*sums, answers.any()).rows()
    return {thread: LockHeld(min(held / length, 1.0), n, in_pool) for thread, held, n, in_pool in rows}


def is_worked_for(functions: pl.DataFrame | None) -> bool:
    """Whether pools, or threads of requests, do most of what the main thread waits for; False if it was not sampled.

    `functions` are those of a `MainThread`.
    """
    if functions is None:
        return False
    rows = functions.filter(~pl.col("function").str.contains(WAITING_FUNCTIONS))
    work = float(rows.select((pl.col("share_ratio") * pl.col("worker_ratio")).sum()).item())
    return work > 0.5 * float(rows["share_ratio"].sum())


def _independent(functions: pl.DataFrame, visits: pl.DataFrame) -> pl.Series:
    """How many independent samples are worth these visits, for the share of each function.

    The variance of a share of time is that of a ratio, whose units are visits: the sum of (time × (is there − share))²
    over the squared time in all.
    """
    squares = visits.group_by("function").agg(squares=pl.col("dur_ns").cast(pl.Float64).pow(2).sum())
    whole, total = float(squares["squares"].sum()), float(visits["dur_ns"].sum())
    rows = functions.join(squares, on="function", how="left", maintain_order="left")
    share, here = pl.col("share_ratio"), pl.col("squares").fill_null(0.0)
    variance = (here * (1 - share) ** 2 + (whole - here) * share**2) / total**2
    n_all = float(visits["n_samples"].sum())
    worth = pl.when(variance > 0).then(share * (1 - share) / variance).otherwise(n_all)
    return rows.select(pl.min_horizontal(worth, n_all).alias("n_independent")).to_series()
