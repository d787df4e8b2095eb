"""Threads, streams and devices of a Paddle recording."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.schema import DEVICES, TRACKS
from stepscope.readers.chrome.tracks import device_type
from stepscope.readers.common.columns import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.paddle._recording import Columns, Recording

    Rows = NDArray[np.int64]

_PLACE = re.compile(r"Place\((?P<kind>\w+?)(?::(?P<index>\d{1,4}))?\)")
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True, slots=True)
class Tracks:
    """The two tables; the track of each row of the recording's tables; and the device of each of its texts (places)."""

    tracks: pl.DataFrame
    devices: pl.DataFrame
    of_host: NDArray[np.uint32]
    of_runtime: NDArray[np.uint32]
    of_device: NDArray[np.uint32]
    of_memory: NDArray[np.uint32]
    device_of_place: Rows


def build_tracks(recording: Recording, rank: int | None, host: str | None) -> Tracks:
    """Threads in the order of their ids, in which Paddle goes through them, then streams by device and number."""
    parts = (recording.host, recording.runtime, recording.memory)
    threads, of_thread = _pairs(_joined(parts, "tid"), _joined(parts, "pid"))
    streams, of_device = _pairs(recording.device["device"], recording.device["stream"])
    places = [_place(text) for text in recording.texts]
    indices = {index for index in (*(device for device, _ in streams), *places) if index is not None and index >= 0}
    devices = _devices(recording, indices)
    device_id = {index: i for i, index in enumerate(devices["index"].to_list())}
    # The tables have numbers of signed 64 bits; a thread id that needs all of 64 is read as a negative one.
    rows: list[tuple[Any, ...]] = [
        (rank, host, _known(pid), _known(tid), None, None, "thread", recording.extra.get(str(tid)))
        for tid, pid in threads
    ]
    rows += [
        (rank, host, None, None, device_id.get(device), _known(stream), "stream", f"stream {stream}")
        for device, stream in streams
    ]
    names = ("rank", "host", "pid", "tid", "device_id", "stream", "kind", "label")
    types = {name: TRACKS.dtypes[name] for name in names}
    tracks = pl.DataFrame(rows, schema=types, orient="row").with_row_index("track_id")
    first, second, _ = np.cumsum([part["pid"].size for part in parts]).tolist()
    return Tracks(
        TRACKS.conform(tracks), devices,
        of_thread[:first], of_thread[first:second], of_device + np.uint32(len(threads)), of_thread[second:],
        np.array([-1 if index is None else device_id.get(index, 0) for index in places] or [-1], np.int64),
    )  # fmt: skip


def _joined(parts: tuple[Columns, ...], name: str) -> Rows:
    return np.concatenate([part[name] for part in parts])


def _pairs(first: Rows, second: Rows) -> tuple[list[tuple[int, int]], NDArray[np.uint32]]:
    """The distinct pairs in order, and for each row the number of its pair."""
    a, of_a = np.unique(first, return_inverse=True)
    b, of_b = np.unique(second, return_inverse=True)
    codes, inverse = np.unique(of_a * max(b.size, 1) + of_b, return_inverse=True)
    pairs = [(int(a[code // b.size]), int(b[code % b.size])) for code in codes.tolist()]
    return pairs, inverse.astype(np.uint32)


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


def _place(text: str) -> int | None:
    """Index of the device whose memory a place is: −1 for the host's, None where it does not say."""
    match = _PLACE.fullmatch(text)
    if match is None or match["kind"].endswith("_pinned"):
        return None
    return -1 if match["kind"] == "cpu" else int(match["index"] or 0)


def _devices(recording: Recording, indices: set[int]) -> pl.DataFrame:
    """The host, then the accelerators in order of their index."""
    properties = {p["id"]: p for p in recording.devices if isinstance(p.get("id"), int)}
    used = np.unique(recording.runtime["name"]).tolist()
    kind = device_type({"deviceProperties": recording.devices}, (), (recording.names[i] for i in used))
    rows: list[tuple[Any, ...]] = [(0, "cpu", None, None, None, None, None)]
    for index in sorted({*indices, *properties}):
        if 0 <= index < _MOST_DEVICES:
            p = properties.get(index, {})
            major, minor = p.get("computeMajor"), p.get("computeMinor")
            capability = f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None
            name, memory = p.get("name") or None, p.get("totalGlobalMem")
            rows.append((len(rows), kind, index, name, _small(p.get("smCount")), memory, capability))
    return pl.DataFrame(rows, schema=dict(DEVICES.dtypes), orient="row")


def _small(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**31 else None
