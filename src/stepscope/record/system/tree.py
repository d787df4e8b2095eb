"""Which processes belong to the job: the one that was started or joined, and all that descend from it."""

from __future__ import annotations

import os

from stepscope.record.system.files import read_once

__all__ = ["descendants", "is_alive"]


def descendants(root: int) -> list[int]:
    """The process and its children, theirs and so on, as they are now; the root first. Empty if it is gone."""
    if not is_alive(root):
        return []
    found, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        try:
            tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  the same
        except OSError:
            continue
        for tid in tids:
            children = read_once(f"/proc/{pid}/task/{tid}/children") or ""
            queue += [int(child) for child in children.split()]
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs (or sleeps); one that only waits to be reaped does not."""
    text = read_once(f"/proc/{pid}/stat")
    return text is not None and text[text.rfind(")") + 2 :][:1] not in ("Z", "X", "")
