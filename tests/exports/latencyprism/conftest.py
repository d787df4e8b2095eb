"""Recordings of one process, 42, with counters: what the published tool's first stage is about."""

from __future__ import annotations

import pytest

TRACKS = [
    {"track_id": 0, "pid": 42, "tid": 1, "kind": "thread"},
    {"track_id": 1, "pid": 42, "tid": 2, "kind": "thread"},
    {"track_id": 10, "pid": 0, "device_id": 1, "stream": 7, "kind": "stream"},
    {"track_id": 20, "pid": 1, "device_id": 2, "stream": 7, "kind": "stream"},
]


@pytest.fixture
def recorded():
    def trace(rows, counters=(), **extra):
        """`counters` are samples: time, device, metric, value."""
        samples = [
            {"ts_ns": ts, "device": device, "metric": metric, "value": float(value)}
            | ({"pid": int(device.removeprefix("pid:"))} if device.startswith("pid:") else {"pid": None})
            for ts, device, metric, value in counters
        ]
        tables = {"counters": samples} if samples else {}
        return rows.trace(tracks=TRACKS, **tables, **extra)

    return trace
