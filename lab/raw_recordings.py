"""What recorders wrote, read with plain loops and without a line of stepscope: device work, steps, their own summaries.

`read` returns a `Recording` of one file.
"""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any

from raw_chrome import chrome
from raw_work import (
    COLLECTIVE_INSTRUCTIONS,
    COPY,
    FILL,
    KERNEL,
    Recording,
    Work,
    amd,
    content,
    database,
    extent,
    library,
    ns,
    paddle_numbers,
    rows_of,
    tables_of,
    text_of,
)

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


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
                    else f"{table} {row[(kind == COPY and 'copyKind') or 'memKind']}"
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
    return Recording("nsys", work, sorted(steps, key=lambda s: s[1]), recorded=extent(seen_in(connection)))


def seen_in(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """When everything began and ended that has both, except what is of the profiler, or of the system around it."""
    seen = []
    for table in sorted(tables_of(connection)):
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if {"start", "end"} <= columns and not re.search("OVERHEAD|ANALYSIS|META|SCHED|CUDA_EVENT", table):
            rows = connection.execute(f"SELECT start, end FROM {table} WHERE end >= start")
            seen += [(row[0], row[1]) for row in rows]
    return seen


def rpd(path: Path) -> Recording:
    """RocmProfileData's SQLite file; its views `top` and `busy` are the recorder's own summary, in µs and ns."""
    connection = database(path)
    strings = dict(connection.execute("SELECT id, string FROM rocpd_string"))
    work = []
    for row in connection.execute("SELECT * FROM rocpd_op"):
        operation = strings[row["opType_id"]]
        name = strings.get(row["description_id"]) or operation
        work.append(amd(str(row["gpuId"]), operation, name, row["start"], row["end"] - row["start"]))
    busy = {str(row[0]): row[1] for row in connection.execute("SELECT gpuId, GpuTime FROM busy")}
    top = [list(row)[:3] for row in connection.execute("SELECT Name, TotalCalls, TotalDuration FROM top LIMIT 5")]
    seen = [
        (row[0], row[1])
        for table in ("api", "op")
        for row in connection.execute(f"SELECT start, end FROM rocpd_{table}")
    ]
    return Recording("rpd", work, summary={"gpu time": busy, "top, us": top}, recorded=extent(seen))


def ascend_db(path: Path) -> Recording:
    """The database of torch_npu or msprof: computing tasks, collectives, copies; the recorder's own table beside it."""
    connection = database(path)
    tables, work = tables_of(connection), []
    strings = dict(connection.execute("SELECT id, value FROM STRING_IDS"))
    computing = {row["globalTaskId"]: row["name"] for row in connection.execute("SELECT * FROM COMPUTE_TASK_INFO")}
    for row in connection.execute("SELECT * FROM TASK"):
        start, length, task = row["startNs"], row["endNs"] - row["startNs"], row["globalTaskId"]
        if task in computing:
            work.append(Work(str(row["deviceId"]), KERNEL, strings[computing[task]], start, length))
        elif strings.get(row["taskType"]) == "MEMCPY_ASYNC":
            work.append(Work(str(row["deviceId"]), COPY, "MEMCPY_ASYNC", start, length))
    device = work[0].device if work else "NPU"
    work += [
        Work(device, KERNEL, strings[row["opName"]], row["startNs"], row["endNs"] - row["startNs"], collective=True)
        for row in connection.execute("SELECT * FROM COMMUNICATION_OP")
    ]
    steps = connection.execute("SELECT id, startNs, endNs FROM STEP_TIME") if "STEP_TIME" in tables else []
    beside = path.with_name("analysis.db")
    summary = [dict(row) for row in database(beside).execute("SELECT * FROM StepTraceTime")] if beside.exists() else []
    marked = [(str(step), start, end - start) for step, start, end in steps]
    return Recording("ascend", work, marked, {"StepTraceTime, us": summary})


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
    work: dict[object, Work] = {}
    for row in rows:
        known = bool(row.get("Start_Timestamp"))
        start = int(row["Start_Timestamp"]) if known else None
        length = int(row["End_Timestamp"]) - start if start is not None else None
        if "Direction" in row:
            work[len(work)] = Work("agents", COPY, row["Direction"], start, length)
        else:
            dispatch, name = row.get("Dispatch_Id") or row.get("Dispatch_ID"), row["Kernel_Name"]
            device = row.get("Agent_Id") or row.get("GPU_ID") or ""
            work[dispatch] = Work(device, KERNEL, name, start, length, library(name))
    return Recording("rocprof", list(work.values()))


def companions(path: Path) -> tuple[int, int] | None:
    """First and last time in all traces of the run, which rocprofv3 names alike."""
    prefix, is_trace, _ = path.name.partition("_kernel_trace")
    rows = [row for each in path.parent.glob(f"{prefix}_*_trace.csv") for row in rows_of(each)] if is_trace else []
    return extent([(int(row["Start_Timestamp"]), int(row["End_Timestamp"])) for row in rows])


# Protocol buffers ------------------------------------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message: number and value (int, or bytes)."""
    values, at = [], 0

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
            values.append((number, varint()))
        else:
            length = {1: 8, 5: 4}.get(wire) or varint()
            values.append((number, data[at : at + length]))
            at += length
    return values


def paddle_pb(path: Path) -> Recording:
    """Paddle's .pb: trees of host events, runtime calls under them, device events under those."""
    work: list[Work] = []
    steps: list[tuple[str, int, int]] = []
    for thread in (value for number, value in fields(content(path)) if number == 3):
        for node in (value for number, value in fields(thread) if number == 2):
            parts = fields(node)
            hosts = [dict(fields(value)) for number, value in parts if number == 3]
            steps += [(host[1].decode(), host[3], host[4] - host[3]) for host in hosts if host.get(2) == 2]
            runtimes = (value for number, value in parts if number == 4)
            for runtime in runtimes:
                called = dict(fields(dict(fields(runtime))[1])).get(2)
                devices = (dict(fields(dict(fields(value))[1])) for number, value in fields(runtime) if number == 2)
                work += [device_event(device, called) for device in devices]
    return Recording("paddle", work, sorted(steps, key=lambda s: s[1]), paddle_numbers(path.parent))


def device_event(event: dict[int, Any], called: int | None) -> Work:
    """Paddle's device event, its fields by number."""
    name, kind = event[1].decode(), {4: KERNEL, 5: COPY, 6: FILL}[event[2]]
    return Work(str(event.get(5, 0)), kind, name, event[3], event[4] - event[3], library(name), called)


def xplane(data: bytes) -> Recording:
    """XPlane of JAX and TensorFlow: planes of devices, lines of streams, or `XLA Ops`; steps are a line."""
    work: list[Work] = []
    steps: dict[str, tuple[str, int, int]] = {}
    times: list[tuple[int, int]] = []
    for plane in (fields(value) for number, value in fields(data) if number == 1):
        device = next((value.decode() for number, value in plane if number == 2), "")
        entries = [dict(fields(dict(fields(value)).get(2, b""))) for number, value in plane if number == 4]
        names = {entry.get(1, 0): entry.get(2, b"").decode() for entry in entries}
        for line in (fields(value) for number, value in plane if number == 3):
            title = next((value.decode() for number, value in line if number == 2), "")
            origin = next((value for number, value in line if number == 3), 0)
            for event in (dict(fields(value)) for number, value in line if number == 4):
                name = names.get(event.get(1, 0), "")
                start, length = origin + round(event.get(2, 0) / 1000), round(event.get(3, 0) / 1000)
                if not name.startswith(("MemoryAllocation", "MemoryDeallocation")):
                    times.append((start, start + length))
                if not device.startswith("/device:"):
                    continue
                if title == "Steps":  # each as long as on the device that took longest, as in XProf
                    steps[name] = max(steps.get(name, (name, 0, -1)), (name, start, length), key=lambda s: s[2])
                elif title == "XLA Ops" or title.startswith("Stream"):
                    kind = COPY if name.startswith(("Memcpy", "Copy")) else KERNEL
                    talks = library(name) or name.startswith(COLLECTIVE_INSTRUCTIONS)
                    work.append(
                        Work(device.removeprefix("/device:"), kind, name, start, length, talks and kind == KERNEL)
                    )
    return Recording("xplane", work, sorted(steps.values(), key=lambda s: s[1]), recorded=extent(times))


# Kernels without a clock -----------------------------------------------------------------------------------------


def ncu_csv(text: str) -> Recording:
    """Nsight Compute: one row per kernel (raw page) or per kernel and metric (details)."""
    start = next((i for i, line in enumerate(text.splitlines()) if line.startswith('"ID"')), None)
    rows = list(csv.DictReader(text.splitlines()[start:])) if start is not None else []
    kernels: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if not (row.get("ID") or "").isdigit():
            continue
        kernel = kernels.setdefault((row["Process ID"], row["ID"]), [row["Kernel Name"], row["Device"], None])
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
            work.append(Work("0", KERNEL, name, None, None))
        elif match := re.match(r" {4}(?:Duration|gpu__time_duration.sum) +(\w+) +([\d.,]+)", line):
            work[-1] = work[-1]._replace(length=ns(match[2].replace(",", ""), UNITS[match[1]]))
    return Recording("ncu", work)


def kernel_table(text: str) -> Recording:
    """A table of kernels, one line a launch: name, then its latency in ns."""
    lines = [line.rpartition("|") for line in text.splitlines() if "|" in line]
    return Recording("table", [Work("0", KERNEL, a.strip(), None, int(b.split()[0])) for a, _, b in lines])


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


# Any file --------------------------------------------------------------------------------------------------------


def read(path: Path) -> Recording | None:
    """What the file holds, None if it is no recording of device work or steps that this program knows."""
    suffixes = "".join(path.suffixes)
    if path.suffix == ".sqlite":
        return nsys(path)
    if path.suffix == ".db":
        return ascend_db(path)
    if ".rpd" in suffixes:
        return rpd(path)
    if ".pb" in suffixes:
        return xplane(content(path)) if ".xplane" in suffixes else paddle_pb(path)
    return json_file(path) if {".json", ".hatchet"} & set(path.suffixes) else text_file(path)


def json_file(path: Path) -> Recording | None:
    """A trace, rocprof's records, or Proton's tree."""
    document = json.loads(text_of(path), strict=False, parse_float=str)
    if path.suffix == ".hatchet":
        return proton(document)
    if isinstance(document, dict) and "rocprofiler-sdk-tool" in document:
        return rocprof_json(document)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    is_trace = isinstance(events, list) and any(isinstance(event, dict) and "ph" in event for event in events)
    return chrome(document, path) if is_trace else None


def text_file(path: Path) -> Recording | None:
    """CSV of rocprof and Nsight Compute, and tables as text."""
    text = text_of(path)
    if "Kernel_Name" in text[:2000] or "Direction" in text[:200]:
        return rocprof_csv(rows_of(path))._replace(recorded=companions(path))
    if '"Kernel Name"' in text:
        return ncu_csv(text)
    if re.match(r"Kernel +Latency", text):
        return kernel_table(text)
    return ncu_text(text) if ", Context " in text else None
