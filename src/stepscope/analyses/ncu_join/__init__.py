"""A timeline's kernels with the counters of another recording: nsys or a framework's trace, and what ncu measured.

Counting makes kernels slow and runs them one by one, so that it tells how they use the device and not when they run or
what the program waits for; a timeline tells only that. Launches of the same kernel with the same grid and block do the
same work in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.ncu_join.launch_matching import RULES, launches_of, matched
from stepscope.core.counter_roles import RATIO_ROLES, preference
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import shorten
from stepscope.core.schema import ISSUES, KERNEL_METRICS, KERNELS
from stepscope.core.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace

__all__ = ["CODE", "stitched"]

#: The row of `issues` that says how much of the timeline has counters now.
CODE = "counters_stitched"
_WORDS = {"size": "by name, grid and block", "nearest": "by name and nearest size", "name": "by name alone"}
#: What a launch of another size has in common with this one: shares of a peak, ratios, rates.
_INTENSIVE_UNIT = r"^%$|^ratio$|/|^hz$"
_INTENSIVE_NAME = r"(?i)percent|util|ratio|hit_?rate|\.pct|per_second|per_cycle"
_FILLED = ("registers", "est_occupancy_ratio")
_FILLED_IF_SAME = ("shared_bytes", "blocks_per_sm", "warps_per_sm")
_METRIC = ("metric", "unit")
_WORTH_TELLING = 0.001
#: More rows than that would take more than a gigabyte: then only counters stay that an analysis looks at.
MOST_ROWS = 1 << 25


def stitched(timeline: Trace, counters: Trace) -> Trace:
    """The timeline with the counters in `kernel_metrics`, and with what it lacks of registers, occupancy and the like.

    A kernel gets the means over the counted launches of the same name, grid and block; if there are none, those of the
    nearest number of threads (of two the first), or if the size is not known those of all launches of the name; of
    these only counters that do not grow with the work (percentages, rates). Names are compared without return type,
    argument types and spelling (`(int)4`, `4`), and where one side tells less, by what both tell. Kernels that have
    counters of their own keep them. A row of `issues` says how much of the kernels' time is covered, and by which rule.

    Raises MissingTable (no kernels in the timeline, no counters in the other).
    """
    launches = launches_of(timeline)
    if launches.is_empty():
        raise MissingTable("kernels", needed_by="--with", hint="it joins counters to the kernels of a timeline")
    counted = launches_of(counters).join(counters.kernel_metrics.select("span_id").unique(), on="span_id", how="semi")
    if counted.is_empty():
        what = f"{counters.meta.path} holds no counters of kernels to join to {timeline.meta.path}"
        raise StepscopeError(what, "give --with what ncu wrote: ncu --csv --set full …, or --metrics …")
    own = timeline.kernel_metrics
    launches = launches.join(own.select("span_id").unique(), on="span_id", how="anti", maintain_order="left")
    members, per_launch = matched(launches, counted)
    metrics, left_out = _metrics(per_launch, members, counters.kernel_metrics)
    notes = [*_coverage(launches, per_launch, counters), *_devices(timeline, counters)]
    if left_out:
        what = f"counters that no analysis looks at are left out, as there would be too many rows: {left_out[0]} …"
        notes.append(("metrics_left_out", "info", len(left_out), what))
    rows = pl.DataFrame(notes, schema=dict(ISSUES.dtypes), orient="row")
    return timeline.with_tables(
        kernel_metrics=pl.concat([own, metrics]).sort("span_id", maintain_order=True) if own.height else metrics,
        kernels=_kernels(timeline, per_launch, members, counters.kernels),
        issues=pl.concat([ISSUES.conform(timeline.issues), rows]),
    )


def _metrics(per_launch: pl.DataFrame, members: pl.DataFrame, metrics: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The `kernel_metrics` of the timeline's launches, and the names of counters that had to be left out."""
    used = per_launch.drop_nulls("group")
    members = members.join(used.select("group").unique(), on="group", how="semi", maintain_order="left")
    known = metrics.filter(pl.col("value").is_not_null())
    means = members.join(known, on="span_id", how="inner", maintain_order="left")
    means = means.group_by("group", *_METRIC, maintain_order=True).agg(pl.col("value").mean())
    unit, name = pl.col("unit").cast(pl.String).fill_null(""), pl.col("metric").cast(pl.String)
    named = means.select(_METRIC).unique()
    named = named.with_columns(intensive=unit.str.contains(_INTENSIVE_UNIT) | name.str.contains(_INTENSIVE_NAME))
    left_out: list[str] = []
    if _n_rows(used, means) > MOST_ROWS:
        is_used = _looked_at(named)
        left_out = named.filter(~is_used)["metric"].cast(pl.String).unique().sort().to_list()
        named = named.filter(is_used)
    means = means.join(named, on=_METRIC, how="inner", nulls_equal=True, maintain_order="left")
    # Each group twice: as it is for the same launch, without what grows with the work for one of another size.
    same, other = pl.col("group") * 2, pl.col("group") * 2 + 1
    means = pl.concat([means.with_columns(same), means.filter("intensive").with_columns(other)])
    used = used.select("span_id", group=pl.when(pl.col("rule") == RULES[0]).then(same).otherwise(other))
    return KERNEL_METRICS.conform(_spread(used, means.sort("group", maintain_order=True))), left_out


def _n_rows(used: pl.DataFrame, means: pl.DataFrame) -> int:
    """Rows of the result, or somewhat less."""
    of_group = means.group_by("group").len("n")
    return int(used.join(of_group, on="group", how="inner")["n"].cast(pl.Int64).sum())


def _looked_at(named: pl.DataFrame) -> pl.Series:
    """Whether an analysis looks at a counter."""
    from stepscope.analyses.costs.kernel_costs import role_of

    rows = named.select(pl.col(_METRIC).cast(pl.String)).rows()
    looked = [any(preference(m, r) is not None for r in RATIO_ROLES) or role_of(m, u) is not None for m, u in rows]
    return pl.Series(looked, dtype=pl.Boolean)


def _spread(launches: pl.DataFrame, means: pl.DataFrame) -> pl.DataFrame:
    """The means of each launch's group, launch by launch; `means` are sorted by group."""
    group, wanted = means["group"].to_numpy(), launches["group"].to_numpy()
    first, last = np.searchsorted(group, wanted), np.searchsorted(group, wanted, side="right")
    counts = last - first
    span_id = pl.Series(np.repeat(launches["span_id"].to_numpy(), counts), dtype=pl.UInt32)
    # Row numbers: first, first + 1, … of each launch, one launch after the other.
    rows = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    rows += np.arange(rows.size)
    at = pl.Series(rows.astype(np.uint32))
    del rows
    return pl.DataFrame({"span_id": span_id, **{c: means[c].gather(at) for c in (*_METRIC, "value")}})


def _kernels(timeline: Trace, per_launch: pl.DataFrame, members: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """The timeline's `kernels` with a row for each kernel, unknown columns filled in from counted launches."""
    columns = (*_FILLED, *_FILLED_IF_SAME)
    known = members.join(counted.select("span_id", *columns), on="span_id", how="inner")
    known = known.group_by("group").agg(pl.col(columns).mean().name.suffix("_counted"))
    found = per_launch.drop_nulls("group").join(known, on="group", how="left", maintain_order="left")
    frame = timeline.kernels
    missing = per_launch.select("span_id").join(frame.select("span_id"), on="span_id", how="anti")
    if missing.height:
        frame = pl.concat([frame, KERNELS.conform(missing)]).sort("span_id")
    frame = frame.join(found, on="span_id", how="left", maintain_order="left")
    is_same = pl.col("rule") == RULES[0]
    filled = [pl.coalesce(name, f"{name}_counted").alias(name) for name in _FILLED]
    filled += [pl.coalesce(name, pl.when(is_same).then(f"{name}_counted")).alias(name) for name in _FILLED_IF_SAME]
    return KERNELS.conform(frame.with_columns(filled))


def _coverage(launches: pl.DataFrame, per_launch: pl.DataFrame, counters: Trace) -> Iterator[tuple[str, str, int, str]]:
    """What share of the kernels' time has counters, by which rule, and what costs most of the rest."""
    frame = launches.select("name", dur_ns=pl.col("dur_ns").fill_null(0))
    frame = frame.with_columns(per_launch.select("rule", "is_mixed"))
    whole = max(int(frame["dur_ns"].sum()), 1)
    times = dict(frame.group_by("rule").agg(pl.col("dur_ns").sum()).rows())
    n = frame.height - frame["rule"].null_count()
    covered = sum(ns for rule, ns in times.items() if rule is not None)
    text = f"counters of {counters.meta.path} cover {percent(covered / whole)} of the time of kernels"
    told = [f"{percent(times[rule] / whole)} {_WORDS[rule]}" for rule in RULES if rule in times]
    text += f" ({', '.join(told)})" if told else ""
    bare = frame.filter(pl.col("rule").is_null()).group_by("name").agg(pl.col("dur_ns").sum())
    if bare.height:
        name, ns = bare.sort("dur_ns", pl.col("name").cast(pl.String), descending=[True, False]).row(0)
        if ns >= _WORTH_TELLING * whole:
            text += f"; the most without: {shorten(name)}, {percent(ns / whole)}"
    yield CODE, "info" if 2 * covered >= whole else "warning", n, text
    mixed = frame.filter("is_mixed")
    if mixed.height:
        share = percent(int(mixed["dur_ns"].sum()) / whole)
        known = f"names that stand for several counted kernels, as {shorten(mixed['name'][0])}"
        what = f"{known}: {share} of the time has their means"
        yield "counters_mixed", "info", mixed.height, what


def _devices(timeline: Trace, counters: Trace) -> Iterator[tuple[str, str, int, str]]:
    """A word of warning where the counters are of another product."""
    ours, theirs = (set(trace.devices["name"].drop_nulls().to_list()) for trace in (timeline, counters))
    if ours and theirs and not ours & theirs:
        what = f"counters are of {', '.join(sorted(theirs))}, the timeline is of {', '.join(sorted(ours))}"
        yield "other_device", "warning", 1, what
