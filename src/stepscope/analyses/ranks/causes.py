"""Why a rank is late: what it did in the time that the others did not need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.ranks.grouped_medians import Floats, Segments, segments
from stepscope.core.intervals import Ints
from stepscope.core.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.analyses.ranks.lateness import Lateness
    from stepscope.analyses.ranks.matching import Job
    from stepscope.analyses.ranks.parallel_groups import Roles

COMPUTE, HOST, DATA, NETWORK, CLOCK = CAUSES = ("compute", "host", "data loading", "network", "clock")
PHASES = ("data loading", "forward", "backward", "optimizer")

#: A slowdown of everything counts as one of the clock, or of the host, if it is at least so much …
_LEAST_SLOWDOWN = 0.02
#: … and explains all but so much of how the times by name differ.
_UNEVEN = 0.6
_MOSTLY = 0.5
_LOWER_CLOCK = 0.97


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of cause, the phase of the step that holds most of the delay (null: not known), and why, in words."""

    name: str
    phase: str | None
    evidence: str


def cause_of(job: Job, roles: Roles, lateness: Lateness, rank: int, rows: Ints) -> Cause:
    """Why that rank (its index) is late in these calls of its: by what it did more of than the median of its peers.

    Mostly reading data: data loading. Mostly computing: a name that ran more often or longer tells `compute`; if all of
    it is slower alike, a device's clock, or on a host what else runs there. Mostly neither: the host came late to queue
    the work.
    """
    total = float(lateness.excess[rows].sum())
    alike = np.flatnonzero(np.isin(lateness.peers, lateness.peers[rows]) & (lateness.peers >= 0))
    peers, own = segments(lateness.peers[alike]), np.isin(alike, rows)
    more = {
        name: _excess(job.calls[f"{name}_ns"].gather(alike), peers, own)
        for name in ("compute", "data", "backward", "optimizer")
    }
    data, compute = more["data"] or 0.0, more["compute"]
    phase = _phase(total, more)
    if data >= _MOSTLY * total:
        return Cause(DATA, PHASES[0], f"{duration(data)} more waiting for the next batch")
    if compute is None:
        return Cause(HOST, phase, "its trace does not tell what it computed")
    if compute < _MOSTLY * total:
        words = f"{duration(total - compute - data)} more in which it computes nothing"
        return Cause(HOST, phase, _with(words, _resources(job, roles, rank)))
    return _computing(job, roles, rank, phase, compute)


def _excess(values: pl.Series, peers: Segments, own: NDArray[np.bool_]) -> float | None:
    """By how much the values exceed the median of their peers, summed over the rank's own; null if not known."""
    if values.null_count() == len(values):
        return None
    known: Floats = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if values.null_count():  # the medians would be lost with the unknown
        peers = segments(
            np.where(np.isnan(known), -1, peers.spread_out(np.arange(peers.sizes.size, dtype=np.float64))).astype(
                np.int64
            )
        )
    return float(np.nansum((known - peers.median_of_others(known))[own]))


def _phase(total: float, more: dict[str, float | None]) -> str | None:
    back, opt = more["backward"], more["optimizer"]
    if back is None and opt is None:
        return None
    parts = (more["data"] or 0.0, 0.0, back or 0.0, opt or 0.0)
    parts = (parts[0], total - sum(parts), *parts[2:])
    return PHASES[int(np.argmax(parts))]


def _computing(job: Job, roles: Roles, rank: int, phase: str | None, compute: float) -> Cause:
    """Which of compute, clock and host makes a rank compute longer."""
    default = Cause(COMPUTE, phase, f"{duration(compute)} more computing")
    own = job.parts[rank].work
    alike = [i for i in np.flatnonzero(roles.of_rank == roles.of_rank[rank]).tolist() if i != rank]
    others = [job.parts[i].work for i in alike]
    if own is None or not alike or any(other is None for other in others):
        return default
    table = _beside(own, [other for other in others if other is not None])
    more_ns = float(table["more_ns"].sum())
    slower_ns = float(table["slower_ns"].sum())
    usual_ns = float(table["usual_ns"].sum())
    ratio = slower_ns / max(usual_ns, 1.0)
    uneven = float((table["slower_ns"] - ratio * table["usual_ns"]).abs().sum()) / max(abs(slower_ns), 1.0)
    if slower_ns > more_ns and ratio >= _LEAST_SLOWDOWN and uneven <= _UNEVEN:
        words = f"everything it computes takes {percent(ratio)} longer, as often as on the others"
        on_device = bool((job.calls.filter(pl.col("rank") == rank)["measured"] == "device").all())
        resources = _resources(job, roles, rank)
        return Cause(CLOCK if on_device or "clock" in resources else HOST, phase, _with(words, resources))
    top = table.with_columns(extra=pl.col("more_ns") + pl.col("slower_ns")).sort("extra", descending=True)
    name, calls, usual_calls, extra = top.select("name", "calls", "usual_calls", "extra").row(0)
    if name is None or extra <= 0:
        return default
    often = f"{calls - usual_calls:+,.0f} calls, " if abs(calls - usual_calls) >= 0.5 else ""
    return Cause(COMPUTE, phase, f"{name}: {often}{duration(extra)} more than the median of the others")


def _beside(own: pl.DataFrame, others: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """By name: calls and time of this rank and the others' median, and its extra time by more calls and slower ones."""
    every = (
        pl.concat(others)
        .group_by("name")
        .agg(usual_calls=pl.col("calls").median(), usual_ns=pl.col("total_ns").median(), n=pl.len())
    )
    # A name that most do not have is none that they usually call.
    known = pl.col("n") * 2 > len(others)
    every = every.select(
        "name", usual_calls=pl.when(known).then("usual_calls"), usual_ns=pl.when(known).then("usual_ns")
    )
    table = own.join(every, on="name", how="full", coalesce=True, nulls_equal=True)
    table = table.with_columns(pl.col("calls", "total_ns", "usual_calls", "usual_ns").fill_null(0).cast(pl.Float64))
    usual = pl.when(pl.col("usual_calls") > 0).then(pl.col("usual_ns") / pl.col("usual_calls"))
    own_each = pl.when(pl.col("calls") > 0).then(pl.col("total_ns") / pl.col("calls"))
    each = pl.coalesce(usual, own_each, 0.0)
    more = (pl.col("calls") - pl.col("usual_calls")) * each
    return table.with_columns(more_ns=more, slower_ns=pl.col("total_ns") - pl.col("usual_ns") - more)


#: What may slow a host or a device, how it is called, and whether more or less of it is bad.
_SIGNS = (
    ("clock", ("freq", "clock"), -1),
    ("time waiting for a core", ("runq",), 1),
    ("garbage collection", ("gc_time",), 1),
    ("major page faults", ("major_faults",), 1),
    ("reading from disk", ("read_bytes_rate",), 1),
    ("writing to disk", ("write_bytes_rate",), 1),
)
_FAR_MORE = 1.5


def _resources(job: Job, roles: Roles, rank: int) -> str:
    """The first resource that fares worse on this rank than on its peers, in words; empty if none does."""
    own = job.parts[rank].resources
    others = [
        job.parts[i].resources for i in np.flatnonzero(roles.of_rank == roles.of_rank[rank]).tolist() if i != rank
    ]
    have = [frame for frame in others if frame is not None and frame.height]
    if own is None or own.is_empty() or not have:
        return ""
    of_process = (pl.col("device") == "process") | pl.col("metric").cast(pl.String).str.contains("freq|clock")
    usual = pl.concat(have).filter(of_process).group_by("metric").agg(usual=pl.col("value").median())
    table = own.filter(of_process).group_by("metric").agg(pl.col("value").mean()).join(usual, on="metric")
    for words, marks, sign in _SIGNS:
        rows = table.filter(pl.col("metric").cast(pl.String).str.contains("|".join(marks)))
        for metric, value, normal in rows.iter_rows():
            worse = value < _LOWER_CLOCK * normal if sign < 0 else value > _FAR_MORE * normal and value > 0
            if worse:
                return f"{words}: {metric} {value:.3g}, the others {normal:.3g}"
    return ""


def _with(words: str, more: str) -> str:
    return f"{words}; {more}" if more else words
