"""Paddle's Memory Manipulation Summary and UserDefined Summary: ranges by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.exports.paddle_summary._items import by_thread, host_items, in_order
from stepscope.exports.paddle_summary._model import STEP
from stepscope.exports.paddle_summary._text import FIVE, Sheet, calls_width, centred, times, times_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._items import SortedBy
    from stepscope.exports.paddle_summary._text import Item, TimeUnit
    from stepscope.exports.paddle_summary._tree import Tree

_MOVES = ("memcpy", "memorycopy", "memset")


def memory_manipulation_summary(tree: Tree, unit: TimeUnit) -> str:
    """Ranges whose name says that they copy or fill memory. Empty if there are none."""
    found = host_items(tree, np.flatnonzero(tree.host.type.where("UserDefined", "PythonUserDefined") & _moves(tree)))
    return _table(tree, "Memory Manipulation Summary", {"": found}, unit) if found else ""


def user_defined_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy, *, thread_sep: bool) -> str:
    """The program's own ranges by name. Empty if there are none."""
    rows = np.flatnonzero(tree.host.type.where("PythonUserDefined") & ~_moves(tree))
    threads = by_thread(tree, rows, thread_sep=thread_sep)
    found = {title: in_order(host_items(tree, mine), sorted_by) for title, mine in threads}
    return _table(tree, "UserDefined Summary", found, unit) if found else ""


def _moves(tree: Tree) -> NDArray[np.bool_]:
    return tree.host.name.containing(*_MOVES)


def _table(tree: Tree, title: str, blocks: Mapping[str, list[Item]], unit: TimeUnit) -> str:
    """Ranges by name; blocks with a title are those of threads, and have no rule behind them."""
    device_ns = int(tree.device_ns[tree.host.type.where(STEP) & tree.outermost].sum())
    every = [item for found in blocks.values() for item in found]
    cpu = [times(item.cpu, item.calls, tree.steps_ns, unit) for item in every]
    gpu = [times(item.gpu, item.calls, device_ns, unit) for item in every]
    names = max(len(item.name) for item in every)
    sheet = Sheet((names, calls_width(every), times_width(cpu), times_width(gpu)))
    sheet.title(title)
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"CPU {FIVE}", f"GPU {FIVE}")
    cells = iter(zip(every, cpu, gpu, strict=True))
    for thread, found in blocks.items():
        if thread:
            sheet.lines.append(centred(f"Thread: {thread}", sheet.width))
        for item, *both in (next(cells) for _ in found):
            sheet.row(item.name, str(item.calls), *both)
    if "" in blocks:
        sheet.rule()
    return sheet.done()
