"""stepscope against counts of the raw files that share no line with it, and against recorders' own summaries.

`STEPSCOPE_SURFACES=all` compares every recording of the collection; without it, those that are quickly read.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import independent_checks as checks
import independent_counts
import pytest

import stepscope

EVERYTHING = os.environ.get("STEPSCOPE_SURFACES") == "all"
SMALL_BYTES = 300_000
COLLECTION = Path(__file__).parents[3] / "shared" / "data"
FOLDERS = ("ascend", "faultlab", "nsight", "paddle", "reference", "traces", "xplane")
RECORDINGS = re.compile(
    r"\.(sqlite|rpd|hatchet|pb)(\.gz)?$|trace[^/]*\.json(\.gz)?$|^traces/.*\.json(\.gz)?$"
    r"|(ncu-(csv|raw-derived)|rocprof[^/]*)/.*\.(csv|json\.gz)$|ncu-text/.*\.txt$|kernel_table[^/]*\.txt$"
)
#: Files of these names hold no device work and no steps, or only what another program made of them.
NO_RECORDINGS = re.compile(
    r"megatron_et_|communication|profiler_(info|metadata)|execution_details|labels|sysinfo|ceilings|step_trace_time"
    r"|kernel_details|api_(trace|stats)|runtime_trace|postprocessed|nopermission|nokernels|malformed|_[2-6]\.json"
)


def recordings() -> list[str]:
    """Paths below the collection, the quickly read ones only unless everything is asked for."""
    files = (path for folder in FOLDERS for path in sorted((COLLECTION / folder).rglob("*")) if path.is_file())
    names = {path: path.relative_to(COLLECTION).as_posix() for path in files}
    held = {path: name for path, name in names.items() if RECORDINGS.search(name) and not NO_RECORDINGS.search(name)}
    return [name for path, name in held.items() if EVERYTHING or path.stat().st_size < SMALL_BYTES]


@cache
def counted(path: Path):
    """The independent counts of a file."""
    return independent_counts.count(path)


@pytest.mark.parametrize("path", recordings(), ids=str)
def test_stepscope_counts_what_the_raw_file_holds(shared, path):
    theirs = counted(shared / path)
    assert theirs is not None
    known = [row for row in checks.known_differences() if row.covers(path)]
    if any(row.covers(path, "recording") for row in known):
        with pytest.raises(stepscope.StepscopeError):
            stepscope.load(shared / path)
        return
    ours = checks.of_stepscope(stepscope.load(shared / path))
    differences = checks.differences(ours, checks.of_oracle(theirs))
    assert {q: v for q, v in differences.items() if not any(row.covers(path, q) for row in known)} == {}
