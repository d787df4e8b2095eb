"""Whether two recordings were cut into the same kind of cycle, and how to make them so where they were not.

A decoder layer is not a scheduler's step: their times say nothing about each other. But if the finer cycles hold a
whole fraction of the coarser ones' work, by the calls of the functions that come in every cycle of both, so many in
succession are one of the other kind.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison._parts import OTHER, PYTHON
from stepscope.comparison.model import CYCLES_SEEN, FUNCTIONS, PARTS, RESOURCES, WORKLOAD
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation

__all__ = ["align", "regrouped", "work_ratio"]

#: A function counts as part of every cycle if it comes in so many of them.
_IN_NEARLY_ALL = 0.9
#: Functions whose calls agree on one ratio: how many there must be, what share of all, and how closely.
_FEWEST, _MOST_PART, _CLOSE = 3, 0.7, 0.1
#: Time after the cycles of a group, as a share of it, that cannot be left out of the last one.
_MUCH = 0.1
_HINT = "record both with steps marked, or name a function that both call once per step, with --anchor"


def align(base: Sequence[Observation], other: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Both sides of one process in cycles of the same kind; those that were of a finer kind regrouped, with a note.

    All repeats of a side come in one call. Raises StepscopeError if the cycles are of different kinds that cannot be
    brought together, with what they are.
    """
    coarsest = [*base, *other][0]
    for one in (*base, *other):
        ratio, _ = _times_finer(one, coarsest)
        if ratio is not None and ratio < 1:
            coarsest = one
    return [_as(one, coarsest) for one in base], [_as(one, coarsest) for one in other]


def _as(one: Observation, coarsest: Observation) -> Observation:
    if _same_anchor(one.anchor, coarsest.anchor):
        return one if one.anchor == coarsest.anchor else replace(one, anchor=coarsest.anchor)
    ratio, reason = _times_finer(one, coarsest)
    if ratio is None:
        kinds = f"cycles are calls of {one.anchor} in one and of {coarsest.anchor} in the other"
        raise StepscopeError(f"the two recordings cannot be compared: {kinds}, and {reason}", _HINT)
    if ratio == 1:
        note = f"cycles are marked by {one.anchor}, not {coarsest.anchor}; same work"
        return replace(one, anchor=coarsest.anchor, notes=(*one.notes, note))
    return regrouped(one, round(ratio), coarsest.anchor)


def _same_anchor(one: str, other: str) -> bool:
    # A Python function may have moved by some lines between the two.
    return re.sub(r"\(\d+\)", "", one) == re.sub(r"\(\d+\)", "", other)


def _times_finer(one: Observation, coarsest: Observation) -> tuple[float | None, str]:
    """How many cycles of `one` make one of `coarsest` (a fraction if it is the other way round), or why none do."""
    if _same_anchor(one.anchor, coarsest.anchor):
        return 1.0, ""
    ratio, share, n = work_ratio(one, coarsest)
    if n < _FEWEST:
        return None, f"only {n} functions come in every cycle of both"
    whole = max(1, round(max(ratio, 1 / ratio)))
    if share < _MOST_PART or abs(max(ratio, 1 / ratio) / whole - 1) > _CLOSE:
        return None, f"the work of one is not a whole multiple of the other's ({share:.0%} of functions agree on one)"
    return (float(whole) if ratio >= 1 else 1 / whole), ""


def work_ratio(one: Observation, other: Observation) -> tuple[float, float, int]:
    """How much more often functions are called in a cycle of `other`: median, share of them near it, how many.

    Those that come in at least 9 of 10 complete cycles of both count, device work if there is any, each once.
    """
    both = _typical(one).join(_typical(other), on=["kind", "name"], suffix="_other")
    if both["kind"].any():
        both = both.filter("kind")
    ratios = (both["calls_other"] / both["calls"]).to_numpy()
    if ratios.size == 0:
        return 1.0, 0.0, 0
    middle = float(np.median(ratios))
    return middle, float((np.abs(ratios / middle - 1) <= _CLOSE).mean()), ratios.size


def _typical(one: Observation) -> pl.DataFrame:
    """Typical calls per cycle of the functions of nearly every complete cycle; `kind`: device work."""
    whole = one.cycles.filter("is_complete").select("cycle")
    rows = one.functions.join(whole, on="cycle", how="semi").with_columns(
        kind=pl.col("category").is_in(DEVICE_WORK), name=pl.col("name").cast(pl.String)
    )
    per_cycle = rows.group_by("cycle", "kind", "name").agg(pl.col("calls").sum())
    found = per_cycle.group_by("kind", "name").agg(pl.col("calls").median(), n=pl.len())
    return found.filter(pl.col("n") >= _IN_NEARLY_ALL * whole.height).drop("n")


def regrouped(one: Observation, size: int, anchor: str) -> Observation:
    """Each `size` cycles in succession as one: times and calls add up, resources are averaged by time.

    Groups are laid so that as many as can be hold complete cycles only. Where in a turn they begin is not known, but
    each holds all of one. A group lasts until the next one begins; what lies between its cycles and after them belongs
    to it, as the part that takes the rest. The last one is incomplete if much comes after the others.
    Raises StepscopeError if there are fewer than `size` cycles.
    """
    cycles = one.cycles.sort("ts_ns")
    n_groups = cycles.height // size
    if n_groups == 0:
        reason = f"only {cycles.height} cycles of {one.anchor} were recorded, and {size} make one of {anchor}"
        raise StepscopeError(f"the two recordings cannot be compared: {reason}", "record for longer")
    complete = cycles["is_complete"].to_numpy()
    offsets = range(cycles.height - n_groups * size + 1)
    whole = [complete[at : at + n_groups * size].reshape(n_groups, size).all(axis=1).sum() for at in offsets]
    start = max(offsets, key=lambda at: (whole[at], at))
    chosen = cycles.slice(start, n_groups * size).with_columns(group=pl.int_range(pl.len()) // size + 1)
    merged = chosen.group_by("group", maintain_order=True).agg(
        pl.col("ts_ns").first(),
        end_ns=(pl.col("ts_ns") + pl.col("dur_ns")).max(),
        within_ns=pl.col("dur_ns").sum(),
        phase=pl.when(pl.col("phase").n_unique() == 1).then(pl.col("phase").first()),
        is_complete=pl.col("is_complete").all(),
    )
    merged = _to_the_next(merged).with_columns(cycle="group")
    place = chosen.select("cycle", "group", "dur_ns")
    note = (
        f"{size} cycles in succession ({one.anchor}) are taken as one of {anchor}, by the calls of the same functions"
    )
    return replace(
        one,
        anchor=anchor,
        cycles=CYCLES_SEEN.conform(merged),
        functions=_summed_functions(one.functions, place),
        parts=_summed_parts(one.parts, place, merged),
        resources=_averaged(one.resources, place),
        workload=WORKLOAD.conform(one.workload.with_columns(pl.col(c) * size for c in _PER_CYCLE)),
        notes=(*one.notes, note),
    )


def _to_the_next(merged: pl.DataFrame) -> pl.DataFrame:
    """With `dur_ns`: to the start of the next group, of the last one to its own end."""
    after = pl.col("ts_ns").shift(-1) - pl.col("end_ns")
    merged = merged.with_columns(
        dur_ns=pl.col("ts_ns").shift(-1).fill_null(pl.col("end_ns")) - pl.col("ts_ns"), after_ratio=after
    ).with_columns(pl.col("after_ratio") / pl.col("dur_ns"))
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    cut = is_last & (pl.col("after_ratio").median() > _MUCH)
    return merged.with_columns(is_complete=pl.col("is_complete") & ~cut.fill_null(value=False))


_PER_CYCLE = ("calls_per_cycle", "total_ns_per_cycle", "self_ns_per_cycle")


def _summed_functions(functions: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = functions.join(place.select("cycle", "group"), on="cycle")
    known = {c: pl.when(pl.col(c).count() > 0).then(pl.col(c).sum()) for c in ("self_ns", "exposed_ns")}
    found = rows.group_by("group", "device", "name", maintain_order=True).agg(
        pl.col("category").first(), pl.col("calls").sum(), pl.col("total_ns").sum(), **known
    )
    return FUNCTIONS.conform(found.rename({"group": "cycle"}))


def _summed_parts(parts: pl.DataFrame, place: pl.DataFrame, merged: pl.DataFrame) -> pl.DataFrame:
    rows = parts.join(place.select("cycle", "group"), on="cycle").with_columns(pl.col("part").cast(pl.String))
    rest = PYTHON if (rows["part"] == PYTHON).any() else OTHER
    between = merged.select("group", total_ns=pl.col("dur_ns") - pl.col("within_ns"), part=pl.lit(rest))
    rows = pl.concat([rows.select("group", "part", "total_ns"), between.select("group", "part", "total_ns")])
    found = rows.group_by("group", "part").agg(pl.col("total_ns").sum()).sort("group", "part")
    return PARTS.conform(found.rename({"group": "cycle"}))


def _averaged(resources: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = resources.join(place, on="cycle")
    found = rows.group_by("group", "device", "metric", "name", maintain_order=True).agg(
        pl.col("unit").first(),
        mu=(pl.col("mu") * pl.col("dur_ns")).sum() / pl.col("dur_ns").sum(),
        n_samples=pl.col("n_samples").sum(),
    )
    return RESOURCES.conform(found.rename({"group": "cycle"}))
