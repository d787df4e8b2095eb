"""Paddle's tables of items by name: operators, kernels, copies and fills, the program's own ranges, memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.patterns import regex
from stepscope.exports.paddle_summary._overview import STEP
from stepscope.exports.paddle_summary._text import (
    FIVE,
    LEAST_CALLS,
    NO_TIMES,
    Sheet,
    by_thread,
    calls_width,
    centred,
    host_items,
    in_order,
    items,
    times,
    times_width,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._text import Item, SortedBy, TimeUnit
    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]
    Row = tuple[str, ...]
    from collections.abc import Mapping


_NAME_WIDTH, _FLOPS_WIDTH = 52, 10


def operator_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy, *, op_detail: bool, thread_sep: bool) -> str:
    """Operators by name, with the events inside them if `op_detail`. Empty if there are none.

    FLOPs are 0: Paddle estimates them from attributes of operators, which it does not write to a profile.
    """
    blocks: dict[str, list[Row]] = {}
    for title, rows in by_thread(tree, np.flatnonzero(tree.host.type.where("Operator")), thread_sep=thread_sep):
        operators = host_items(tree, rows)
        whole = sum(item.cpu.total for item in operators), sum(item.gpu.total for item in operators)
        inside = _Inside(tree, rows, unit) if op_detail else None
        blocks[title] = []
        for item in in_order(operators, sorted_by):
            cells = (times(item.cpu, item.calls, whole[0], unit), times(item.gpu, item.calls, whole[1], unit))
            blocks[title].append((item.name, str(item.calls), *cells, "0"))
            blocks[title] += inside.lines(item) if inside else []
    if not blocks:
        return ""
    _, calls, cpu, gpu, _ = zip(*(line for lines in blocks.values() for line in lines), strict=True)
    calls_width = max(LEAST_CALLS, *map(len, calls))
    sheet = Sheet((_NAME_WIDTH, calls_width, times_width(cpu), times_width(gpu), _FLOPS_WIDTH))
    sheet.title("Operator Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"CPU {FIVE}", f"GPU {FIVE}", "FLOPs")
    for title, lines in blocks.items():
        sheet.lines.append(centred(f"Thread: {title}", sheet.width))
        for line in lines:
            sheet.row(*line)
    sheet.rule()
    return sheet.done()


class _Inside:
    """What operators did: their direct children that are not operators, and the device events that either launched."""

    def __init__(self, tree: Tree, ops: Ints, unit: TimeUnit) -> None:
        host, device, n = tree.host, tree.device, max(len(tree.host.name.texts), 1)
        names, name = host.name.texts, host.name.codes
        is_op, is_mine = host.type.where("Operator"), _marked(ops, len(host))
        rank = np.append(tree.visit, -1)
        self._unit = unit

        def launched(of: NDArray[np.bool_], owner: Ints, above: Ints) -> dict[int, list[Item]]:
            """Device events of some nodes by their owner's number, in the order in which their operators are met."""
            rows = np.flatnonzero(of[device.node])
            rows = rows[np.lexsort((rows, device.node[rows], rank[above[device.node[rows]]]))]
            keys = owner[device.node[rows]] * n + device.name.codes[rows]
            return _by_owner(items(keys, names, np.zeros(rows.size, np.int64), device.dur[rows]), n)

        children = np.flatnonzero(is_mine[host.node] & ~is_op)
        children = children[np.lexsort((children, rank[host.node[children]]))]
        owner = np.zeros(len(host), np.int64)
        owner[children] = name[host.node[children]] * n + name[children]
        children_items = items(owner[children], names, host.dur[children], tree.device_ns[children])
        self._children = _by_owner(children_items, n)
        self._of_children = launched(_marked(children, len(host)), owner, host.node)
        self._of_ops = launched(is_mine, name, np.arange(len(host)))

    def lines(self, op: Item) -> Iterator[Row]:
        """The rows under an operator."""
        for child in self._children.get(op.key, ()):
            cpu = times(child.cpu, child.calls, op.cpu.total, self._unit)
            gpu = times(child.gpu, child.calls, op.gpu.total, self._unit)
            yield _shortened(child.name, 2), str(child.calls), cpu, gpu, "-"
            for item in self._of_children.get(child.key, ()):
                yield self._launched(item, 4, child.gpu.total)
        for item in self._of_ops.get(op.key, ()):
            yield self._launched(item, 2, op.gpu.total)

    def _launched(self, item: Item, indent: int, whole: int) -> Row:
        return (
            _shortened(item.name, indent),
            str(item.calls),
            NO_TIMES,
            times(item.gpu, item.calls, whole, self._unit),
            "-",
        )


def _marked(rows: Ints, n: int) -> NDArray[np.bool_]:
    """Which of n rows are these. One more entry is false, so that index −1 is false."""
    flags = np.zeros(n + 1, np.bool_)
    flags[rows] = True
    return flags


def _by_owner(children: list[Item], n: int) -> dict[int, list[Item]]:
    grouped: dict[int, list[Item]] = defaultdict(list)
    for item in children:
        grouped[item.key // n].append(item)
    return grouped


def _shortened(name: str, indent: int) -> str:
    """The name, indented and cut to the column's width. Operators' own names are neither."""
    if indent + len(name) > _NAME_WIDTH:
        name = name[: _NAME_WIDTH - 3 - indent] + "..."
    return " " * indent + name


_MOVES = ("memcpy", "memorycopy", "memset")


def memory_manipulation_summary(tree: Tree, unit: TimeUnit) -> str:
    """Ranges whose name says that they copy or fill memory. Empty if there are none."""
    ranges = host_items(tree, np.flatnonzero(tree.host.type.where("UserDefined", "PythonUserDefined") & _moves(tree)))
    return _ranges_table(tree, "Memory Manipulation Summary", {"": ranges}, unit) if ranges else ""


def user_defined_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy, *, thread_sep: bool) -> str:
    """The program's own ranges by name. Empty if there are none."""
    rows = np.flatnonzero(tree.host.type.where("PythonUserDefined") & ~_moves(tree))
    threads = by_thread(tree, rows, thread_sep=thread_sep)
    ranges = {title: in_order(host_items(tree, mine), sorted_by) for title, mine in threads}
    return _ranges_table(tree, "UserDefined Summary", ranges, unit) if ranges else ""


def _moves(tree: Tree) -> NDArray[np.bool_]:
    return tree.host.name.containing(*_MOVES)


def _ranges_table(tree: Tree, title: str, blocks: Mapping[str, list[Item]], unit: TimeUnit) -> str:
    """Ranges by name. Blocks with a title are those of threads and have no rule after them."""
    device_ns = int(tree.device_ns[tree.host.type.where(STEP) & tree.outermost].sum())
    every = [item for ranges in blocks.values() for item in ranges]
    cpu = [times(item.cpu, item.calls, tree.steps_ns, unit) for item in every]
    gpu = [times(item.gpu, item.calls, device_ns, unit) for item in every]
    names = max(len(item.name) for item in every)
    sheet = Sheet((names, calls_width(every), times_width(cpu), times_width(gpu)))
    sheet.title(title)
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"CPU {FIVE}", f"GPU {FIVE}")
    cells = iter(zip(every, cpu, gpu, strict=True))
    for thread, ranges in blocks.items():
        if thread:
            sheet.lines.append(centred(f"Thread: {thread}", sheet.width))
        for item, *both in (next(cells) for _ in ranges):
            sheet.row(item.name, str(item.calls), *both)
    if "" in blocks:
        sheet.rule()
    return sheet.done()


_KERNEL_WIDTH = 90
_TEMPLATE = regex(r"(.+?)(<.*>)(\(.*\))")


def kernel_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy) -> str:
    """Kernels by their whole name, wherever they were launched. Empty if there are none.

    Names are shown without parameters and cut, so different kernels may have the same name.
    """
    rows = tree.device_order(np.flatnonzero(tree.device.type.where("Kernel")))
    name, dur = tree.device.name, tree.device.dur[rows]
    kernels = items(name.codes[rows], name.texts, np.zeros(rows.size, np.int64), dur)
    if not kernels:
        return ""
    whole = sum(item.gpu.total for item in kernels)
    kernels = in_order(kernels, sorted_by if sorted_by.startswith("GPU") else "GPUTotal")
    cells = [times(item.gpu, item.calls, whole, unit) for item in kernels]
    sheet = Sheet((_KERNEL_WIDTH, calls_width(kernels), times_width(cells)))
    sheet.title("Kernel Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"GPU {FIVE}")
    for item, cell in zip(kernels, cells, strict=True):
        sheet.row(_shown(item.name), str(item.calls), cell)
    sheet.rule()
    return sheet.done()


def _shown(name: str) -> str:
    match = _TEMPLATE.match(name)
    text = match[1] + match[2] if match else name
    return text if len(text) <= _KERNEL_WIDTH else text[: _KERNEL_WIDTH - 3] + "..."


_WIDTHS = (50, 12, 15, 15, 15, 15, 15)
_FREES = ("Free", "ReservedFree")
#: The header's third cell is wider than its column, which moves what follows.
_HEAD = ("Name", "Type", "Allocation Count", "Free Count", "Allocation Size", "Free Size", "Increased Size")


def memory_summary(tree: Tree, allocations: pl.DataFrame, reservations: pl.DataFrame) -> str:
    """A table for each memory in which tensors were allocated. Empty if that was not recorded.

    An operator's numbers include those of its direct children, so kernel launches count twice: under the operator's
    name and under their own.
    """
    kinds = (("Allocated", allocations), ("Reserved", reservations))
    records = pl.concat([_attributed(tree, frame).with_columns(kind=pl.lit(kind)) for kind, frame in kinds])
    if records.is_empty():
        return ""
    text = ""
    for place in records.filter(pl.col("kind") == "Allocated")["place"].unique(maintain_order=True):
        text += _place_table(place, records.filter(pl.col("place") == place))
    return text


def _attributed(tree: Tree, frame: pl.DataFrame) -> pl.DataFrame:
    """Memory events under the names that Paddle gives them, in the order in which it meets them."""
    host = tree.host
    rows = np.searchsorted(host.span, frame["span_id"].cast(pl.Int64).fill_null(-1).to_numpy())
    known = np.flatnonzero(frame["span_id"].is_not_null().to_numpy())
    rows = rows[known]
    up = host.node[rows]
    is_op = np.append(host.type.where("Operator"), False)
    inherited = np.flatnonzero(is_op[up])
    own = np.flatnonzero(~host.type.where("OperatorInner")[rows])
    at = np.concatenate((inherited, own))
    node = np.concatenate((up[inherited], rows[own]))
    is_own = np.repeat([0, 1], (inherited.size, own.size))
    order = np.lexsort((known[at], rows[at], is_own, tree.visit[node]))
    texts = pl.Series([*host.name.texts, ""], dtype=pl.String)
    named = texts.gather(host.name.codes[node[order]])
    labels = pl.col("recorded_category", "place").cast(pl.String).fill_null("")
    picked = frame.select(labels, "bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    return picked[known[at[order]]].with_columns(name=named)


def _place_table(place: str, records: pl.DataFrame) -> str:
    sheet = Sheet(_WIDTHS)
    sheet.title(f"Memory Summary - {place}")
    for what in ("Allocated", "Reserved"):
        peak = records.select(pl.col(f"peak_{what.lower()}_bytes").max().fill_null(0)).item()
        sheet.lines.append(f"Peak {what} Memory: {peak}")
    sheet.head(*_HEAD)
    size, is_free = pl.col("bytes"), pl.col("recorded_category").is_in(_FREES)
    sums = records.group_by("kind", "name", maintain_order=True).agg(
        n_allocations=(~is_free).sum(),
        n_frees=is_free.sum(),
        allocated=size.filter(~is_free).sum(),
        freed=-size.filter(is_free).sum(),
        increase=size.sum(),
    )
    for kind in ("Allocated", "Reserved"):
        mine = sums.filter(pl.col("kind") == kind).sort("increase", descending=True, maintain_order=True)
        for _, name, *numbers in mine.iter_rows():
            sheet.row(name, kind, *map(str, numbers))
    return sheet.done()
