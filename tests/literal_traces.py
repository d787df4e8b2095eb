"""Literal traces for tests of reports and exports: rows name each other by label, ids and parents are worked out."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from stepscope.core.intervals import enclosing
from stepscope.core.schema import DEVICES, SPANS, STEPS, TABLES, TRACKS
from stepscope.core.trace import Meta, Trace

MAIN, LOADER, STREAM, STREAM_2, OTHER_DEVICE = 0, 1, 10, 11, 20
H100 = {"type": "cuda", "name": "NVIDIA H100", "sm_count": 132, "memory_bytes": 80 << 30, "compute_capability": "9.0"}


def _spans(rows: list[dict[str, Any]], steps: list[tuple[int, int, int]]) -> tuple[pl.DataFrame, dict[str, int]]:
    rows = sorted(rows, key=lambda row: (row["track"], row["ts"], -row["dur"]))
    ids = {row["id"]: i for i, row in enumerate(rows) if "id" in row}
    track, ts, dur = (np.array([row[k] for row in rows], np.int64) for k in ("track", "ts", "dur"))
    parents = enclosing(ts, ts + dur, track)
    launches = [ids.get(row.get("launch", "")) for row in rows]

    def step_of(at: int) -> int | None:
        return next((number for number, low, length in steps if low <= at < low + length), None)

    queued = [
        rows[launch]["ts"] if launch is not None else row["ts"] for row, launch in zip(rows, launches, strict=True)
    ]
    frame = pl.DataFrame(
        {
            "span_id": range(len(rows)),
            "track_id": track,
            "ts_ns": ts,
            "dur_ns": dur,
            "name": [row["name"] for row in rows],
            "category": [row["category"] for row in rows],
            "parent_id": [
                int(p) if p >= 0 and row["track"] < STREAM else None for p, row in zip(parents, rows, strict=True)
            ],
            "launch_id": launches,
            "op_id": [ids.get(row.get("op", "")) for row in rows],
            "step": [step_of(at) for at in queued],
        },
        schema_overrides={"launch_id": pl.UInt32, "op_id": pl.UInt32, "step": pl.Int32, "parent_id": pl.UInt32},
    )
    return SPANS.conform(frame), ids


class Rows:
    """A trace under construction: every method adds a span and returns self's label for it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.tables: dict[str, list[dict[str, Any]]] = {}

    def add(self, track: int, ts: int, dur: int, name: str, category: str, **links: str) -> str:
        label = f"row {len(self.rows)}"
        self.rows.append(
            {"id": label, "track": track, "ts": ts, "dur": dur, "name": name, "category": category, **links}
        )
        return label

    def op(self, ts: int, dur: int, name: str = "aten::mm", track: int = MAIN) -> str:
        return self.add(track, ts, dur, name, "operator")

    def launch(self, ts: int, dur: int = 1, name: str = "cudaLaunchKernel", op: str = "", track: int = MAIN) -> str:
        return self.add(track, ts, dur, name, "runtime", op=op)

    def kernel(self, ts: int, dur: int, name: str = "gemm", launch: str = "", op: str = "", track: int = STREAM) -> str:
        category = "memcpy" if name.startswith("Memcpy") else "memset" if name.startswith("Memset") else "kernel"
        return self.add(track, ts, dur, name, category, launch=launch, op=op)

    def step(self, number: int, ts: int, dur: int) -> None:
        self.steps.append((number, ts, dur))
        self.add(MAIN, ts, dur, f"ProfilerStep#{number}", "step")

    def side(self, table: str, row: str, **values: Any) -> None:
        self.tables.setdefault(table, []).append({"span_id": row, **values})

    def trace(
        self, *, rank: int | None = None, world_size: int | None = None, path: str = "run/a.json", **extra: Any
    ) -> Trace:
        """`extra` are whole tables by name, as rows; `devices` replaces the two H100s."""
        tracks = [
            {"track_id": t, "rank": rank, "device_id": (None, 1, 2)[t // 10], "stream": 7 + t % 10 if t >= 10 else None,
             "kind": "stream" if t >= 10 else "thread", "tid": t}
            for t in (MAIN, LOADER, STREAM, STREAM_2, OTHER_DEVICE)
        ]  # fmt: skip
        devices = extra.pop("devices", [{"device_id": 1, "index": 0, **H100}, {"device_id": 2, "index": 1, **H100}])
        spans, ids = _spans(self.rows, self.steps) if self.rows else (SPANS.empty(), {})
        steps = [
            {"step": n, "rank": rank, "ts_ns": ts, "dur_ns": dur, "source": "annotation"} for n, ts, dur in self.steps
        ]
        found = {
            "spans": spans,
            "tracks": TRACKS.conform(pl.DataFrame(tracks)),
            "devices": DEVICES.conform(pl.DataFrame(devices)),
        }
        if steps:
            found["steps"] = STEPS.conform(pl.DataFrame(steps))
        for name, rows in self.tables.items():
            found[name] = TABLES[name].conform(pl.DataFrame([{**row, "span_id": ids[row["span_id"]]} for row in rows]))
        for name, rows in extra.items():
            found[name] = TABLES[name].conform(pl.DataFrame(rows))
        meta = Meta(path, "kineto", n_events=len(self.rows), rank=rank, world_size=world_size, framework="PyTorch",
                    framework_version="2.9.0+cu128")  # fmt: skip
        return Trace(meta, found)


@pytest.fixture
def rows() -> Rows:
    """An empty trace to fill."""
    return Rows()


@pytest.fixture
def new_rows() -> type[Rows]:
    """For tests that need several traces."""
    return Rows
