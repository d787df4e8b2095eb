"""What `stepscope record` leaves in the folder of a trace, by name; and what its meta.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import ISSUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace
    from stepscope.readers.common.issues import IssueLog

#: Each kind of side file, by the names that it may have.
COUNTER_FILES = ("counters.parquet", "counters.csv", "counters.csv.gz", "counters.csv.zst")
COUNTER_COLUMNS = {
    "ts_ns": pl.Int64(),
    "metric": pl.String(),
    "unit": pl.String(),
    "device": pl.String(),
    "value": pl.Float64(),
}
STACK_FILES = ("stacks.tsv.gz", "stacks.tsv")
SCHEDULING = "sched.ring"
RECORDING = "meta.json"


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
    except (OSError, ValueError):
        return {}
    return recording if isinstance(recording, dict) and recording.get("recorder") == "stepscope" else {}


def with_issues(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with further issues."""
    table = issues.table()
    return trace if table.is_empty() else trace.with_tables(issues=pl.concat([ISSUES.conform(trace.issues), table]))
