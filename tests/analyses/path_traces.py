"""Literal traces for the tests of the critical path: threads and streams, and calls that name what they queue."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.events import crossings
from stepscope.analyses.critical_path.threads import Threads, host_threads
from stepscope.analyses.critical_path.work import Held, Work, held_up, path_work
from stepscope.core.schema import ARROWS, EVENT_WAITS, OPS, SPANS, STEPS, TRACKS

MAIN, AUTOGRAD, OTHER, STREAM_7, STREAM_8, OTHER_DEVICE = range(6)
US = 1_000

PATH_TRACKS = TRACKS.conform(
    pl.DataFrame(
        {
            "track_id": list(range(6)),
            "rank": [0] * 6,
            "host": ["box"] * 6,
            "pid": [1, 1, 1, None, None, None],
            "kind": ["thread"] * 3 + ["stream"] * 3,
            "device_id": [None, None, None, 0, 0, 1],
            "stream": [None, None, None, 7, 8, 7],
        }
    )
)
NO_OPS, NO_ARROWS, NO_STEPS = OPS.empty(), ARROWS.empty(), STEPS.empty()


@dataclass(frozen=True)
class Row:
    """A span in µs; `key` is what others call it, `launch` the key of the call that queued it, `op` its operator's."""

    track: int
    ts: int
    dur: int
    name: str
    category: str
    key: str | None = None
    launch: str | None = None
    step: int | None = None
    op: str | None = None


def op(ts: int, dur: int, name: str = "aten::mm", track: int = MAIN, **more: object) -> Row:
    return replace(Row(track, ts, dur, name, "operator"), **more)


def call(ts: int, dur: int, name: str = "cudaLaunchKernel", track: int = MAIN, **more: object) -> Row:
    return replace(Row(track, ts, dur, name, "runtime"), **more)


def kernel(
    ts: int, dur: int, launch: str | None = None, name: str = "gemm", track: int = STREAM_7, **more: object
) -> Row:
    return replace(Row(track, ts, dur, name, "kernel", launch=launch), **more)


def queued(call_ts: int, call_dur: int, ts: int, dur: int, name: str = "gemm", track: int = STREAM_7) -> list[Row]:
    """A launch call on the main thread and its kernel."""
    key = f"{name}@{call_ts}"
    return [call(call_ts, call_dur, key=key), kernel(ts, dur, key, name, track)]


def spans_of(*rows: Row, unit: int = US) -> pl.DataFrame:
    """The table, sorted as readers sort it."""
    ordered = sorted(rows, key=lambda row: (row.track, row.ts, -row.dur))
    ids = {row.key: i for i, row in enumerate(ordered) if row.key is not None}
    frame = pl.DataFrame(
        {
            "span_id": range(len(ordered)),
            "track_id": [row.track for row in ordered],
            "ts_ns": [row.ts * unit for row in ordered],
            "dur_ns": [row.dur * unit for row in ordered],
            "name": [row.name for row in ordered],
            "category": [row.category for row in ordered],
            "launch_id": [None if row.launch is None else ids[row.launch] for row in ordered],
            "op_id": [None if row.op is None else ids[row.op] for row in ordered],
            "step": [row.step for row in ordered],
        },
        schema_overrides={"launch_id": pl.UInt32, "op_id": pl.UInt32, "step": pl.Int32},
    )
    return SPANS.conform(frame)


def steps_of(*bounds: tuple[int, int], first: int = 0, unit: int = US) -> pl.DataFrame:
    """Steps from their bounds in µs."""
    numbers = list(range(first, first + len(bounds)))
    times = {"ts_ns": [low * unit for low, _ in bounds], "dur_ns": [(high - low) * unit for low, high in bounds]}
    return STEPS.conform(pl.DataFrame({"step": numbers, "rank": [0] * len(bounds), **times, "source": "annotation"}))


def parts_of(spans: pl.DataFrame) -> tuple[Threads, Work, Held]:
    """What the path is made from."""
    threads = host_threads(spans, PATH_TRACKS)
    work = path_work(recorded_work(spans, PATH_TRACKS), spans, threads)
    return threads, work, held_up(work, crossings(spans, PATH_TRACKS, work, EVENT_WAITS.empty()))
