"""What a Chrome trace holds, counted by `json.load` and loops: slow, obvious, and without a line of stepscope.

python plain_counts.py SHARED_DATA > every_trace.csv       counts every .json and .json.gz below its folders of traces
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]

FOLDERS = ("faultlab", "traces")

WORK = {"kernel", "mtia_ccp_events", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "cuda_sync"}
NOT_KERNELS = re.compile(
    r"(?i)memcpy|memset|dma|sdma|memory copy|copy(host|device)to|fillbuffer|event_|event sync|notify|stream_wait|wait"
    r"|write value|profiling_(en|dis)able|place_holder|reduce_async"
)
#: Lanes of HCCL with whole collectives; its planes show their parts.
COLLECTIVES = re.compile(r"Group .* Communication|Communication (OP|Kernel)")
STREAM = re.compile(r"(?i)stream\s*#?\d")


class Counts(NamedTuple):
    """Spans that begin and end, kernels, device work whose launch is there, and steps."""

    spans: int
    kernels: int
    linked: int
    steps: int


def load(path: Path) -> Any:
    """The document."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    return json.loads(text, strict=False)


def events_of(document: Any) -> list[Event] | None:
    """Its events, None if it is no trace."""
    found = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(found, list) or any(not isinstance(e, dict) for e in found):
        return None
    return found if any(e.get("ph") for e in found) else None


def count(events: list[Event]) -> Counts:
    """All four numbers."""
    complete = [e for e in events if e.get("ph") == "X" and e.get("ts") is not None and e.get("dur") is not None]
    on_device = [e for e in complete if category(e) in WORK]
    lanes = lane_work(events, complete)
    kernels = sum(not NOT_KERNELS.match(e["name"]) for e in [e for e in on_device if is_kernel(e)] + lanes)
    return Counts(
        len(complete) + pairs(events),
        kernels,
        by_id(complete, on_device) + by_arrow(events, complete, lanes),
        steps(complete),
    )


def category(event: Event) -> str:
    """In lower case, as its spelling changed over the years."""
    return str(event.get("cat") or "").lower()


def is_kernel(event: Event) -> bool:
    """Whether the recorder calls it a kernel."""
    return category(event) in {"kernel", "mtia_ccp_events"}


def pairs(events: list[Event]) -> int:
    """Begin events that an end event closes."""
    open_: Counter[Any] = Counter()
    closed = 0
    for event in sorted(
        (e for e in events if e.get("ph") in set("BEbe") and e.get("ts") is not None), key=lambda e: float(e["ts"])
    ):
        thread = event.get("tid") if event["ph"] in "BE" else (event.get("cat"), event.get("id"))
        key = (event.get("pid"), event["ph"].lower() == event["ph"], thread)
        if event["ph"] in "Bb":
            open_[key] += 1
        elif open_[key]:
            open_[key] -= 1
            closed += 1
    return closed


def lane_work(events: list[Event], complete: list[Event]) -> list[Event]:
    """Events of recorders whose lanes, not categories, say what runs on the device: XLA, Ascend, rpd."""
    process = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e.get("ph") == "M" and e.get("name") == "process_name" and e.get("args")
    }
    thread = {
        (e["pid"], e["tid"]): e["args"].get("name", "")
        for e in events
        if e.get("ph") == "M" and e.get("name") == "thread_name" and e.get("args")
    }
    streams = {pid for (pid, _), name in thread.items() if "stream" in name.lower()}
    found = []
    for event in complete:
        pid, name = event.get("pid"), str(thread.get((event.get("pid"), event.get("tid")), ""))
        owner = str(process.get(pid, ""))
        if owner.startswith("/device:") and (STREAM.search(name) or (name == "XLA Ops" and pid not in streams)):
            found.append(event)
        if (owner == "Ascend Hardware" and STREAM.match(name)) or (owner == "HCCL" and COLLECTIVES.fullmatch(name)):
            found.append(event)
        if re.fullmatch(r"GPU\d+", owner):
            found.append(event)
    return found


def by_id(complete: list[Event], on_device: list[Event]) -> int:
    """Device events whose correlation id is that of a call."""

    def ident(event: Event) -> int:
        return int(event.get("args", {}).get("correlation") or 0)

    calls = {ident(e) for e in complete if category(e).endswith(("runtime", "driver"))}
    return sum(ident(e) in calls and ident(e) > 0 for e in on_device)


def by_arrow(events: list[Event], complete: list[Event], lanes: list[Event]) -> int:
    """Events on lanes at whose start an arrow ends that begins inside an event of a host thread."""
    tails = defaultdict(list)
    for event in events:
        if event.get("ph") == "s":
            tails[event.get("cat"), event["id"]].append(event)
    device = {(e["pid"], e["tid"]) for e in lanes}
    threads = defaultdict(list)
    for event in complete:
        threads[event.get("pid"), event.get("tid")].append(
            (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        )
    tied = set()
    for head in events:
        if head.get("ph") in ("f", "t") and (head["pid"], head["tid"]) in device:
            for tail in tails[head.get("cat"), head["id"]]:
                spans = threads[tail["pid"], tail["tid"]]
                if (tail["pid"], tail["tid"]) not in device and any(lo <= float(tail["ts"]) < hi for lo, hi in spans):
                    tied.add((head["pid"], head["tid"], str(head["ts"])))
    return sum((e["pid"], e["tid"], str(e["ts"])) in tied for e in lanes)


def steps(complete: list[Event]) -> int:
    """Numbered step annotations on the host thread that has most of them, else iterations that Ascend marked."""
    annotations = [e for e in complete if category(e) in {"user_annotation", "cpu_op", "operator"}]
    iterations = [e for e in complete if category(e) == "iteration time"]
    for events, pattern in ((annotations, r"ProfilerStep#\d"), (iterations, r"Iteration \d")):
        threads = Counter((e.get("pid"), e.get("tid")) for e in events if re.match(pattern, str(e.get("name"))))
        if threads:
            return max(threads.values())
    return 0


def files(root: Path) -> list[Path]:
    """Everything that is called JSON, traces or not."""
    return sorted(
        path for folder in FOLDERS for name in ("*.json", "*.json.gz") for path in (root / folder).rglob(name)
    )


def main(root: Path) -> None:
    """The table, on stdout. What is no trace has no numbers."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("path", *Counts._fields))
    for path in files(root):
        events = events_of(load(path))
        writer.writerow((path.relative_to(root), *(count(events) if events else ("", "", "", ""))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
