"""Which rank of a job holds up the others, by what its processes do right now: for jobs without flight recorder."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analyses.communication.hang import HANG
from stepscope.core.units import percent, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How sure a rank is to blame that is gone, elsewhere, waits for its device, or stands in another call than the others.
_GONE, _ELSEWHERE, _ON_DEVICE, _OTHER_CALL = 0.9, 0.8, 0.4, 0.5


def hang_of_processes(processes: pl.DataFrame) -> pl.DataFrame:
    """The table `hang` of processes that were asked while they ran; one row without a rank if none can be named.

    A rank that stands in a collective waits for others. One that does not, while others do, holds them up. Stacks say
    nothing of the process groups, so two groups that wait for each other cannot be told apart here.
    """
    ranks = processes.drop_nulls("rank").unique("rank", keep="first", maintain_order=True).sort("rank")
    rows = ranks.to_dicts()
    waiting = [row for row in rows if row["awaits"] == "collective"]
    known = [row for row in rows if row["stack_id"] is not None and not row["is_gone"]]
    gone = [row for row in rows if row["is_gone"]]
    elsewhere = [row for row in known if row["awaits"] is None]
    on_device = [row for row in known if row["awaits"] == "device"]
    if gone:
        return _table("crashed", gone, "process gone", _GONE, waiting)
    if waiting and elsewhere:
        return _table("hung", elsewhere, "never arrived", _ELSEWHERE, waiting)
    if waiting and on_device:
        return _table("hung", on_device, "never arrived", _ON_DEVICE, waiting)
    lines = Counter(row["line"] for row in waiting)
    rare = [row for row in waiting if len(lines) > 1 and lines[row["line"]] * 2 < len(waiting)]
    if rare:
        return _table("hung", rare, "other operation", _OTHER_CALL, [row for row in waiting if row not in rare])
    return HANG.conform(pl.DataFrame([{"verdict": "hung" if waiting else "healthy", "text": _nobody(rows, waiting)}]))


def _table(
    verdict: str, culprits: Sequence[dict[str, Any]], reason: str, confidence: float, waiting: Sequence[dict[str, Any]]
) -> pl.DataFrame:
    awaited = Counter(row["line"] for row in waiting).most_common(1)
    rows = [
        {
            "verdict": verdict,
            "rank": row["rank"],
            "reason": reason,
            "confidence_ratio": confidence / max(len(culprits) - len(waiting), 1),
            "n_waiting": len(waiting),
            "line": row["line"],
            "awaited_line": awaited[0][0] if awaited else None,
            "stack_id": row["stack_id"],
            "text": _evidence(row, reason, [one["rank"] for one in waiting]),
        }
        for row in culprits
    ]
    return HANG.conform(pl.DataFrame(rows, schema_overrides=dict(HANG.dtypes)))


def _evidence(row: dict[str, Any], reason: str, waiting: list[int]) -> str:
    those = f"{'rank' if len(waiting) == 1 else 'ranks'} {ranges(waiting)}"
    if reason == "process gone":
        return "Its process has ended."
    if reason == "other operation":
        return f"It stands in a collective that another line called than that of {those}."
    stand = "stands" if len(waiting) == 1 else "stand"
    where = "waits for its device" if row["awaits"] == "device" else "is elsewhere"
    return f"It {where}, while {those} {stand} in a collective."


def doing_now(row: dict[str, Any]) -> str:
    """What a process did when it was asked, in a sentence: where it was, in which state, how busy."""
    if row["is_gone"]:
        return "Its process had ended when it was asked."
    if row["stack_id"] is None:
        return f"Its stack is not known: {row['problem'] or 'no thread was there'}."
    facts = [row["state"] or ""]
    facts += [f"in the kernel's {row['wait_channel']}"] if row["wait_channel"] and row["state"] != "running" else []
    facts += [f"using {percent(row['cores_used'])} of a core"] if row["cores_used"] is not None else []
    at = f" at {row['line']}" if row["line"] else ""
    return f"When it was asked, it was in {row['function']}{at} ({', '.join(filter(None, facts))})."


def _nobody(rows: Sequence[dict[str, Any]], waiting: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "No process has a rank, so nobody can be named; the stacks say what each one does."
    if not waiting:
        return "No process stands in a collective: the job is at work, or stands still for another reason."
    if len(waiting) == len(rows):
        return (
            "All ranks stand in a collective at the same line: the network, a device, or a rank of another machine. "
            "Dumps of the flight recorder say which call of which group."
        )
    return "Ranks stand in a collective, and the stacks of the others are not known."
