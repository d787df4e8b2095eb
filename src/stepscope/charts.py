"""Charts of result tables as Plotly figures, in the plain form that JSON holds: {"data": […], "layout": {…}}.

Colours are left to whoever draws, but for parts that always look alike; times are drawn in ms, memory in MiB. What a
mark stands for may be given as an address (`links`), which the page opens when the mark is clicked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.names import shorten
from stepscope.units import duration, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Figure = dict[str, Any]
    Link = Callable[[Mapping[str, Any]], str | None]

__all__ = [
    "COLOURS",
    "NAMES",
    "bars",
    "changes",
    "chart_of",
    "communication",
    "memory_over_time",
    "ranked",
    "shown_name",
    "steps",
]

_MS, _MIB = 1_000_000, 1 << 20
_MOST_BARS = 15
_MOST_STEPS = 400
_MOST_POINTS = 2_000
#: Parts of a step, in drawing order, with their colours: told apart also by those who see red and green alike.
COLOURS = {
    "computation": "#3a86c8", "exposed communication": "#c2569b", "exposed memcpy": "#e0a030", "idle": "#9aa3ad",
    "operators": "#3a86c8", "data loading": "#e0a030", "Python and other": "#7a6cc0", "hidden": "#7fb6dd",
    "exposed": "#c2569b",
}  # fmt: skip
_DEVICE_PARTS = {"computation": "computation_ns", "exposed communication": "exposed_communication_ns",
                 "exposed memcpy": "exposed_memcpy_ns", "idle": "idle_ns"}  # fmt: skip
_HOST_PARTS = {"operators": "operator_ns", "data loading": "dataloader_ns", "Python and other": "other_host_ns"}


NAMES = ("communication", "diff", "kernels", "memory", "operators", "steps")


def shown_name(name: str, room: int) -> str:
    """The name in at most `room` letters: of a kernel the part that tells most, of others the beginning.

    >>> shown_name("void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, int>(int)", 60)
    'vectorized_elementwise_kernel<MulFunctor>'
    >>> shown_name("model.py(12): <lambda>", 20)
    'model.py(12): <lamb…'
    """
    is_kernel = name.startswith("_Z") or (("<" in name[1:] or "(" in name) and "): " not in name)
    text = shorten(name, room) if is_kernel else name
    return text if len(text) <= room else text[: room - 1] + "…"


def chart_of(name: str, frame: pl.DataFrame, link: Link | None = None) -> Figure | None:
    """The chart that goes with the table of that name; None where none does, or its columns are not there."""
    makers: dict[str, Callable[[pl.DataFrame, Link | None], Figure | None]] = {
        "steps": steps,
        "operators": lambda f, k: ranked(f, k, "device_self_ns" if _known(f, "device_self_ns") else "host_self_ns"),
        "kernels": lambda f, k: ranked(f, k, "total_ns"),
        "communication": communication,
        "memory": memory_over_time,
        "diff": lambda f, _: changes(f),
    }
    maker = makers.get(name)
    return None if maker is None or frame.is_empty() else maker(frame, link)


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Figure:
    """Stacked shares, a row each: (label, [(part, ratio)]), the first on top."""
    parts = list(dict.fromkeys(name for _, pairs in rows for name, _ in pairs))
    labels = [label for label, _ in rows][::-1]
    shares = [dict(pairs) for _, pairs in rows][::-1]
    data = [
        {
            "type": "bar", "orientation": "h", "name": _cut(part, 60), "y": labels,
            "x": [share.get(part) for share in shares],
            "marker": {"color": COLOURS[part]} if part in COLOURS else {},
            "text": [percent(share.get(part)) for share in shares],
        }
        for part in parts
    ]  # fmt: skip
    return _figure(data, x="share", y="", barmode="stack", height=140 + 40 * len(rows))


def steps(frame: pl.DataFrame, link: Link | None = None) -> Figure | None:
    """Stacked bars: the parts of each step, a column per step (and rank)."""
    parts = _DEVICE_PARTS if _known(frame, "idle_ns") else _HOST_PARTS
    if not _known(frame, *parts.values()):
        return None
    frame = frame.head(_MOST_STEPS)
    several = "rank" in frame.columns and frame["rank"].n_unique() > 1
    labels = [f"{row['step']} r{row['rank']}" if several else str(row["step"]) for row in frame.iter_rows(named=True)]
    links = _links(frame, link)
    data = [
        {
            "type": "bar", "name": name, "x": labels, "y": _scaled(frame[column], _MS), "customdata": links,
            "marker": {"color": COLOURS[name]}, "text": [duration(v) for v in frame[column]], "textposition": "none",
            "hovertemplate": f"step %{{x}}: {name} %{{text}}<extra></extra>",
        }
        for name, column in parts.items() if frame[column].sum()
    ]  # fmt: skip
    return _figure(data, x="step", y="ms", barmode="stack", categories=True)


def ranked(frame: pl.DataFrame, link: Link | None = None, column: str = "total_ns") -> Figure | None:
    """Horizontal bars: the names with most, the largest on top."""
    if not _known(frame, "name", column):
        return None
    keys = [pl.col("name").cast(pl.String).fill_null("unknown")]
    sums = frame.group_by(keys, maintain_order=True).agg(pl.col(column).sum()).sort(column, descending=True)
    top = sums.filter(pl.col(column) > 0).head(_MOST_BARS).reverse()
    whole = frame[column].sum() or 1
    names = top["name"].to_list()
    texts = [f"{duration(v)} ({percent(v / whole)})" for v in top[column]]
    data = [{
        "type": "bar", "orientation": "h", "x": _scaled(top[column], _MS), "y": list(range(top.height)),
        "text": texts, "textposition": "auto", "customdata": _links(top, link),
        "hovertext": [_cut(n, 160) for n in names],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>", "marker": {"color": COLOURS["computation"]},
    }]  # fmt: skip
    figure = _figure(data, x="ms", y="", height=80 + 24 * top.height, legend=False)
    # By number, not by name: names that are cut alike are still bars of their own.
    figure["layout"]["yaxis"] |= {
        "tickvals": list(range(top.height)),
        "ticktext": [_cut(shown_name(n, 48), 48) for n in names],
    }
    return figure


def communication(frame: pl.DataFrame, link: Link | None = None) -> Figure | None:
    """Stacked bars: of each collective what computation hides and what it does not."""
    if not _known(frame, "collective", "hidden_ns", "exposed_ns"):
        return None
    name = pl.col("collective").cast(pl.String).fill_null("unknown")
    sums = frame.group_by(name).agg(pl.col("hidden_ns", "exposed_ns").sum()).sort("exposed_ns", descending=True)
    sums = sums.head(_MOST_BARS)
    data = [
        {
            "type": "bar", "name": part, "x": sums["collective"].to_list(), "y": _scaled(sums[f"{part}_ns"], _MS),
            "text": [duration(v) for v in sums[f"{part}_ns"]], "textposition": "none", "customdata": _links(sums, link),
            "marker": {"color": COLOURS[part]}, "hovertemplate": f"%{{x}}: {part} %{{text}}<extra></extra>",
        }
        for part in ("exposed", "hidden")
    ]  # fmt: skip
    return _figure(data, x="", y="ms", barmode="stack", categories=True)


def memory_over_time(frame: pl.DataFrame, link: Link | None = None) -> Figure | None:
    """Lines of what tensors and the allocator hold, per device; the highest points of long recordings are kept."""
    if not _known(frame, "ts_ns", "allocated_bytes"):
        return None
    data: list[dict[str, Any]] = []
    keys = [c for c in ("rank", "trace", "device") if c in frame.columns]
    for key, part in frame.partition_by(keys, as_dict=True, maintain_order=True).items() if keys else [((), frame)]:
        label = " ".join(f"rank {v}" if k == "rank" else str(v) for k, v in zip(keys, key, strict=True))
        for column, word, dash in (("allocated_bytes", "allocated", "solid"), ("reserved_bytes", "reserved", "dot")):
            if not _known(part, column) or not part[column].max():
                continue
            thin = _peaks(part, column)
            data.append({
                "type": "scatter", "mode": "lines", "name": f"{label} {word}".strip(),
                "line": {"dash": dash, "shape": "hv", "width": 1.5},
                "x": _scaled(thin["ts_ns"], _MS), "y": _scaled(thin[column], _MIB),
                "text": [size(v) for v in thin[column]], "customdata": _links(thin, link),
                "hovertemplate": "%{x:.3f} ms: %{text}<extra>" + _cut(f"{label} {word}", 40) + "</extra>",
            })  # fmt: skip
    return _figure(data, x="ms from the start of the recording", y="MiB") if data else None


def changes(frame: pl.DataFrame) -> Figure | None:
    """Bars of what changed most between two runs, by operator or part: longer to the right, shorter to the left."""
    key = next((c for c in ("name", "part") if _known(frame, c)), None)
    if key is None or not _known(frame, "delta_ns"):
        return None
    top = frame.filter(pl.col("delta_ns").abs() > 0).sort(pl.col("delta_ns").abs(), descending=True).head(_MOST_BARS)
    top = top.reverse()
    names = [str(name) for name in top[key]]
    data = [{
        "type": "bar", "orientation": "h", "x": _scaled(top["delta_ns"], _MS), "y": list(range(top.height)),
        "text": [duration(v) for v in top["delta_ns"]], "hovertext": [_cut(n, 160) for n in names],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>",
        "marker": {"color": [COLOURS["exposed"] if v > 0 else COLOURS["computation"] for v in top["delta_ns"]]},
    }]  # fmt: skip
    figure = _figure(data, x="change per step, ms", y="", height=80 + 24 * top.height, legend=False)
    figure["layout"]["yaxis"] |= {"tickvals": list(range(top.height)), "ticktext": [_cut(n, 48) for n in names]}
    return figure if top.height else None


def _peaks(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """At most some 2,000 rows: of each stretch of rows the one with the highest value."""
    every = max(frame.height // _MOST_POINTS, 1)
    if every == 1:
        return frame
    bins = pl.int_range(pl.len()) // every
    return frame.group_by(bins.alias("bin"), maintain_order=True).agg(pl.all().get(pl.col(column).arg_max()))


def _known(frame: pl.DataFrame, *columns: str) -> bool:
    return all(c in frame.columns and frame[c].null_count() < frame.height for c in columns)


def _scaled(values: pl.Series, by: int) -> list[float | None]:
    return [None if v is None else round(v / by, 6) for v in values]


def _links(frame: pl.DataFrame, link: Link | None) -> list[str | None]:
    return [None if link is None else link(row) for row in frame.iter_rows(named=True)]


def _cut(name: str, room: int) -> str:
    """The name in so many letters; what Plotly would take for markup is drawn as it is."""
    text = name if len(name) <= room else name[: room - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _figure(
    data: Sequence[dict[str, Any]],
    *,
    x: str,
    y: str,
    barmode: str | None = None,
    height: int = 300,
    legend: bool = True,
    categories: bool = False,
) -> Figure:
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 20, "b": 45},
        "showlegend": legend,
        "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"title": {"text": x}, "automargin": True, **({"type": "category"} if categories else {})},
        "yaxis": {"title": {"text": y}, "automargin": True},
    }
    if barmode:
        layout["barmode"] = barmode
    return {"data": list(data), "layout": layout}
