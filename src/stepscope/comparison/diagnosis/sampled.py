"""Where the main thread of two runs was, from samples of its Python stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.case import Suspect
from stepscope.comparison.diagnosis.change import Change, evidence
from stepscope.comparison.stack_functions import FROM_QUEUE, WAITING_FUNCTIONS, WAITS
from stepscope.comparison.statistics import more_often

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.comparison.diagnosis.case import Judgement, View
    from stepscope.comparison.model import Evidence, Observation

#: Functions that get the next data, by the verb with which their name begins, or by their class: `fetch_batch`,
#: `Loader.__next__`, `read`, `get_next`, `Dataset.__getitem__`.
_FETCHING = (
    r"(?i)^(?:[^( ]*\.)?_*(?:load|fetch|prefetch|read|recv|receive|dequeue|collate|next|get_(?:next|batch|data|item))"
    r"(?:[_ ]|$)|^[^( ]*(?:dataset|loader)[^( ]*\."
)
#: So many functions are shown as evidence.
FUNCTIONS_SHOWN = 2
_LEAST_SAMPLES = 30
#: A function counts if it grew by this many standard deviations of a sampled share, and by this part of the difference.
_SIGMAS, _LEAST_PART = 3.0, 0.1
#: Or if it is found more often with that chance, so many times or more, and longer by so many standard deviations:
#: shares of long visits scatter much, while their number says plainly whether there are more.
_CHANCE, _LEAST_VISITS, _FEW_SIGMAS = 0.001, 5, 1.5
#: A function twice as long as in the base hardly was there before.
_NEW = 2.0
#: It grows during a run if what it takes beyond the base doubles from the first third of the run to the last. That it
#: takes longer than in the base has been tested before, so less is asked of the rise.
_TWICE, _RISE_SIGMAS = 2.0, 2.5
#: If the steps grow too, it is likely from a smaller rise on, and fewer standard deviations, for half of what steps
#: grow by: the middles of the first and the last third are two thirds of the run apart.
_LIKELY_TIMES, _LIKELY_SIGMAS, _LEAST_OF_RISE = 1.5, 1.0, 1 / 3
_THIRDS = ("early_ratio", "late_ratio")
_TIMES = (
    "low",
    "high",
    "delta",
    "scatter",
    "slow",
    "worker_ratio",
    "fetch_ratio",
    "visits",
    "visits_other",
    "on_lock_ratio",
    "n_expected",
)
#: A function stands out if it grew that much more than the rest.
APART = 1.2
#: The rest says how much if it was that part of the time in functions. What rises so many times does it in any case.
_LEAST_REST, _FAR = 0.1, 1.4
#: A function is that of workers if they have this part of its time.
MOSTLY_WORKERS = 0.5
#: The same of functions that make batches, as their names say, in what these call.
_MOSTLY_FETCHES = 0.5
#: Chance of so many slow steps from which on it is enough that samples show the main thread somewhere new in them, for
#: this part of what they add.
_LIKELY_TAIL, _PART_OF_TAIL = 0.1, 0.5
#: A function belongs to slow steps if this part of what it takes longer is in these alone, and what it takes outside
#: of them is less than this part of what all steps take longer. Where nearly all of it is in them, it is theirs.
_MOSTLY, _NEARLY_ALL, _OUTSIDE = 0.5, 0.8, 0.1
#: The file of a function, as in `Logger.debug (logging/__init__.py)` or, with a line, `main (train.py:12)`.
_FILE = r" \(([^()]+?)(?::\d+)?\)$"
#: What `in_functions` found of each view, for the many rules that ask.
_IN_FUNCTIONS: WeakKeyDictionary[View, pl.DataFrame] = WeakKeyDictionary()


def waiting() -> pl.Expr:
    """Whether a `function` waits for others of the job."""
    function = pl.col("function")
    return function.str.contains(WAITING_FUNCTIONS) | function.str.starts_with(WAITS) | taking()


def fetching() -> pl.Expr:
    """Whether a `function` gets data, by its name or that of its callers."""
    return (pl.col("function").str.contains(_FETCHING) | making_batches()) & ~waiting()


def making_batches() -> pl.Expr:
    """Whether functions that make batches, as their names say, are what calls a `function`, or are the function."""
    return pl.col("fetch_ratio") > _MOSTLY_FETCHES


def taking() -> pl.Expr:
    """Whether a `function` waits for the next item of a queue, which another thread or process puts there."""
    return pl.col("function").str.starts_with(FROM_QUEUE)


def at_locks(view: View) -> float:
    """How much longer per cycle the main thread waits for locks of the job. Units: ns."""
    return float(grown(view).filter(pl.col("function").str.starts_with(WAITS))["delta"].sum()) * view.stretch


def at_queues(view: View) -> float:
    """How much longer per cycle the main thread waits for the next item of a queue. Units: ns."""
    return float(grown(view).filter(taking())["delta"].sum()) * view.stretch


def waits_of_job(view: View) -> float:
    """How much longer per cycle the main thread waits for others of the job, by all samples of it. Units: ns."""
    rows = in_functions(view).filter(waiting())
    return float(rows["delta"].sum()) * view.stretch


def is_new() -> pl.Expr:
    """Whether the main thread hardly was in a `function` before: healthy runs differ by less."""
    return pl.col("high") >= _NEW * pl.col("low")


def without_wait(function: str) -> str:
    """The function that `taking` describes, without the words that say that it waits."""
    return function.removeprefix(FROM_QUEUE)


def is_sampled(view: View) -> bool:
    """Whether both runs have enough samples of the main thread's stack."""
    return all(_shares(side) is not None for side in (view.pair.base, view.pair.other))


def say_more(view: View) -> bool:
    """Whether samples say more than a profile: there is none, or it has few of the steps of a server, which differ."""
    return not view.is_profiled or (view.pair.answers_requests and is_sampled(view))


def or_by_samples(
    view: View, known: Judgement, judge: Callable[[View], Judgement], *, if_sampled: bool = False
) -> Judgement:
    """The judgement by a profile; if that names nothing, what `judge` makes of samples, where these say more.

    With `if_sampled`, also where the profile may miss what hundreds of steps show. Of a server, whose calls are a part
    of what it does, what is more.
    """
    is_sure = isinstance(known, Suspect) and not (view.pair.answers_requests and if_sampled)
    if is_sure or not (say_more(view) or (if_sampled and view.is_slower and is_sampled(view))):
        return known
    sampled = judge(view)
    if isinstance(known, Suspect) and isinstance(sampled, Suspect):
        return max(known, sampled, key=lambda suspect: suspect.affected_ns)
    return sampled if isinstance(sampled, Suspect) or not view.is_profiled else known


def grown(view: View) -> pl.DataFrame:
    """Each function that really grew, the most first, with the columns of `in_functions`."""
    rows = in_functions(view)
    if rows.is_empty():
        return rows
    rows = rows.filter(_is_much(view))
    often = [_more_often(view, before, after) for before, after in rows.select("visits", "visits_other").rows()]
    sigmas = pl.col("delta") / pl.col("scatter")
    most = rows.filter((sigmas > _SIGMAS) | (pl.Series(often, dtype=pl.Boolean) & (sigmas > _FEW_SIGMAS)))
    return most.sort("delta", "function", descending=[True, False])


def grown_or_spread(view: View) -> pl.DataFrame:
    """What `grown` and `spread` give, the most first."""
    return pl.concat([grown(view), spread(view)]).sort("delta", "function", descending=[True, False])


def spread(view: View) -> pl.DataFrame:
    """Files whose functions really grew together, though none of them did by itself: a library spreads its work.

    The columns are those of `in_functions`, with the file as `function`; what `grown` gives is left out.
    """
    rows = in_functions(view)
    rest = rows.filter(~waiting()).join(grown(view), on="function", how="anti")
    times = ("low", "high", "delta", "slow", "visits", "visits_other")
    return (
        rest.with_columns(file=file_of())
        .drop_nulls("file")
        .group_by("file")
        .agg(
            pl.len().alias("n"),
            pl.col(times).sum(),
            scatter=pl.col("scatter").pow(2).sum().sqrt(),
            worker_ratio=(pl.col("worker_ratio") * pl.col("high")).sum() / pl.col("high").sum(),
            fetch_ratio=(pl.col("fetch_ratio") * pl.col("high")).sum() / pl.col("high").sum(),
            on_lock_ratio=pl.lit(None, pl.Float64),
            n_expected=pl.lit(0.0),
        )
        .filter((pl.col("n") > 1) & _is_much(view) & (pl.col("delta") > _SIGMAS * pl.col("scatter")))
        .rename({"file": "function"})
        .select(rows.columns)
    )


def file_of() -> pl.Expr:
    """The file of a `function`, null where it has none."""
    return pl.col("function").str.extract(_FILE)


def _is_much(view: View) -> pl.Expr:
    """Whether a function's time grew by a part of a step, and of the difference, that matters."""
    return pl.col("delta") > max(view.run_least_ns, _LEAST_PART * abs(view.run_delta_ns))


def seems_tail(view: View) -> bool:
    """Whether slow steps make the mean step longer: certainly, or likely and the main thread is elsewhere in them."""
    tails = view.tails
    if view.has_tail or tails is None or tails.added_ns < view.run_least_ns or tails.likely_p_value > _LIKELY_TAIL:
        return view.has_tail
    return is_elsewhere_in_slow_steps(view)


def is_elsewhere_in_slow_steps(view: View) -> bool:
    """Whether the main thread is in functions in which it hardly was in the base for half of what slow steps add."""
    slow = in_functions(view).filter(is_new() & ~waiting())["slow"].sum()
    return view.tails is not None and float(slow) >= _PART_OF_TAIL * view.tails.added_ns


def places_of_slow_steps(view: View) -> pl.DataFrame:
    """The new functions that are in slow steps alone, the most first, with the columns of `in_functions`."""
    is_place = is_new() & ~waiting() & only_in_slow_steps(view) & (pl.col("slow") >= view.run_least_ns)
    rows = in_functions(view).filter(is_place)
    return rows.sort("slow", "function", descending=[True, False])


def only_in_slow_steps(view: View) -> pl.Expr:
    """Whether a function takes longer in slow steps alone: what it takes outside of them hardly grew, or by chance."""
    outside = pl.col("delta") - pl.col("slow")
    hardly = max(view.run_least_ns, _OUTSIDE * view.run_delta_ns)
    by_chance = outside < _SIGMAS * pl.col("scatter")
    return (pl.col("slow") >= _MOSTLY * pl.col("delta")) & ((outside < hardly) | by_chance)


def in_functions(view: View) -> pl.DataFrame:
    """The main thread's time in each function, per step: function, low and high (both runs), delta and its scatter.

    Empty if too few samples were taken. `on_lock_ratio` and `n_expected` are those of the other run, `visits` and
    `visits_other` the parts of all visits of a run. `slow` is the part of delta that is in slow steps alone,
    `worker_ratio` the part of high that is in workers for which the main thread waits, and `fetch_ratio` the part of it
    in functions that make batches and in what they call. Units: ns.
    """
    rows = _IN_FUNCTIONS.get(view)
    if rows is None:
        rows = _IN_FUNCTIONS[view] = _compared_functions(view)
    return rows


def _compared_functions(view: View) -> pl.DataFrame:
    base, other = _shares(view.pair.base), _shares(view.pair.other)
    if base is None or other is None or not view.same_cycles or not view.step.is_known:
        return pl.DataFrame(schema=dict.fromkeys(_TIMES, pl.Float64) | {"function": pl.String})
    both = base.join(other, on="function", how="full", coalesce=True, suffix="_other")
    of_other = ("share_other", "variance_other", "visits_other", "slow_other")
    unknown = dict.fromkeys(("share", "variance", "spread", "visits", "slow", *of_other), 0.0)
    both = both.with_columns(pl.col(name).fill_null(value) for name, value in unknown.items())
    # Samples are of all time, also of that in which a server waits for requests, which its cycles leave out.
    left, right = view.run_step.base or 0.0, view.run_step.other or 0.0
    # A further run differs from the base's repeats as these do from each other.
    repeats = pl.col("spread") ** 2 * (1 + 1 / len(view.pair.base))
    scatter = (pl.col("variance") + repeats) * left**2 + pl.col("variance_other") * right**2
    low, high = pl.col("share") * left, pl.col("share_other") * right
    more = {
        "on_lock_ratio": pl.col("on_lock_ratio_other"),
        "n_expected": pl.col("n_expected_other").fill_null(0.0),
        "worker_ratio": pl.col("worker_ratio_other").fill_null(0.0),
        "fetch_ratio": pl.col("fetch_ratio_other").fill_null(0.0),
        "slow": (pl.col("slow_other") * right - pl.col("slow") * left).clip(0.0),
    }
    return both.select(
        "function", "^visits.*$", low=low, high=high, delta=high - low, scatter=scatter.sqrt(), **more
    ).select("function", *_TIMES)


def typical_growth(view: View) -> float | None:
    """How many times longer the process is in a function than in the base, for most of its work; None if unknown.

    It is the median of functions by the time that they take in the base, as `typical_slowdown` is of operators.
    """
    rows = in_functions(view).filter(~waiting() & (pl.col("low") > 0)).sort(pl.col("high") / pl.col("low"))
    if rows.is_empty():
        return None
    at = int((rows["low"].cum_sum() < rows["low"].sum() / 2).sum())
    return float(rows["high"][at] / rows["low"][at])


def _visits(observations: Sequence[Observation]) -> int:
    """How many visits of functions samples show, in all repeats."""
    frames = (each.python_functions for each in observations if each.python_functions is not None)
    return sum(int(frame["n_all_visits"][0]) for frame in frames if frame.height)


def _more_often(view: View, before: float, after: float) -> bool:
    """Whether more of the other run's visits are of a function, by the part that they are of all in both runs."""
    n_base, n_other = _visits(view.pair.base), _visits(view.pair.other)
    n = round(after * n_other)
    return n >= _LEAST_VISITS and more_often(n, n_other, round(before * n_base), n_base) < _CHANCE


def growing(view: View, rise_ns: float = 0.0) -> pl.DataFrame:
    """What `grown` gives of functions that take longer and longer during the other run, twice as much as in the base.

    What they take beyond the base doubles from the first third of the run to the last, for all that rise together or
    for some of them. Where the steps themselves grow by `rise_ns`, and they account for half of that, samples that make
    it likely are enough. What is nearly always in slow steps belongs to these.
    Columns: function, low, high, worker_ratio, and early and late: its time per cycle in these thirds (ns).
    """
    waits = view.pair.answers_requests
    base, other = (_rises(side, waits=waits) for side in (view.pair.base, view.pair.other))
    step = view.run_step.other or 0.0
    rows = grown(view).filter(~waiting())
    if seems_tail(view):
        rows = rows.filter(pl.col("slow") < _NEARLY_ALL * pl.col("delta"))
    rows = rows.select("function", "low", "high", "worker_ratio")
    rows = rows.join(other, on="function").join(base, on="function", how="left", suffix="_base")
    times = {
        "early": pl.col("early") * step,
        "late": pl.col("late") * step,
        "variance": (pl.col("scatter") * step) ** 2,
        "before": (pl.col("late_base") - pl.col("early_base")).fill_null(0.0) * step,
    }
    rows = rows.select("function", "low", "high", "worker_ratio", **times)
    rising = rows.filter(pl.col("late") > pl.col("early"))
    together = rising.select(pl.col("low", "high", "early", "late", "variance", "before").sum())
    rise = float((together["late"] - together["early"])[0])
    is_of_steps = rise_ns > 0 and rise >= _LEAST_OF_RISE * rise_ns
    if together.filter(_is_rising(is_likely=is_of_steps) & _is_apart(view)).is_empty():
        rising = rising.filter(_is_rising() & _is_apart(view))
    return rising.drop("variance", "before")


def _is_apart(view: View) -> pl.Expr:
    """Whether functions rise far during the run, or their time grew more than that of all others which the base has."""
    rows = in_functions(view).filter(~waiting() & (pl.col("low") > 0))
    low, high = float(rows["low"].sum()), float(rows["high"].sum())
    of_rest = pl.max_horizontal(pl.lit(1.0), (high - pl.col("high")) / (low - pl.col("low")))
    has_rest = low - pl.col("low") >= _LEAST_REST * low
    grew_more = pl.col("high") >= APART * of_rest * pl.col("low")
    return ~has_rest | (pl.col("low") == 0) | grew_more | (pl.col("late") >= _FAR * pl.col("early"))


def _is_rising(*, is_likely: bool = False) -> pl.Expr:
    times, sigmas = (_LIKELY_TIMES, _LIKELY_SIGMAS) if is_likely else (_TWICE, _RISE_SIGMAS)
    rise = pl.col("late") - pl.col("early")
    is_much = pl.col("late") - pl.col("low") >= times * (pl.col("early") - pl.col("low"))
    return is_much & (rise > sigmas * pl.col("variance").sqrt()) & (rise > _TWICE * pl.col("before"))


def _rises(observations: Sequence[Observation], *, waits: bool) -> pl.DataFrame:
    """Each function's time in the first and in the last third of a run, and how far chance makes them differ.

    Of repeats the mean. Units: the mean step of the run.
    """
    frames = []
    for each in observations:
        if each.python_functions is not None:
            steps = dict(zip(_THIRDS, _steps_of_thirds(each.steps, waits=waits), strict=True))
            frames.append(
                each.python_functions.select(
                    "function",
                    *(pl.col(name) * steps[name] for name in _THIRDS),
                    # A third of the run has a third of the samples.
                    variance=pl.sum_horizontal(
                        pl.col(name) * (1 - pl.col(name)) * steps[name] ** 2 / (pl.col("n_independent") / 3)
                        for name in _THIRDS
                    ),
                )
            )
    n = max(len(frames), 1)
    return (
        pl.concat(frames)
        .group_by("function")
        .agg(
            early=pl.col("early_ratio").sum() / n,
            late=pl.col("late_ratio").sum() / n,
            scatter=pl.col("variance").sum().sqrt() / n,
        )
    )


def _steps_of_thirds(steps: pl.DataFrame, *, waits: bool) -> tuple[float, float]:
    """The mean step of the first third of the time that TIMED_STEPS take, and of the last, over that of all.

    Where steps are requests (`waits`), that is the time from one to the next.
    """
    if steps.is_empty():
        return 1.0, 1.0
    counts = steps["n_steps"].to_numpy()
    whole = steps["dur_ns"].to_numpy() * counts
    begin = steps["ts_ns"].to_numpy()
    ends = begin + whole - begin[0] if waits else np.cumsum(whole)
    first = np.interp([ends[-1] / 3, ends[-1] * 2 / 3], ends, np.cumsum(counts))
    each = counts.sum() / 3
    return float(each / max(first[0], 1.0)), float(each / max(counts.sum() - first[1], 1.0))


def _shares(observations: Sequence[Observation]) -> pl.DataFrame | None:
    """Each function's share, averaged over repeats, its variance and spread (standard deviation) over repeats.

    With `visits`, the largest part of a repeat's visits that are of the function. None with too few samples.
    """
    frames = [each.python_functions for each in observations if each.python_functions is not None]
    n_samples = sum(int(frame["n_samples"][0]) for frame in frames if frame.height)
    if n_samples < _LEAST_SAMPLES:
        return None
    n, share = len(frames), pl.col("share_ratio")
    sums = (
        pl.concat(frames)
        .group_by("function")
        .agg(
            share=share.sum() / n,
            squares=share.pow(2).sum() / n,
            slow=pl.col("slow_ratio").sum() / n,
            worker_ratio=(pl.col("worker_ratio") * share).sum() / share.sum(),
            fetch_ratio=(pl.col("fetch_ratio") * share).sum() / share.sum(),
            variance=(share * (1 - share) / pl.col("n_independent")).sum() / n**2,
            visits=(pl.col("n_visits") / pl.col("n_all_visits")).max(),
            on_lock_ratio=(pl.col("on_lock_ratio") * pl.col("n_expected")).sum() / pl.col("n_expected").sum(),
            n_expected=pl.col("n_expected").sum(),
        )
    )
    # In repeats without the function its share is 0.
    between = (pl.col("squares") - pl.col("share") ** 2).clip(0.0) * (n / max(n - 1, 1))
    return sums.with_columns(spread=between.sqrt()).drop("squares")


def unexplained(view: View, rows: pl.DataFrame, accounted_ns: float) -> tuple[Change, float] | None:
    """The time per step in functions that `grown` gave, and the growth per cycle that nothing else accounts for (ns).

    None if that is too little. A share of samples has been tested by itself, so the cycle need not be proven to be
    longer.
    """
    change = Change(float(rows["low"].sum()), float(rows["high"].sum()), is_real=True, unit="ns")
    longer = change.delta * view.stretch
    lost = longer - min(accounted_ns, longer)
    shows = view.is_slower or view.delta_ns >= 0.5 * lost or view.pair.answers_requests
    if lost < view.least_ns or not shows:
        return None
    return change, lost


def time_in(rows: pl.DataFrame, text: str = "time of {whose} in {function}, per cycle") -> list[Evidence]:
    """Necessary evidence of functions that `grown` gave, whose name goes into the text."""
    return [
        evidence(
            text.format(function=function, whose=whose(worker_ratio)),
            Change(low, high, is_real=True, unit="ns"),
            role="necessary",
            device="host",
            name=function,
            unit="ns",
        )
        for function, low, high, worker_ratio in rows.select("function", "low", "high", "worker_ratio").rows()
    ]


def functions_in(shown: Iterable[Evidence]) -> set[str]:
    """The functions of which evidence is necessary, as `time_in` gives it."""
    return {row.name for row in shown if row.name and row.role == "necessary"}


def functions_shown(shown: Iterable[Evidence]) -> set[str]:
    """All functions of Python that evidence names, necessary or not."""
    return {row.name for row in shown if row.name and re.search(_FILE, row.name)}


def whose(worker_ratio: float) -> str:
    """Who is in a function of which workers, for which the main thread waits, have this part of the time."""
    return "workers of the job" if worker_ratio > MOSTLY_WORKERS else "the main thread"


def spends(rows: pl.DataFrame) -> str:
    """The begin of a sentence that says who is in functions that `grown` gave, by the first of them."""
    return "Workers of the job spend" if rows["worker_ratio"][0] > MOSTLY_WORKERS else "The main thread spends"
