"""Which spans are calls of modules, what lies within each, and the tree of modules that the calls make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.intervals import nearest

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MODULE, _LIGHTNING = "nn.Module: ", "[pl][module]"


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCalls:
    """The calls of modules in a trace, numbered in the order of `spans`; −1 stands for none."""

    rows: Ints  # of each call its span
    starts: Ints  # of each call when it began
    above: Ints  # of each call the innermost one around it
    of_span: Ints  # of each span the innermost call that it is, or lies in
    parents: Ints  # of each span the span around it
    labels: pl.DataFrame  # of each call: name, module_class, module_id


def module_calls(spans: pl.DataFrame, frames: pl.DataFrame, *, lightning: bool) -> ModuleCalls | None:
    """The calls of nn.Module, or the ranges that PyTorch Lightning's profiler puts around modules; none without any."""
    mask = _by_lightning(spans) if lightning else (spans["category"] == "module").to_numpy()
    rows = np.flatnonzero(mask)
    if rows.size == 0:
        return None
    parents = spans["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    number = np.full(mask.size + 1, -1, np.int64)  # the last one, reached by index −1, stays −1
    number[rows] = np.arange(rows.size)
    inside = nearest(parents, mask)
    of_span = number[inside]
    around = parents[rows]
    above = np.where(around >= 0, of_span[around], -1)
    names = spans["name"].gather(pl.Series(rows)).cast(pl.String)
    labels = _lightning_labels(names) if lightning else _labels(names, frames, rows)
    return ModuleCalls(rows, spans["ts_ns"].to_numpy()[rows], above, of_span, parents, labels)


def _by_lightning(spans: pl.DataFrame) -> Bools:
    names = spans["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.starts_with(_LIGHTNING))
    return (spans["name"].is_in(wanted.implode()) & (spans["category"] == "operator")).to_numpy()


def _labels(names: pl.Series, frames: pl.DataFrame, rows: Ints) -> pl.DataFrame:
    """Of 'nn.Module: Conv2d_3' the class is Conv2d, the number 3."""
    ids = pl.DataFrame({"span_id": rows.astype(np.uint32)}).join(
        frames.select("span_id", "module_id"), on="span_id", how="left", maintain_order="left"
    )
    own, number = pl.col("name").str.strip_prefix(_MODULE), pl.format("_{}", "module_id")
    # PyTorch writes the number behind the class; where it does not, the path needs it to tell two modules apart.
    kind = pl.when(own.str.ends_with(number)).then(own.str.strip_suffix(number)).otherwise(own)
    named = ids.with_columns(names.alias("name")).with_columns(module_class=kind)
    return named.select("module_class", "module_id", name=pl.coalesce(pl.col("module_class") + number, "module_class"))


def _lightning_labels(names: pl.Series) -> pl.DataFrame:
    """Of '[pl][module]torch.nn.modules.conv.Conv2d: model.conv1' the class is Conv2d, the name model.conv1."""
    parts = pl.col("name").str.strip_prefix(_LIGHTNING).str.splitn(": ", 2)
    kind, place = (parts.struct.field(f"field_{i}") for i in (0, 1))
    kind_only = kind.str.split(".").list.last()
    no_id = pl.lit(None, pl.Int64).alias("module_id")
    return names.to_frame("name").select(kind_only.alias("module_class"), no_id, name=pl.coalesce(place, kind))


def module_tree(calls: ModuleCalls) -> tuple[pl.DataFrame, Ints]:
    """The tree of modules, a row per module and the modules around it, and for each call its row.

    Rows are in order of the tree: each is followed by what is inside it, in order of first calls. Columns: path,
    module_class, module_id, depth. A dotted name continues that of the module around it: model.conv1 in model is
    model/conv1.
    """
    node = np.full(calls.rows.size, -1, np.int64)
    levels: list[pl.DataFrame] = []
    n_nodes = 0
    members = np.flatnonzero(calls.above < 0)
    while members.size:
        members = members[np.argsort(calls.starts[members], kind="stable")]
        up = np.where(calls.above[members] >= 0, node[calls.above[members]], -1)
        keys = calls.labels[members].with_columns(up=pl.Series(up))
        distinct = keys.unique(maintain_order=True).with_columns(node=pl.int_range(n_nodes, n_nodes + pl.len()))
        found = keys.join(distinct, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
        node[members] = found["node"].to_numpy()
        levels.append(distinct)
        n_nodes += distinct.height
        is_member = np.zeros(calls.rows.size, np.bool_)
        is_member[members] = True
        members = np.flatnonzero((calls.above >= 0) & is_member[calls.above])
    nodes, position = _in_order(pl.concat(levels))
    return nodes, position[node]


def classes_of(calls: ModuleCalls) -> tuple[pl.DataFrame, Ints]:
    """The classes of modules, column module_class, and for each call the row of its class."""
    known = calls.labels.select("module_class").unique(maintain_order=True).with_row_index("row")
    row = calls.labels.join(known, on="module_class", how="left", maintain_order="left")["row"]
    return known.select("module_class"), row.cast(pl.Int64).to_numpy()


def _in_order(nodes: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """The nodes in order of the tree with path and depth, and for each its place there.

    Nodes come level by level; `up` is the number of the one around each, −1 for none.
    """
    inside: list[list[int]] = [[] for _ in range(nodes.height)]
    outermost: list[int] = []
    names = nodes["name"].to_list()
    paths: list[str] = []
    depths: list[int] = []
    for at, up in enumerate(nodes["up"].to_list()):
        own = names[at] if up < 0 else names[at].removeprefix(f"{names[up]}.")
        paths.append(own.replace(".", "/") if up < 0 else f"{paths[up]}/{own.replace('.', '/')}")
        depths.append(0 if up < 0 else depths[up] + 1)
        (outermost if up < 0 else inside[up]).append(at)
    order: list[int] = []
    stack = outermost[::-1]
    while stack:
        order.append(stack.pop())
        stack += inside[order[-1]][::-1]
    position = np.empty(nodes.height, np.int64)
    position[order] = np.arange(nodes.height)
    named = nodes.with_columns(path=pl.Series(paths), depth=pl.Series(depths))
    return named[order].select("path", "module_class", "module_id", "depth"), position
