"""A job of small literal traces behind the readers' door, and the command line in this process."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from stepscope import readers
from stepscope.cli import main
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import ISSUES, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace

KERNELS = [
    ("gemm<float>", "kernel", 100, 40),
    ("[bold]evil\x1b[31m\nname|`x`", "kernel", 150, 5),
    ("copy", "memcpy", 160, 10),
]


def trace(path: str, rank: int | None, scale: int = 1, *, issues: int = 0) -> Trace:
    spans = pl.DataFrame(
        {
            "span_id": range(len(KERNELS)),
            "track_id": [0] * len(KERNELS),
            "ts_ns": [ts for _, _, ts, _ in KERNELS],
            "dur_ns": [dur * scale for _, _, _, dur in KERNELS],
            "name": [name for name, _, _, _ in KERNELS],
            "category": [category for _, category, _, _ in KERNELS],
        }
    )
    tracks = pl.DataFrame({"track_id": [0], "rank": [rank], "device_id": [0], "stream": [7], "kind": ["stream"]})
    tables = {"spans": SPANS.conform(spans), "tracks": TRACKS.conform(tracks)}
    if issues:
        rows = {"code": ["guess"], "severity": ["warning"], "count": [issues], "example": ["one of them"]}
        tables["issues"] = ISSUES.conform(pl.DataFrame(rows))
    return Trace(Meta(path=path, format="fake", rank=rank), tables)


@dataclass
class Job:
    """Files that only exist as far as the readers say so."""

    traces: dict[str, Trace]
    opened: list[tuple[str, int | None]]


@pytest.fixture
def job(monkeypatch, tmp_path):
    made = Job({}, [])
    for name, rank, scale in (("a.json", 0, 1), ("b.json", 1, 2), ("c.json", 10, 3)):
        path = tmp_path / name
        path.write_text("{}")
        made.traces[str(path)] = trace(str(path), rank, scale)

    def open_trace(path, *, side=None, max_bytes=None, progress=None):  # noqa: ARG001  as the real one
        made.opened.append((path, max_bytes))
        if progress is not None:
            progress(1)
        if path not in made.traces:
            raise StepscopeError(f"cannot read {path}: no such file", "check the path")
        return made.traces[path]

    monkeypatch.setattr(readers, "open_trace", open_trace)
    monkeypatch.setattr(readers, "expand", list)
    monkeypatch.chdir(tmp_path)
    return made


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    def call(*words) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def make_trace():
    return functools.partial(trace)


@pytest.fixture
def paths(job):
    return [Path(path) for path in job.traces]
