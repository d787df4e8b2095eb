"""Functions in which the main thread was seen for longer: evidence for causes on the host, found by looks from outside.

It decides nothing: it tells where in the program to look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.model import Cause, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Observation

__all__ = ["with_functions"]

#: Causes that make the main thread spend time somewhere in Python.
_WHERE = ("host_overhead", "slow_operator", "data_loading", "gil_contention", "disk_io")
_SHOWN = 2
_LEAST_LOOKS = 30
#: A share scatters by the number of looks; and what is told explains a part of the difference.
_SIGMAS, _LEAST_PART = 3.0, 0.1


def with_functions(causes: Iterable[Cause], views: Sequence[View]) -> tuple[Cause, ...]:
    """The causes, those on the host with the functions that grew."""
    return tuple(_told(cause, views) if cause.category in _WHERE else cause for cause in causes)


def _told(cause: Cause, views: Sequence[View]) -> Cause:
    view = next((view for view in views if view.pair.label == cause.process), views[0])
    grown = [
        Evidence(f"time of the main thread in {name}, per cycle", "host", name, None, "ns", base, other)
        for name, base, other in _grown(view)
    ]
    return replace(cause, evidence=(*cause.evidence, *grown))


def _grown(view: View) -> list[tuple[str, float, float]]:
    """Functions and their time per cycle before and after, of those that really grew."""
    base, other = _shares(view.pair.base), _shares(view.pair.other)
    if base is None or other is None or not view.is_alike or not view.step.is_known:
        return []
    both = base.join(other, on="function", how="full", coalesce=True, suffix="_other")
    both = both.with_columns(pl.col("share", "share_other").fill_null(0.0), pl.col("n", "n_other").max())
    scatter = sum(
        (pl.col(share) * (1 - pl.col(share)) / pl.col(n) * step**2 for share, n, step in _sides(view)), pl.lit(0.0)
    )
    lows, highs = (pl.col(share) * step for share, _, step in _sides(view))
    found = both.select("function", low=lows, high=highs, delta=highs - lows, scatter=scatter.sqrt())
    least = max(view.least_ns, _LEAST_PART * abs(view.delta_ns))
    found = found.filter((pl.col("delta") > least) & (pl.col("delta") > _SIGMAS * pl.col("scatter")))
    return (
        found.sort("delta", "function", descending=[True, False]).head(_SHOWN).select("function", "low", "high").rows()
    )


def _sides(view: View) -> tuple[tuple[str, str, float], tuple[str, str, float]]:
    return ("share", "n", view.step.base or 0.0), ("share_other", "n_other", view.step.other or 0.0)


def _shares(observations: Sequence[Observation]) -> pl.DataFrame | None:
    """Shares of functions, means over repeats; None if there were too few looks. Columns: function, share, n."""
    seen = [each.functions_seen for each in observations if each.functions_seen is not None]
    n_looks = sum(int(frame["n_looks"][0]) for frame in seen if frame.height)
    if n_looks < _LEAST_LOOKS:
        return None
    sums = pl.concat(seen).group_by("function").agg(share=pl.col("share_ratio").sum() / len(seen))
    return sums.with_columns(n=pl.lit(n_looks))
