"""The `spans` table from a reader's arrays: sorted, numbered, and linked (operator → launch → device work → step).

Readers of databases and CSV files pass parts to `assemble`; a part is all spans of one of their tables. Readers with
other links (Kineto's arrows, Paddle's recorded tree) call the same steps one by one: `believable`, `parents`,
`launches`, `operators`, `steps_of`, `span_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from stepscope.core import intervals
from stepscope.core import names as rules
from stepscope.core.arrays import distinct_values
from stepscope.core.machine import threads_for
from stepscope.core.schema import CATEGORIES, DEVICE_WORK, SPANS, STEPS, TRACKS, Category
from stepscope.core.soundness import LONGEST_NS
from stepscope.core.table import Name
from stepscope.readers.common.columns import ABSENT, nullable, stable_order
from stepscope.store.column_files import mapped, on_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog

    Rows = NDArray[np.signedinteger[Any]]
    Times = NDArray[np.int64]
    Flags = NDArray[np.bool_]


NO_SPAN = -1
NO_STEP = -(2**31)
#: Rows that are looked at together, where each takes scratch space.
_PIECE = 1 << 18
#: Ancestors looked at one by one, before looking all up at once pays. Overlapping calls may form chains of any length.
_HOPS = 32
_LOOKED_UP = 0.25  # of all rows, as often as which single ones are looked up before that
Scalar = TypeVar("Scalar", bound=np.generic)
CODE = {name: i for i, name in enumerate(CATEGORIES)}
CALLS = (CODE["runtime"], CODE["driver"])
WORK = [CODE[name] for name in DEVICE_WORK]
_SMALL = 1 << 22
#: Kineto can write zero or far-off times for single events. A recording longer than this is not believed.
_DAY_NS = 86_400 * 10**9
_MOST_WILD_RATIO = 0.01
#: Times and sums of durations from here on are no times: differences of two must fit 64 bits.
_FARTHEST_NS = 2**61
_NOT_THERE = 2**32 - 1


def row_type(n: int) -> type[np.signedinteger[Any]]:
    """The type of the numbers of n rows: of many rows there are several columns of such numbers."""
    return np.int32 if n < 1 << 31 else np.int64


def parents(ts: Rows, dur: Rows, track: NDArray[Any], is_host: Flags) -> Rows:
    """Innermost open span of the same host track at each span's start; rows sorted by track, start, longest first."""
    parent: Rows = intervals.enclosing_as(row_type(ts.size), ts, ts + dur, track)
    parent[~is_host] = NO_SPAN
    return parent


def launches(correlation: Rows, is_call: Flags, is_device: Flags) -> Rows:
    """For device work the row of the first call with the same correlation. Ids below 1 link nothing."""
    launch = np.full(correlation.size, NO_SPAN, row_type(correlation.size))
    calls = np.flatnonzero(is_call & (correlation > 0))
    work = np.flatnonzero(is_device & (correlation > 0))
    if calls.size and work.size:
        order = np.argsort(correlation[calls], kind="stable")
        ids = correlation[calls][order]
        at = np.minimum(np.searchsorted(ids, correlation[work]), ids.size - 1)
        launch[work] = np.where(ids[at] == correlation[work], calls[order[at]], NO_SPAN)
    return launch


def nearest_op(rows: Rows, parent: Rows, is_op: Flags) -> Rows:
    """For each of the rows the nearest ancestor, or itself, that is an operator."""
    op = rows.copy()
    if not is_op.size:
        return op
    open_ = np.flatnonzero((op >= 0) & ~is_op[op])
    left = _LOOKED_UP * is_op.size
    for _ in range(_HOPS):
        if not open_.size:
            return op
        if open_.size > left:
            break
        left -= open_.size
        above = parent[op[open_]]
        op[open_] = above
        open_ = open_[(above >= 0) & ~is_op[above]]
    op[open_] = intervals.nearest(parent, is_op)[op[open_]]
    return op


def by_external_id(op: Rows, calls: Rows, external: Rows, op_rows: Rows, op_external: Rows) -> None:
    """Fill in the operators of calls outside of any on their thread, by the recorder's id. Writes into `op`."""
    open_ = np.flatnonzero((op[calls] < 0) & (external > 0))
    if not open_.size:
        return
    wanted = np.sort(external[open_])
    # Mostly few calls are open: only the operators with their ids are sorted.
    asked = np.concatenate([
        low + np.flatnonzero(_is_in(op_external[low : low + _PIECE], wanted)) for low in range(0, op_rows.size, _PIECE)
    ] or [open_[:0]])  # fmt: skip
    if not asked.size:
        return
    asked = asked[np.argsort(op_external[asked], kind="stable")]
    ids, rows, wanted = op_external[asked], op_rows[asked], external[open_]
    at = np.minimum(np.searchsorted(ids, wanted), ids.size - 1)
    op[calls[open_]] = np.where(ids[at] == wanted, rows[at], NO_SPAN)


def _is_in(values: Rows, ordered: Rows) -> Flags:
    """Which of the values are among some in order, of which there is one."""
    is_one: Flags = ordered[np.minimum(np.searchsorted(ordered, values), ordered.size - 1)] == values
    return is_one


def step_of(points: Rows, starts: Rows, ends: Rows, numbers: Rows) -> Rows:
    """Number of the step that holds each time; NO_STEP between steps. Steps are disjoint and sorted."""
    step = np.full(points.size, NO_STEP, np.int32)
    for low in range(0, points.size if starts.size else 0, _PIECE):
        at = intervals.locate((starts, ends), points[low : low + _PIECE])
        step[low : low + _PIECE] = np.where(at >= 0, numbers[at], NO_STEP)
    return step


def step_column(step: Rows) -> pl.Series:
    """The column of what `step_of` returns."""
    return nullable(step, pl.Int32(), NO_STEP)


class Names:
    """Texts and their codes: each distinct text once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of a text, a new one if it is new."""
        known = self._codes.get(text)
        if known is None:
            known = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return known

    def codes(self, texts: Iterable[str]) -> NDArray[np.uint32]:
        """The codes of several texts."""
        return np.array([self.code(text) for text in texts], np.uint32)

    def of_keys(self, keys: NDArray[np.integer], text_of: Callable[[int], str]) -> NDArray[np.uint32]:
        """Codes for a column of keys of texts; `text_of` is called once for each distinct key."""
        distinct, inverse = unique(keys)
        return self.codes(text_of(int(key)) for key in distinct.tolist())[inverse]


class Tracks:
    """Tracks in order of first use, each with the key that identifies it."""

    def __init__(self) -> None:
        self._rows: dict[object, dict[str, object]] = {}

    def id(self, key: object, **columns: object) -> int:
        """track_id of a key; `columns` are those of the `tracks` table, used the first time."""
        row = self._rows.setdefault(key, columns | {"track_id": len(self._rows)})
        return int(str(row["track_id"]))

    def of_keys(self, keys: NDArray[np.integer], id_of: Callable[[int], int]) -> NDArray[np.uint32]:
        """Track ids for a column of numbers; `id_of` is asked once for each distinct number."""
        distinct, inverse = unique(keys)
        return np.array([id_of(int(key)) for key in distinct.tolist()], np.uint32)[inverse]

    def table(self, rank: int | None, host: str | None) -> pl.DataFrame:
        """The `tracks` table."""
        rows = [{"rank": rank, "host": host} | row for row in self._rows.values()]
        frame = pl.DataFrame(rows, schema_overrides={k: v for k, v in TRACKS.dtypes.items() if k != "kind"})
        return TRACKS.conform(frame) if rows else TRACKS.empty()


class Part(msgspec.Struct, frozen=True):
    """All spans of one table. `category` is one word, or a code for each span; `recorded` the recorder's own word.

    `link` is what a call and the work it queued have in common, unique among processes, 0 or less for none;
    `correlation` the number that the recorder shows for it.
    """

    category: str | NDArray[np.uint8]
    recorded: str
    ts: Rows
    end: Rows
    track: NDArray[np.uint32]
    name: NDArray[np.uint32]
    correlation: Rows | None = None
    link: Rows | None = None


class Sorted(msgspec.Struct, frozen=True):
    """Spans sorted by track, start, longest first. Times are ns from the origin, which is on the recorder's clock.

    `name` and `recorded` (the recorder's category) are codes of texts. `position` maps a row as recorded to its place
    here, −1 if it was dropped.
    """

    ts: Rows
    dur: Rows
    track: NDArray[np.uint32]
    name: NDArray[np.uint32]
    recorded: NDArray[np.unsignedinteger]
    position: Rows
    origin_ns: int


class Spans(msgspec.Struct, frozen=True):
    """The `spans` and `steps` tables; for each part the span ids of its rows; the origin, in the recorder's ns.

    Rows whose times cannot be have no span: their id is that of none. `of_spans` leaves them out of a side table.
    """

    spans: pl.DataFrame
    steps: pl.DataFrame
    ids: list[Rows]
    origin_ns: int

    def of_spans(self, side: pl.DataFrame) -> pl.DataFrame:
        """The rows of a side table that have a span, in order of spans."""
        return side.filter(pl.col("span_id") < self.spans.height).sort("span_id", maintain_order=True)


def unique(keys: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.intp]]:
    """Distinct values, and for each row the index of its own. Fast for small numbers and for long runs."""
    if not keys.size:
        return keys, np.empty(0, np.intp)
    low, high = int(keys.min()), int(keys.max())
    if low >= 0 and high < _SMALL:
        used = np.zeros(high + 1, np.bool_)
        used[keys] = True
        return np.flatnonzero(used), (np.cumsum(used) - 1)[keys]
    heads = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    distinct, inverse = np.unique(keys[heads], return_inverse=True)
    return distinct, np.repeat(inverse, np.diff(np.append(heads, keys.size)))


def code_of(category: str) -> int:
    """The code of a category."""
    return CODE[category]


def assemble(
    parts: Sequence[Part], texts: Sequence[str], is_device_track: Flags, issues: IssueLog, rank: int | None
) -> Spans:
    """One `spans` table of all parts, with parents, launches, operators and steps.

    Spans without a believable time are dropped, those that end before they start are given no length; both are
    counted. `is_device_track` says of each track whether it is a device's.
    """
    counts = [part.ts.size for part in parts]
    ts, end = (_joined([getattr(p, f) for p in parts], np.int64) for f in ("ts", "end"))
    dur = np.where(_is_time(ts) & _is_time(end), end - ts, ABSENT)
    del end
    track, name = _joined([p.track for p in parts], np.uint32), _joined([p.name for p in parts], np.uint32)
    recorded = np.repeat(np.arange(len(parts), dtype=np.uint16), counts)
    spans = believable(ts, dur, track, name, recorded, issues, "rows without a usable start and end were dropped")
    order = np.empty(spans.ts.size, np.int64)
    order[spans.position[spans.position >= 0]] = np.flatnonzero(spans.position >= 0)
    category = _joined([_category(p) for p in parts], np.uint8)[order]
    is_device = is_device_track[spans.track]
    parent = parents(spans.ts, spans.dur, spans.track, ~is_device)
    is_call = np.isin(category, CALLS)
    launch = launches(_joined([_or_absent(p.link, p) for p in parts], np.int64)[order], is_call, is_device)
    op = operators(category, is_device, parent, launch)
    steps, step = steps_of(spans, (category == CODE["step"]) & ~is_device, texts, rules.step_number, launch, rank)
    frame = span_table(
        spans, texts, [p.recorded for p in parts], category, step,
        {"correlation": _joined([_or_absent(p.correlation, p) for p in parts], np.int64)[order]},
        {"parent_id": parent, "launch_id": launch, "op_id": op},
    )  # fmt: skip
    note_coverage(spans.dur, np.isin(category, WORK) & is_device, launch, issues)
    place = np.where(spans.position >= 0, spans.position.astype(np.int64), _NOT_THERE)
    ids = np.split(place, np.cumsum(counts)[:-1]) if parts else []
    return Spans(frame, steps, ids, spans.origin_ns)


def _category(part: Part) -> NDArray[np.uint8]:
    if isinstance(part.category, str):
        return np.full(part.ts.size, CODE[part.category], np.uint8)
    return part.category


def _or_absent(values: Rows | None, part: Part) -> Rows:
    return np.full(part.ts.size, ABSENT, np.int64) if values is None else values


def _joined(arrays: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate([*arrays, np.empty(0, dtype)])


def believable(
    ts: Rows,
    dur: Rows,
    track: NDArray[np.uint32],
    name: NDArray[np.uint32],
    recorded: NDArray[np.unsignedinteger],
    issues: IssueLog,
    incomplete: str,
) -> Sorted:
    """The rows that have a believable time, sorted. Units: ns.

    Durations below zero are set to zero, in place. What was dropped or repaired is counted in `issues`; `incomplete`
    says what rows without a time are.
    """
    lacks_time = (ts == ABSENT) | (dur == ABSENT)
    issues.add("incomplete_events", "warning", int(lacks_time.sum()), incomplete)
    negative = (dur < 0) & (dur != ABSENT)
    issues.add("negative_durations", "warning", int(negative.sum()), "durations below zero were set to zero")
    np.maximum(dur, 0, out=dur, where=dur != ABSENT)
    with threads_for(ts.size) as start:
        judged = start(_near_the_most, ts, dur)
        order = sorted_order(ts, dur, track)
        is_sound, n_far = judged()
    issues.add("far_times", "warning", n_far, "events more than a day from the others: two clocks may be mixed")
    if not is_sound.all():
        n_wild = int((~is_sound & ~lacks_time).sum())
        issues.add("wild_times", "warning", n_wild, "events more than a day from the others were dropped")
        order = order[is_sound[order]]
    return _in_order(order, ts, dur, track, name, recorded, int(ts[is_sound].min()) if is_sound.any() else 0)


def _is_time(times: Rows) -> Flags:
    near: Flags = (times > -_FARTHEST_NS) & (times < _FARTHEST_NS)
    return near


def _near_the_most(ts: Rows, dur: Rows) -> tuple[Flags, int]:
    """Which times can be, and how many of these are far from the others but too many to be dropped."""
    n_far = 0
    is_sound: Flags = _is_time(ts) & (dur != ABSENT) & (dur <= LONGEST_NS)
    if dur[is_sound].sum(dtype=np.float64) >= _FARTHEST_NS:  # else sums would not fit 64 bits
        is_sound &= dur <= _FARTHEST_NS // dur.size
    if is_sound.all() and ts.size and int(ts.max()) - int(ts.min()) <= _DAY_NS:
        return is_sound, 0  # as most are, for which a median would take much memory
    if is_sound.any():
        middle = int(np.median(ts[is_sound]))
        near = np.abs(ts - middle) <= _DAY_NS
        is_sound &= np.abs(ts - middle) <= _FARTHEST_NS  # whatever share that is: times from the origin must fit
        n_far = int((is_sound & ~near).sum())
        if n_far <= max(_MOST_WILD_RATIO * ts.size, 2):
            is_sound &= near
            n_far = 0
    return is_sound, n_far


def sorted_order(ts: Rows, dur: Rows, track: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Stable order by track, start, longest first."""
    order = stable_order(track, ts)
    begins, tracks = ts.take(order), track.take(order)
    same = (begins[1:] == begins[:-1]) & (tracks[1:] == tracks[:-1])
    if same.any():
        tied = np.zeros(ts.size, bool)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        order[tied] = rows[np.lexsort((-dur[rows], ts[rows], track[rows]))]
    return order


def _in_order(
    order: NDArray[np.intp],
    ts: Rows,
    dur: Rows,
    track: NDArray[np.uint32],
    name: NDArray[np.uint32],
    recorded: NDArray[np.unsignedinteger],
    origin_ns: int,
) -> Sorted:
    position = np.full(ts.size, -1, row_type(ts.size))
    with threads_for(ts.size) as start:
        of_text = start(lambda: (name.take(order), recorded.take(order)))
        lengths = start(lambda: (on_file(dur.take(order)), on_file(track.take(order))))
        position[order] = np.arange(order.size, dtype=position.dtype)
        begins = ts.take(order)
        begins -= origin_ns
        begins = on_file(begins)
        return Sorted(begins, *lengths(), *of_text(), position, origin_ns)


def operators(
    category: NDArray[np.uint8],
    is_device: Flags,
    parent: Rows,
    launch: Rows,
    external: tuple[Rows, Rows] | None = None,
) -> Rows:
    """For each call the operator that it was made in, and for device work that of its launch; −1 for none.

    `external` are rows of calls and device work, and the recorder's own id of each span: they say it for calls outside
    of any operator on their thread.
    """
    op = np.full(category.size, NO_SPAN, row_type(category.size))
    is_op, is_call = category == CODE["operator"], np.isin(category, CALLS)
    op_rows, calls = np.flatnonzero(is_op), np.flatnonzero(is_call)
    if not op_rows.size:
        return op
    op[calls] = nearest_op(calls.astype(op.dtype), parent, is_op)
    if external is not None:
        rows, ids = external
        by_external_id(op, rows, ids[rows], op_rows, ids[op_rows])
    work = np.flatnonzero(is_device)
    through = launch[work]
    of_launch = np.where(through >= 0, op[through], NO_SPAN)
    loose = (through >= 0) & (of_launch < 0) & ~is_call[through]  # tied by an arrow to something that is no call
    of_launch[loose] = nearest_op(through[loose], parent, is_op)
    op[work] = of_launch
    return op


def steps_of(
    spans: Sorted,
    is_step: Flags,
    texts: Sequence[str],
    number_of: Callable[[str], int | None],
    launch: Rows,
    rank: int | None,
) -> tuple[pl.DataFrame, pl.Series]:
    """The `steps` table, and each span's step: host work by time, device work as its launch, else by time.

    A step noted on several threads counts once: on the thread that has most of them.
    """
    rows = np.flatnonzero(is_step)
    of_name = {i: number_of(texts[i]) for i in distinct_values(spans.name[rows]).tolist()}
    numbers = {i: n for i, n in of_name.items() if n is not None and abs(n) < 2**31}
    rows = rows[np.isin(spans.name[rows], list(numbers))]
    if rows.size:
        rows = rows[spans.track[rows] == np.argmax(np.bincount(spans.track[rows]))]
    number = np.array([numbers[i] for i in spans.name[rows].tolist()], np.int64)
    starts, lengths = spans.ts[rows], spans.dur[rows]
    ends = np.minimum(starts + lengths, np.append(starts[1:], np.iinfo(np.int64).max)[: starts.size])
    frame = pl.DataFrame({"step": number, "ts_ns": starts, "dur_ns": lengths}).with_columns(
        pl.lit(rank, dtype=pl.Int32).alias("rank"), pl.lit("annotation").alias("source")
    )
    step = step_of(spans.ts, starts, ends, number)
    is_linked = launch >= 0
    step[is_linked] = step[launch[is_linked]]
    return STEPS.conform(frame), step_column(step)


def span_table(
    spans: Sorted,
    texts: Sequence[str],
    recorded: Sequence[str | None],
    category: NDArray[np.uint8],
    step: pl.Series,
    ids: Mapping[str, Rows | pl.Series],
    rows: Mapping[str, Rows],
    flow: pl.Series | None = None,
) -> pl.DataFrame:
    """The `spans` table. `ids` are the recorder's (ABSENT: none), `rows` those of other spans (−1: none), by column."""
    frame = pl.DataFrame({
        # Marked as sorted: whoever looks spans up by their ids need not look through all of them first.
        "span_id": mapped(pl.Series(np.arange(spans.ts.size, dtype=np.uint32)).set_sorted()),
        "track_id": spans.track,
        "ts_ns": spans.ts,
        "dur_ns": spans.dur,
        "name": mapped(pl.Series(list(texts), dtype=Name)[spans.name]),
        "category": mapped(pl.Series(CATEGORIES, dtype=Category)[category]),
        "recorded_category": mapped(pl.Series(list(recorded), dtype=Name)[spans.recorded]),
        **{name: one if isinstance(one, pl.Series) else id_column(one) for name, one in ids.items()},
        **{name: mapped(nullable(one.astype(np.uint32), pl.UInt32(), _NOT_THERE)) for name, one in rows.items()},
        "step": mapped(step),
        **({} if flow is None else {"flow": flow}),
    })  # fmt: skip
    return SPANS.conform(frame)


def id_column(ids: Rows) -> pl.Series:
    """A column of ids that the recorder gave (ABSENT: none)."""
    return mapped(nullable(ids, pl.Int64()))


def note_coverage(dur: Rows, is_work: Flags, launch: Rows, issues: IssueLog, op: Rows | None = None) -> None:
    """How much device work could not be tied to its launch, and with `op` to its operator, by number and by time."""
    n_work, work_ns = int(is_work.sum()), int(dur[is_work].sum())
    gaps = [("no_launch", is_work & (launch < 0), "device events have no launch in the trace")]
    if op is not None:
        what = "device events were launched by a call outside any operator"
        gaps.append(("no_operator", is_work & (op < 0) & (launch >= 0), what))
    for code, bare, what in gaps:
        n = int(bare.sum())
        share = f"{n:,} of {n_work:,} {what} ({dur[bare].sum() / max(work_ns, 1):.1%} of device time)"
        issues.add(code, "warning" if code == "no_launch" and 2 * n > n_work else "info", n, share)
