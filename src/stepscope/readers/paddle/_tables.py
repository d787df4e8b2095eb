"""From a Paddle recording to the tables of a Trace.

What Paddle calls an operator is one here; the phases inside it (shape inference, kernel launch) and the framework's own
ranges around it are `other`: as operators they would take its time and its kernels away. `recorded_category` keeps
Paddle's word for each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.span_builder import CODE, Sorted, believable, operators, span_table, steps_of
from stepscope.readers.paddle import _side_tables
from stepscope.readers.paddle._tracks import build_tracks

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from stepscope.readers.common.issues import IssueLog
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
_STEP = re.compile(r"ProfileStep#(\d{1,9})")


class _Places(NamedTuple):
    """Where each row of the recording's tables is among the sorted spans, −1 if it was dropped."""

    host: Rows
    runtime: Rows
    device: Rows


def build_tables(
    recording: Recording, issues: IssueLog, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    tracks = build_tracks(recording, rank, host)
    parts = (recording.host, recording.runtime, recording.device)
    ts, end, name, type_ = (np.concatenate([part[c] for part in parts]) for c in ("start", "end", "name", "type"))
    track = np.concatenate((tracks.of_host, tracks.of_runtime, tracks.of_device))
    what = "events without a start or an end were dropped"
    spans = believable(ts, end - ts, track, name, type_, issues, what)
    first, second, _ = np.cumsum([part["name"].size for part in parts]).tolist()
    places = _Places(*np.split(spans.position, [first, second]))
    by_type = np.array([CODE[CATEGORY.get(word, "other")] for word in recording.types] or [0], np.uint8)
    category = by_type[spans.recorded]
    parent, launch = _parents(recording, spans, places, issues), _launches(recording, places, spans.ts.size)
    op = operators(category, launch >= 0, parent, launch)
    tables = {"tracks": tracks.tracks, "devices": tracks.devices}
    tables["steps"], step = steps_of(spans, category == CODE["step"], recording.names, _step_number, launch, rank)
    correlation = np.full(spans.ts.size, ABSENT, np.int64)
    for place, table in ((places.runtime, recording.runtime), (places.device, recording.device)):
        correlation[place[place >= 0]] = table["correlation"][place >= 0]
    types = [word or None for word in recording.types]
    rows = {"parent_id": parent, "launch_id": launch, "op_id": op}
    tables["spans"] = span_table(spans, recording.names, types, category, step, {"correlation": correlation}, rows)
    tables["ops"], tables["stacks"] = _side_tables.ops(recording, places.host)
    tables["kernels"] = _side_tables.kernels(
        recording, places.device, np.flatnonzero(category == CODE["kernel"]), spans.name
    )
    tables["transfers"] = _side_tables.transfers(recording, places.device, spans.name)
    tables["collectives"] = _side_tables.collectives(tables["spans"])
    tables |= _side_tables.memory(
        recording, tracks, places.host, spans.origin_ns, parent, category == CODE["operator"], issues
    )
    return {name: frame for name, frame in tables.items() if not frame.is_empty()}, spans.origin_ns


def _parents(recording: Recording, spans: Sorted, places: _Places, issues: IssueLog) -> Rows:
    """The recorded tree: of host events the event around them, of calls the event that they were made in."""
    parent = np.full(spans.ts.size, -1, np.int64)
    for place, link in ((places.host, recording.host["parent"]), (places.runtime, recording.runtime["host"])):
        up = np.where(link >= 0, places.host[link], -1) if places.host.size else np.full(link.size, -1, np.int64)
        is_there = place >= 0
        parent[place[is_there]] = up[is_there]
    # Parents come first on their own thread; whatever else a damaged file says could make rings of them.
    rows = np.arange(parent.size)
    odd = (parent >= rows) | ((parent >= 0) & (spans.track[parent] != spans.track))
    issues.add("odd_parents", "warning", int(odd.sum()), "events inside one that begins later or on another thread")
    return np.where(odd, -1, parent)


def _launches(recording: Recording, places: _Places, n_spans: int) -> Rows:
    launch = np.full(n_spans, -1, np.int64)
    if places.runtime.size:
        link = recording.device["runtime"]
        is_there = places.device >= 0
        launch[places.device[is_there]] = np.where(link >= 0, places.runtime[link], -1)[is_there]
    return launch


def _step_number(name: str) -> int | None:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None
