"""Why a rank is late: what it did during the extra time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
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

#: A uniform slowdown is attributed to the clock, or to the host, if it is at least this large …
_LEAST_SLOWDOWN = 0.02
#: … and leaves at most this part of the differences by name unexplained.
_UNEVEN = 0.6
_MOSTLY = 0.5
_LOWER_CLOCK = 0.97
#: Signs of a slow host or device: label, parts of the metric's name, and whether more (1) or less (-1) is bad.
_SIGNS = (
    ("clock", ("freq", "clock"), -1),
    ("time waiting for a core", ("runq",), 1),
    ("garbage collection", ("gc_time",), 1),
    ("major page faults", ("major_faults",), 1),
    ("reading from disk", ("read_bytes_rate",), 1),
    ("writing to disk", ("write_bytes_rate",), 1),
)
_FAR_MORE = 1.5


class Cause(msgspec.Struct, frozen=True):
    """A class of cause, the phase of the step with most of the delay (null: unknown), and the evidence as text."""

    name: str
    phase: str | None
    evidence: str


def cause_of(job: Job, roles: Roles, lateness: Lateness, rank: int, rows: Ints) -> Cause:
    """Why that rank (its index) is late in these calls: what took it longer than the median of its peers.

    Mostly reading data: `data loading`. Mostly computing: `compute` if some names ran more often or longer; if all are
    slower alike, `clock` on a device, and `host` on a CPU, which other programs share. Mostly neither: `host`, which
    queued the work late.
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
        return Cause(HOST, phase, "its trace does not record what it computed")
    if compute < _MOSTLY * total:
        text = f"{duration(total - compute - data)} more without computing"
        return Cause(HOST, phase, _with(text, _resources(job, roles, rank)))
    return _computing(job, roles, rank, phase, compute)


def _excess(values: pl.Series, peers: Segments, own: NDArray[np.bool_]) -> float | None:
    """By how much the rank's own values exceed the median of their peers, summed; None if unknown."""
    if values.null_count() == len(values):
        return None
    known: Floats = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if values.null_count():  # a NaN would make the median of its set unknown
        peers = segments(
            np.where(np.isnan(known), -1, peers.spread_out(np.arange(peers.sizes.size, dtype=np.float64))).astype(
                np.int64
            )
        )
    return float(np.nansum((known - peers.leave_one_out_median(known))[own]))


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
    same_role = [job.parts[i].work for i in alike]
    if own is None or not alike or any(other is None for other in same_role):
        return default
    table = _compared(own, [other for other in same_role if other is not None])
    more_ns = float(table["more_ns"].sum())
    slower_ns = float(table["slower_ns"].sum())
    usual_ns = float(table["usual_ns"].sum())
    ratio = slower_ns / max(usual_ns, 1.0)
    uneven = float((table["slower_ns"] - ratio * table["usual_ns"]).abs().sum()) / max(abs(slower_ns), 1.0)
    if slower_ns > more_ns and ratio >= _LEAST_SLOWDOWN and uneven <= _UNEVEN:
        text = f"everything it computes takes {percent(ratio)} longer, as often as on the others"
        on_device = bool((job.calls.filter(pl.col("rank") == rank)["measured"] == "device").all())
        resources = _resources(job, roles, rank)
        return Cause(CLOCK if on_device or "clock" in resources else HOST, phase, _with(text, resources))
    top = table.with_columns(extra=pl.col("more_ns") + pl.col("slower_ns")).sort("extra", descending=True)
    name, calls, usual_calls, extra = top.select("name", "calls", "usual_calls", "extra").row(0)
    if name is None or extra <= 0:
        return default
    often = f"{calls - usual_calls:+,.0f} calls, " if abs(calls - usual_calls) >= 0.5 else ""
    return Cause(COMPUTE, phase, f"{name}: {often}{duration(extra)} more than the median of the others")


def _compared(own: pl.DataFrame, same_role: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """By name: this rank's calls and time, the median of its role, and the extra time by more and by slower calls."""
    every = (
        pl.concat(same_role)
        .group_by("name")
        .agg(usual_calls=pl.col("calls").median(), usual_ns=pl.col("total_ns").median(), n=pl.len())
    )
    # A name that most ranks lack has no usual time.
    known = pl.col("n") * 2 > len(same_role)
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


def _resources(job: Job, roles: Roles, rank: int) -> str:
    """The first resource that is worse on this rank than on its peers, as text; empty if there is none."""
    own = job.parts[rank].resources
    same_role = [
        job.parts[i].resources for i in np.flatnonzero(roles.of_rank == roles.of_rank[rank]).tolist() if i != rank
    ]
    have = [frame for frame in same_role if frame is not None and frame.height]
    if own is None or own.is_empty() or not have:
        return ""
    of_process = (pl.col("device") == "process") | pl.col("metric").cast(pl.String).str.contains("freq|clock")
    usual = pl.concat(have).filter(of_process).group_by("metric").agg(usual=pl.col("value").median())
    table = own.filter(of_process).group_by("metric").agg(pl.col("value").mean()).join(usual, on="metric")
    for label, marks, sign in _SIGNS:
        rows = table.filter(pl.col("metric").cast(pl.String).str.contains("|".join(marks)))
        for metric, value, normal in rows.iter_rows():
            worse = value < _LOWER_CLOCK * normal if sign < 0 else value > _FAR_MORE * normal and value > 0
            if worse:
                return f"{label}: {metric} {value:.3g}, the others {normal:.3g}"
    return ""


def _with(text: str, more: str) -> str:
    return f"{text}; {more}" if more else text
