"""Modules of the model: the tree that their calls make, and the time and device work of each."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.span_lookup import at_or_around, is_captured, own_time
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Ints, ends_of, outermost, own_lengths
from stepscope.core.schema import ARROWS, DEVICE_WORK, FRAMES
from stepscope.core.table import Column, Table, integers

Bools = NDArray[np.bool_]
_MODULE, _LIGHTNING = "nn.Module: ", "[pl][module]"
_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD_ARROWS = ("fwdbwd", "forward_backward")
MODULES = Table(
    "modules",
    "what each module of the model cost, as a tree or by class",
    (
        Column(
            "path",
            pl.String(),
            "its name, after those of modules around it, as in Net_0/Conv2d_3 (by module)",
            key=True,
        ),
        Column("module_class", pl.String(), "class of the modules, as in Conv2d (by class)", key=True),
        Column("calls", pl.Int64(), "how often it was called"),
        Column("host_total_ns", pl.Int64(), "host time from call to return", "ns"),
        Column("device_total_ns", pl.Int64(), "device work launched by it and by the modules inside it", "ns"),
        Column("backward_device_ns", pl.Int64(), "device work of the backward of what was called inside it", "ns"),
        Column("backward_host_ns", pl.Int64(), "host time of that backward", "ns"),
        Column("device_self_ns", pl.Int64(), "device work launched by it and not by a module inside it", "ns"),
        Column("host_self_ns", pl.Int64(), "host time less that of modules inside it", "ns"),
        Column("n_operators", pl.Int64(), "operators that it called itself"),
        Column("depth", pl.Int64(), "how many modules are around it (by module)"),
        Column("module_id", pl.Int64(), "recorder's number of the instance in its class (by module)"),
    ),
)


def modules(
    spans: pl.DataFrame,
    frames: pl.DataFrame = FRAMES.empty(),
    arrows: pl.DataFrame = ARROWS.empty(),
    *,
    by: Literal["module", "class", "lightning"] = "module",
) -> pl.DataFrame:
    """One row per module in its place in the tree, followed by those inside it; or per class (by class).

    The main columns are `calls`, `host_total_ns`, `device_total_ns` and `device_self_ns`. A module that is called
    inside two others has a row for each, and so has the forward that activation checkpointing repeats during the
    backward pass. In the tree, modules are in order of their first calls; classes are in order of their own time.
    Totals count a call inside a call of the same class once.

    Device time is the plain sum of the durations of kernels, copies and fills. Backward time is that of operators to
    which the trace draws an arrow from an operator inside the module; it is null without such arrows. Device columns
    are null without device work. `by="lightning"` takes the ranges that PyTorch Lightning's profiler puts around
    modules; the others do so too if a trace has nothing else.

    Units: ns.
    Source: the module view of the TensorBoard profiler plugin, which counts a module called from several places once,
    subtracts operators too from its own host time, and moves backward operators into its tree.
    Raises MissingTable (no modules), UnknownName (by).
    """
    calls = _recorded_calls(spans, frames, lightning=by == "lightning")
    rows, row = classes_of(calls) if by == "class" else module_tree(calls)
    sums = _sums(spans, arrows, calls, row)
    # Sums of whole nanoseconds are exact in a double up to 104 days.
    columns = {c: np.bincount(row, values, minlength=rows.height).astype(np.int64) for c, values in sums.items()}
    result = MODULES.conform(rows.with_columns(**columns))
    if by != "class":
        return result.drop("module_class")
    costs = ("device_self_ns", "host_self_ns", "calls", "module_class")
    return result.drop("path", "depth", "module_id").sort(costs, descending=[True, True, True, False])


def _recorded_calls(spans: pl.DataFrame, frames: pl.DataFrame, *, lightning: bool = False) -> ModuleCalls:
    calls = module_calls(spans, frames, lightning=lightning) or module_calls(spans, frames, lightning=True)
    if calls is None:
        raise MissingTable("calls of modules", needed_by="modules", topic="stacks")
    return calls


def module_of_work(spans: pl.DataFrame, frames: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """The path of the innermost module whose call launched each piece of device work; null outside modules.

    `work` has the columns `launch_id` and `op_id`. Raises MissingTable (no modules).
    """
    calls = _recorded_calls(spans, frames)
    tree, row = module_tree(calls)
    call = np.append(calls.of_span, -1)[_launches(spans, work).fill_null(-1).cast(pl.Int64).to_numpy()]
    return tree["path"].gather(pl.Series(np.append(row, -1)[call]).replace(-1, None))


def _launches(spans: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """The span that launched each piece of device work; of what a CUDA graph replays, the operator captured in it."""
    in_graph = pl.Series(is_captured(spans)).gather(work["op_id"])
    return work.select(pl.when(in_graph).then("op_id").otherwise("launch_id")).to_series()


def _sums(spans: pl.DataFrame, arrows: pl.DataFrame, calls: ModuleCalls, row: Ints) -> dict[str, Ints]:
    """The columns to sum, one value per call. Totals are 0 for calls inside another call of the same row."""
    tracks, starts, durations = (spans[c].to_numpy()[calls.rows] for c in ("track_id", "ts_ns", "dur_ns"))
    first = outermost(tracks, starts, starts + durations, row)
    after = ends_of(tracks, starts, starts + durations, np.arange(calls.rows.size))

    def with_inner(own: Ints) -> Ints:
        before = np.concatenate(([0], np.cumsum(own)))
        inside: Ints = (before[after] - before[:-1]) * first
        return inside

    captured = is_captured(spans)
    on_host = ~captured[calls.rows]
    sums = {
        "calls": np.ones_like(durations),
        "host_total_ns": durations * first * on_host,
        "host_self_ns": own_lengths(starts, starts + durations, calls.above) * on_host,
        "n_operators": _direct_operators(spans, calls),
    }
    is_work = spans["category"].is_in(DEVICE_WORK)
    linked = spans.select("launch_id", "op_id", "dur_ns").filter(is_work)
    linked = linked.select(_launches(spans, linked).alias("launch_id"), "dur_ns").drop_nulls()
    launches, device = linked["launch_id"].cast(pl.Int64).to_numpy(), linked["dur_ns"].to_numpy()
    on_device = bool(is_work.any())
    if on_device:
        own = _per_call(calls, calls.of_span[launches], device)
        sums |= {"device_self_ns": own, "device_total_ns": with_inner(own)}
    rows, of_row = _backward(spans, arrows, calls)
    if rows.size:
        is_backward = np.zeros(spans.height, np.bool_)
        is_backward[rows] = True
        within = np.append(at_or_around(spans, is_backward), -1)
        region = np.full(spans.height + 1, -1, np.int64)  # the last one, reached by index -1, stays -1
        region[rows] = np.arange(rows.size)
        sums["backward_host_ns"] = with_inner(_per_call(calls, of_row, own_time(spans, is_backward)))
        if on_device:
            of_work = np.append(of_row, -1)[region[within[launches]]]
            sums["backward_device_ns"] = with_inner(_per_call(calls, of_work, device))
    return sums


def _per_call(calls: ModuleCalls, of: Ints, values: Ints) -> Ints:
    """The sum of the values of each call; `of` has the call of each value, −1 for none."""
    return np.bincount(of + 1, values, minlength=calls.rows.size + 1)[1:].astype(np.int64)


def _direct_operators(spans: pl.DataFrame, calls: ModuleCalls) -> Ints:
    """How many operators each call has, without those inside operators or inner modules."""
    is_module = np.zeros(spans.height, np.bool_)
    is_module[calls.rows] = True
    is_operator = (spans["category"] == "operator").to_numpy() & ~is_module
    around = at_or_around(spans, is_module | is_operator, np.flatnonzero(is_operator), itself=False)
    around = around[around >= 0]
    of = calls.of_span[around[is_module[around]]]
    return _per_call(calls, of, np.ones_like(of))


def _backward(spans: pl.DataFrame, arrows: pl.DataFrame, calls: ModuleCalls) -> tuple[Ints, Ints]:
    """Backward operators, with autograd's spans around them, and for each the call that its forward was in.

    Spans in ascending order. An operator with several arrows belongs to the first one's forward.
    """
    drawn = arrows.filter(arrows["recorded_category"].cast(pl.String).is_in(_BACKWARD_ARROWS))
    starts = spans.select("track_id", "ts_ns", row=pl.int_range(pl.len())).filter(spans["category"] == "operator")
    starts = starts.unique(["track_id", "ts_ns"], keep="first", maintain_order=True)
    for end in ("from", "to"):
        at = starts.rename({"track_id": f"{end}_track_id", "ts_ns": f"{end}_ts_ns", "row": end})
        drawn = drawn.join(at, on=[f"{end}_track_id", f"{end}_ts_ns"], how="inner", maintain_order="left")
    forward, backward = drawn["from"].to_numpy(), drawn["to"].to_numpy()
    around = calls.parents[backward]
    names = spans["name"].gather(pl.Series(np.maximum(around, 0))).cast(pl.String)
    by_engine = names.str.starts_with(_ENGINE).to_numpy() & (around >= 0)
    rows, first = np.unique(np.where(by_engine, around, backward), return_index=True)
    return rows, calls.of_span[forward[first]]


class ModuleCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of modules in a trace, numbered in the order of `spans`; −1 is none."""

    rows: Ints  # of each call its span
    starts: Ints  # of each call when it began
    above: Ints  # of each call the innermost one around it
    of_span: Ints  # of each span the innermost call that it is or is inside of
    parents: Ints  # of each span the span around it
    labels: pl.DataFrame  # of each call: name, module_class, module_id


def module_calls(spans: pl.DataFrame, frames: pl.DataFrame, *, lightning: bool) -> ModuleCalls | None:
    """The calls of nn.Module, or the ranges that PyTorch Lightning's profiler puts around modules; none without any."""
    mask = _by_lightning(spans) if lightning else (spans["category"] == "module").to_numpy()
    rows = np.flatnonzero(mask)
    if rows.size == 0:
        return None
    parents = integers(spans["parent_id"])
    number = np.full(mask.size + 1, -1, np.int64)  # the last one, reached by index −1, stays −1
    number[rows] = np.arange(rows.size)
    of_span = number[at_or_around(spans, mask)]
    above = number[at_or_around(spans, mask, rows, itself=False)]
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
    # PyTorch writes the number after the class; where it does not, the path needs it to separate two modules.
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
    """The tree of modules, one row per module in each place, and for each call its row.

    Rows are in order of the tree: each is followed by those inside it, in order of first calls. Columns: path,
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
        matches = keys.join(distinct, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
        node[members] = matches["node"].to_numpy()
        levels.append(distinct)
        n_nodes += distinct.height
        is_member = np.zeros(calls.rows.size, np.bool_)
        is_member[members] = True
        members = np.flatnonzero((calls.above >= 0) & is_member[calls.above])
    nodes, position = _in_order(pl.concat(levels))
    return nodes, position[node]


def _in_order(nodes: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """The nodes in order of the tree with path and depth, and the place of each node there.

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


def classes_of(calls: ModuleCalls) -> tuple[pl.DataFrame, Ints]:
    """The classes of modules, column module_class, and for each call the row of its class."""
    known = calls.labels.select("module_class").unique(maintain_order=True).with_row_index("row")
    row = calls.labels.join(known, on="module_class", how="left", maintain_order="left")["row"]
    return known.select("module_class"), row.cast(pl.Int64).to_numpy()


ANALYSIS = analysis_of(
    modules, MODULES, "What each nn.Module cost on host and device, forward and backward, as a tree."
)
