"""Device work and steps of recordings in the form of Chrome traces: Kineto, Paddle, XLA, rpd, Ascend and MindSpore."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from raw_work import (
    ASCEND_OTHER,
    COLLECTIVE_INSTRUCTIONS,
    COLLECTIVE_KERNELS,
    COLLECTIVE_RANGES,
    COPY,
    FILL,
    KERNEL,
    Recording,
    Work,
    amd,
    extent,
    inside,
    library,
    measure,
    ns,
    paddle_numbers,
    rows_of,
    union,
)

if TYPE_CHECKING:
    from pathlib import Path


# Chrome traces ---------------------------------------------------------------------------------------------------


def chrome(document: Any, path: Path) -> Recording:
    """Kineto, Paddle, XLA, Ascend and rpd all write this form; they differ in what says that something is work."""
    events = document["traceEvents"] if isinstance(document, dict) else document
    processes, threads = {}, {}
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            processes[event["pid"]] = str(event["args"]["name"])
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = str(event["args"]["name"])
    spans = [e for e in events if e.get("ph") == "X" and "ts" in e and "dur" in e]
    return by_maker(document, spans, processes, threads, path)._replace(recorded=extent(seen_of(spans)))


def seen_of(spans: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """When each span began and ended, without the recorder's own overhead."""
    return [(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in spans if e.get("cat") != "overhead"]


def by_maker(
    document: Any, spans: list[dict[str, Any]], processes: dict[Any, str], threads: dict[Any, str], path: Path
) -> Recording:
    """The recording, read as its recorder writes it."""
    names = set(processes.values())
    if names & {"Ascend Hardware", "HCCL", "Step Trace"}:
        return ascend(spans, processes, threads, path)
    if any(name.startswith("/device:") for name in names):
        return xla(spans, processes, threads)
    if isinstance(document, dict) and ("span_index" in document or "span_indx" in document):
        return paddle(spans, path)
    if names and all(re.fullmatch(r"GPU\d+", name) for name in names):
        return rpd_as_chrome(spans, processes)
    return kineto(spans)


def args_of(event: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an event."""
    return event.get("args") or {}


def kineto(spans: list[dict[str, Any]]) -> Recording:
    """PyTorch on CUDA, ROCm, XPU, MLU and MTIA. Categories were written in capitals until 2021."""
    kinds = {"kernel": KERNEL, "memcpy": COPY, "memset": FILL}
    ranges, calls, steps = defaultdict(list), {}, []
    for event in spans:
        category, name = str(event.get("cat", "")).lower(), str(event["name"])
        if category in ("cpu_op", "user_annotation", "operator"):
            start = ns(event["ts"])
            if name.startswith(COLLECTIVE_RANGES):
                ranges[event["pid"], event["tid"]].append((start, start + ns(event["dur"])))
            if re.match(r"ProfilerStep#\d+", name):
                steps.append((event["pid"], event["tid"], name, start, ns(event["dur"])))
        elif category.endswith(("_runtime", "_driver", "runtime")) and args_of(event).get("correlation"):
            calls[args_of(event)["correlation"]] = (event["pid"], event["tid"], ns(event["ts"]))
    merged = {thread: union(intervals) for thread, intervals in ranges.items()}
    work = []
    for event in spans:
        category, name, args = str(event.get("cat", "")).lower(), str(event["name"]), args_of(event)
        kind = kinds.get(re.sub("^(gpu|mlu)_", "", category))
        if category == "mtia_ccp_events" and not name.startswith("event_"):
            kind = COPY if name == "dma_request" else KERNEL
        if kind is None:
            continue
        talks, call = False, calls.get(args.get("correlation"))
        if kind == KERNEL:
            talks = "Collective name" in args or any(part in name for part in COLLECTIVE_KERNELS)
            talks = talks or (call is not None and inside(merged.get(call[:2], []), call[2]))
        device = str(args.get("device", event["pid"]))
        called = call[2] if call else None
        work.append(Work(device, kind, name, ns(event["ts"]), ns(event["dur"]), talks, called))
    most = Counter(step[:2] for step in steps).most_common(1)
    return Recording("kineto", work, sorted((s[2:] for s in steps if s[:2] == most[0][0]), key=lambda s: s[1]))


def paddle(spans: list[dict[str, Any]], path: Path) -> Recording:
    """Paddle: times in `args` are exact, `ts` is rounded to µs. Names end with their duration in brackets."""
    kinds = {"Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL}
    work, steps = [], []
    calls = {
        args_of(e).get("correlation id"): ns(e["args"]["start_time"].split()[0])
        for e in spans
        if e.get("cat") == "CudaRuntime"
    }
    for event in spans:
        name, args, kind = re.sub(r"\[[\d.]+ \w+\]$", "", event["name"]), args_of(event), kinds.get(event.get("cat"))
        if kind or event.get("cat") == "ProfileStep":
            start, end = (ns(args[key].split()[0]) for key in ("start_time", "end_time"))
            if kind:
                # Copies have no device in `args`; their process is the device.
                device, called = str(args.get("device", event["pid"])), calls.get(args.get("correlation id"))
                work.append(Work(device, kind, name, start, end - start, library(name), called))
            else:
                steps.append((name, start, end - start))
    return Recording("paddle", work, sorted(steps, key=lambda s: s[1]), paddle_numbers(path.parent))


def xla(spans: list[dict[str, Any]], processes: dict[Any, str], threads: dict[Any, str]) -> Recording:
    """JAX and TensorFlow: what devices ran is on the lane `XLA Ops`, or on streams where there are any."""
    work, steps = [], []
    streams = {pid for (pid, _), name in threads.items() if name.startswith("Stream")}
    for event in spans:
        process, lane = processes.get(event["pid"], ""), threads.get((event["pid"], event["tid"]), "")
        if not process.startswith("/device:"):
            continue
        name, start, length = event["name"], ns(event["ts"]), ns(event["dur"])
        if lane == "Steps":
            steps.append((name, start, length))
        elif lane.startswith("Stream") if event["pid"] in streams else lane == "XLA Ops":
            talks = library(name) or name.startswith(COLLECTIVE_INSTRUCTIONS)
            kind = COPY if "memcpy" in name.lower() else KERNEL
            work.append(Work(process.removeprefix("/device:"), kind, name, start, length, talks and kind == KERNEL))
    return Recording("xla", work, sorted(steps, key=lambda s: s[1]))


def rpd_as_chrome(spans: list[dict[str, Any]], processes: dict[Any, str]) -> Recording:
    """What rpd2tracing makes of a ROCm profile: processes are GPUs, `desc` says what ran."""
    work = [
        amd(processes[e["pid"]], args_of(e)["desc"], e["name"], ns(e["ts"]), ns(e["dur"]))
        for e in spans
        if e["pid"] in processes
    ]
    return Recording("rpd", work)


# Ascend ----------------------------------------------------------------------------------------------------------


def ascend(spans: list[dict[str, Any]], processes: dict[Any, str], threads: dict[Any, str], path: Path) -> Recording:
    """torch_npu and MindSpore: tasks on streams, collectives in the process HCCL, the recorder's own intervals."""
    work, steps, marked = [], {}, defaultdict(list)
    collectives = [
        Work("NPU", KERNEL, str(e["name"]), ns(e["ts"]), ns(e["dur"]), collective=True)
        for e in spans
        if processes.get(e["pid"]) == "HCCL" and not threads.get((e["pid"], e["tid"]), "").startswith("Plane")
    ]
    # Streams on which tasks wait for other ranks carry out collectives; copies there are parts of them.
    waiting = [e for e in spans if str(e["name"]).upper().replace(" ", "_") == "NOTIFY_WAIT"]
    of_collectives = {(e["pid"], e["tid"]) for e in waiting} if collectives else set()
    for event in spans:
        process, lane = processes.get(event["pid"], ""), threads.get((event["pid"], event["tid"]), "")
        name, start, length = str(event["name"]), ns(event["ts"]), ns(event["dur"])
        if process == "Overlap Analysis":
            marked[name].append((start, start + length))
        elif process == "Ascend Hardware" and lane.startswith("Stream"):
            if "MEMCPY" in name.upper():
                if (event["pid"], event["tid"]) not in of_collectives:
                    work.append(Work("NPU", COPY, name, start, length))
            elif not name.upper().replace(" ", "_").startswith(ASCEND_OTHER):
                work.append(Work("NPU", KERNEL, name, start, length))
        if re.match(r"ProfilerStep#\d+|Iteration \d+", name):
            steps[name] = (name, start, length)
    summary: dict[str, Any] = {f"overlap analysis {name}": measure(union(times)) for name, times in marked.items()}
    summary |= ascend_tables(path.parent)
    return Recording("ascend", work + collectives, sorted(steps.values(), key=lambda s: s[1]), summary)


def ascend_tables(folder: Path) -> dict[str, Any]:
    """`step_trace_time.csv` and `kernel_details.csv` beside a trace."""
    summary: dict[str, Any] = {}
    if (folder / "step_trace_time.csv").exists():
        columns = ("Computing", "Communication", "Communication(Not Overlapped)", "Overlapped", "Free", "Stage")
        rows = rows_of(folder / "step_trace_time.csv")
        summary["step_trace_time"] = {c: sum(ns(row[c]) for row in rows) for c in columns}
    if (folder / "kernel_details.csv").exists():
        rows = rows_of(folder / "kernel_details.csv")
        summary["kernel_details"] = {
            "kernels": len(rows),
            "total": sum(ns(row["Duration(us)"]) for row in rows),
            "computing": measure(
                union([(ns(r["Start Time(us)"]), ns(r["Start Time(us)"]) + ns(r["Duration(us)"])) for r in rows])
            ),
        }
    return summary
