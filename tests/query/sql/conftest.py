"""Three ranks of literal traces, and a connection to try statements on."""

from __future__ import annotations

import duckdb
import polars as pl
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SPANS, STEPS, TABLES, TRACKS
from stepscope.core.trace import Meta, Run, Trace

KERNELS = [("gemm<'a'>", "kernel", 100, 40), ("copy", "memcpy", 160, 10), ("aten::mm", "operator", 0, 90)]


def trace(rank, *, path=None, **tables):
    spans = pl.DataFrame(
        {
            "span_id": [0, 1, 2],
            "track_id": [0, 0, 1],
            "ts_ns": [ts for _, _, ts, _ in KERNELS],
            "dur_ns": [dur * ((rank or 0) + 1) for _, _, _, dur in KERNELS],
            "name": [name for name, _, _, _ in KERNELS],
            "category": [category for _, category, _, _ in KERNELS],
        }
    )
    tracks = pl.DataFrame(
        {"track_id": [0, 1], "rank": [rank, None], "device_id": [0, None], "kind": ["stream", "thread"]},
        schema_overrides={"rank": pl.Int32},
    )
    steps = pl.DataFrame(
        {"step": [3], "rank": [rank], "ts_ns": [0], "dur_ns": [500]}, schema_overrides={"rank": pl.Int32}
    )
    known = {"spans": SPANS.conform(spans), "tracks": TRACKS.conform(tracks), "steps": STEPS.conform(steps)}
    devices = pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0]})
    known["devices"] = TABLES["devices"].conform(devices)
    return Trace(Meta(path or f"run/rank{rank}.json", "kineto", rank=rank, world_size=3), {**known, **tables})


def job(*traces):
    """A run; a text stands for a file that cannot be read."""
    by_path = {one if isinstance(one, str) else one.meta.path: one for one in traces}

    def open_trace(path):
        if isinstance(by_path[path], str):
            raise StepscopeError(f"cannot read {path}")
        return by_path[path]

    return Run(tuple(by_path), open_trace)


@pytest.fixture
def ranks():
    return job(*(trace(rank) for rank in range(3)))


@pytest.fixture
def make_job():
    return job


@pytest.fixture
def make_trace():
    return trace


@pytest.fixture
def connection():
    opened = duckdb.connect(":memory:")
    yield opened
    opened.close()
