"""A unit of device work as a recorder wrote it, what counts as a collective, and arithmetic of intervals.

Everything is independent of stepscope. All times are integer nanoseconds.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import sys
import tempfile
from bisect import bisect_right
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
    """A kernel, copy or fill. `start` is null without a clock, `length` where it was not measured.

    `called` is when the host called for it, if the recorder ties the two.
    """

    device: str
    kind: str
    name: str
    start: int | None
    length: int | None
    collective: bool = False
    called: int | None = None


class Recording(NamedTuple):
    """What a file holds: work of devices, steps as (name, start, length), the recorder's own summary.

    `recorded` is the first and last time of anything, null where there is nothing but device work.
    """

    kind: str
    work: list[Work]
    steps: tuple[tuple[str, int, int], ...] | list[tuple[str, int, int]] = ()
    summary: dict[str, Any] | None = None
    recorded: tuple[int, int] | None = None


def library(name: str) -> bool:
    """Whether the name of a kernel alone says that it communicates."""
    return any(part in name for part in COLLECTIVE_KERNELS)


def amd(device: str, operation: str, name: str, start: int, length: int) -> Work:
    """An operation as roctracer calls it: CopyHostToDevice, FillBuffer, KernelExecution."""
    kind = COPY if "Copy" in operation else FILL if "Fill" in operation else KERNEL
    return Work(device, kind, name, start, length, kind == KERNEL and library(name))


# Intervals -------------------------------------------------------------------------------------------------------


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


def extent(intervals: list[tuple[int, int]]) -> tuple[int, int] | None:
    """First start and last end."""
    return (min(start for start, _ in intervals), max(end for _, end in intervals)) if intervals else None


def inside(intervals: list[tuple[int, int]], point: int) -> bool:
    """Whether one of these disjoint intervals contains the point."""
    at = bisect_right(intervals, (point, sys.maxsize)) - 1
    return at >= 0 and intervals[at][0] <= point <= intervals[at][1]


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


def paddle_numbers(folder: Path) -> dict[str, Any]:
    """What Paddle's own summary says, from the file of its numbers beside a trace; empty if there is none."""
    path = folder / "numbers.json.gz"
    if not path.exists():
        return {}
    document = json.loads(content(path))
    return {"merged": document["gpu_merged_ns_by_device_type"], "calls": document["call_times"]}


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
