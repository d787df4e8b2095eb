"""What `nsys stats --format csv` writes: summaries as results, and reports of single events as a recording.

Format: the reports of NVIDIA's Nsight Systems user guide ("Statistical Reports Shipped With Nsight Systems"), versions
2020 to 2026. A file may hold several of them; with `--output` each has a file of its own, named after it, and those
whose names begin alike are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.result_tables import NSYS
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.readers.common.issues import Notes
from stepscope.readers.common.memory import give_back
from stepscope.readers.common.source import Source
from stepscope.readers.nsight.ncu_lines import as_utf8
from stepscope.readers.nsight.nsys_stats_files import FOR_PEOPLE, NUMBERED_KERNELS, family, named_by_file
from stepscope.readers.nsight.nsys_stats_sums import report_of, summaries
from stepscope.readers.nsight.nsys_stats_text import printed_tables, skipped
from stepscope.readers.nsight.nsys_stats_trace import event_tables, events_of, is_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.nsight.nsys_stats_text import Printed
    from stepscope.readers.nsight.nsys_stats_trace import Events

_EXPORT = "give the recording itself: nsys export --type sqlite --output report.sqlite report.nsys-rep"


def read(source: Source) -> Trace:
    """Summaries as results by the name of their report, events as the tables of a recording; both if there are both.

    Raises CorruptInput (no rows), UnknownFormat (reports without a place here), StepscopeError. What is left out is
    counted in `issues`.
    """
    notes = Notes()
    results, events = _read(source, notes)  # without the text, which is large and done with
    found, origin_ns = event_tables(events, notes) if events else ({}, 0)
    if events and found["spans"].is_empty() and not results:
        raise CorruptInput("not one of its rows can be read", "run nsys stats again", path=source.label)
    found["issues"] = notes.table()
    n_rows = sum(results[name].frame.height for name in results if name in NSYS)
    n_events = found["spans"].height if events else n_rows
    meta = Meta(source.label, "nsys-stats", n_events=n_events, size_bytes=source.n_bytes, origin_recorded_ns=origin_ns)
    held = {name: frame for name, frame in found.items() if not frame.is_empty()}
    give_back()
    return Results(meta, held, results) if results else Trace(meta, held)


def _read(source: Source, notes: Notes) -> tuple[dict[str, Result], list[Events]]:
    """The summaries and the events of a file and of those that belong to it. Raises as `read` does."""
    printed = _printed(source, notes)
    sums: list[tuple[str, Printed]] = []
    events: list[Events] = []
    others: list[str] = []
    for table in printed.tables:
        if table.is_empty:
            notes.add("empty_reports", "info", 1, f"tables with a header and no rows, as {_called(table)}")
        elif (report := report_of(table)) is not None:
            sums.append((report, table))
        elif is_events(table):
            events += events_of(table, notes)
        else:
            others.append(_called(table))
            notes.add("reports_left_out", "warning", 1, f"reports that are not read, as {_called(table)}")
    if not sums and not events:
        raise _nothing(source, printed, others)
    skips = printed.reasons
    notes.add("reports_skipped", "info", len(skips), f"nsys left out reports: {next(iter(skips), '')}")
    return summaries(sums, notes), events


@dataclass(slots=True)
class _Printed:
    """What stands in a file and in those that belong to it; `reasons` are why nsys left out reports."""

    tables: list[Printed] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_for_people: bool = False


def _printed(source: Source, notes: Notes) -> _Printed:
    found = _Printed()
    paths = family(source.path) if source.member is None else [source.path]
    for path in paths:
        part = source if path == source.path else Source(path, None, source.max_bytes)
        try:
            text = b"".join(as_utf8(part.chunks()))
        except StepscopeError as error:
            if part is source:
                raise
            notes.add("file_unreadable", "warning", 1, error.message)
            continue
        if part.damage:
            notes.add("damaged_packing", "error", 1, f"{part.damage} ({part.n_bytes:,} bytes read)")
        if NUMBERED_KERNELS.match(text):
            what = "is a query of nsys' database in which kernels are numbers: their names stand in the table StringIds"
            raise UnknownFormat(f"{part.label} {what}", _EXPORT)
        name = named_by_file(Path(path).name)
        found.tables += printed_tables(text, name[1] if name else "", notes)
        found.reasons += skipped(text)
        found.is_for_people |= FOR_PEOPLE.search(text) is not None
    return found


def _called(table: Printed) -> str:
    return table.report or f"the one of {table.columns[0].label}, {table.columns[1].label} …"


def _nothing(source: Source, printed: _Printed, others: Sequence[str]) -> StepscopeError:
    """Why a file without rows that can be read holds none."""
    path = source.label
    if others:
        what = f"{path} holds reports of nsys stats that are not read: {', '.join(dict.fromkeys(others))}"
        return UnknownFormat(what, f"see `stepscope formats`; {_EXPORT}")
    if source.damage:
        return CorruptInput(source.damage, "copy the file again", path=path, offset=source.n_bytes)
    if printed.tables:
        return CorruptInput("a header and no rows", "run nsys stats again", path=path)
    if printed.reasons:
        what = f"{path} holds no table; nsys stats says: {printed.reasons[0]}"
        return StepscopeError(what, "profile the process that uses the device, with --trace=cuda,nvtx,osrt")
    if printed.is_for_people:
        hint = "print them again: nsys stats --format csv --output report report.nsys-rep"
        return UnknownFormat(f"{path} holds tables of nsys stats as they are printed for people", hint)
    return UnknownFormat(f"{path} holds what nsys stats prints beside its tables, and no table", _EXPORT)
