"""The collectives of all ranks, matched: which calls on different ranks are the same collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.ranks.calls import KINDS, Kind, RankCalls
from stepscope.analyses.ranks.grouped_medians import Segments, numbered, occurrence, segments
from stepscope.analyses.ranks.groups import Group, groups_of, listed
from stepscope.core.collectives import POINT_TO_POINT, size_of_whole
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Bools, Ints
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SLACK = 3  # calls by which a recording may begin earlier or later, beyond the difference of their numbers
_ROUNDS = 4
_TRIED = (0.5, 0.25, 0.75, 0.0, 1.0)
#: Kinds whose sizes may differ between ranks.
_UNEVEN = ("alltoall", "gather", "scatter", "permute", "other", *POINT_TO_POINT)
STATUSES = ("matched", "missing on a rank", "kinds differ", "sizes differ", "one rank only", "ends unknown")
MATCHED = Table(
    "matched-collectives",
    "a collective, matched across ranks",
    (
        Column("group", pl.Int32(), "index of the group", key=True),
        Column("kind", Kind, "kind of collective", key=True),
        Column("collective", Name, "name as recorded", key=True),
        Column("dtype", Name, "element type", key=True),
        Column("seq", pl.Int64(), "its number within the group, if recorded"),
        Column("step", pl.Int32(), "number of the step that queued it"),
        Column("n_ranks", pl.Int32(), "ranks whose traces contain it"),
        Column("n_expected", pl.Int32(), "ranks with a trace that take part"),
        Column("size_bytes", pl.Int64(), "size of the whole", "bytes"),
        Column("status", pl.Enum(STATUSES), "whether it is the same on all ranks"),
    ),
)
_ABSENT = -1
_CODES = {kind: code for code, kind in enumerate(KINDS)}


def realigned(family: Ints, rank: Ints, order: Ints, ends: Ints, sizes: Ints, *, anchored: Bools, fixed: Bools) -> Ints:
    """The order of each call within its family, corrected where ranks have different numbers of calls.

    Rows are calls, sorted by rank and time; a family is a set of calls that may match each other. Families that are not
    `anchored` in time (no step) are also checked if numbers are equal, as recordings may begin at different calls.
    `fixed` families are not changed. Times are those of each rank's own clock; only differences are compared.
    """
    result = order.copy()
    doubtful = _doubtful(family, rank, anchored, fixed)
    rows = np.flatnonzero(doubtful[family])
    rows = rows[np.argsort(family[rows], kind="stable")]
    for own in np.split(rows, np.flatnonzero(np.diff(family[rows])) + 1) if rows.size else ():
        result[own] = _aligned(rank[own], ends[own].astype(np.float64), sizes[own])
    return result


def _doubtful(family: Ints, rank: Ints, anchored: Bools, fixed: Bools) -> Bools:
    n_families = int(family.max()) + 1
    code = family * (int(rank.max()) + 1) + rank
    order = np.argsort(code, kind="stable")
    heads = np.flatnonzero(np.concatenate(([True], np.diff(code[order]) != 0)))
    n_calls = np.diff(np.append(heads, code.size))
    of = family[order[heads]]
    least, most = np.full(n_families, np.iinfo(np.int64).max), np.zeros(n_families, np.int64)
    np.minimum.at(least, of, n_calls)
    np.maximum.at(most, of, n_calls)
    several = np.bincount(of, minlength=n_families) > 1
    loose = np.zeros(n_families, bool)
    loose[family[~anchored]] = True
    stays = np.zeros(n_families, bool)
    stays[family[fixed]] = True
    doubtful: Bools = several & ~stays & ((least != most) | (loose & (most > 1)))
    return doubtful


def _aligned(rank: Ints, ends: NDArray[np.float64], sizes: Ints) -> Ints:
    """The order of calls of one family: their places on the timeline of the rank with most calls."""
    names, counts = np.unique(rank, return_counts=True)
    reference = int(names[np.argmax(counts)])
    base = np.flatnonzero(rank == reference)
    places = np.empty(rank.size, np.int64)
    extra = base.size
    for name in names.tolist():
        own = np.flatnonzero(rank == name)
        if name == reference:
            places[own] = np.arange(own.size)
            continue
        place = _matched(ends[base], sizes[base], ends[own], sizes[own])
        lone = np.flatnonzero(place < 0)
        place[lone] = extra + np.arange(lone.size)
        extra += lone.size
        places[own] = place
    return places


def _matched(base: NDArray[np.float64], base_sizes: Ints, own: NDArray[np.float64], own_sizes: Ints) -> Ints:
    """For each of a rank's calls the matching one of the reference; −1 for none.

    It tries offsets at which the reference began some calls earlier or later, takes the one with which most calls have
    a nearby counterpart of their size, and refines it. Of several calls with one counterpart the nearest matches.
    """
    reach = abs(base.size - own.size) + _SLACK
    least = float(np.median(np.diff(base))) / 2 if base.size > 1 else 1.0
    best, offset = np.inf, 0.0
    for shift in sorted(range(-reach, reach + 1), key=abs):
        i = np.arange(max(0, -shift), min(own.size, base.size - shift))
        if i.size < max(1, min(own.size, base.size) // 2):
            continue
        # Quantiles, not means, of the differences: if a call is missing, some of them are right and their mean is not.
        for tried in np.quantile(own[i] - base[i + shift], _TRIED, method="nearest").tolist():
            place, far = _nearest(base, own - tried)
            far = np.where(own_sizes == base_sizes[place], np.minimum(far, least), least)
            if float(far.mean()) < best:
                best, offset = float(far.mean()), tried
    for _ in range(_ROUNDS):
        place, far = _nearest(base, own - offset)
        order = np.lexsort((far, place))
        keeps = np.concatenate(([True], np.diff(place[order]) != 0))
        place[order[~keeps]] = -1
        matched = place >= 0
        again = float(np.median(own[matched] - base[place[matched]]))
        if again == offset:
            break
        offset = again
    return place


def _nearest(base: NDArray[np.float64], at: NDArray[np.float64]) -> tuple[Ints, NDArray[np.float64]]:
    """The index of the nearest of `base`, which is sorted, and its distance."""
    right = np.minimum(np.searchsorted(base, at), base.size - 1)
    left = np.maximum(right - 1, 0)
    place = np.where(np.abs(base[left] - at) <= np.abs(base[right] - at), left, right)
    return place, np.abs(base[place] - at)


class Job(msgspec.Struct, frozen=True):
    """The collectives of all ranks of a job.

    `calls` has one row per rank and collective, sorted by rank and start: `rank` and `group` (indices into `ranks` and
    `groups`), `exchange` (the number of the collective) and the columns of CALLS; `start_ns` and `end_ns` are on the
    rank's own clock, from one origin for all. `collectives` is a MATCHED table in order of time. `left_out` lists parts
    that were not used: label and reason.
    """

    parts: tuple[RankCalls, ...]
    ranks: tuple[int, ...]
    groups: tuple[Group, ...]
    calls: pl.DataFrame
    collectives: pl.DataFrame
    by_collective: Segments
    origin_unix_ns: int | None = None
    shifts: tuple[int, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    def ints(self, column: str) -> Ints:
        """A column of `calls` as int64, −1 for null."""
        return ints(self.calls[column])

    @property
    def rank(self) -> Ints:
        """Per call the index of its rank."""
        return self.ints("rank")

    @property
    def collective(self) -> Ints:
        """Per call the number of its collective."""
        return self.calls["exchange"].to_numpy()

    @property
    def start(self) -> Ints:
        """When each call began, on its rank's clock."""
        return self.calls["start_ns"].to_numpy()

    @property
    def end(self) -> Ints:
        """When each call ended, on its rank's clock."""
        return self.calls["end_ns"].to_numpy()

    def of_kind(self, *kinds: str) -> Bools:
        """Per collective whether it is of one of these kinds."""
        wanted = np.zeros(len(KINDS), np.bool_)
        wanted[[_CODES[kind] for kind in kinds]] = True
        matching: Bools = wanted[self.kind]
        return matching

    @property
    def kind(self) -> Ints:
        """Per collective the index of its kind in KINDS."""
        return ints(self.collectives["kind"].to_physical())


def ints(column: pl.Series) -> Ints:
    """A column as int64, −1 for null."""
    numbers = column if column.dtype == pl.Int64 else column.cast(pl.Int64)
    return (numbers.fill_null(_ABSENT) if numbers.null_count() else numbers).to_numpy()


def job_of(parts: Sequence[RankCalls]) -> Job:
    """The collectives of all ranks, matched.

    Calls match if group and number agree, if every call of the group has a number (NCCL's metadata). Without numbers,
    calls of one kind match by their order within the step, or within the recording if there are no steps. If ranks made
    different numbers of calls in a step, times show which call is missing. Sends match receives by both ends.

    Parts of one rank are joined if they do not overlap in time; otherwise the first counts and the rest is listed in
    `left_out`. Ranks without a number get the next free one. Raises MissingTable (no ranks).
    """
    if not parts:
        raise MissingTable(
            "ranks", needed_by="an analysis of ranks", hint="name the traces of all ranks, or their folder"
        )
    parts, ranks, left_out = by_rank(parts)
    groups, comm_groups = groups_of([part.comms for part in parts], ranks)
    origins = [part.origin_unix_ns for part in parts if part.origin_unix_ns is not None]
    origin = min(origins, default=0)
    # A rank without a time of day is assumed to begin with the others; its clock is solved for like all.
    shift = [
        part.origin_unix_ns - origin if part.origin_unix_ns is not None else -int(part.calls["start_ns"][0])
        for part in parts
    ]
    lengths = [part.calls.height for part in parts]
    first_comm = np.concatenate(([0], np.cumsum([len(part.comms) for part in parts])[:-1]))
    calls = pl.concat([part.calls for part in parts], how="vertical")
    comm = calls["comm"].to_numpy() + np.repeat(first_comm, lengths)
    later = pl.Series(np.repeat(np.array(shift, np.int64), lengths))
    calls = calls.select(
        pl.Series("rank", np.repeat(np.arange(len(parts), dtype=np.int32), lengths)),
        pl.Series("group", np.concatenate(comm_groups).astype(np.int32)[comm]),
        pl.exclude("comm", "start_ns", "end_ns"),
        start_ns=pl.col("start_ns") + later,
        end_ns=pl.col("end_ns") + later,
    )
    number, known = _numbers(calls, groups, ranks)
    calls = calls.with_columns(exchange=pl.Series(number))
    by_collective = segments(number)
    collectives = _collectives(calls, groups, ranks, known, by_collective)
    return Job(
        parts,
        ranks,
        groups,
        calls,
        collectives,
        by_collective,
        min(origins, default=None),
        tuple(shift),
        tuple(left_out),
    )


def by_rank(parts: Sequence[RankCalls]) -> tuple[tuple[RankCalls, ...], tuple[int, ...], list[tuple[str, str]]]:
    """One part per rank in order of their numbers, the numbers, and the parts left out: label and reason."""
    of_rank: dict[int, list[RankCalls]] = {}
    free = max((part.rank for part in parts if part.rank is not None), default=-1) + 1
    for part in parts:
        rank = part.rank
        if rank is None:
            rank, free = free, free + 1
        of_rank.setdefault(rank, []).append(part)
    left_out: list[tuple[str, str]] = []
    joined = {rank: _joined(rank, of_rank[rank], left_out) for rank in sorted(of_rank)}
    return tuple(joined.values()), tuple(joined), left_out


def _joined(rank: int, parts: Sequence[RankCalls], left_out: list[tuple[str, str]]) -> RankCalls:
    """Recordings of one rank in succession, joined into one; of simultaneous ones the first."""
    whole = parts[0]
    for part in sorted(parts[1:], key=lambda p: p.origin_unix_ns or 0):
        first, second = (p.origin_unix_ns for p in (whole, part))
        shift = None if first is None or second is None else second - first
        last = int(whole.calls["end_ns"].to_numpy().max())
        if shift is None or int(part.calls["start_ns"][0]) + shift < last:
            left_out.append((part.label, f"it holds rank {rank} at the same time as {whole.label}"))
            continue
        moved = part.calls.with_columns(
            comm=pl.col("comm") + len(whole.comms),
            start_ns=pl.col("start_ns") + shift,
            end_ns=pl.col("end_ns") + shift,
        )
        whole = replace(whole, calls=pl.concat((whole.calls, moved)), comms=(*whole.comms, *part.comms))
    return whole


def _numbers(calls: pl.DataFrame, groups: Sequence[Group], ranks: Sequence[int]) -> tuple[Ints, Bools]:
    """Per call the number of its collective, in order of time; and whether its partners are known."""
    rank, group, seq, step, src, dst = (ints(calls[c]) for c in ("rank", "group", "seq", "step", "src", "dst"))
    kind = ints(calls["kind"].to_physical())
    own = np.array(ranks, np.int64)[rank]
    between = np.isin(kind, [_CODES[k] for k in POINT_TO_POINT])
    is_pair = np.array([g.size == 2 for g in groups], bool)[group]
    directed = between & np.isin(kind, [_CODES["send"], _CODES["recv"]])
    sends = kind == _CODES["send"]
    far = np.where(sends, dst, src)
    width = int(max(own.max(), far.max())) + 2
    pair = np.where(directed & (far >= 0), np.where(sends, own * width + far, far * width + own), _ABSENT)
    known = ~between | (pair >= 0) | is_pair
    pair[~known] = -2 - np.flatnonzero(~known)
    by_seq = _numbered_by_recorder(group, np.where(between, _ABSENT, seq), rank, len(groups))[group] & ~between
    stepped = np.ones(len(groups), bool)
    stepped[group[step < 0]] = False
    bucket = np.where(by_seq, seq, np.where(stepped[group], step, _ABSENT))
    sort = np.where(between, len(KINDS), np.where(by_seq, len(KINDS) + 1, kind))
    family = numbered(group, pair, sort, bucket)
    order = occurrence(numbered(family, rank))
    ends = calls["end_ns"].to_numpy()
    sizes = ints(calls["in_bytes"])
    # With steps or numbers only unequal counts are in doubt; without any, all are.
    order = realigned(family, rank, order, ends, sizes, anchored=bucket >= 0, fixed=by_seq | (pair < _ABSENT))
    number = numbered(family, order)
    # In order of time, so that neighbours in the table are neighbours in the job.
    first = np.full(int(number.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, number, calls["start_ns"].to_numpy())
    place = np.empty(first.size, np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(first.size)
    return place[number], known


def _numbered_by_recorder(group: Ints, seq: Ints, rank: Ints, n_groups: int) -> Bools:
    """Per group whether its calls have numbers that ranks agree on."""
    has = np.ones(n_groups, bool)
    rows = seq >= 0
    has[group[~rows]] = False
    some = np.zeros(n_groups, bool)
    some[group[rows]] = True
    has &= some
    rows &= has[group]
    if not rows.any():
        return has
    code = numbered(group[rows], seq[rows])
    one_each = np.unique(numbered(code, rank[rows]), return_index=True)[1]
    n_ranks = np.bincount(code[one_each])
    of_group = np.empty(n_ranks.size, np.int64)
    of_group[code] = group[rows]
    n_present = np.bincount(group[np.unique(numbered(group, rank), return_index=True)[1]], minlength=n_groups)
    shared = np.bincount(of_group, n_ranks > 1, minlength=n_groups) * 4 >= np.bincount(of_group, minlength=n_groups)
    return has & (shared | (n_present < 2))


def _collectives(
    calls: pl.DataFrame, groups: Sequence[Group], ranks: Sequence[int], known: Bools, parts: Segments
) -> pl.DataFrame:
    """A MATCHED table, one row per number in `calls`; `parts` groups the rows of `calls` by number."""
    first, n_ranks = parts.order[parts.starts], parts.sizes
    head = calls[first].select("group", "kind", "collective", "dtype", "seq", "step")
    group = head["group"].to_numpy()
    members = np.array([g.size for g in groups])[group]
    size = _sizes(calls, members, parts)
    kinds, dtypes = (ints(calls[c].to_physical()) for c in ("kind", "dtype"))
    between = head["kind"].is_in(POINT_TO_POINT).to_numpy()
    n_expected = np.where(
        between, _ends_present(calls[first], ranks), np.array([len(g.present) for g in groups])[group]
    )
    uneven = head["kind"].is_in(_UNEVEN).to_numpy()
    status = np.select(
        (
            ~known[first],
            (n_ranks == 1) & (n_expected <= 1),
            _differs(parts, kinds) & ~between,
            n_ranks < n_expected,
            (_differs(parts, size.rows) | _differs(parts, dtypes)) & ~uneven,
        ),
        [
            STATUSES.index(s)
            for s in ("ends unknown", "one rank only", "kinds differ", "missing on a rank", "sizes differ")
        ],
        STATUSES.index("matched"),
    )
    frame = head.with_columns(
        n_ranks=pl.Series(n_ranks),
        n_expected=pl.Series(np.maximum(n_expected, n_ranks)),
        size_bytes=pl.Series(size.whole),
        status=pl.Series(STATUSES, dtype=MATCHED.dtypes["status"]).gather(pl.Series(status)),
    )
    return MATCHED.conform(frame.with_columns(pl.col("size_bytes").replace(_ABSENT, None)))


class _Sizes(msgspec.Struct, frozen=True):
    """Bytes of each call, as recorded by its rank, and of each collective; −1 for unknown."""

    rows: Ints
    whole: Ints


def _sizes(calls: pl.DataFrame, members: Ints, parts: Segments) -> _Sizes:
    """The size of each collective. The ranks of an all-to-all may send different amounts: its size is their mean."""
    n = np.empty(calls.height, np.int64)
    n[parts.order] = np.repeat(members, parts.sizes)
    size = size_of_whole(pl.col("kind"), pl.col("in_bytes"), pl.col("out_bytes"), pl.lit(pl.Series(n)))
    rows = ints(calls.select(size=size)["size"])
    kind = calls["kind"].to_physical().to_numpy()
    ranked = rows[parts.order]
    largest = np.maximum.reduceat(ranked, parts.starts)
    mean = np.add.reduceat(np.maximum(ranked, 0), parts.starts) // parts.sizes
    spreads = kind[parts.order[parts.starts]] == _CODES["alltoall"]
    return _Sizes(rows, np.where(spreads & (largest >= 0), mean, largest))


def _differs(parts: Segments, values: Ints) -> Bools:
    ranked = values[parts.order]
    differs: Bools = np.minimum.reduceat(ranked, parts.starts) != np.maximum.reduceat(ranked, parts.starts)
    return differs


def _ends_present(calls: pl.DataFrame, ranks: Sequence[int]) -> Ints:
    """Per message how many of its two ends are ranks with a trace; 2 if the other end is unknown."""
    far = calls.select(pl.coalesce("src", "dst")).to_series()
    return 1 + (far.is_in(ranks) | far.is_null()).cast(pl.Int64).to_numpy()


def missing_ranks(job: Job, collectives: Sequence[int]) -> list[str]:
    """Per collective the ranks with a trace that take part in it and whose traces lack it, as text."""
    rank, group, src, dst = (job.ints(c) for c in ("rank", "group", "src", "dst"))
    between = job.of_kind(*POINT_TO_POINT)
    at_hand = set(job.ranks)
    texts: dict[tuple[int, ...], str] = {}
    missing = []
    for number in collectives:
        start = job.by_collective.starts[number]
        rows = job.by_collective.order[start : start + job.by_collective.sizes[number]]
        have = {job.ranks[i] for i in rank[rows].tolist()}
        ends = {*src[rows].tolist(), *dst[rows].tolist()} & at_hand
        lacking = tuple(sorted((ends if between[number] else {*job.groups[group[rows[0]]].present}) - have))
        if lacking not in texts:
            texts[lacking] = listed(lacking)
        missing.append(texts[lacking])
    return missing
