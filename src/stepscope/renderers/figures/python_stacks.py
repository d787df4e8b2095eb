"""Call stacks, sampled or recorded, as a flame graph that hangs from its root."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from stepscope.core.patterns import regex
from stepscope.core.units import count, duration, percent
from stepscope.renderers.figures._style import CLEAR, NO_CLASS, PALETTE, broken, clipped, layout
from stepscope.renderers.figures.figure import Drawn, Figure, Link

_MOST_NODES = 2_000
_SEPARATOR = ";"
_ROW, _LEAST, _MOST = 21, 220, 1_100
_OWNERS = ("trace", "rank", "pid", "thread")
_REST = "…"
_INK = "#10161c"
#: Grey is for what is left over.
_HUES = [colour for colour in PALETTE if len({colour[1:3], colour[3:5], colour[5:7]}) > 1]
#: Where a frame's code is: `name (file.py:12)`, `file.py:12 name`, `file.py(12): name`.
_FILE = regex(r"[^\s()\[\]]+\.\w{1,4}(?=[:(])|[^\s()\[\]]+\.(?:py|so|cpp|c|h)\b")

_FOLDERS = regex(r"[^\s()\[\]<>]*/(?=[\w.-]+\.\w)")


class _Node(NamedTuple):
    ident: int
    parent: int
    name: str
    weight: int


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  a sum over samples has no place in a trace
    """An icicle: a box for each function called from the one above, as wide as the samples (or time) that it has.

    `stack` has the frames root first, joined by `;`; `samples` counts them, or `self_ns` is their time. Where rows are
    of several ranks, processes or threads, these stand above the frames. Of more than 2,000 boxes the heaviest are
    drawn, and what is left of each box's callees is one box, `…`.
    """
    weight = next((name for name in ("samples", "self_ns") if name in frame.columns), None)
    if weight is None:
        return None
    amount = _samples if weight == "samples" else duration
    rows = _rows(frame, weight)
    whole = int(rows["weight"].sum())
    if not whole:
        return None
    nodes, depth = _heaviest(rows)
    weights = {0: whole} | {node.ident: node.weight for node in nodes}
    boxes = {
        "type": "icicle", "branchvalues": "total", "sort": True, "tiling": {"orientation": "v"},
        "ids": ["0", *(str(node.ident) for node in nodes)],
        "parents": ["", *(str(node.parent) for node in nodes)],
        "labels": ["all", *(clipped(_FOLDERS.sub("", node.name), 80) for node in nodes)],
        "values": [whole, *(node.weight for node in nodes)],
        "text": [amount(whole), *(f"{amount(n.weight)}, {percent(n.weight / whole)} of all, "
                 f"{percent(n.weight / weights[n.parent])} of its caller" for n in nodes)],
        "hovertext": ["all", *(broken(node.name) for node in nodes)],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>", "texttemplate": "%{label}",
        "textposition": "middle left", "insidetextfont": {"color": _INK}, "outsidetextfont": {"color": _INK},
        "leaf": {"opacity": 1},
        "marker": {
            "colors": [NO_CLASS, *(_colour(node.name) for node in nodes)], "line": {"width": 0.5, "color": "#ffffff"},
        },
        "root": {"color": CLEAR}, "pathbar": {"visible": True}, "maxdepth": _MOST // _ROW,
    }  # fmt: skip
    height = min(max(_LEAST, 60 + _ROW * (depth + 1)), _MOST)
    look = layout(height=height, legend="", uniformtext={"minsize": 9, "mode": "hide"})
    look["margin"] |= {"l": 10, "r": 10, "b": 10}
    return {"data": [boxes], "layout": look}


def _samples(number: int) -> str:
    return f"{count(number)} sample{'s' * (number != 1)}"


def _rows(frame: pl.DataFrame, weight: str) -> pl.DataFrame:
    """Each different stack once, as list of frames, with its weight; who ran it in front where several did."""
    owners = [c for c in _OWNERS if c in frame.columns and frame[c].n_unique() > 1]
    titles = {"rank": "rank {}", "pid": "process {}"}
    lead = [pl.format(titles.get(c, "{}"), pl.col(c).cast(pl.String).fill_null("unknown")).alias(c) for c in owners]
    keyed = frame.select(*lead, stack=pl.col("stack").cast(pl.String).fill_null(""), weight=pl.col(weight).fill_null(0))
    sums = keyed.group_by(*owners, "stack", maintain_order=True).agg(pl.col("weight").sum().cast(pl.Int64))
    frames = pl.col("stack").str.split(_SEPARATOR)
    frames = pl.when(pl.col("stack") == "").then(pl.lit([], pl.List(pl.String))).otherwise(frames)
    whole = pl.concat_list(*(pl.col(c).cast(pl.String) for c in owners), frames) if owners else frames
    return sums.filter(pl.col("weight") > 0).select(frames=whole, weight="weight")


def _heaviest(rows: pl.DataFrame) -> tuple[list[_Node], int]:
    """The heaviest boxes, callers before callees, with what is left out of each as one more; and how deep they go.

    A box is no heavier than its caller, so the heaviest of all are among the heaviest of each level, and their callers
    are among them.
    """
    numbered = rows.with_row_index("row")
    frames = numbered.select("row", name="frames").explode("name", empty_as_null=False)
    frames = frames.with_columns(level=pl.int_range(pl.len()).over("row"))
    here = numbered.select("row", "weight", parent=pl.lit(0, pl.Int64))
    tops, called, first = [], [], 1
    for level, names in enumerate(frames.partition_by("level", maintain_order=True)):
        here = here.join(names.select("row", "name"), on="row", how="inner", maintain_order="left")
        boxes = here.group_by("parent", "name", maintain_order=True).agg(pl.col("weight").sum())
        called.append(boxes.group_by("parent", maintain_order=True).agg(pl.col("weight").sum()))
        top = boxes.sort("weight", descending=True, maintain_order=True).head(_MOST_NODES)
        top = top.with_columns(ident=pl.int_range(first, first + top.height, dtype=pl.Int64), level=pl.lit(level))
        tops.append(top)
        first += top.height
        here = here.join(top.select("parent", "name", "ident"), on=["parent", "name"], maintain_order="left")
        here = here.select("row", "weight", parent="ident")
    if not tops:
        return [], 0
    heaviest = pl.concat(tops).sort("weight", "level", descending=[True, False], maintain_order=True).head(_MOST_NODES)
    nodes = [_Node(*row) for row in heaviest.sort("ident").select("ident", "parent", "name", "weight").rows()]
    depth = max(heaviest["level"].to_list()) + 1
    return [*nodes, *_rest(heaviest, pl.concat(called), first)], depth


def _rest(heaviest: pl.DataFrame, called: pl.DataFrame, first: int) -> list[_Node]:
    """A box for all that a drawn box called and that is not drawn."""
    drawn = heaviest.group_by("parent").agg(drawn=pl.col("weight").sum())
    idents = pl.concat([heaviest.select(parent="ident"), pl.DataFrame({"parent": [0]})])
    left = called.join(idents, on="parent", how="semi", maintain_order="left")
    left = left.join(drawn, on="parent", how="left", maintain_order="left")
    left = left.with_columns(pl.col("weight") - pl.col("drawn").fill_null(0)).filter(pl.col("weight") > 0)
    return [
        _Node(first + i, parent, _REST, weight)
        for i, (parent, weight) in enumerate(left.select("parent", "weight").rows())
    ]


def _colour(name: str) -> str:
    """One colour for the functions of a file, light enough for dark letters."""
    if name == _REST:
        return NO_CLASS
    file = _FILE.search(name)
    key = file.group() if file else name
    # Not hash(): that differs from run to run.
    code = sum((at + 1) * ord(letter) for at, letter in enumerate(key))
    red, green, blue = (int(_HUES[code % len(_HUES)][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * 0.55):02x}" for part in (red, green, blue))


FIGURE = Figure("python-stacks", "Python call stacks", "sampled call stacks, callers above callees", draw, ("stack",))
CALL_STACKS = Figure("call-stacks", "Call stacks", "time by call stack, callers above callees", draw, ("stack",))
