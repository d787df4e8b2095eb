"""Memory over time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.units import size
from stepscope.renderers.figures._style import PALETTE, axis, cut, known, layout, links, scaled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_POINTS = 2_000
_MS, _MIB = 1e6, 1 << 20
_LINES = (("allocated_bytes", "allocated", "solid"), ("reserved_bytes", "reserved", "dot"))


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Lines of what tensors and the allocator hold, per device; the highest points of long recordings are kept."""
    if not known(frame, "ts_ns", "allocated_bytes"):
        return None
    data: list[dict[str, Any]] = []
    for at, (label, part) in enumerate(_devices(frame)):
        for column, word, dash in _LINES:
            if not known(part, column) or not part[column].max():
                continue
            thin = _peaks(part, column)
            data.append({
                "type": "scatter", "mode": "lines", "name": cut(f"{label} {word}".strip(), 60),
                "line": {"dash": dash, "shape": "hv", "width": 1.5, "color": PALETTE[at % len(PALETTE)]},
                "x": scaled(thin["ts_ns"], _MS), "y": scaled(thin[column], _MIB),
                "text": [size(v) for v in thin[column]], "customdata": links(thin, link),
                "hovertemplate": "%{x:.3f} ms: %{text}<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    axes = {"xaxis": axis("ms from the start of the recording"), "yaxis": axis("MiB", rangemode="tozero")}
    return {"data": data, "layout": {**layout(), **axes}} if data else None


def _devices(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    keys = [c for c in ("rank", "trace", "device") if c in frame.columns]
    if not keys:
        yield "", frame
        return
    for key, part in frame.partition_by(keys, as_dict=True, maintain_order=True).items():
        words = [f"rank {v}" if k == "rank" else str(v) for k, v in zip(keys, key, strict=True) if v is not None]
        yield " ".join(words), part


def _peaks(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """At most some 2,000 rows: of each stretch of rows the one with the highest value."""
    every = max(frame.height // _MOST_POINTS, 1)
    if every == 1:
        return frame
    bins = pl.int_range(pl.len()) // every
    return frame.group_by(bins.alias("bin"), maintain_order=True).agg(pl.all().get(pl.col(column).arg_max()))


FIGURE = Figure(
    "memory",
    "Memory over time",
    "what tensors and the allocator hold over time",
    draw,
    ("ts_ns", "allocated_bytes"),
    MappingProxyType({"by": "time"}),
)
