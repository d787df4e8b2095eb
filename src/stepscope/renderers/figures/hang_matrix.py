"""Ranks against process groups of a job that stands still: who is done, who waits, who is behind, who is to blame."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.renderers.figures._style import axis, clipped, layout, literal
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: State of a rank in a group, and its colour: all is done, it waits, others have called what it has not.
_STATES = (("done", "#9fc5a8"), ("waits", "#7fb6dd"), ("behind", "#d1603d"))
_ROW_HEIGHT, _LEAST_HEIGHT, _MOST_HEIGHT = 18, 160, 2_400
_MOST_RANKS, _MOST_LETTERS, _MOST_TICKS = 2_048, 34, 32
_NEEDS = ("rank", "group", "group_desc", "is_culprit", "enqueued", "started", "completed", "pending", "behind", "line")


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A cell for each rank and each of its groups. Groups that the program calls alike share a column."""
    ranks = frame["rank"].unique().sort().to_list()
    shown = frame.with_columns(label=_labels(frame)).filter(pl.col("rank").is_in(ranks[:_MOST_RANKS]))
    number = pl.col("group").cast(pl.String).cast(pl.Int64, strict=False)
    columns = list(dict.fromkeys(shown.sort("rank", number, "label", nulls_last=True)["label"]))
    row_of = {rank: i for i, rank in enumerate(ranks[:_MOST_RANKS])}
    column_of = {label: i for i, label in enumerate(columns)}
    cells: dict[str, list[list[Any]]] = {
        name: [[None] * len(columns) for _ in row_of] for name in ("z", "text", "customdata")
    }
    for row in shown.iter_rows(named=True):
        at, column = row_of[row["rank"]], column_of[row["label"]]
        cells["z"][at][column] = 2 if row["behind"] else 1 if row["pending"] else 0
        cells["text"][at][column] = _hover(row)
        cells["customdata"][at][column] = None if link is None else link(row)
    culprits = set(shown.filter("is_culprit")["rank"])
    scale = [[(i + edge) / len(_STATES), colour] for i, (_, colour) in enumerate(_STATES) for edge in (0, 1)]
    data: dict[str, Any] = {
        "type": "heatmap", "x": columns,
        "y": [f"{rank} to blame" if rank in culprits else str(rank) for rank in row_of],
        **cells, "zmin": -0.5, "zmax": 2.5, "colorscale": scale, "xgap": 1, "ygap": 1 if len(row_of) < 200 else 0,
        "hovertemplate": "%{text}<extra></extra>",
        "colorbar": {"tickvals": [0, 1, 2], "ticktext": [name for name, _ in _STATES], "len": 1},
    }  # fmt: skip
    height = min(max(120 + _ROW_HEIGHT * len(row_of), _LEAST_HEIGHT), _MOST_HEIGHT)
    note = f"{len(ranks) - len(row_of):,} more ranks are not drawn" if len(ranks) > len(row_of) else ""
    axes = {
        "xaxis": axis(type="category", side="bottom", tickangle=-35),
        "yaxis": axis("rank", type="category", autorange="reversed", tickvals=_ticks(data["y"])),
    }
    return {"data": [data], "layout": {**layout(note=note, height=height, legend=""), **axes}}


def _ticks(labels: Sequence[str]) -> list[str]:
    """The ranks that are named at the axis: all of a few, else some, and always those to blame."""
    every = max(len(labels) // _MOST_TICKS, 1)
    return [label for i, label in enumerate(labels) if i % every == 0 or not label.isdecimal()]


def _labels(frame: pl.DataFrame) -> pl.Series:
    """The column of each row: what the program calls the group, with its name where a rank has two called alike."""
    desc = frame["group_desc"].cast(pl.String).fill_null("").to_list()
    group = frame["group"].cast(pl.String).to_list()
    called = [
        text if text not in ("", "undefined") else f"group {name}" for text, name in zip(desc, group, strict=True)
    ]
    n_of = Counter(zip(frame["rank"].to_list(), called, strict=True))
    twice = {name for (_, name), n in n_of.items() if n > 1}
    full = [f"{text} ({name})" if text in twice else text for text, name in zip(called, group, strict=True)]
    return pl.Series([clipped(text, _MOST_LETTERS) for text in full], dtype=pl.String)


def _hover(row: Mapping[str, Any]) -> str:
    facts = [f"enqueued {row['enqueued']}", f"started {row['started']}", f"completed {row['completed']}"]
    known = [fact for fact in facts if not fact.endswith("None")]
    lines = [f"rank {row['rank']}, {row['group_desc'] or ''} (group {row['group']})", ", ".join(known)]
    lines += [f"{row['behind']} behind the first of the group"] if row["behind"] else []
    lines += [f"last call: {row['line']}"] if row["line"] else []
    lines += ["to blame"] if row["is_culprit"] else []
    return "<br>".join(map(literal, lines))


FIGURE = Figure(
    "hang-matrix",
    "Ranks and their process groups",
    "how far each rank came in each of its process groups",
    draw,
    _NEEDS,
)
