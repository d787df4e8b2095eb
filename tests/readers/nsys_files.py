"""Tiny nsys exports: tables of a few rows, made where a test needs them."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

PID, TID = 6014, 6015
GLOBAL_PID = 1 << 56 | PID << 24
THREAD = GLOBAL_PID | TID
OTHER_PID = 1 << 56 | 6020 << 24
OTHER_THREAD = OTHER_PID | 6020
START_UNIX_NS = 1_700_000_000_000_000_000
TEXTS = {1: "void gemm<float>(int)", 2: "cudaLaunchKernel_v7000", 3: "layer 1", 4: "python main", 5: "poll", 6: "copy"}
KERNEL = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName",
          "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory",
          "dynamicSharedMemory", "graphNodeId")  # fmt: skip
RUNTIME = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
NVTX = ("start", "end", "eventType", "text", "globalTid", "textId")
COPY = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "copyKind",
        "srcKind", "dstKind")  # fmt: skip


def kernel(start, end, *, correlation=1, name=1, device=0, stream=7, pid=GLOBAL_PID, grid=(2, 3, 1), node=None):
    return (start, end, device, 1, stream, correlation, pid, name, 32, *grid, 128, 1, 1, 16, 1024, node)


def call(start, end, *, correlation=1, name=2, kind=0, thread=THREAD):
    return (start, end, kind, thread, correlation, name)


def nvtx(start, end, text, *, kind=59, thread=THREAD):
    return (start, end, kind, text, thread, None) if isinstance(text, str) else (start, end, kind, None, thread, text)


def write(path: Path, **tables: tuple[tuple[str, ...], list[tuple]]) -> Path:
    """A database with some tables, each given as its columns and rows; texts and times are there in any case."""
    known = {
        "META_DATA_EXPORT": (("name", "value"), [("EXPORT_SCHEMA_VERSION", "3.20.2")]),
        "StringIds": (("id", "value"), list(TEXTS.items())),
        "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), [(START_UNIX_NS,)]),
        "PROCESSES": (("globalPid", "pid", "name"), [(GLOBAL_PID, PID, "python")]),
    }
    with sqlite3.connect(path) as db:
        for table, (columns, rows) in (known | tables).items():
            names = ", ".join(f'"{c}"' for c in columns)
            db.execute(f"CREATE TABLE {table} ({names})")
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
    db.close()
    return path


def read(path: Path, kernels=(), calls=(), ranges=(), **tables):
    """The trace of such a database."""
    given = {
        "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, list(kernels)),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (RUNTIME, list(calls)),
        "NVTX_EVENTS": (NVTX, list(ranges)),
    }
    return open_trace(str(write(path / "report.sqlite", **{k: v for k, v in given.items() if v[1]}, **tables)))
