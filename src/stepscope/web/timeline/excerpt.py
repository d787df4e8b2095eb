"""A stretch of a timeline to be carried in a file: everything in it, as a window that is all there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.web.timeline.level_of_detail import View, counts_between, pixel_edges, window
from stepscope.web.timeline.timeline import short, shortened, value_at
from stepscope.web.timeline.wire import pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.web.timeline.scene import Line, Scene

    Arrays = dict[str, np.ndarray[Any, Any]]

__all__ = ["Part", "cut_out"]

#: Pixels of a stretch with too many spans, and of sampled lines where all spans are in full.
_FINEST, _COARSEST = 32_000, 500
_LINE_PIXELS = 1_500
_NO_LAUNCH = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A stretch of a trace, packed as windows are, with `launch` of each span.

    `lanes` says how many lanes each track has in it, `lines` which of the scene's lines it holds, `n_merged` how many
    spans are in bars.
    """

    data: bytes
    lanes: Mapping[int, int]
    lines: tuple[int, ...]
    n_merged: int


def cut_out(scene: Scene, low: int, high: int, most_spans: int, most_points: int) -> Part:
    """The stretch [low, high) of a trace, in ns: its spans in full if they are at most so many, else the short in bars.

    A lane in which nothing lies is left out, and those below it move up. Of sampled lines some `most_points` are kept.
    """
    lanes = scene.lanes
    at = tuple(i for i, line in enumerate(scene.lines) if line.times[0] < high)  # others began later
    lines = [scene.lines[i] for i in at]
    view, n_pixels = _view(scene, low, high, most_spans, _finest(lines, low, high, most_points))
    used = np.union1d(view.full_lane, view.bar_lane)
    tracks = lanes.tracks[used]
    depths = np.arange(used.size) - np.searchsorted(tracks, tracks)  # lanes are sorted by track, then depth
    edges = pixel_edges(low, high, n_pixels)
    ids, bar_ids = lanes.row[view.full_at], lanes.row[view.bar_at]
    codes, names = np.unique(scene.codes[ids], return_inverse=True)
    launches = scene.trace.spans["launch_id"].gather(ids).cast(pl.Int64).fill_null(_NO_LAUNCH).to_numpy()
    header = {
        "low": low, "high": high, "pixels": n_pixels, "names": [shortened(scene.names[code]) for code in codes],
        "short": [short(scene.names[code]) for code in codes],
        "lanes": [[int(track), int(depth)] for track, depth in zip(tracks, depths, strict=True)],
        "before": [value_at(line.times, line.values, low) for line in lines],
    }  # fmt: skip
    arrays = {
        "lane": np.searchsorted(used, view.full_lane).astype("u4"), "id": ids.astype("u4"),
        "start": (lanes.start[view.full_at] - low).astype("f8"),
        "dur": (lanes.end[view.full_at] - lanes.start[view.full_at]).astype("f8"), "name": names.astype("u4"),
        "category": scene.categories[ids], "launch": launches.astype("u4"),
        "bar_lane": np.searchsorted(used, view.bar_lane).astype("u4"), "bar_pixel": view.bar_pixel.astype("u2"),
        "bar_busy": (view.bar_busy_ns / np.maximum(np.diff(edges)[view.bar_pixel], 1)).astype("f4"),
        "bar_count": view.bar_count.astype("u4"), "bar_id": bar_ids.astype("u4"),
        "bar_category": scene.categories[bar_ids], **_samples(lines, edges),
    }  # fmt: skip
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


def _samples(lines: Sequence[Line], edges: NDArray[np.int64]) -> Arrays:
    """Sampled lines by pixel, as windows have them, with half the digits, which do for a picture."""
    parts = [counts_between(line.times, line.values, edges) for line in lines]
    columns = list(zip(*parts, strict=True)) if parts else [[np.empty(0)]] * 4
    kinds = {"line_pixel": "u2", "line_min": "f4", "line_max": "f4", "line_last": "f4"}
    owner = np.repeat(np.arange(len(parts)), [part[0].size for part in parts]).astype("u2")
    found = {name: np.concatenate(c).astype(kind) for (name, kind), c in zip(kinds.items(), columns, strict=True)}
    return {"line": owner, **found}
