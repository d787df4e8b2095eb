"""How far each rank's clock is off, solved from the collectives themselves.

An all-reduce ends on all ranks at about the same moment, whenever each of them arrived. So differences of recorded ends
are differences of clocks. Starts show who was late and are not used, so that a clock that is off is not mistaken for a
late rank, nor the reverse. And a collective cannot end anywhere before it has begun everywhere, which bounds each clock
from both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.grouped_medians import Floats, Segments, dense, numbered, segments
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.core.collectives import SYNCHRONISING
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Bools, Ints
from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.ranks.calls import RankCalls

_MOST_TURNS = 2_000
_ROUNDS = 5
_FAR = 3.0  # standard errors: edges farther off count less
CLOCK_OFFSETS = Table(
    "clock-offsets",
    "how far each rank's clock is off",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("host", pl.String(), "where it ran, if recorded", key=True),
        Column("component", pl.Int32(), "ranks of one component share collectives; offsets are comparable within it"),
        Column("offset_ns", pl.Float64(), "by how much its clock is ahead of the median rank's, mid-recording", "ns"),
        Column("error_ns", pl.Float64(), "half width of the 95 % interval", "ns"),
        Column("drift_ppm", pl.Float64(), "by how much its clock gains on the median rank's; 0: none detected", "ppm"),
        Column("drift_error_ppm", pl.Float64(), "half width of the 95 % interval", "ppm"),
        Column("low_ns", pl.Float64(), "least offset with which no collective ends before it began everywhere", "ns"),
        Column("high_ns", pl.Float64(), "greatest such offset", "ns"),
        Column("exchanges", pl.Int64(), "number of collectives that it is solved from"),
        Column(
            "method",
            pl.Enum(("ends", "host", "none")),
            "ends of collectives; host: one clock for all ranks of a host, as ends agree; none: nothing to compare",
        ),
    ),
)
#: Collectives per group that are used: enough for a microsecond, at a cost that does not grow with the recording.
_MOST = 64
#: Factor on the error of collectives that ranks may leave early.
_WEAK = 5.0
_TWO_SIDED = 1.96
_MEDIAN_COST = 1.2533  # standard error of a median over that of a mean
_SIGNIFICANT = 2.0  # standard errors: a smaller drift counts as 0, a larger one is shrunk
_FITS = 5
_SWEEPS = 20


class Solved(msgspec.Struct, frozen=True):
    """A value per member, its standard error, and the connected component that it belongs to.

    In each component the median is 0; values of different components cannot be compared.
    """

    values: Floats
    errors: Floats
    parts: Ints


def solved(member: Ints, group: Ints, value: Floats, error: Floats, n_members: int, n_groups: int) -> Solved:
    """Least squares over edges: an edge says that a member is `value` ± `error` above its group's level.

    Edges far from the fit count less (Huber's weights). Members without an edge are components of their own, with value
    0 and an infinite error. The system is a graph Laplacian, solved by conjugate gradients.
    """
    parts = _parts(member, group, n_members, n_groups)
    weight: Floats = 1.0 / np.square(error)
    levels: Floats = np.zeros(n_members + n_groups)
    nodes = member, n_members + group
    for _ in range(_ROUNDS):
        levels = _least_squares(nodes, value, weight, levels, parts)
        off = np.abs(value - levels[nodes[0]] + levels[nodes[1]]) / error
        weight = np.minimum(1.0, _FAR / np.maximum(off, 1e-12)) / np.square(error)
    values = levels[:n_members].copy()
    own = parts[:n_members]
    order = np.argsort(own, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
        values[rows] -= np.median(values[rows])
    held = np.bincount(member, weight, minlength=n_members)
    with np.errstate(divide="ignore"):
        return Solved(values, 1.0 / np.sqrt(held), own)


def _least_squares(nodes: tuple[Ints, Ints], value: Floats, weight: Floats, start: Floats, parts: Ints) -> Floats:
    size = start.size
    a, b = nodes

    def times(x: Floats) -> Floats:
        flow = weight * (x[a] - x[b])
        return _sums(a, flow, size) - _sums(b, flow, size)

    pull = weight * value
    target = _sums(a, pull, size) - _sums(b, pull, size)
    diagonal = _sums(a, weight, size) + _sums(b, weight, size)
    diagonal[diagonal == 0] = 1.0
    x = start.copy()
    rest = target - times(x)
    step = rest / diagonal
    way = step.copy()
    gain = float(rest @ step)
    enough = 1e-20 * max(float(target @ (target / diagonal)), 1e-300)
    for _ in range(_MOST_TURNS):
        if gain <= enough:
            break
        along = times(way)
        length = gain / float(way @ along)
        x += length * way
        rest -= length * along
        step = rest / diagonal
        before, gain = gain, float(rest @ step)
        way = step + gain / before * way
    # The level of a whole component is free: a mean of zero keeps numbers small.
    mean: Floats = np.bincount(parts, x) / np.bincount(parts)
    centred: Floats = x - mean[parts]
    return centred


def _sums(at: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(at, values, minlength=size).astype(np.float64, copy=False)


def _parts(member: Ints, group: Ints, n_members: int, n_groups: int) -> Ints:
    """The number of the connected component of each member and group, from 0."""
    label = np.arange(n_members + n_groups)
    nodes = n_members + group
    while True:
        least = label.copy()
        low = np.minimum(label[member], label[nodes])
        np.minimum.at(least, member, low)
        np.minimum.at(least, nodes, low)
        least = least[least]
        if np.array_equal(least, label):
            return np.unique(label, return_inverse=True)[1].ravel()
        label = least


class Clocks(msgspec.Struct, frozen=True):
    """At a true time, rank i's clock shows true + offset[i] + drift[i] × (shown − mid). Units: ns; drift is a ratio."""

    mid_ns: float
    offset: Floats
    error: Floats
    drift: Floats
    drift_error: Floats
    low: Floats
    high: Floats
    component: Ints
    collectives: Ints
    method: tuple[str, ...]

    def true(self, rank: Ints, shown_ns: Ints) -> Floats:
        """True times, on the median rank's clock, of what the clocks of ranks (indices) show."""
        at = shown_ns.astype(np.float64)
        times: Floats = at - self.offset[rank] - self.drift[rank] * (at - self.mid_ns)
        return times


def clocks_of(job: Job) -> Clocks:
    """The clocks of all ranks. A rank that shares no collective with another keeps its own, with an infinite error.

    Ends of collectives in which all ranks wait for all count fully, those of others little. For each group and member
    it takes the median difference to the group, and for a significant drift a robust line through time. Least squares
    combines the differences of overlapping groups. The error is the statistical one plus the spread of the ends of one
    collective, as a rank may always leave a bit later. Ranks of one host get a common clock if their ends agree with
    that. Last, offsets are moved into their bounds.
    """
    sample = _sample(job)
    n = len(job.ranks)
    if sample is None:
        nothing, far = np.zeros(n), np.full(n, np.inf)
        return Clocks(0.0, nothing, far, nothing, far, -far, far, np.arange(n), np.zeros(n, np.int64), ("none",) * n)
    drift, drift_error = _drifts(sample, n)
    fit = _levels(sample, drift)
    end_spread, edge_error = _spreads(sample, fit)
    solution = solved(sample.edge_rank, sample.edge_group, fit, edge_error, n, sample.n_groups)
    skew = np.zeros(n)
    np.maximum.at(skew, sample.edge_rank, end_spread[sample.edge_group])
    known = np.isfinite(solution.errors)
    error = np.where(known, np.hypot(_TWO_SIDED * _MEDIAN_COST * solution.errors, skew), np.inf)
    component = np.unique(solution.parts, return_inverse=True)[1]
    n_collectives = np.bincount(job.rank[sample.whole], minlength=n)
    clocks = Clocks(
        sample.mid, solution.values, error, drift, drift_error, np.full(n, -np.inf), np.full(n, np.inf), component,
        n_collectives, tuple(np.where(known, "ends", "none").tolist()),
    )  # fmt: skip
    bounds = _Bounds(job)
    clocks = _one_clock_per_host(job, clocks, bounds, _TWO_SIDED * _MEDIAN_COST * solution.errors)
    return _bounded(clocks, bounds)


class _Sample(msgspec.Struct, frozen=True):
    """Calls of the collectives that are used. An edge is a member of a group; `edge` and `collective` are dense."""

    whole: Bools
    rank: Ints
    collective: Ints
    edge: Ints
    end: Floats
    since_mid: Floats
    mid: float
    half: float
    edge_rank: Ints
    edge_group: Ints
    weak: Bools
    n_groups: int


def _sample(job: Job) -> _Sample | None:
    """At most `_MOST` collectives of each group or so, spread over the recording; None if ranks share none."""
    several = (job.collectives["n_ranks"] > 1).to_numpy()
    usable = several & (job.collectives["status"] != "kinds differ").to_numpy()
    strong = job.of_kind(*SYNCHRONISING)
    collective, rank = job.collective, job.rank
    whole = usable[collective]
    if not whole.any():
        return None
    first = np.zeros(usable.size, np.int64)
    first[collective[::-1]] = np.arange(collective.size)[::-1]
    rows = np.flatnonzero(usable)
    src, dst = (job.ints(c)[first] for c in ("src", "dst"))
    far = np.maximum(src, dst)
    own = np.array(job.ranks)[rank[first]]
    pair = np.where(far >= 0, np.minimum(own, far) * (max(job.ranks) + 2) + np.maximum(own, far), -1)
    group = numbered(job.collectives["group"].to_numpy()[rows], pair[rows], (~strong[rows]).astype(np.int64))
    by_group = segments(group)
    place = np.empty(rows.size, np.int64)
    place[by_group.order] = np.arange(rows.size) - np.repeat(by_group.starts, by_group.sizes)
    stride = np.maximum(by_group.sizes // _MOST, 1)[group]
    chosen = np.full(usable.size, -1, np.int64)
    keep = place % stride == 0
    chosen[rows[keep]] = group[keep]
    taken = np.flatnonzero(chosen[collective] >= 0)
    edge_code = chosen[collective[taken]] * len(job.ranks) + rank[taken]
    codes, edge = np.unique(edge_code, return_inverse=True)
    ends = job.calls["end_ns"].to_numpy()[taken].astype(np.float64)
    low, high = float(ends.min()), float(ends.max())
    is_weak = np.zeros(int(group.max()) + 1, bool)
    is_weak[group] = ~strong[rows]
    mid, half = (low + high) / 2, max((high - low) / 2, 1.0)
    return _Sample(
        whole, rank[taken], dense(collective[taken]), edge, ends, (ends - mid) / half, mid, half,
        codes % len(job.ranks), codes // len(job.ranks), is_weak, is_weak.size,
    )  # fmt: skip


def _levels(sample: _Sample, drift: Floats, *, rounds: int = 2) -> Floats:
    """Per edge how far the member's clock is ahead of its group's median, without drift: a median over collectives."""
    ends = sample.end - drift[sample.rank] * sample.since_mid * sample.half
    by_collective, by_edge = segments(sample.collective), segments(sample.edge)
    level = np.zeros(sample.edge_rank.size)
    for _ in range(rounds + 1):
        middle = by_collective.spread_out(by_collective.median(ends - level[sample.edge]))
        level = by_edge.median(ends - middle)
    return level


def _spreads(sample: _Sample, level: Floats) -> tuple[Floats, Floats]:
    """Per group the standard deviation of the ends of one collective, and each edge's standard error."""
    by_collective = segments(sample.collective)
    rest = sample.end - level[sample.edge]
    rest -= by_collective.spread_out(by_collective.median(rest))
    group = sample.edge_group[sample.edge]
    spread = segments(group).spread(rest)
    spread = np.maximum(spread, 1.0)  # a clock's tick
    n = np.bincount(sample.edge, minlength=sample.edge_rank.size)
    weak = np.where(sample.weak, _WEAK, 1.0)[sample.edge_group]
    return spread, spread[sample.edge_group] * weak / np.sqrt(n)


def _drifts(sample: _Sample, n_ranks: int) -> tuple[Floats, Floats]:
    """The drift of each rank's clock, 0 if it is within its error, and that error (95 %)."""
    level = _levels(sample, np.zeros(n_ranks), rounds=1)
    by_collective = segments(sample.collective)
    slope = np.zeros(level.size)
    for _ in range(2):
        rest = sample.end - level[sample.edge] - slope[sample.edge] * sample.since_mid
        middle = by_collective.spread_out(by_collective.median(rest))
        level, slope, error = _lines(sample, sample.end - middle)
    solution = solved(sample.edge_rank, sample.edge_group, slope, error, n_ranks, sample.n_groups)
    ratio, ratio_error = solution.values / sample.half, solution.errors / sample.half
    # A drift within its error counts as 0: extrapolated beyond the last collective it would be far off.
    significant = np.abs(ratio) > _SIGNIFICANT * ratio_error
    sure = 1.0 - np.square(_SIGNIFICANT * ratio_error[significant] / ratio[significant])
    drift = np.zeros(n_ranks)
    drift[significant] = ratio[significant] * sure
    return drift, _TWO_SIDED * ratio_error


def _lines(sample: _Sample, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Level and slope of a robust line through each edge's values, and the slope's standard error."""
    edge, x, n = sample.edge, sample.since_mid, sample.edge_rank.size
    weight = np.ones(x.size)
    level = slope = spread = np.zeros(n)
    for _ in range(_FITS):
        s0, sx, sxx, sy, sxy = (np.bincount(edge, weight * w, minlength=n) for w in (1.0, x, x * x, values, x * values))
        across = s0 * sxx - sx * sx
        straight = across > 1e-6 * s0 * s0
        slope = np.where(straight, (s0 * sxy - sx * sy) / np.where(straight, across, 1.0), 0.0)
        level = (sy - slope * sx) / s0
        off = np.abs(values - level[edge] - slope[edge] * x)
        spread = np.maximum(_MEDIAN_COST * np.bincount(edge, off, minlength=n) / np.bincount(edge, minlength=n), 1.0)
        weight = 1.0 / np.maximum(off / spread[edge], 0.5)
    count = np.bincount(edge, minlength=n)
    about = np.bincount(edge, x, minlength=n) / count
    width = np.bincount(edge, np.square(x - about[edge]), minlength=n)
    few = (count < 4) | (width < 1e-3)
    error = np.where(few, 1e12, _MEDIAN_COST * spread / np.sqrt(np.maximum(width, 1e-12)))
    return level, np.where(few, 0.0, slope), error


class _Bounds:
    """Bounds of offsets: a collective in which all wait for all cannot end before it has begun everywhere."""

    def __init__(self, job: Job) -> None:
        whole = job.of_kind(*SYNCHRONISING) & job.collectives["status"].is_in(("matched", "sizes differ")).to_numpy()
        rows = np.flatnonzero((whole & (job.collectives["n_ranks"] > 1).to_numpy())[job.collective])
        self.rank = job.rank[rows]
        self.start, self.end = (job.calls[c].to_numpy()[rows] for c in ("start_ns", "end_ns"))
        self.by_collective: Segments = segments(job.collective[rows])
        self.n = len(job.ranks)

    def of(self, clocks: Clocks) -> tuple[Floats, Floats]:
        """The least and greatest offset of each rank, assuming that the others are right."""
        start, end = clocks.true(self.rank, self.start), clocks.true(self.rank, self.end)
        late = end - self.by_collective.leave_one_out_max(start)
        early = start + self.by_collective.leave_one_out_max(-end)
        low, high = np.full(self.n, -np.inf), np.full(self.n, np.inf)
        np.minimum.at(high, self.rank, late)
        np.maximum.at(low, self.rank, early)
        return clocks.offset + low, clocks.offset + high


def _bounded(clocks: Clocks, bounds: _Bounds) -> Clocks:
    """Offsets moved into their bounds; they stay outside if bounds contradict each other, as for wrong matches."""
    low, high = bounds.of(clocks)
    for _ in range(_SWEEPS):
        fits = low <= high
        off = np.where(fits, clocks.offset - np.clip(clocks.offset, low, np.maximum(low, high)), 0.0)
        if not off.any():
            break
        # Two ranks that contradict each other move half the way each.
        step = np.where(np.abs(off) > 1.0, off / 2, off)
        clocks = replace(clocks, offset=clocks.offset - step)
        low, high = bounds.of(clocks)
    return replace(clocks, low=low, high=high)


def _one_clock_per_host(job: Job, clocks: Clocks, bounds: _Bounds, error: Floats) -> Clocks:
    """One clock for all ranks of a host, if the offsets solved for them agree with that."""
    hosts: dict[str, list[int]] = {}
    for i, part in enumerate(job.parts):
        if part.host is not None and part.origin_unix_ns is not None and clocks.method[i] == "ends":
            hosts.setdefault(part.host, []).append(i)
    offset, drift, method = clocks.offset.copy(), clocks.drift.copy(), list(clocks.method)
    least = clocks.error.copy()
    for ranks in hosts.values():
        common = float(np.median(offset[ranks]))
        alike = np.abs(offset[ranks] - common) <= clocks.error[ranks]
        steady = np.abs(drift[ranks] - np.median(drift[ranks])) <= clocks.drift_error[ranks]
        if len(ranks) > 1 and (alike & steady).all():
            offset[ranks] = common
            drift[ranks] = float(np.median(drift[ranks]))
            least[ranks] = error[ranks]
            for i in ranks:
                method[i] = "host"
    joined = replace(clocks, offset=offset, drift=drift, error=least, method=tuple(method))
    low, high = bounds.of(joined)
    return joined if ((low <= joined.offset) & (joined.offset <= high)).all() else clocks


def clock_offsets(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """One row per rank: by how much its clock is ahead of the median rank's, its drift, and their errors.

    They are solved from the collectives, which end together on all ranks, so that differences of ends are differences
    of clocks. Starts, which show who is late, are not used. It takes the median difference per group and rank, and a
    line through time if a drift is significant; least squares combines groups that share ranks. `error_ns` covers
    chance and the spread of the ends of one collective: a rank that always leaves a bit later looks like a clock.

    True time = shown time − offset − drift × (shown time − middle of the recording).

    Units: ns; drift in parts per million.
    Source: ends align, as every rank of an all-reduce, all-gather, reduce-scatter, all-to-all or barrier needs the data
    of the last one. Bounds: none of them ends before all have begun.
    Raises MissingTable (fewer than two ranks, or no collective that two of them share).
    """
    job = job_of(parts)
    if len(job.ranks) < 2:
        raise MissingTable("a second rank", needed_by="clock-offsets", hint="name the traces of all ranks")
    clocks = clocks_of(job)
    if not clocks.collectives.any():
        hint = "show collectives lists which collectives match"
        raise MissingTable("collectives that two ranks share", needed_by="clock-offsets", hint=hint)
    frame = pl.DataFrame({
        "rank": job.ranks,
        "host": [part.host for part in job.parts],
        "component": clocks.component,
        **{
            name: pl.Series(np.where(np.isfinite(values), values, np.nan)).fill_nan(None)
            for name, values in (
                ("offset_ns", np.where(np.isfinite(clocks.error), clocks.offset, np.nan)), ("error_ns", clocks.error),
                ("drift_ppm", clocks.drift * 1e6), ("drift_error_ppm", clocks.drift_error * 1e6), ("low_ns",
                clocks.low), ("high_ns", clocks.high),
            )
        },
        "exchanges": clocks.collectives,
        "method": clocks.method,
    }, strict=False)  # fmt: skip
    return CLOCK_OFFSETS.conform(frame)


ANALYSIS = analysis_of(
    clock_offsets,
    CLOCK_OFFSETS,
    "How far each rank's clock is off, solved from the collectives: offset, drift, error.",
    scope="ranks",
)
