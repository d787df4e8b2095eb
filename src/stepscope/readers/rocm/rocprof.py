"""AMD's recorders: rocprofv3 as CSV, JSON or rocpd database, rocmProfileData's .rpd, rocprof-compute's pmc_perf.csv.

Format: rocprofiler-sdk's manual and its `rocpd_tables.sql` (schema 3); rocmProfileData's schema 2. Times are ns of the
host's steady clock, so that the Unix time of a recording is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.issues import Notes
from stepscope.readers.common.memory import give_back
from stepscope.readers.common.source import SQLITE_MAGIC
from stepscope.readers.common.sqlite import opened
from stepscope.readers.rocm.rocprof_build import build
from stepscope.readers.rocm.rocprof_csv import read_csv
from stepscope.readers.rocm.rocprof_db import read_database
from stepscope.readers.rocm.rocprof_json import read_json

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source
    from stepscope.readers.rocm.rocprof_records import Records


def read(source: Source) -> Trace:
    """One run's records as tables; of CSV files, also those of the same run beside it.

    Raises CorruptInput, UnknownFormat (a summary), UnsupportedVersion, StepscopeError; lesser damage is in `issues`.
    """
    notes = Notes()
    head = next(iter(source.chunks()), b"")
    source.n_bytes = 0
    if head.startswith(SQLITE_MAGIC):
        with opened(source) as db:
            records = read_database(db, source.label)
    elif head.lstrip()[:1] == b"{":
        text = b"".join(source.chunks())
        records = read_json(text, source.label)
    else:
        records = read_csv(source, notes)
    trace = _trace(records, source, notes)
    give_back()
    return trace


def _trace(records: Records, source: Source, notes: Notes) -> Trace:
    tables, origin_ns, timed = build(records, notes)
    if tables["spans"].is_empty():
        notes.add("no_spans", "warning", 1, "the file holds no launch, copy or call")
    tables["issues"] = notes.table()
    operators = "operator" in tables["spans"]["category"]
    meta = Meta(
        path=source.label,
        format="rocprof",
        n_events=tables["spans"].height,
        size_bytes=source.n_bytes,
        host=records.host,
        framework="PyTorch" if operators else None,
        origin_recorded_ns=origin_ns if timed else 0,
        facts=records.facts,
    )
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})
