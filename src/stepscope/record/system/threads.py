"""The threads of the job, as they are now."""

from __future__ import annotations

import os

from stepscope.record.system.tree import descendants

__all__ = ["threads_of"]


def threads_of(root: int) -> dict[int, int]:
    """The process of each thread of a process and its descendants."""
    found = {}
    for pid in descendants(root):
        try:
            found.update({int(tid): pid for tid in os.listdir(f"/proc/{pid}/task")})  # noqa: PTH208  names alone
        except OSError:  # it is gone
            continue
    return found
