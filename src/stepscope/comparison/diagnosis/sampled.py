"""Where the main thread of two runs was, from samples of its Python stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.diagnosis.change import Change, evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Evidence, Observation

#: How the recorder of stacks names the wait at a line that takes a lock.
WAITS = "waits: "
#: Functions of the standard library in which a thread waits for threads and processes of the job, or for peers.
_WAITING = (
    r"\((?:threading|queue|selectors|subprocess|socket|multiprocessing/\w+|concurrent/futures/\w+|asyncio/\w+)\.py\)"
)
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
#: It grows during a run if it takes twice as long in the last third as in the first.
_TWICE = 2.0
_THIRDS = ("early_ratio", "late_ratio")


def waiting() -> pl.Expr:
    """Whether a `function` waits for others of the job."""
    return pl.col("function").str.contains(_WAITING) | pl.col("function").str.starts_with(WAITS)


def fetching() -> pl.Expr:
    """Whether a `function` gets data, by its name."""
    return pl.col("function").str.contains(_FETCHING) & ~waiting()


def is_sampled(view: View) -> bool:
    """Whether both runs have enough samples of the main thread's stack."""
    return all(_shares(side) is not None for side in (view.pair.base, view.pair.other))


def grown(view: View) -> pl.DataFrame:
    """Each function that really grew, the most first: function, low and high, its time per cycle in both runs (ns)."""
    base, other = _shares(view.pair.base), _shares(view.pair.other)
    if base is None or other is None or not view.same_cycles or not view.step.is_known:
        return pl.DataFrame(schema={"function": pl.String, "low": pl.Float64, "high": pl.Float64})
    both = base.join(other, on="function", how="full", coalesce=True, suffix="_other")
    unknown = dict.fromkeys(("share", "variance", "spread", "share_other", "variance_other"), 0.0)
    both = both.with_columns(pl.col(name).fill_null(value) for name, value in unknown.items())
    # Samples are of all time, also of that in which a server waits for requests, which its steps leave out.
    step = view.run_step if view.pair.answers_requests else view.step
    left, right = step.base or 0.0, step.other or 0.0
    # A further run differs from the base's repeats as these do from each other.
    repeats = pl.col("spread") ** 2 * (1 + 1 / len(view.pair.base))
    scatter = (pl.col("variance") + repeats) * left**2 + pl.col("variance_other") * right**2
    low, high = pl.col("share") * left, pl.col("share_other") * right
    both = both.select("function", low=low, high=high, delta=high - low, scatter=scatter.sqrt())
    least = max(view.least_ns, _LEAST_PART * abs(view.delta_ns))
    most = both.filter((pl.col("delta") > least) & (pl.col("delta") > _SIGMAS * pl.col("scatter")))
    return most.sort("delta", "function", descending=[True, False]).select("function", "low", "high")


def growing(view: View) -> pl.DataFrame:
    """What `grown` gives of functions that take longer and longer during the other run, twice as much as in the base.

    Columns: function, low, high, and early and late: its time per cycle in the first and in the last third of the
    other run (ns).
    """
    base, other = _rises(view.pair.base), _rises(view.pair.other)
    step = (view.run_step if view.pair.answers_requests else view.step).other or 0.0
    early, late = pl.col("early"), pl.col("late")
    rows = (
        grown(view).filter(~waiting()).join(other, on="function").join(base, on="function", how="left", suffix="_base")
    )
    before = (pl.col("late_base") - pl.col("early_base")).fill_null(0.0)
    is_rising = (late >= _TWICE * early) & (late - early > _SIGMAS * pl.col("scatter"))
    rising = rows.filter(is_rising & (late - early > _TWICE * before))
    return rising.select("function", "low", "high", early=early * step, late=late * step)


def _rises(observations: Sequence[Observation]) -> pl.DataFrame:
    """Each function's share of the first and of the last third of a run, and how far chance makes them differ.

    Of repeats the mean.
    """
    frames = [each.python_functions for each in observations if each.python_functions is not None]
    n = max(len(frames), 1)
    # A third of the run has a third of the samples.
    variance = pl.sum_horizontal(pl.col(name) * (1 - pl.col(name)) / (pl.col("n_independent") / 3) for name in _THIRDS)
    rows = pl.concat([frame.select("function", *_THIRDS, variance=variance) for frame in frames])
    return rows.group_by("function").agg(
        early=pl.col("early_ratio").sum() / n,
        late=pl.col("late_ratio").sum() / n,
        scatter=pl.col("variance").sum().sqrt() / n,
    )


def _shares(observations: Sequence[Observation]) -> pl.DataFrame | None:
    """Each function's share, averaged over repeats, and its variance and spread (standard deviation) over repeats.

    None with too few samples.
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
            variance=(share * (1 - share) / pl.col("n_independent")).sum() / n**2,
        )
    )
    # In repeats without the function its share is 0.
    between = (pl.col("squares") - pl.col("share") ** 2).clip(0.0) * (n / max(n - 1, 1))
    return sums.select("function", "share", "variance", spread=between.sqrt())


def unexplained(view: View, rows: pl.DataFrame, accounted_ns: float) -> tuple[Change, float] | None:
    """The time per cycle in functions that `grown` gave, and what of its growth nothing else accounts for. Units: ns.

    None if that is too little. A share of samples has been tested by itself, so the cycle need not be proven to be
    longer.
    """
    change = Change(float(rows["low"].sum()), float(rows["high"].sum()), is_real=True, unit="ns")
    lost = change.delta - min(accounted_ns, change.delta)
    if lost < view.least_ns or (not view.is_slower and view.delta_ns < 0.5 * lost):
        return None
    return change, lost


def time_in(rows: pl.DataFrame, text: str = "time of the main thread in {}, per cycle") -> list[Evidence]:
    """Necessary evidence of functions that `grown` gave, whose name goes into the text."""
    return [
        evidence(
            text.format(function),
            Change(low, high, is_real=True, unit="ns"),
            role="necessary",
            device="host",
            name=function,
            unit="ns",
        )
        for function, low, high in rows.select("function", "low", "high").rows()
    ]
