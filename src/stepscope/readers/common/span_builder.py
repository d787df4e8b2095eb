"""Spans from columns that a reader has ready as arrays: sorted, nested, tied to their launches.

For formats that come as tables (databases, CSV files). What a reader hands over are parts, a part being all spans of
one table: kernels, runtime calls, ranges. Kineto traces, whose events come mixed and may be damaged, take `_tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from stepscope.core import names as rules
from stepscope.core.schema import CATEGORIES, DEVICE_WORK, SPANS, STEPS, TRACKS, Category, Name
from stepscope.readers.chrome.spans import sorted_order
from stepscope.readers.common import links
from stepscope.readers.common.columns import ABSENT, nullable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from stepscope.readers.common.issues import Notes

    Rows = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)

_CODE = {name: i for i, name in enumerate(CATEGORIES)}
_CALLS = ("runtime", "driver")
_SMALL = 1 << 22


class Names:
    """Texts and their codes: each distinct text once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of a text, a new one if it is new."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found

    def codes(self, texts: Iterable[str]) -> NDArray[np.uint32]:
        """The codes of several texts."""
        return np.array([self.code(text) for text in texts], np.uint32)

    def of_keys(self, keys: NDArray[np.integer], text_of: Callable[[int], str]) -> NDArray[np.uint32]:
        """Codes for a column of numbers that stand for texts; `text_of` is asked once for each distinct number."""
        distinct, inverse = unique(keys)
        return self.codes(text_of(int(key)) for key in distinct.tolist())[inverse]


class Tracks:
    """Tracks in order of first use, by whatever tells them apart."""

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


@dataclass(frozen=True, slots=True)
class Part:
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


@dataclass(frozen=True, slots=True)
class Spans:
    """The `spans` and `steps` tables; for each part the span ids of its rows; the origin, in the recorder's ns."""

    spans: pl.DataFrame
    steps: pl.DataFrame
    ids: list[Rows]
    origin_ns: int


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
    return _CODE[category]


def assemble(
    parts: Sequence[Part], texts: Sequence[str], is_device_track: Flags, notes: Notes, rank: int | None
) -> Spans:
    """One `spans` table of all parts, with parents, launches, operators and steps.

    Spans that end before they start are given no length, and counted. `is_device_track` says of each track whether it
    is a device's.
    """
    counts = [part.ts.size for part in parts]
    ts, end = (_joined([getattr(p, f) for p in parts], np.int64) for f in ("ts", "end"))
    n_reversed = int((end < ts).sum())
    notes.add("negative_durations", "warning", n_reversed, "durations below zero were set to zero")
    origin = int(ts.min()) if ts.size else 0
    dur = np.maximum(end - ts, 0)
    ts -= origin
    del end
    track = _joined([p.track for p in parts], np.uint32)
    order = sorted_order(ts, dur, track)
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    ts, dur, track = ts[order], dur[order], track[order]
    category = _joined([_category(p) for p in parts], np.uint8)[order]
    is_host = ~is_device_track[track]
    parent = links.parents(ts, dur, track, is_host)
    is_call = np.isin(category, [_CODE[c] for c in _CALLS])
    launch = links.launches(_joined([_or_absent(p.link, p) for p in parts], np.int64)[order], is_call, ~is_host)
    op = _operators(category, is_call, is_host, parent, launch)
    name = _joined([p.name for p in parts], np.uint32)[order]
    steps, step = _steps(ts, dur, track, name, texts, (category == _CODE["step"]) & is_host, launch, rank)
    recorded = np.repeat(np.arange(len(parts), dtype=np.uint16), counts)[order]
    correlation = _joined([_or_absent(p.correlation, p) for p in parts], np.int64)[order]
    frame = pl.DataFrame({
        "span_id": np.arange(ts.size, dtype=np.uint32),
        "track_id": track,
        "ts_ns": ts,
        "dur_ns": dur,
        "name": pl.Series(list(texts), dtype=Name).gather(pl.Series(name)),
        "category": pl.Series(CATEGORIES, dtype=Category).gather(pl.Series(category)),
        "recorded_category": pl.Series([p.recorded for p in parts], dtype=Name).gather(pl.Series(recorded)),
        "correlation": nullable(correlation, pl.Int64()),
        "external_id": pl.repeat(None, ts.size, dtype=pl.Int64, eager=True),
        **{
            column: nullable(rows.astype(np.int32), pl.UInt32(), -1)
            for column, rows in (("parent_id", parent), ("launch_id", launch), ("op_id", op))
        },
        "step": nullable(step, pl.Int32()),
        "flow": pl.repeat(None, ts.size, dtype=pl.Boolean, eager=True),
    }, schema=dict(SPANS.dtypes))  # fmt: skip
    _coverage(dur, category, is_host, launch, notes)
    return Spans(frame, steps, np.split(position, np.cumsum(counts)[:-1]) if parts else [], origin)


def _category(part: Part) -> NDArray[np.uint8]:
    if isinstance(part.category, str):
        return np.full(part.ts.size, _CODE[part.category], np.uint8)
    return part.category


def _or_absent(values: Rows | None, part: Part) -> Rows:
    return np.full(part.ts.size, ABSENT, np.int64) if values is None else values


def _joined(arrays: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate([*arrays, np.empty(0, dtype)])


def _operators(category: NDArray[np.uint8], is_call: Flags, is_host: Flags, parent: Rows, launch: Rows) -> Rows:
    """For each call and each piece of device work the innermost operator behind it."""
    op = np.full(category.size, links.NONE, np.int64)
    is_op = category == _CODE["operator"]
    if is_op.any():
        calls = np.flatnonzero(is_call)
        op[calls] = links.nearest_op(calls, parent, is_op)
        work = np.flatnonzero(~is_host & (launch >= 0))
        op[work] = op[launch[work]]
    return op


def _steps(
    ts: Rows,
    dur: Rows,
    track: NDArray[np.uint32],
    name: NDArray[np.uint32],
    texts: Sequence[str],
    is_step: Flags,
    launch: Rows,
    rank: int | None,
) -> tuple[pl.DataFrame, Rows]:
    """The `steps` table, and each span's step. A step noted on several threads counts on the one that has most."""
    found = np.flatnonzero(is_step)
    if found.size:
        found = found[track[found] == np.argmax(np.bincount(track[found]))]
    number = np.array([rules.step_number(texts[i]) for i in name[found].tolist()], np.int64)
    starts, lengths = ts[found], dur[found]
    ends = np.minimum(starts + lengths, np.append(starts[1:], np.iinfo(np.int64).max))
    step = links.step_of(ts, starts, ends, number)
    tied = launch >= 0
    step[tied] = step[launch[tied]]
    frame = pl.DataFrame({"step": number, "ts_ns": starts, "dur_ns": lengths}).with_columns(
        pl.lit(rank, dtype=pl.Int32).alias("rank"), pl.lit("annotation").alias("source")
    )
    return STEPS.conform(frame), step


def _coverage(dur: Rows, category: NDArray[np.uint8], is_host: Flags, launch: Rows, notes: Notes) -> None:
    """How much device work could not be tied to its launch, by number and by time."""
    is_work = np.isin(category, [_CODE[c] for c in DEVICE_WORK]) & ~is_host
    bare = is_work & (launch < 0)
    n, n_work, of = int(bare.sum()), int(is_work.sum()), int(dur[is_work].sum())
    share = f"{dur[bare].sum() / max(of, 1):.1%} of device time"
    share = f"{n:,} of {n_work:,} device events have no launch in the trace ({share})"
    notes.add("no_launch", "warning" if 2 * n > n_work else "info", n, share)
