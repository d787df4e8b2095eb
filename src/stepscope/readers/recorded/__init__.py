"""What `stepscope record` writes: counters, stacks, scheduling, and the notes about the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.readers.formats import OBJECT, Format, Sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace

#: Each kind of side file, by the names that it may have.
COUNTER_FILES = ("counters.parquet", "counters.csv", "counters.csv.gz", "counters.csv.zst")
_TEXTS = dict.fromkeys(("metric", "unit", "device"), pl.String())
COUNTER_COLUMNS = {"ts_ns": pl.Int64(), **_TEXTS, "value": pl.Float64()}
STACK_FILES = ("stacks.tsv.gz", "stacks.tsv")
SCHEDULING = "sched.ring"
RECORDING = "meta.json"
#: The process that a profile is of, where it has no rank or others have the same.
_OF_PROCESS = regex(r"(?:^|\.)pid(\d{1,10})\.")


def side_file(path: str, names: Sequence[str]) -> str | None:
    """The side file of one of these names in the folder of a trace, if there is one."""
    folder, _ = files.split(path)
    if files.is_url(path):  # one listing, which fsspec keeps, in place of a question for each name
        try:
            listed = set(files.files_in(folder, deep=False))
        except StepscopeError:  # a web server, or a bucket whose objects may be read and not listed
            return None
        return next((file for name in names if (file := files.joined(folder, name)) in listed), None)
    return next((file for name in names if files.exists(file := files.joined(folder, name))), None)


def recording_of(path: str) -> dict[str, Any]:
    """The meta.json of a recording in the folder of a trace; empty if there is none."""
    try:
        recording = json.loads((Path(path).parent / RECORDING).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return recording if isinstance(recording, dict) and recording.get("recorder") == "stepscope" else {}


def with_own_pid(trace: Trace, path: str) -> Trace:
    """The trace with the process that the recorder saw, if the profiler numbers its only process otherwise.

    XLA's profiler gives all processes the same number, so counters and times of steps would belong to nobody.
    """
    named = _OF_PROCESS.search(files.split(path)[1])
    pids = trace.tracks["pid"].drop_nulls().unique()
    recorded = recording_of(path).get("pids")
    if named is None or len(pids) != 1 or not isinstance(recorded, list):
        return trace
    pid = int(named[1])
    if pid not in recorded or pids[0] in recorded:
        return trace
    known = pl.when(pl.col("pid").is_not_null()).then(pl.lit(pid, pl.Int64)).alias("pid")
    return trace.with_tables(tracks=trace.tracks.with_columns(known))


FORMATS = (
    Format(
        name="step_costs",
        doc="Costs of steps from a training loop's timer, as JSON: for the Perf Summary of export --to paddle-summary",
        module="recorded.step_costs",
        signs=(Sign(0.3, OBJECT, pattern=regex(rb'"batch_cost_s"\s*:'), within=4096),),
        provides=("step_costs",),
    ),
    Format(
        name="counters",
        doc="counters that `stepscope record` wrote without a profile (counters.csv, .gz, .zst, .parquet)",
        module="recorded.counters",
        signs=(
            Sign(0.3, regex(rb"PAR1"), path=regex(r"(?:^|/)counters\.parquet/*\Z")),
            Sign(0.3, columns=tuple(COUNTER_COLUMNS)),
        ),
        provides=("devices", "counters", "issues"),
    ),
)  # fmt: skip
