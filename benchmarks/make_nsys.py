"""Makes a big nsys SQLite export: kernels in a regular pattern, each with its launch, and NVTX ranges around them.

python make_nsys.py OUT [--kernels 2000000] [--kernels-a-range 10]

Tables and columns are those of schema 3.20 (nsys 2025.3), as far as they matter. A kernel starts when its launch has
returned and the kernel before it has ended.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PID = 6014
GLOBAL_PID = 1 << 56 | PID << 24
GLOBAL_TID = GLOBAL_PID | PID
N_NAMES = 300
LAUNCH_NAME = N_NAMES + 1
FIRST_RANGE_NAME = LAUNCH_NAME + 1
N_RANGE_NAMES = 50
STEP_NS = 5_000
KERNEL = (
    "start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid",
    "demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread", "gridX", "gridY",
    "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
    "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId", "sharedMemoryLimitConfig",
)  # fmt: skip
RUNTIME = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId")
NVTX = ("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "textId", "domainId")


def kernels(n: int) -> Iterator[tuple[int | None, ...]]:
    """Rows of the kernel table."""
    for i in range(n):
        start = i * STEP_NS + 1_500
        name = i % N_NAMES
        yield (
            start, start + 2_000 + i % 700, 0, 1, 0, 7, i + 1, GLOBAL_PID, name, name, name, 1, 1, 32 + name % 64,
            1 + i % 1000, 1 + name % 8, 1, 128 << name % 3, 1, 1, 0, 1024 * (name % 5), 0, 250871808, i, 32768, None, 0,
        )  # fmt: skip


def launches(n: int) -> Iterator[tuple[int | None, ...]]:
    """Rows of the runtime table."""
    for i in range(n):
        yield (i * STEP_NS, i * STEP_NS + 1_200, 0, GLOBAL_TID, i + 1, LAUNCH_NAME, 0, None)


def ranges(n: int, length: int) -> Iterator[tuple[int | None, ...]]:
    """Rows of the NVTX table: one push/pop range after the other."""
    for i in range(0, n, length):
        name = FIRST_RANGE_NAME + i // length % N_RANGE_NAMES
        yield (i * STEP_NS - 100, (i + length) * STEP_NS - 200, 59, None, GLOBAL_TID, None, name, 0)


def strings() -> Iterator[tuple[int, str]]:
    """Rows of the table of texts."""
    for i in range(N_NAMES):
        yield i, f"void at::native::kernel_{i}<float, {i}>(int, at::detail::Array<char*, {i % 7}>)"
    yield LAUNCH_NAME, "cudaLaunchKernel_v7000"
    for i in range(N_RANGE_NAMES):
        yield FIRST_RANGE_NAME + i, f"layer {i}"


def make(path: Path, n_kernels: int, kernels_a_range: int) -> None:
    """Write the database anew."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        for table, columns in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL), ("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME), ("NVTX_EVENTS", NVTX),
        ):  # fmt: skip
            types = ", ".join(f'"{c}" {"TEXT" if c == "text" else "INTEGER"}' for c in columns)
            db.execute(f"CREATE TABLE {table} ({types})")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        for table, rows in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", kernels(n_kernels)),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", launches(n_kernels)),
            ("NVTX_EVENTS", ranges(n_kernels, kernels_a_range)),
            ("StringIds", strings()),
            ("META_DATA_EXPORT", iter([("EXPORT_SCHEMA_VERSION", "3.20.2")])),
            ("PROCESSES", iter([(GLOBAL_PID, PID, "python")])),
            ("TARGET_INFO_SESSION_START_TIME", iter([(1_754_324_972_242_076_786,)])),
        ):
            first = next(rows)
            places = f"INSERT INTO {table} VALUES ({', '.join('?' * len(first))})"
            db.execute(places, first)
            db.executemany(places, rows)
    db.close()


def main() -> int:
    """Run the command; on stdout a line of JSON says what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--kernels-a-range", type=int, default=10)
    given = parser.parse_args()
    make(given.out, given.kernels, given.kernels_a_range)
    print(json.dumps({"n_kernels": given.kernels, "n_bytes": given.out.stat().st_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
