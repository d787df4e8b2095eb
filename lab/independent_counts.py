"""How devices spent their time and how long steps took, counted from raw files: an oracle without a line of stepscope.

python lab/independent_counts.py FILE...     prints one JSON document per file: devices, steps, the recorder's summary

All times are integer nanoseconds. The work of a device is its kernels, copies and fills. *Busy* is the union of all of
it, *communication* the union of the kernels that the recorder or the framework calls a collective, *computation* that
of all other kernels and of fills, *copies* that of copies. *Exposed* communication is what no computation covers,
exposed copies what no kernel covers. *Idle* is what is left of the recorded extent, which reaches from the first start
to the last end of work on any device of the file.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from raw_recordings import read
from raw_work import COPY, FILL, KERNEL, Work, measure, union

Interval = tuple[int, int]


def count(path: Path) -> dict[str, Any] | None:
    """The document of one file; None if it is no recording of device work or steps that is known here."""
    recording = read(path)
    if recording is None:
        return None
    devices: dict[str, list[Work]] = defaultdict(list)
    for item in recording.work:
        devices[item.device].append(item)
    windows = windows_of(recording.steps)
    whole = extent_of(recording.work)
    return {
        "kind": recording.kind,
        "whole": whole,
        "devices": {
            device: counts_of(work) | (times_of(work, whole, windows) if whole else {})
            for device, work in sorted(devices.items())
        },
        "kernel_total": total_of(item for item in recording.work if item.kind == KERNEL),
        "top": top_of(recording.work),
        "steps": [{"name": name, "start": start, "length": length} for name, start, length in recording.steps],
        "recorder": recording.summary,
    }


def extent_of(work: list[Work]) -> Interval | None:
    """First start and last end, None without a clock."""
    timed = [(item.start, item.start + (item.length or 0)) for item in work if item.start is not None]
    return (min(start for start, _ in timed), max(end for _, end in timed)) if timed else None


def windows_of(steps: list[tuple[str, int, int]]) -> list[Interval]:
    """Each step from its start to the next one's, the last one to its own end."""
    ends = [start for _, start, _ in steps[1:]] + [start + length for _, start, length in steps[-1:]]
    return [(start, end) for (_, start, _), end in zip(steps, ends, strict=True)]


def total_of(work: Any) -> int | None:
    """Summed length, None if none was measured."""
    lengths = [item.length for item in work]
    return None if None in lengths else sum(lengths)


def counts_of(work: list[Work]) -> dict[str, int]:
    """How much work of each kind."""
    kinds = Counter(item.kind for item in work)
    collectives = sum(item.collective for item in work)
    return {"kernels": kinds[KERNEL], "copies": kinds[COPY], "fills": kinds[FILL], "collectives": collectives}


def top_of(work: list[Work]) -> list[dict[str, Any]]:
    """The five kernels that took longest in total."""
    calls: dict[str, list[Work]] = defaultdict(list)
    for item in work:
        if item.kind == KERNEL:
            calls[item.name].append(item)
    rows = [{"name": name, "calls": len(each), "total": total_of(each)} for name, each in calls.items()]
    return sorted(rows, key=lambda row: (-(row["total"] or 0), row["name"]))[:5]


def times_of(work: list[Work], extent: Interval, windows: list[Interval]) -> dict[str, Any]:
    """How the device spent its extent, and each step."""
    role = {KERNEL: "computation", FILL: "computation", COPY: "copies"}
    spent: dict[str, list[Interval]] = {"computation": [], "communication": [], "copies": []}
    for item in work:
        start = item.start or 0
        spent["communication" if item.collective else role[item.kind]].append((start, start + (item.length or 0)))
    steps = [division(spent, window) for window in windows]
    return {**division(spent, extent), "steps": steps}


def division(spent: dict[str, list[Interval]], window: Interval) -> dict[str, int]:
    """The parts of one window."""

    def covered(*roles: str) -> int:
        low, high = window
        times = [(max(start, low), min(end, high)) for role in roles for start, end in spent[role]]
        return measure(union([(start, end) for start, end in times if start < end]))

    busy, computation = covered("computation", "communication", "copies"), covered("computation")
    kernels = covered("computation", "communication")
    return {
        "extent": window[1] - window[0],
        "busy": busy,
        "idle": window[1] - window[0] - busy,
        "computation": computation,
        "communication": covered("communication"),
        "exposed_communication": kernels - computation,
        "copy_time": covered("copies"),
        "exposed_copies": busy - kernels,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"path": name} | (count(Path(name)) or {})))
