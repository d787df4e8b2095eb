"""Times of all steps of a run, which `stepscope record` leaves in pidN.steps: the table `step_times`.

record/startup/_stepscope_step_times.py explains the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.schema import STEP_TIMES
from stepscope.readers.common.source import IssueLog, Source, with_issues
from stepscope.readers.recorded import RECORDING, side_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

_NAME = regex(r"pid\d{1,10}(?:\.loop)?\.steps")
_MAGIC = b"STEPEND1"
_HEADER = np.dtype([("magic", "S8"), ("unix_ns", "<i8"), ("clock_ns", "<i8"), ("pid", "<i4"), ("rank", "<i4")])
_MARK = np.dtype([("took_us", "<u4"), ("n_steps", "<u2"), ("source", "u1"), ("flags", "u1")])
_SOURCES = ("module calls", "optimizer steps", "named ranges")
_MOST_NS = 2**62


def step_time_files(path: str) -> list[str]:
    """The files of all processes in the folder of a trace, if it is a recording of ours."""
    if side_file(path, (RECORDING,)) is None:
        return []
    try:
        listed = files.files_in(files.split(path)[0], deep=False)
    except StepscopeError:
        return []
    return [file for file in listed if _NAME.fullmatch(files.split(file)[1])]


def with_step_times(trace: Trace, path: str) -> Trace:
    """The trace with the step times of its processes; of counters alone, with those of all processes of the folder.

    A file that cannot be read, and a mark that was cut off, are counted in `issues`.
    """
    pids = trace.tracks["pid"].drop_nulls().unique().sort()
    if trace.spans.is_empty():
        mine = step_time_files(path)
    else:
        names = [f"pid{pid}{kind}.steps" for pid in pids for kind in ("", ".loop")]
        mine = [file for name in names if (file := side_file(path, (name,))) is not None]
    if not mine:
        return trace
    issues = IssueLog()
    frames = [frame for file in mine if (frame := _read(file, issues)) is not None]
    origin = trace.meta.origin_unix_ns
    if origin is None:
        n = sum(frame.height for frame in frames)
        issues.add("step_times_unplaced", "warning", n, "the trace does not say when it began, in Unix time")
        frames = []
    if frames:
        placed = pl.concat(frames).with_columns(pl.col("ts_ns") - origin).sort("pid", "ts_ns")
        trace = trace.with_tables(step_times=STEP_TIMES.conform(placed))
    return with_issues(trace, issues)


def _inside(parts: NDArray[np.int64], took_ns: NDArray[np.int64]) -> pl.Series:
    """The time inside the calls that mark steps, from seven bits of each mark; null where it is not known."""
    inside = took_ns * 2.0 ** ((parts - 96) / 8)
    return pl.Series(inside.round().astype(np.int64)).set(pl.Series(parts == 0), None)


def _read(path: str, issues: IssueLog) -> pl.DataFrame | None:
    """STEP_TIMES of one file, with Unix times; None if it is none of ours."""
    try:
        data = b"".join(Source(path).chunks())
    except StepscopeError as error:
        issues.add("step_times_unreadable", "warning", 1, error.message)
        return None
    header = np.frombuffer(data, _HEADER, count=1)[0] if len(data) >= _HEADER.itemsize else None
    if header is None or header["magic"] != _MAGIC or not 0 <= int(header["unix_ns"]) < _MOST_NS:
        issues.add("step_times_unreadable", "warning", 1, f"{path} does not begin as a file of step times")
        return None
    n, rest = divmod(len(data) - _HEADER.itemsize, _MARK.itemsize)
    issues.add("step_times_cut", "info", int(rest > 0), f"{path}: the last mark is cut off")
    marks = np.frombuffer(data, _MARK, count=n, offset=_HEADER.itemsize)
    took = marks["took_us"].astype(np.int64) * 1000
    known = (marks["n_steps"] > 0) & np.isin(marks["source"], (1, 2, 3)) & (took > 0)
    pauses = (marks["n_steps"] == 0) & (marks["source"] <= len(_SOURCES))
    issues.add("step_times_dropped", "warning", int((~known & ~pauses).sum()), f"{path}: marks that cannot be")
    rank = int(header["rank"])
    return (
        pl.DataFrame(
            {
                "ts_ns": int(header["unix_ns"]) + np.cumsum(took) - took,
                "dur_ns": took,
                "n_steps": marks["n_steps"].astype(np.int32),
                "source": pl.Series(_SOURCES).gather(np.clip(marks["source"].astype(np.int64) - 1, 0, 2)),
                "is_profiled": (marks["flags"] & 1) > 0,
                "inside_ns": _inside((marks["flags"] >> 1).astype(np.int64), took),
            }
        )
        .with_columns(pid=pl.lit(int(header["pid"])), rank=pl.lit(rank if rank >= 0 else None))
        .filter(pl.Series(known))
    )
