"""Call stacks of operators: from the recorder's text, or from the Python frames that enclose them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.schema import STACKS
from stepscope.readers.common.links import nearest_op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_MOST_FRAMES = 256


def from_texts(texts: Iterable[str], of_row: NDArray[np.uint32]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Stacks recorded as text, innermost frame first, semicolons between; and the stack of each row (−1 none)."""
    frames: list[list[str]] = []
    recorded: list[str | None] = []
    number: list[int] = []
    for text in texts:
        number.append(len(frames) if text else -1)
        if text:
            frames.append([f.strip() for f in text.split(";") if f.strip()][::-1])
            recorded.append(text)
    return _table(frames, recorded), np.array(number or [-1], np.int64)[of_row]


def from_frames(
    rows: NDArray[np.int64],
    parent: NDArray[np.int64],
    is_frame: NDArray[np.bool_],
    name: NDArray[np.uint32],
    names: list[str],
) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Stacks from enclosing Python frames of the rows (operators). Equal chains of names share a stack.

    Level by level from the roots: a frame's number is that of (its parent frame's number, its name).
    """
    frames = np.flatnonzero(is_frame)
    if not frames.size:
        return STACKS.empty(), np.full(rows.size, -1, np.int64)
    above = nearest_op(parent[frames], parent, is_frame)
    position = np.full(parent.size, -1, np.int64)
    position[frames] = np.arange(frames.size)
    up = np.where(above >= 0, position[above], -1)
    chain = np.full(frames.size, -1, np.int64)
    parent_chain: list[NDArray[np.int64]] = []
    own_name: list[NDArray[np.int64]] = []
    level = np.flatnonzero(up < 0)
    children_of = np.argsort(up, kind="stable")
    sorted_up = up[children_of]
    n_chains = 0
    for _ in range(_MOST_FRAMES):
        if not level.size:
            break
        outer = np.where(up[level] >= 0, chain[up[level]], -1)
        key = (outer + 1) * len(names) + name[frames[level]]
        distinct, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        chain[level] = n_chains + inverse
        n_chains += distinct.size
        parent_chain.append(outer[first])
        own_name.append(name[frames[level]][first].astype(np.int64))
        lo, hi = np.searchsorted(sorted_up, level, "left"), np.searchsorted(sorted_up, level, "right")
        counts = hi - lo
        offsets = np.repeat(lo - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
        level = children_of[offsets]
    at = nearest_op(parent[rows], parent, is_frame)
    of_row = np.where(at >= 0, chain[position[at]], -1)
    used = np.unique(of_row[of_row >= 0])
    if not used.size:
        return STACKS.empty(), np.full(rows.size, -1, np.int64)
    outer_of, name_of = np.concatenate(parent_chain), np.concatenate(own_name)
    texts = [_unwind(int(c), outer_of, name_of, names) for c in used]
    return _table(texts, [None] * len(texts)), np.where(of_row >= 0, np.searchsorted(used, of_row), -1)


def _unwind(chain: int, outer: NDArray[np.int64], name: NDArray[np.int64], names: list[str]) -> list[str]:
    found = []
    while chain >= 0:
        found.append(names[name[chain]])
        chain = int(outer[chain])
    return found[::-1]


def _table(frames: list[list[str]], texts: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"stack_id": range(len(frames)), "frames": frames, "text": texts}, schema=dict(STACKS.dtypes))
