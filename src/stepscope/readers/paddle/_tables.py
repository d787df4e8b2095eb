"""From a Paddle recording to the tables of a Trace.

What Paddle calls an operator is one here; the phases inside it (shape inference, kernel launch) and the framework's own
ranges around it are `other`: as operators they would take its time and its kernels away. `recorded_category` keeps
Paddle's word for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.schema import CATEGORIES, SPANS, STEPS, Category, Name
from stepscope.readers.chrome.spans import placed
from stepscope.readers.common import links as _links
from stepscope.readers.common.columns import ABSENT, nullable
from stepscope.readers.paddle import _side_tables
from stepscope.readers.paddle._tracks import Tracks, build_tracks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.issues import Notes
    from stepscope.readers.paddle._recording import Recording

    Rows = NDArray[np.int64]

CATEGORY = {
    "Operator": "operator",
    "Communication": "operator",
    "Dataloader": "dataloader",
    "ProfileStep": "step",
    "CudaRuntime": "runtime",
    "MluRuntime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
    "Forward": "module",
    "Backward": "user_range",
    "Optimization": "user_range",
    "PythonUserDefined": "user_range",
    "PythonOp": "python",
}
_CODE = {name: i for i, name in enumerate(CATEGORIES)}
_STEP = re.compile(r"ProfileStep#(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Spans:
    """All events with a start and an end, sorted by track, start, longest first.

    `host`, `runtime` and `device` give the place here of each row of the recording's tables, −1 if it was dropped.
    """

    ts: Rows
    dur: Rows
    track: NDArray[np.uint32]
    name: NDArray[np.uint32]
    type: NDArray[np.uint32]
    host: Rows
    runtime: Rows
    device: Rows
    origin_ns: int


def build_tables(
    recording: Recording, notes: Notes, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(recording, rank, host)
    spans = _spans(recording, tracks, notes)
    by_type = np.array([_CODE[CATEGORY.get(word, "other")] for word in recording.types] or [0], np.uint8)
    category = by_type[spans.type]
    parent, launch = _parents(recording, spans, notes), _launches(recording, spans)
    is_op = category == _CODE["operator"]
    op = np.full(spans.ts.size, -1, np.int64)
    calls = np.flatnonzero(category == _CODE["runtime"])
    op[calls] = _links.nearest_op(calls, parent, is_op)
    work = np.flatnonzero(launch >= 0)
    op[work] = op[launch[work]]
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}
    tables["steps"], step = _steps(recording, spans, category, launch, rank)
    links = {"parent_id": parent, "launch_id": launch, "op_id": op}
    tables["spans"] = _span_frame(recording, spans, category, links, step)
    tables["ops"], tables["stacks"] = _side_tables.ops(recording, spans.host)
    tables["kernels"] = _side_tables.kernels(
        recording, spans.device, np.flatnonzero(category == _CODE["kernel"]), spans.name
    )
    tables["transfers"] = _side_tables.transfers(recording, spans.device, spans.name)
    tables["collectives"] = _side_tables.collectives(tables["spans"])
    tables |= _side_tables.memory(recording, tracks, spans.host, spans.origin_ns, parent, is_op, notes)
    return {name: frame for name, frame in tables.items() if not frame.is_empty()}, spans.origin_ns


def _spans(recording: Recording, tracks: Tracks, notes: Notes) -> Spans:
    parts = (recording.host, recording.runtime, recording.device)
    ts, end, name, type_ = (np.concatenate([part[c] for part in parts]) for c in ("start", "end", "name", "type"))
    dur = end - ts
    track = np.concatenate((tracks.of_host, tracks.of_runtime, tracks.of_device))
    order, place, origin = placed(ts, dur, track, notes, "events without a start or an end were dropped")
    first, second, _ = np.cumsum([part["name"].size for part in parts]).tolist()
    return Spans(
        ts[order] - origin, dur[order], track[order], name[order], type_[order],
        place[:first], place[first:second], place[second:], origin,
    )  # fmt: skip


def _parents(recording: Recording, spans: Spans, notes: Notes) -> Rows:
    """The recorded tree: of host events the event around them, of calls the event that they were made in."""
    parent = np.full(spans.ts.size, -1, np.int64)
    for place, link in ((spans.host, recording.host["parent"]), (spans.runtime, recording.runtime["host"])):
        up = np.where(link >= 0, spans.host[link], -1) if spans.host.size else np.full(link.size, -1, np.int64)
        kept = place >= 0
        parent[place[kept]] = up[kept]
    # Parents come first on their own thread; whatever else a damaged file says could make rings of them.
    rows = np.arange(parent.size)
    odd = (parent >= rows) | ((parent >= 0) & (spans.track[parent] != spans.track))
    notes.add("odd_parents", "warning", int(odd.sum()), "events inside one that begins later or on another thread")
    return np.where(odd, -1, parent)


def _launches(recording: Recording, spans: Spans) -> Rows:
    launch = np.full(spans.ts.size, -1, np.int64)
    if spans.runtime.size:
        link = recording.device["runtime"]
        kept = spans.device >= 0
        launch[spans.device[kept]] = np.where(link >= 0, spans.runtime[link], -1)[kept]
    return launch


def _steps(
    recording: Recording, spans: Spans, category: NDArray[np.uint8], launch: Rows, rank: int | None
) -> tuple[pl.DataFrame, Rows]:
    """The steps table, and each span's step: host work by time, device work as its launch."""
    found = np.flatnonzero(category == _CODE["step"])
    numbers = {
        i: int(m[1]) for i in np.unique(spans.name[found]).tolist() if (m := _STEP.fullmatch(recording.names[i]))
    }
    found = found[np.isin(spans.name[found], list(numbers))]
    if found.size:  # steps noted on several threads count once: on the thread that has most of them
        found = found[spans.track[found] == np.argmax(np.bincount(spans.track[found]))]
    number = np.array([numbers[i] for i in spans.name[found].tolist()], np.int64)
    starts = spans.ts[found]
    ends = np.minimum(starts + spans.dur[found], np.append(starts[1:], np.iinfo(np.int64).max)[: starts.size])
    frame = pl.DataFrame({"step": number, "ts_ns": starts, "dur_ns": spans.dur[found]})
    frame = frame.with_columns(rank=pl.lit(rank, pl.Int32), source=pl.lit("annotation"))
    step = _links.step_of(spans.ts, starts, ends, number)
    linked = launch >= 0
    step[linked] = step[launch[linked]]
    return STEPS.conform(frame), step


def _span_frame(
    recording: Recording, spans: Spans, category: NDArray[np.uint8], links: dict[str, Rows], step: Rows
) -> pl.DataFrame:
    correlation = np.full(spans.ts.size, ABSENT, np.int64)
    for place, table in ((spans.runtime, recording.runtime), (spans.device, recording.device)):
        correlation[place[place >= 0]] = table["correlation"][place >= 0]
    words = [word or None for word in recording.types]
    frame = pl.DataFrame({
        "span_id": np.arange(spans.ts.size, dtype=np.uint32),
        "track_id": spans.track,
        "ts_ns": spans.ts,
        "dur_ns": spans.dur,
        "name": pl.Series(recording.names, dtype=Name).gather(pl.Series(spans.name)),
        "category": pl.Series(CATEGORIES, dtype=Category).gather(pl.Series(category)),
        "recorded_category": pl.Series(words, dtype=Name).gather(pl.Series(spans.type)),
        "correlation": nullable(correlation, pl.Int64()),
        **{name: nullable(rows.astype(np.int32), pl.UInt32(), -1) for name, rows in links.items()},
        "step": nullable(step, pl.Int32()),
    })  # fmt: skip
    return SPANS.conform(frame)
