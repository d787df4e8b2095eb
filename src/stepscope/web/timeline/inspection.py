"""Answers the timeline's questions about spans: details of one, sums over a range of time, search by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import callers
from stepscope.core.errors import UnknownName
from stepscope.core.intervals import total, union, union_by
from stepscope.core.names import shorten_column, without_number
from stepscope.core.report import printable
from stepscope.core.schema import CATEGORIES, DEVICE_WORK, TABLES, Category
from stepscope.core.units import render
from stepscope.renderers.cells import cell
from stepscope.web.timeline.drawing import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.web.timeline.scene import Scene


_MOST_LINKS = 40
_MOST_HITS = 20_000
_MOST_NAMES = 50
_PANEL_NAME = 26
_AROUND, _MAY_CROSS = ("step", "other"), ("user_range", "module", "python", "device_range")
_SIDE_TABLES = ("ops", "kernels", "transfers", "collectives", "frames", "sched")


def span_details(scene: Scene, span_id: int) -> dict[str, Any]:
    """Everything that is known about a span, as text, and its related spans. Raises UnknownName (no such span)."""
    trace = scene.trace
    if not 0 <= span_id < trace.spans.height:
        raise UnknownName("span", str(span_id), [f"0 to {trace.spans.height - 1}"])
    row = trace.spans.row(span_id, named=True)
    facts = [
        (c.name, cell(row[c.name], c.unit))
        for c in TABLES["spans"].columns
        if row[c.name] is not None and c.name in ("category", "recorded_category", "step", "correlation", "external_id")
    ]
    for name in _SIDE_TABLES:
        table = trace.table(name)
        side = table.filter(pl.col("span_id") == span_id).head(1) if not table.is_empty() else table
        for values in side.iter_rows(named=True):
            facts += [
                (c.name, cell(values[c.name], c.unit))
                for c in TABLES[name].columns
                if values[c.name] is not None and c.name not in ("span_id", "stack_id")
            ]
    metrics = trace.table("kernel_metrics")
    if not metrics.is_empty():
        own = metrics.filter(pl.col("span_id") == span_id).head(200)
        facts += [
            (str(m), render(v, None if u is None else str(u)))
            for m, u, v in own.select("metric", "unit", "value").rows()
        ]
    links = _links(scene, span_id, row)
    depths = depths_of(scene, [span_id, *(link["id"] for link in links)])
    return {
        **_mention(scene, span_id),
        "depth": depths.get(span_id),
        "end_ns": (row["ts_ns"] or 0) + (row["dur_ns"] or 0),
        "name": row["name"] or "",
        "start": render(row["ts_ns"], "ns"),
        "duration": render(row["dur_ns"], "ns"),
        "facts": facts,
        "stack": _stack(scene, span_id, row),
        "links": [{**link, "depth": depths.get(link["id"])} for link in links],
    }


def depths_of(scene: Scene, ids: Sequence[int]) -> dict[int, int]:
    """Depth of the lane in which each of these spans lies."""
    lanes = scene.lanes
    at = np.flatnonzero(np.isin(lanes.row, np.array(ids, np.uint32)))
    lane = np.searchsorted(lanes.first, at, side="right") - 1
    return dict(zip(lanes.row[at].tolist(), lanes.depths[lane].tolist(), strict=True))


def _mention(scene: Scene, span_id: int) -> dict[str, Any]:
    row = scene.trace.spans.row(span_id, named=True)
    return {"id": span_id, "name": shortened(row["name"] or ""), "track": row["track_id"], "ts_ns": row["ts_ns"],
            "dur_ns": row["dur_ns"], "duration": render(row["dur_ns"], "ns"),
            "category": str(row["category"])}  # fmt: skip


def _links(scene: Scene, span_id: int, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Related spans, each with its relation."""
    spans = scene.trace.spans
    ties = [(how, row[column]) for how, column in (("launched by", "launch_id"), ("operator", "op_id"),
                                                      ("inside", "parent_id")) if row[column] is not None]  # fmt: skip
    is_work = pl.col("category").is_in(DEVICE_WORK)
    launched = spans.filter((pl.col("launch_id") == span_id) & is_work).head(_MOST_LINKS)["span_id"].to_list()
    work = spans.filter((pl.col("op_id") == span_id) & is_work).head(_MOST_LINKS)["span_id"].to_list()
    ties += [("launches", one) for one in launched]
    ties += [("device work", one) for one in work if one not in launched]
    ops = scene.trace.ops
    if not ops.is_empty():
        own = ops.filter(pl.col("span_id") == span_id)["sequence"]
        if own.len() and own[0] is not None:
            alike = ops.filter((pl.col("sequence") == own[0]) & (pl.col("span_id") != span_id)).head(4)["span_id"]
            ties += [("same autograd node", one) for one in alike]
    return [{"how": how, **_mention(scene, one)} for how, one in ties if 0 <= one < spans.height]


def _stack(scene: Scene, span_id: int, row: dict[str, Any]) -> list[str]:
    """The call stack, outermost first: as recorded, or else the names of the enclosing spans."""
    trace = scene.trace
    for one in (span_id, row["op_id"]):
        if one is None or trace.ops.is_empty() or trace.stacks.is_empty():
            continue
        ids = trace.ops.filter(pl.col("span_id") == one)["stack_id"].drop_nulls()
        if ids.len():
            frames = trace.stacks.filter(pl.col("stack_id") == ids[0])["frames"]
            if frames.len():
                return [str(frame) for frame in frames[0]]
    names = trace.spans["name"]
    if row["parent_id"] is not None:
        return [str(names[one]) for one in callers(trace.spans, span_id, trace.frames)[::-1]]
    if row["launch_id"] is None:
        return []
    return [str(names[one]) for one in (*callers(trace.spans, row["launch_id"], trace.frames)[::-1], row["launch_id"])]


def statistics(scene: Scene, low: int, high: int, tracks: Sequence[int] | None = None) -> dict[str, Any]:
    """What happens in [low, high): time per category and per name, cut at its bounds; how long devices are busy.

    Time of a category is that in which one of its spans is open, summed over tracks: nested spans count once. Names
    come in the order of their own time, that of no span inside theirs. Ranges and Python frames around others may
    end at any time, so theirs is not known: they come last.
    """
    spans = scene.trace.spans.lazy().select("span_id", "parent_id", "track_id", "ts_ns", "dur_ns", "name", "category")
    end = pl.col("ts_ns") + pl.col("dur_ns")
    inside = (pl.col("ts_ns") < high) & ((end > low) | ((pl.col("dur_ns") == 0) & (pl.col("ts_ns") >= low)))
    if tracks is not None:
        inside &= pl.col("track_id").is_in(list(tracks))
    clipped = spans.filter(inside).select(
        "span_id", "parent_id", "track_id", "name", "category",
        ts=pl.max_horizontal("ts_ns", low), end=pl.min_horizontal(end, high),
        is_whole=(pl.col("ts_ns") >= low) & (end <= high),
    ).with_columns(ns=pl.col("end") - pl.col("ts"))  # fmt: skip
    frame = clipped.collect()
    work = frame.filter(pl.col("category").is_in(DEVICE_WORK))
    sums = {"count": pl.len(), "total_ns": pl.col("ns").sum()}
    below = frame.group_by(span_id="parent_id").agg(below_ns=pl.col("ns").sum()).drop_nulls("span_id")
    own = (pl.col("ns") - pl.col("below_ns").fill_null(0)).clip(lower_bound=0)
    is_known = ~pl.col("category").is_in(_AROUND) & (
        (pl.col("below_ns").is_null() & pl.col("is_whole")) | ~pl.col("category").is_in(_MAY_CROSS)
    )
    named = frame.join(below, on="span_id", how="left").with_columns(own_ns=pl.when(is_known).then(own))
    own_sum = pl.when(pl.col("own_ns").count() > 0).then(pl.col("own_ns").sum())
    per_name = named.group_by("category", "name").agg(**sums, own_ns=own_sum)
    order = ["own_ns", "total_ns", "name"]
    per_name = per_name.sort(order, descending=[True, True, False], nulls_last=True)
    per_category = _of_categories(frame)
    labels = shorten_column([printable(str(name)) for name in per_name["name"].head(_MOST_NAMES)], _PANEL_NAME)
    busy = total(union(work["ts"].to_numpy(), work["end"].to_numpy())) if work.height else None
    return {
        "length": render(high - low, "ns"),
        "n_spans": frame.height,
        "device_busy": None if busy is None else f"{render(busy, 'ns')} ({render(busy / (high - low), 'ratio')})",
        "categories": [_row(str(c), n, ns) for c, n, ns in per_category.rows()],
        "names": [
            {**_row(shortened(str(name)), n, ns), "label": label, "category": str(c), "own": render(own_ns, "ns")}
            for (c, name, n, ns, own_ns), label in zip(per_name.head(_MOST_NAMES).rows(), labels, strict=True)
        ],
        "names_left_out": max(per_name.height - _MOST_NAMES, 0),
    }


def _of_categories(frame: pl.DataFrame) -> pl.DataFrame:
    """Category, number of spans, and time in which one is open on a track, the longest first."""
    group = frame.select(pl.col("track_id").cast(pl.Int64) * len(CATEGORIES) + pl.col("category").to_physical())
    runs = union_by(group.to_series().to_numpy(), frame["ts"].to_numpy(), frame["end"].to_numpy())
    open_ns = np.bincount(runs[0] % len(CATEGORIES), runs[2] - runs[1], minlength=len(CATEGORIES)).astype(np.int64)
    times = pl.DataFrame({"category": CATEGORIES, "total_ns": open_ns}, schema_overrides={"category": Category})
    counts = frame.group_by("category").agg(count=pl.len())
    joined = counts.join(times, on="category", how="left").select("category", "count", "total_ns")
    return joined.sort("total_ns", "category", descending=[True, False])


def _row(name: str, count: int, ns: int) -> dict[str, Any]:
    return {"name": name, "count": count, "total": render(ns, "ns"), "mean": render(ns / count, "ns")}


def matching_spans(scene: Scene, text: str, *, exact: bool = False) -> dict[str, Any]:
    """Spans whose name contains the text (ignoring case), or is it, in order of time; at most 20,000 of them.

    If no name is the text, those are meant that are the text with a number, as reports leave out XLA's numbers.
    """
    sought = text if exact else text.casefold()
    hits = [i for i, name in enumerate(scene.names) if (name == text if exact else sought in name.casefold())]
    if exact and not hits:
        hits = [i for i, name in enumerate(scene.names) if without_number(name) == text]
    rows = np.flatnonzero(np.isin(scene.codes, np.array(hits, np.uint32)))
    spans = scene.trace.spans.select("span_id", "track_id", "ts_ns", "dur_ns")[rows].drop_nulls().sort("ts_ns")
    longest = spans["dur_ns"].arg_max() if spans.height else None
    return {
        "count": spans.height,
        "n_names": len(hits),
        "total": render(int(spans["dur_ns"].sum()), "ns"),
        "longest": longest if longest is not None and longest < _MOST_HITS else 0,
        "hits": spans.head(_MOST_HITS).rows(),
    }
