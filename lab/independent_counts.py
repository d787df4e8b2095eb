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
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from raw_recordings import read
from raw_work import COPY, FILL, KERNEL, Work, extent, measure, union

Interval = tuple[int, int]


def count(path: Path) -> dict[str, Any] | None:
    """The document of one file; None if it is no recording of device work or steps that is known here."""
    recording = read(path)
    if recording is None:
        return None
    devices: dict[str, list[Work]] = defaultdict(list)
    for item in recording.work:
        devices[item.device].append(item)
    windows = windows_of(recording.steps, recording.work)
    whole = extent_of(recording.work)
    return {
        "kind": recording.kind,
        "whole": whole,
        "recorded": recording.recorded or whole,
        "devices": {
            device: counts_of(work) | (times_of(work, whole, windows) if whole else {})
            for device, work in sorted(devices.items(), key=lambda item: (len(item[0]), item[0]))
        },
        "kernel_total": total_of(item for item in recording.work if item.kind == KERNEL),
        "top": top_of(recording.work),
        "steps": [{"name": name, "start": start, "length": length} for name, start, length in recording.steps],
        "recorder": recording.summary,
    }


def extent_of(work: list[Work]) -> Interval | None:
    """First start and last end, None without a clock."""
    return extent([(item.start, item.start + (item.length or 0)) for item in work if item.start is not None])


def windows_of(steps: list[tuple[str, int, int]], work: list[Work]) -> list[Interval]:
    """When each step began and ended on the device, if that lags behind the host, else on the host.

    A step begins when it is marked, or when the work of the step before is done. It ends when the next one begins, the
    last one when it and its work are done. Work that was called for before the recording began, as all of it runs
    before that of the first step, belongs to a step before the first.
    """
    marked = [(start, start + length) for _, start, length in steps]
    is_tied = any(item.called is not None for item in work)
    done = [end for _, end in marked]
    for item in work:
        when = item.called if is_tied else item.start
        for place, (start, end) in enumerate(marked):
            if when is not None and start <= when < end:
                done[place] = max(done[place], (item.start or 0) + (item.length or 0))
    first = [marked[0][0], *freed_at(marked[0], work)] if marked else []
    begun = [max([marked[place][0], *first, *done[:place]]) for place in range(len(marked))]
    return list(zip(begun, [*begun[1:], max(done, default=0)][: len(begun)], strict=True))


def freed_at(step: Interval, work: list[Work]) -> list[int]:
    """When the device has done what was called for before the first step; nothing if there is no such work."""
    own = [item.start for item in work if item.called is not None and step[0] <= item.called < step[1]]
    early = [item for item in work if item.called is None]
    if not own or not early or max(item.start for item in early) >= min(own):
        return []
    return [min([*own, max(item.start + item.length for item in early)])]


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
    """The five kernels that took longest in total. Collectives that Ascend numbers are one kernel."""
    calls: dict[str, list[Work]] = defaultdict(list)
    for item in work:
        if item.kind == KERNEL:
            calls[re.sub(r"^(hcom_\w+?)__\d+_\d+_\d+$", r"\1", item.name)].append(item)
    rows = [{"name": name, "calls": len(each), "total": total_of(each)} for name, each in calls.items()]
    return sorted(rows, key=lambda row: (-(row["total"] or 0), row["name"]))[:5]


def times_of(work: list[Work], whole: Interval, windows: list[Interval]) -> dict[str, Any]:
    """How the device spent its extent, and each step."""
    role = {KERNEL: "computation", FILL: "computation", COPY: "copies"}
    spent: dict[str, list[Interval]] = {"computation": [], "communication": [], "copies": [], "kernels": []}
    for item in work:
        start = item.start or 0
        lasted = (start, start + (item.length or 0))
        spent["communication" if item.collective else role[item.kind]].append(lasted)
        if item.kind == KERNEL:
            spent["kernels"].append(lasted)
    steps = [division(spent, window) for window in windows]
    return {**division(spent, whole), "steps": steps}


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
        "kernel_time": covered("kernels"),
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"path": name} | (count(Path(name)) or {})))
