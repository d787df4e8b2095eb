"""The rank that a file's name tells."""

from __future__ import annotations

import re

_RANK = re.compile(r"(?:^|[._\-/])rank[._\-]?(\d+)(?=[._\-/]|$)", re.IGNORECASE)
_MOST = 2**31 - 1


def rank_in(path: str) -> int | None:
    """The number behind the last `rank` in the path; None if there is none, or one that no job has.

    >>> rank_in("run/rank3/trace.json"), rank_in("drank7.json")
    (3, None)
    """
    found = _RANK.findall(path)
    if not found or len(found[-1]) > 10:
        return None
    number = int(found[-1])
    return number if number <= _MOST else None
