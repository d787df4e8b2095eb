"""What the raw files of recorders say, counted with plain loops: an oracle that shares no line with stepscope.

python lab/independent_counts.py FILE...        prints one JSON document per file: devices, steps, the recorder's summary

All times are integer nanoseconds. A device's work is its kernels, copies and fills. *Busy* is the union of all of it,
*communication* the union of the kernels that the recorder or the framework names as a collective, *computation* that
of all other kernels and fills, *copies* that of the copies, *exposed* what no kernel covers (copies) or no computation
covers (communication), and *idle* is what is left between the first start and the last end of the device.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

KERNEL, COPY, FILL = "kernel", "copy", "fill"

#: Host ranges by which frameworks name a collective. Kernels that are launched within one communicate.
COLLECTIVE_RANGES = ("record_param_comms", "nccl:", "gloo:", "mpi:", "ucc:", "hccl:", "cncl:", "xccl:", "oneccl:")
#: Parts of the names of kernels that communicate: those of libraries, then those that write to other ranks themselves.
COLLECTIVE_KERNELS = (
    "ncclKernel", "ncclDevKernel", "rcclGenericKernel", "mscclKernel", "cnclKernel", "oneccl",
    "multimem_all_reduce", "cross_device_reduce", "::ep::internode::dispatch", "::ep::internode::combine",
    "::ep::internode::notify_dispatch", "::ep::internode::cached_notify",
)  # fmt: skip
#: Instructions of XLA that talk to other devices, by the beginning of their names.
COLLECTIVE_INSTRUCTIONS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "send", "recv", "ragged-all-to-all",
)  # fmt: skip
#: Tasks of Ascend that wait, signal or belong to a collective. Those called MEMCPY copy, all others compute.
ASCEND_OTHER = ("EVENT_", "NOTIFY", "WRITE_VALUE", "SDMA", "PROFILING_", "REDUCE_ASYNC", "PLACE_HOLDER", "STARS_")


class Work(NamedTuple):
    """A kernel, copy or fill. `start` and `end` are null where the recorder had no clock; `length` is always there."""

    device: str
    kind: str
    name: str
    start: int | None
    length: int
    collective: bool = False


class Recording(NamedTuple):
    """What a file holds: work of devices, steps as (name, start, length), and the recorder's own summary."""

    kind: str
    work: list[Work]
    steps: list[tuple[str, int, int]] = []
    summary: dict[str, Any] = {}


# Reading files ---------------------------------------------------------------------------------------------------


def content(path: Path) -> bytes:
    """The file, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def text_of(path: Path) -> str:
    """The file as text."""
    return content(path).decode("utf-8", "replace")


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; names and values without blanks and tabs."""
    rows = csv.DictReader(io.StringIO(text_of(path)))
    return [{(k or "").strip(): (v or "").strip() for k, v in row.items() if isinstance(v, str)} for row in rows]


def ns(value: object, scale: int = 1000) -> int:
    """A time in µs (or whatever has that many ns), number or decimal text, as whole ns."""
    return round(Decimal(str(value).strip()) * scale)


def database(path: Path) -> sqlite3.Connection:
    """The SQLite file, unpacked if need be."""
    if path.suffix == ".gz":
        with tempfile.NamedTemporaryFile(suffix=".db", delete=False) as file:
            file.write(content(path))
        path = Path(file.name)
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def tables_of(connection: sqlite3.Connection) -> set[str]:
    """Names of tables and views."""
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}


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
    names = set(processes.values())
    if "Ascend Hardware" in names:
        return ascend(spans, processes, threads, path)
    if any(name.startswith("/device:") for name in names):
        return xla(spans, processes, threads)
    if isinstance(document, dict) and ("span_index" in document or "span_indx" in document):
        return paddle(spans)
    if names and all(re.fullmatch(r"GPU\d+", name) for name in names):
        return rpd_as_chrome(spans, processes)
    return kineto(spans)


def args_of(event: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an event."""
    return event.get("args") or {}


def kineto(spans: list[dict[str, Any]]) -> Recording:
    """PyTorch on CUDA, ROCm, XPU, MLU and MTIA. Categories were written in capitals until 2021."""
    kinds = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL, "memset": FILL}
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
        kind = kinds.get(category)
        if category == "mtia_ccp_events" and not name.startswith("event_"):
            kind = COPY if name == "dma_request" else KERNEL
        if kind is None:
            continue
        talks = False
        if kind == KERNEL:
            call = calls.get(args.get("correlation"))
            talks = "Collective name" in args or any(part in name for part in COLLECTIVE_KERNELS)
            talks = talks or (call is not None and inside(merged.get(call[:2], []), call[2]))
        device = str(args.get("device", event["pid"]))
        work.append(Work(device, kind, name, ns(event["ts"]), ns(event["dur"]), talks))
    most = Counter(step[:2] for step in steps).most_common(1)
    return Recording("kineto", work, sorted((s[2:] for s in steps if s[:2] == most[0][0]), key=lambda s: s[1]))


def paddle(spans: list[dict[str, Any]]) -> Recording:
    """Paddle: times in `args` are exact, `ts` is rounded to µs. Names end with their duration in brackets."""
    kinds = {"Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL}
    work, steps = [], []
    for event in spans:
        name, args, kind = re.sub(r"\[[\d.]+ \w+\]$", "", event["name"]), args_of(event), kinds.get(event.get("cat"))
        if kind or event.get("cat") == "ProfileStep":
            start, end = (ns(args[key].split()[0]) for key in ("start_time", "end_time"))
            if kind:
                # Copies have no device in `args`; their process is the device.
                work.append(Work(str(args.get("device", event["pid"])), kind, name, start, end - start, library(name)))
            else:
                steps.append((name, start, end - start))
    return Recording("paddle", work, sorted(steps, key=lambda s: s[1]))


def library(name: str) -> bool:
    """Whether the name of a kernel alone says that it communicates."""
    return any(part in name for part in COLLECTIVE_KERNELS)


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
    work = []
    for event in spans:
        if event["pid"] in processes:
            work.append(
                amd(processes[event["pid"]], args_of(event)["desc"], event["name"], ns(event["ts"]), ns(event["dur"]))
            )
    return Recording("rpd", work)


def amd(device: str, operation: str, name: str, start: int, length: int) -> Work:
    """An operation as roctracer calls it: CopyHostToDevice, FillBuffer, KernelExecution."""
    kind = COPY if "Copy" in operation else FILL if "Fill" in operation else KERNEL
    return Work(device, kind, name, start, length, kind == KERNEL and library(name))


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
    notes = [e for e in spans if str(e["name"]).upper().replace(" ", "_") == "NOTIFY_WAIT"]
    of_collectives = {(e["pid"], e["tid"]) for e in notes} if collectives else set()
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


# Databases -------------------------------------------------------------------------------------------------------


def nsys(path: Path) -> Recording:
    """Nsight Systems' SQLite export."""
    connection = database(path)
    tables = tables_of(connection)
    strings = dict(connection.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    work = []
    for table, kind in (("KERNEL", KERNEL), ("MEMCPY", COPY), ("MEMSET", FILL)):
        if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
            for row in connection.execute(f"SELECT * FROM CUPTI_ACTIVITY_KIND_{table}"):
                name = (
                    strings.get(row["demangledName"], "")
                    if kind == KERNEL
                    else f"{table} {row[kind == COPY and 'copyKind' or 'memKind']}"
                )
                talks = kind == KERNEL and library(name)
                work.append(Work(str(row["deviceId"]), kind, name, row["start"], row["end"] - row["start"], talks))
    steps = []
    if "NVTX_EVENTS" in tables:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")}
        for row in connection.execute("SELECT * FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL"):
            name = row["text"] or (strings.get(row["textId"]) if "textId" in columns else None) or ""
            if re.fullmatch(r"(?i)(profiler)?(step|iter(ation)?)[ _#:]*\d+", name):
                steps.append((name, row["start"], row["end"] - row["start"]))
    return Recording("nsys", work, sorted(steps, key=lambda s: s[1]))


def rpd(path: Path) -> Recording:
    """rocmProfileData's SQLite file; its views `top` and `busy` are the recorder's own summary, in µs and ns."""
    connection = database(path)
    strings = dict(connection.execute("SELECT id, string FROM rocpd_string"))
    work = []
    for row in connection.execute("SELECT * FROM rocpd_op"):
        operation = strings[row["opType_id"]]
        name = strings.get(row["description_id"]) or operation
        work.append(amd(str(row["gpuId"]), operation, name, row["start"], row["end"] - row["start"]))
    busy = {str(row[0]): row[1] for row in connection.execute("SELECT gpuId, GpuTime FROM busy")}
    top = [list(row)[:3] for row in connection.execute("SELECT Name, TotalCalls, TotalDuration FROM top LIMIT 5")]
    return Recording("rpd", work, summary={"gpu time": busy, "top, us": top})


# rocprof ---------------------------------------------------------------------------------------------------------


def rocprof_json(document: dict[str, Any]) -> Recording:
    """rocprofv3 --output-format json."""
    work = []
    for tool in document["rocprofiler-sdk-tool"]:
        names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]}
        records = tool["buffer_records"]
        for record in records.get("kernel_dispatch", []):
            info, name = record["dispatch_info"], names.get(record["dispatch_info"]["kernel_id"], "")
            start, end = record["start_timestamp"], record["end_timestamp"]
            work.append(Work(str(info["agent_id"]["handle"]), KERNEL, name, start, end - start, library(name)))
        for record in records.get("memory_copy", []):
            start, end = record["start_timestamp"], record["end_timestamp"]
            work.append(Work(str(record["dst_agent_id"]["handle"]), COPY, "copy", start, end - start))
    return Recording("rocprof", work)


def rocprof_csv(rows: list[dict[str, str]]) -> Recording:
    """Kernel traces, copy traces and counter collections. A dispatch has a row per counter."""
    work, dispatches = [], set()
    for row in rows:
        start, end = int(row.get("Start_Timestamp") or 0), int(row.get("End_Timestamp") or 0)
        if "Direction" in row:
            work.append(Work("agents", COPY, row["Direction"], start, end - start))
        else:
            dispatch = row.get("Dispatch_Id") or row.get("Dispatch_ID")
            if dispatch not in dispatches:
                device = row.get("Agent_Id") or row.get("GPU_ID") or ""
                known = bool(row.get("Start_Timestamp"))
                work.append(
                    Work(
                        device,
                        KERNEL,
                        row["Kernel_Name"],
                        start if known else None,
                        end - start,
                        library(row["Kernel_Name"]),
                    )
                )
            dispatches.add(dispatch)
    return Recording("rocprof", work)


# Protocol buffers ------------------------------------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message: number and value (int, or bytes)."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            found.append((number, varint()))
        else:
            length = {1: 8, 5: 4}.get(wire) or varint()
            found.append((number, data[at : at + length]))
            at += length
    return found


def paddle_pb(data: bytes) -> Recording:
    """Paddle's .pb: trees of host events, runtime calls under them, device events under those."""
    kinds = {4: KERNEL, 5: COPY, 6: FILL}
    work, steps = [], []
    for thread in (value for number, value in fields(data) if number == 3):
        for node in (value for number, value in fields(thread) if number == 2):
            parts = fields(node)
            for event in (dict(fields(value)) for number, value in parts if number == 3):
                if event.get(2) == 2:
                    steps.append((event[1].decode(), event[3], event[4] - event[3]))
            for runtime in (value for number, value in parts if number == 4):
                for device in (value for number, value in fields(runtime) if number == 2):
                    event = dict(fields(dict(fields(device))[1]))
                    name, start = event[1].decode(), event[3]
                    work.append(
                        Work(str(event.get(5, 0)), kinds[event[2]], name, start, event[4] - start, library(name))
                    )
    return Recording("paddle", work, sorted(steps, key=lambda s: s[1]))


def xplane(data: bytes) -> Recording:
    """XPlane of JAX and TensorFlow: planes of devices, lines of streams, or `XLA Ops`; steps are a line."""
    work, steps = [], []
    for plane in (fields(value) for number, value in fields(data) if number == 1):
        device = next((value.decode() for number, value in plane if number == 2), "")
        if not device.startswith("/device:"):
            continue
        entries = [dict(fields(dict(fields(value)).get(2, b""))) for number, value in plane if number == 4]
        names = {entry.get(1, 0): entry.get(2, b"").decode() for entry in entries}
        for line in (fields(value) for number, value in plane if number == 3):
            title = next((value.decode() for number, value in line if number == 2), "")
            origin = next((value for number, value in line if number == 3), 0)
            for event in (dict(fields(value)) for number, value in line if number == 4):
                name = names.get(event.get(1, 0), "")
                start, length = origin + round(event.get(2, 0) / 1000), round(event.get(3, 0) / 1000)
                if title == "Steps":
                    steps.append((name, start, length))
                elif title == "XLA Ops" or title.startswith("Stream"):
                    kind = COPY if name.startswith("Memcpy") else KERNEL
                    talks = library(name) or name.startswith(COLLECTIVE_INSTRUCTIONS)
                    work.append(
                        Work(device.removeprefix("/device:"), kind, name, start, length, talks and kind == KERNEL)
                    )
    return Recording("xplane", work, sorted(steps, key=lambda s: s[1]))


# Kernels without a clock -----------------------------------------------------------------------------------------


def ncu_csv(text: str) -> Recording:
    """Nsight Compute: one row per kernel (raw page) or per kernel and metric (details)."""
    start = next((i for i, line in enumerate(text.splitlines()) if line.startswith('"ID"')), None)
    rows = list(csv.DictReader(text.splitlines()[start:])) if start is not None else []
    kernels: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if not (row.get("ID") or "").isdigit():
            continue
        kernel = kernels.setdefault((row["Process ID"], row["ID"]), [row["Kernel Name"], row["Device"], 0])
        if row.get("Metric Name") in ("Duration", "gpu__time_duration.sum"):
            kernel[2] = ns(row["Metric Value"].replace(",", ""), UNITS[row["Metric Unit"]])
        elif row.get("gpu__time_duration.sum"):
            kernel[2] = ns(row["gpu__time_duration.sum"].replace(",", ""), UNITS[rows[0]["gpu__time_duration.sum"]])
    return Recording("ncu", [Work(device, KERNEL, name, None, length) for name, device, length in kernels.values()])


UNITS = {
    "nsecond": 1,
    "ns": 1,
    "usecond": 10**3,
    "us": 10**3,
    "msecond": 10**6,
    "ms": 10**6,
    "second": 10**9,
    "s": 10**9,
}


def ncu_text(text: str) -> Recording:
    """Nsight Compute's details page as text: a line for each kernel, then tables of its metrics."""
    work: list[Work] = []
    for line in text.splitlines():
        if re.match(r"  \S.*, Context \d+, Stream \d+", line):
            name = re.sub(r"( \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\))?, (Context|\d{4}-).*", "", line.strip())
            work.append(Work("0", KERNEL, name, None, 0))
        elif match := re.match(r" {4}Duration +(\w+) +([\d.,]+)", line):
            work[-1] = work[-1]._replace(length=ns(match[2].replace(",", ""), UNITS[match[1]]))
    return Recording("ncu", work)


def proton(tree: list[Any]) -> Recording:
    """Triton's Proton: leaves of the tree are kernels, summed over calls."""
    work: list[Work] = []
    for node in tree:
        if "frame" not in node:
            continue
        metrics = node["metrics"]
        if "time (ns)" in metrics and not node["children"]:
            count = metrics["count"]
            name, device = node["frame"]["name"], metrics["device_id"]
            work += [Work(device, KERNEL, name, None, metrics["time (ns)"] // count)] * count
        work += proton(node["children"]).work
    return Recording("proton", work)


# Counting --------------------------------------------------------------------------------------------------------


def union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint intervals that cover the same time."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def measure(intervals: list[tuple[int, int]]) -> int:
    """The length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def inside(intervals: list[tuple[int, int]], point: int) -> bool:
    """Whether one of these disjoint intervals contains the point."""
    at = bisect_right(intervals, (point, sys.maxsize)) - 1
    return at >= 0 and intervals[at][0] <= point <= intervals[at][1]


def of_device(work: list[Work]) -> dict[str, Any]:
    """Counts and times of one device."""
    kinds = Counter(item.kind for item in work)
    lengths: dict[str, list[int]] = defaultdict(list)
    for item in work:
        if item.kind == KERNEL:
            lengths[item.name].append(item.length)
    top = sorted(((sum(each), len(each), name) for name, each in lengths.items()), reverse=True)[:5]
    counts = {
        "kernels": kinds[KERNEL],
        "copies": kinds[COPY],
        "fills": kinds[FILL],
        "collectives": sum(item.collective for item in work),
        "kernel_total": sum(item.length for item in work if item.kind == KERNEL),
        "top": [{"name": name, "calls": calls, "total": total} for total, calls, name in top],
    }
    if any(item.start is None for item in work):
        return counts

    def covered(*roles: str) -> int:
        role = {KERNEL: "computation", FILL: "computation", COPY: "copies"}
        times = [
            (item.start or 0, (item.start or 0) + item.length)
            for item in work
            if ("communication" if item.collective else role[item.kind]) in roles
        ]
        return measure(union(times))

    busy, kernels, computation = (
        covered("computation", "communication", "copies"),
        covered("computation", "communication"),
        covered("computation"),
    )
    extent = max((i.start or 0) + i.length for i in work) - min(i.start or 0 for i in work)
    return counts | {
        "extent": extent,
        "busy": busy,
        "idle": extent - busy,
        "computation": computation,
        "communication": covered("communication"),
        "exposed_communication": kernels - computation,
        "copy_time": covered("copies"),
        "exposed_copies": busy - kernels,
    }


def read(path: Path) -> Recording | None:
    """What the file holds, None if it is no recording of device work or steps that this program knows."""
    suffixes = "".join(path.suffixes)
    if path.suffix == ".sqlite":
        return nsys(path)
    if ".rpd" in suffixes:
        return rpd(path)
    if ".pb" in suffixes:
        return xplane(content(path)) if ".xplane" in suffixes else paddle_pb(content(path))
    if path.suffix == ".hatchet":
        return proton(json.loads(path.read_text()))
    if ".json" in suffixes:
        document = json.loads(text_of(path), strict=False, parse_float=str)
        if isinstance(document, dict) and "rocprofiler-sdk-tool" in document:
            return rocprof_json(document)
        events = document.get("traceEvents") if isinstance(document, dict) else document
        is_trace = isinstance(events, list) and any(isinstance(e, dict) and "ph" in e for e in events)
        return chrome(document, path) if is_trace else None
    text = text_of(path)
    if "Kernel_Name" in text[:2000] or "Direction" in text[:200]:
        return rocprof_csv(rows_of(path))
    if '"Kernel Name"' in text:
        return ncu_csv(text)
    return ncu_text(text) if ", Context " in text else None


def count(path: Path) -> dict[str, Any] | None:
    """The document of one file; None if it is no recording."""
    recording = read(path)
    if recording is None:
        return None
    devices: dict[str, list[Work]] = defaultdict(list)
    for item in recording.work:
        devices[item.device].append(item)
    return {
        "kind": recording.kind,
        "devices": {device: of_device(work) for device, work in sorted(devices.items())},
        "steps": [{"name": name, "start": start, "length": length} for name, start, length in recording.steps],
        "recorder": recording.summary,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"path": name} | (count(Path(name)) or {})))
