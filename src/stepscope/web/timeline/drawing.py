"""What the browser draws of a trace: a window of the timeline, or a stretch to be carried in a file, packed as bytes.

Layout of the bytes, little-endian: 4 bytes length of the header, the header (JSON in UTF-8, padded with blanks to a
multiple of 8 bytes with those 4), then typed arrays, each padded to 8 bytes. The header's `arrays` holds for each its
name, its type (of JavaScript's typed arrays), its byte offset after the header, and its length.

Arrays: of spans in full `lane` (index into the header's `lanes`), `id`, `start` (ns after low), `dur`, `name` (index
into `names`), `category`; of bars `bar_lane`, `bar_pixel`, `bar_busy` (share of the pixel), `bar_count`, `bar_id`,
`bar_category`; of sampled lines `line`, `line_pixel`, `line_min`, `line_max`, `line_last`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.names import shorten
from stepscope.core.patterns import regex
from stepscope.core.report import printable
from stepscope.web.timeline.level_of_detail import View, counts_between, pixel_edges, window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.web.timeline.scene import Line, Scene

    Arrays = dict[str, np.ndarray[Any, Any]]
    Ints = NDArray[np.int64]

_LONGEST_NAME = 400
_DRAWN_NAME = 80
#: What PyTorch calls a Python frame.
_FRAME = regex(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
#: Pixels of a stretch with too many spans, and of sampled lines where all spans are in full.
_FINEST, _COARSEST = 32_000, 500
_LINE_PIXELS = 1_500
_NO_LAUNCH = 2**32 - 1
_TYPES = {"u1": "Uint8Array", "u2": "Uint16Array", "u4": "Uint32Array", "i4": "Int32Array", "f4": "Float32Array",
          "f8": "Float64Array"}  # fmt: skip


def draw_window(scene: Scene, low: int, high: int, n_pixels: int, tracks: Sequence[int], flat: Sequence[int]) -> bytes:
    """The window [low, high) as the browser draws it: all lanes of `tracks`, the outermost of those in `flat`."""
    lanes = scene.lanes
    outer = lanes.of_tracks(flat)
    wanted = np.union1d(lanes.of_tracks(tracks), outer[lanes.depths[outer] == 0])
    view = window(lanes, wanted.tolist(), low, high, n_pixels)
    header, arrays = _picture(scene, view, wanted, lanes.depths[wanted], scene.lines, pixel_edges(low, high, n_pixels))
    return pack(header, arrays)


class Part(msgspec.Struct, frozen=True, eq=False):
    """A stretch of a trace, packed as windows are, with `launch` of each span.

    `lanes` says how many lanes each track has in it, `lines` which of the scene's lines it holds, `n_merged` how many
    spans are in bars.
    """

    data: bytes
    lanes: Mapping[int, int]
    lines: tuple[int, ...]
    n_merged: int


def draw_stretch(scene: Scene, low: int, high: int, most_spans: int, most_points: int) -> Part:
    """The stretch [low, high) of a trace, in ns: its spans in full if they are at most so many, else the short in bars.

    Lanes without spans are left out, and those below them move up. Sampled lines have some `most_points` points.
    """
    lanes = scene.lanes
    at = tuple(i for i, line in enumerate(scene.lines) if line.times[0] < high)  # the rest began later
    lines = [scene.lines[i] for i in at]
    view, n_pixels = _view(scene, low, high, most_spans, _finest(lines, low, high, most_points))
    used = np.union1d(view.full_lane, view.bar_lane)
    tracks = lanes.tracks[used]
    depths = np.arange(used.size) - np.searchsorted(tracks, tracks)  # lanes are sorted by track, then depth
    header, arrays = _picture(scene, view, used, depths, lines, pixel_edges(low, high, n_pixels))
    launches = scene.trace.spans["launch_id"].gather(arrays["id"]).cast(pl.Int64).fill_null(_NO_LAUNCH)
    arrays["launch"] = launches.to_numpy().astype("u4")
    for name in ("line_min", "line_max", "line_last"):
        arrays[name] = arrays[name].astype("f4")  # half the digits do for a picture
    n_lanes = dict(zip(*(a.tolist() for a in np.unique(tracks, return_counts=True)), strict=True))
    return Part(pack(header, arrays), n_lanes, at, int(view.bar_count.sum()))


def _view(scene: Scene, low: int, high: int, most: int, finest: int) -> tuple[View, int]:
    """All spans of [low, high) in full if they are at most `most`, else as fine as leaves no more spans and bars.

    With them comes the number of pixels, at most `finest`.
    """
    lanes = scene.lanes
    inside = np.flatnonzero((lanes.start < high) & (lanes.end > low))
    if inside.size <= most:
        none = np.empty(0, np.int64)
        lane = np.searchsorted(lanes.first, inside, side="right") - 1
        return View(lane, inside, none, none, none, none, none), min(finest, _LINE_PIXELS)
    every = range(lanes.tracks.size)
    n_pixels = finest
    while True:
        view = window(lanes, every, low, high, n_pixels)
        if view.full_at.size + view.bar_at.size <= most or n_pixels <= _COARSEST:
            return view, n_pixels
        n_pixels //= 2


def _finest(lines: Sequence[Line], low: int, high: int, most: int) -> int:
    """The most pixels on which the sampled lines have no more than some `most` points."""
    inside = [int(np.diff(np.searchsorted(line.times, (low, high)))[0]) for line in lines]
    n_pixels = _FINEST
    while n_pixels > _COARSEST and sum(min(n, n_pixels) for n in inside) > most:
        n_pixels //= 2
    return min(n_pixels, high - low)


def _picture(
    scene: Scene, view: View, wanted: Ints, depths: Ints, lines: Sequence[Line], edges: Ints
) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a view. `wanted` are its lanes, `depths` their depths as drawn, `edges` bounds of pixels."""
    lanes, low = scene.lanes, int(edges[0])
    ids, bar_ids = lanes.row[view.full_at], lanes.row[view.bar_at]
    codes, names = np.unique(scene.codes[ids], return_inverse=True)
    start, end = lanes.start[view.full_at], lanes.end[view.full_at]
    widths = np.maximum(np.diff(edges)[view.bar_pixel], 1)
    header = {
        "low": low,
        "high": int(edges[-1]),
        "pixels": edges.size - 1,
        "lanes": [[int(track), int(depth)] for track, depth in zip(lanes.tracks[wanted], depths, strict=True)],
        "names": [shortened(scene.names[code]) for code in codes],
        "short": [short(scene.names[code]) for code in codes],
        # What a line was at just before the window: it may have no sample inside.
        "before": [value_at(line.times, line.values, low) for line in lines],
    }
    arrays = {
        "lane": np.searchsorted(wanted, view.full_lane).astype("u4"),
        "id": ids.astype("u4"),
        "start": (start - low).astype("f8"),
        "dur": (end - start).astype("f8"),
        "name": names.astype("u4"),
        "category": scene.categories[ids],
        "bar_lane": np.searchsorted(wanted, view.bar_lane).astype("u4"),
        "bar_pixel": view.bar_pixel.astype("u2"),
        "bar_busy": (view.bar_busy_ns / widths).astype("f4"),
        "bar_count": view.bar_count.astype("u4"),
        "bar_id": bar_ids.astype("u4"),
        "bar_category": scene.categories[bar_ids],
    }
    parts = [counts_between(line.times, line.values, edges) for line in lines]
    arrays["line"] = np.repeat(np.arange(len(parts)), [part[0].size for part in parts]).astype("u2")
    columns = list(zip(*parts, strict=True)) if parts else [[np.empty(0)]] * 4
    for name, column, kind in zip(("pixel", "min", "max", "last"), columns, ("u2", "f8", "f8", "f8"), strict=True):
        arrays[f"line_{name}"] = np.concatenate(column).astype(kind)
    return header, arrays


def value_at(times: np.ndarray[Any, Any], values: np.ndarray[Any, Any], point: int) -> float | None:
    """The last value of a sampled line up to a point in time; None before the first."""
    at = int(np.searchsorted(times, point, side="right")) - 1
    return float(values[at]) if at >= 0 else None


def shortened(name: str) -> str:
    """The name, shortened where it is too long for a screen."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


@lru_cache(1 << 15)
def short(name: str) -> str:
    """The label of a span: the most specific part of its name, of a Python frame the function first."""
    frame = _FRAME.match(name)
    if frame is not None:
        file = frame["file"].replace("\\", "/").rpartition("/")[2]
        return printable(f"{frame['function']} · {file}:{frame['line']}")[:_DRAWN_NAME]
    return shorten(printable(name), _DRAWN_NAME)


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The header and arrays as bytes. Arrays are of u1, u2, u4, i4, f4 or f8; any other raises KeyError."""
    pieces, described, offset = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = array.dtype.newbyteorder("<").str[1:]
        described.append({"name": name, "type": _TYPES[kind], "offset": offset, "length": int(array.size)})
        data += b"\0" * (-len(data) % 8)
        pieces.append(data)
        offset += len(data)
    text = json.dumps({**header, "arrays": described}, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join((len(text).to_bytes(4, "little"), text, *pieces))
