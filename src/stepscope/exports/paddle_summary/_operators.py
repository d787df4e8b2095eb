"""Paddle's Operator Summary: operators by name, and what was done inside them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from stepscope.exports.paddle_summary._items import by_thread, host_items, in_order, items
from stepscope.exports.paddle_summary._text import FIVE, LEAST_CALLS, NO_TIMES, Sheet, centred, times, times_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._items import SortedBy
    from stepscope.exports.paddle_summary._text import Item, TimeUnit
    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]
    Row = tuple[str, ...]

_NAME_WIDTH, _FLOPS_WIDTH = 52, 10


def operator_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy, *, op_detail: bool, thread_sep: bool) -> str:
    """Operators by name, with the events inside them if `op_detail`. Empty if there are none.

    FLOPs are 0: Paddle estimates them from attributes of operators, which it does not write to a profile.
    """
    blocks: dict[str, list[Row]] = {}
    for title, rows in by_thread(tree, np.flatnonzero(tree.host.type.where("Operator")), thread_sep=thread_sep):
        found = host_items(tree, rows)
        whole = sum(item.cpu.total for item in found), sum(item.gpu.total for item in found)
        inside = _Inside(tree, rows, unit) if op_detail else None
        blocks[title] = []
        for item in in_order(found, sorted_by):
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
    """What operators did: their direct children that are no operators, and the device events launched by either."""

    def __init__(self, tree: Tree, ops: Ints, unit: TimeUnit) -> None:
        host, device, n = tree.host, tree.device, max(len(tree.host.name.texts), 1)
        names, name = host.name.texts, host.name.codes
        is_op, is_mine = host.type.where("Operator"), _marked(ops, len(host))
        rank = np.append(tree.visit, -1)
        self._unit = unit

        def launched(of: NDArray[np.bool_], owner: Ints, above: Ints) -> dict[int, list[Item]]:
            """Device events of some nodes by their owner's number; they come as their operators are met."""
            rows = np.flatnonzero(of[device.node])
            rows = rows[np.lexsort((rows, device.node[rows], rank[above[device.node[rows]]]))]
            keys = owner[device.node[rows]] * n + device.name.codes[rows]
            return _by_owner(items(keys, names, np.zeros(rows.size, np.int64), device.dur[rows]), n)

        children = np.flatnonzero(is_mine[host.node] & ~is_op)
        children = children[np.lexsort((children, rank[host.node[children]]))]
        owner = np.zeros(len(host), np.int64)
        owner[children] = name[host.node[children]] * n + name[children]
        found = items(owner[children], names, host.dur[children], tree.device_ns[children])
        self._children = _by_owner(found, n)
        self._of_children = launched(_marked(children, len(host)), owner, host.node)
        self._of_ops = launched(is_mine, name, np.arange(len(host)))

    def lines(self, op: Item) -> Iterator[Row]:
        """The rows under an operator."""
        for child in self._children.get(op.key, ()):
            cpu = times(child.cpu, child.calls, op.cpu.total, self._unit)
            gpu = times(child.gpu, child.calls, op.gpu.total, self._unit)
            yield _cut(child.name, 2), str(child.calls), cpu, gpu, "-"
            for item in self._of_children.get(child.key, ()):
                yield self._launched(item, 4, child.gpu.total)
        for item in self._of_ops.get(op.key, ()):
            yield self._launched(item, 2, op.gpu.total)

    def _launched(self, item: Item, indent: int, whole: int) -> Row:
        return _cut(item.name, indent), str(item.calls), NO_TIMES, times(item.gpu, item.calls, whole, self._unit), "-"


def _marked(rows: Ints, n: int) -> NDArray[np.bool_]:
    """Which of n rows are these; one more, which −1 reaches, is not."""
    flags = np.zeros(n + 1, np.bool_)
    flags[rows] = True
    return flags


def _by_owner(found: list[Item], n: int) -> dict[int, list[Item]]:
    grouped: dict[int, list[Item]] = defaultdict(list)
    for item in found:
        grouped[item.key // n].append(item)
    return grouped


def _cut(name: str, indent: int) -> str:
    """Indented, and cut to the column's width; operators' own names are not."""
    if indent + len(name) > _NAME_WIDTH:
        name = name[: _NAME_WIDTH - 3 - indent] + "..."
    return " " * indent + name
