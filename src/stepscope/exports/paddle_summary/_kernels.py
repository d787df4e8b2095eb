"""Paddle's Kernel Summary: device kernels by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stepscope.exports.paddle_summary._items import in_order, items
from stepscope.exports.paddle_summary._text import FIVE, Sheet, calls_width, times, times_width

if TYPE_CHECKING:
    from stepscope.exports.paddle_summary._items import SortedBy
    from stepscope.exports.paddle_summary._text import TimeUnit
    from stepscope.exports.paddle_summary._tree import Tree

_NAME_WIDTH = 90
_TEMPLATE = re.compile(r"(.+?)(<.*>)(\(.*\))")


def kernel_summary(tree: Tree, unit: TimeUnit, sorted_by: SortedBy) -> str:
    """Kernels by their whole name, wherever they were launched. Empty if there are none.

    Names are shown without parameters and cut, so that different kernels may look alike.
    """
    rows = tree.device_order(np.flatnonzero(tree.device.type.where("Kernel")))
    name, dur = tree.device.name, tree.device.dur[rows]
    found = items(name.codes[rows], name.texts, np.zeros(rows.size, np.int64), dur)
    if not found:
        return ""
    whole = sum(item.gpu.total for item in found)
    found = in_order(found, sorted_by if sorted_by.startswith("GPU") else "GPUTotal")
    cells = [times(item.gpu, item.calls, whole, unit) for item in found]
    sheet = Sheet((_NAME_WIDTH, calls_width(found), times_width(cells)))
    sheet.title("Kernel Summary")
    sheet.lines.append(f"Time unit: {unit}")
    sheet.head("Name", "Calls", f"GPU {FIVE}")
    for item, cell in zip(found, cells, strict=True):
        sheet.row(_shown(item.name), str(item.calls), cell)
    sheet.rule()
    return sheet.done()


def _shown(name: str) -> str:
    match = _TEMPLATE.match(name)
    text = match[1] + match[2] if match else name
    return text if len(text) <= _NAME_WIDTH else text[: _NAME_WIDTH - 3] + "..."
