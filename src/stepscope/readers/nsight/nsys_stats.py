"""What `nsys stats --format csv` writes: summaries as results, and reports of single events as a recording.

Format: the reports of NVIDIA's Nsight Systems user guide ("Statistical Reports Shipped With Nsight Systems"), versions
2020 to 2026. A file may hold several of them; with `--output` each has a file of its own, named after it, and those
whose names begin alike are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.names import kernel_class, map_names
from stepscope.core.patterns import regex
from stepscope.core.result_tables import NSYS
from stepscope.core.table import Column, Name, Table
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.readers.common.impossible import short_enough
from stepscope.readers.common.source import IssueLog, Source, give_back
from stepscope.readers.nsight.ncu_lines import as_utf8
from stepscope.readers.nsight.nsys_stats_files import FOR_PEOPLE, NUMBERED_KERNELS, family, named_by_file
from stepscope.readers.nsight.nsys_stats_text import number, printed_tables, scaled, skipped
from stepscope.readers.nsight.nsys_stats_trace import event_tables, events_of, is_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.readers.nsight.nsys_stats_text import Printed
    from stepscope.readers.nsight.nsys_stats_trace import Events


_OTHER = "other_sum"
_CUDA = regex(r"cu(?:da)?[A-Z]")
#: Labels by the column that they become, newest first.
_TEXTS = {
    "name": ("kernel name", "name", "operation", "range", "event"), "call": ("api name",), "range": ("nvtx range",),
    "style": ("style",), "category": ("category", "source"), "grid": ("gridxyz",), "block": ("blockxyz",),
}  # fmt: skip
_COUNTS = {
    "calls": ("kern inst", "instances", "num calls", "count", "operations", "range instances"),
    "queued_calls": ("qcount",), "n_ranges": ("nvtx inst",), "n_device_ops": ("total gpu ops",), "pid": ("pid",),
    "tid": ("tid",), "device": ("devid",),
}  # fmt: skip
_TOTALS = {
    "total_ns": ("total time", "total proj time"), "total_bytes": ("total",), "range_total_ns": ("total range time",),
}  # fmt: skip
_SPREAD = {
    "mean": ("avg", "average"), "p50": ("med", "median"), "min": ("min", "minimum"), "max": ("max", "maximum"),
    "std": ("stddev",),
}  # fmt: skip
#: How the labels of the parts of a launch begin in cuda_kern_exec_sum; and those of projected ranges.
_PARTS = {"": ("", "t", "proj "), "call_": ("a",), "queue_": ("q",), "kernel_": ("k",)}
_OF_KERNELS = NSYS["cuda_gpu_kern_sum"].columns
#: The columns of `show kernels` that a summary of kernels has.
_KERNELS = Table(
    "kernels",
    "what each device kernel cost, from nsys stats",
    (_OF_KERNELS[0], Column("kernel_class", Name, "what it does, by its name"), *_OF_KERNELS[1:]),
)
_EXPORT = "give the recording itself: nsys export --type sqlite --output report.sqlite report.nsys-rep"


def report_of(table: Printed) -> str | None:
    """Which of the summaries a table is; None if it is none, or one of a kind that has no place."""
    is_sum = table.place("total time", "total proj time", "total", "tavg") and table.place(*_COUNTS["calls"])
    if not is_sum:
        return None
    if table.report:
        return table.report if table.report in NSYS else _OTHER
    return _guessed(table)


def _guessed(table: Printed) -> str:
    """By the columns alone. Calls of CUDA and of the operating system have the same ones and differ in names."""
    has = {column.label for column in table.columns}
    named = table.place(*_TEXTS["name"])
    by_cuda = named is not None and any(map(_CUDA.match, table.first(named)))
    rules = (
        ("tavg" in has, "cuda_kern_exec_sum"),
        ("nvtx range" in has, "nvtx_kern_sum"),
        ("total proj time" in has, "nvtx_gpu_proj_sum"),
        ("style" in has, "nvtx_sum"),
        ("range" in has, "nvtx_pushpop_sum"),
        ("category" in has, "cuda_api_gpu_sum" if by_cuda else "cuda_gpu_sum"),
        ("operation" in has, "cuda_gpu_mem_time_sum" if "total time" in has else "cuda_gpu_mem_size_sum"),
        ("num calls" in has, "cuda_api_sum" if by_cuda else "osrt_sum"),
        ("gridxyz" in has, "cuda_gpu_kern_gb_sum"),
        ({"instances", "name"} <= has, "cuda_gpu_kern_sum"),
    )
    return next((report for fits, report in rules if fits), _OTHER)


def summaries(tables: Sequence[tuple[str, Printed]], issues: IssueLog) -> dict[str, Result]:
    """The result tables by name; tables of the same report become one. Beside a summary of kernels also `kernels`."""
    results: dict[str, Result] = {}
    for report in dict.fromkeys(name for name, _ in tables):
        mine = [_summary(report, table, issues) for name, table in tables if name == report]
        frame = pl.concat(mine)
        if len(mine) > 1 and report != _OTHER:
            issues.add("reports_joined", "info", len(mine), f"several tables {report} are read as one")
            if "share_ratio" in frame.columns:
                whole = frame["total_ns"].sum()
                frame = frame.with_columns(share_ratio=pl.col("total_ns") / whole if whole else None)
        order = next(c for c in ("total_ns", "total_bytes", "mean_ns") if c in frame.columns)
        results[report] = Result(NSYS[report], frame.sort(order, descending=True, nulls_last=True, maintain_order=True))
    if (kernels := results.get("cuda_gpu_kern_sum")) is not None:
        whole = kernels.frame["total_ns"].sum()  # nsys rounds shares and means
        names = short_enough(kernels.frame["name"].fill_null(""), issues)
        ours = kernels.frame.with_columns(
            names,
            kernel_class=map_names(names, kernel_class, pl.String()),
            share_ratio=pl.col("total_ns") / whole if whole else None,
            mean_ns=pl.col("total_ns") / pl.col("calls"),
        )
        results["kernels"] = Result(_KERNELS, _KERNELS.conform(ours))
    return results


def _summary(report: str, table: Printed, issues: IssueLog) -> pl.DataFrame:
    """A table of that report, in the columns that are declared for it."""
    declared = NSYS[report]
    unit = "bytes" if "total_bytes" in declared.dtypes else "ns"
    sources = {name: at for name, at in _sources(table, unit) if name in declared.dtypes}
    columns = {name: _value(name, at, table, unit) for name, at in sources.items()}
    if "report" in declared.dtypes:
        columns["report"] = pl.lit(table.report or None, pl.String)
    left_out = [c.label for i, c in enumerate(table.columns) if str(i) not in sources.values()]
    if left_out:
        issues.add(
            "columns_left_out", "info", len(left_out), f"columns of {report} that were left out, as {left_out[0]}"
        )
    table.note_units(unit, issues)
    frame = table.select(issues, **columns)
    sound = frame.filter(pl.col("calls").is_not_null())
    issues.add("rows_dropped", "warning", frame.height - sound.height, "rows without their numbers were dropped")
    return declared.conform(sound)


def _sources(table: Printed, unit: str) -> Iterator[tuple[str, str]]:
    """Which column, by its number, becomes which."""
    labels = {**_TEXTS, **_COUNTS, **_TOTALS, "share_ratio": ("time",)}
    for part, starts in _PARTS.items():
        for word, ends in _SPREAD.items():
            labels[f"{part}{word}_{unit}"] = tuple(start + end for start in starts for end in ends)
    for name, known in labels.items():
        if (at := table.place(*known)) is not None:
            yield name, at


def _value(name: str, at: str, table: Printed, unit: str) -> pl.Expr:
    """A column in the unit of its result column."""
    if name in ("grid", "block"):  # printed as '  64    1    1'
        return pl.col(at).str.strip_chars().str.replace_all(r"\s+", "x")
    if name in _TEXTS:
        return pl.col(at)
    if name in _COUNTS:
        return number(at).round()
    if name == "share_ratio":
        return number(at) / 100
    value = scaled(table, at, unit)
    is_whole = name in _TOTALS or name.endswith((f"min_{unit}", f"max_{unit}"))
    return value.round() if is_whole else value


def read(source: Source) -> Trace:
    """Summaries as results by the name of their report, events as the tables of a recording; both if there are both.

    Raises CorruptInput (no rows), UnknownFormat (reports without a place here), StepscopeError. What is left out is
    counted in `issues`.
    """
    issues = IssueLog()
    results, events = _read(source, issues)  # without the text, which is large and done with
    tables, origin_ns = event_tables(events, issues) if events else ({}, 0)
    if events and tables["spans"].is_empty() and not results:
        raise CorruptInput("not one of its rows can be read", "run nsys stats again", path=source.label)
    tables["issues"] = issues.table()
    n_rows = sum(results[name].frame.height for name in results if name in NSYS)
    n_events = tables["spans"].height if events else n_rows
    meta = Meta(source.label, "nsys-stats", n_events=n_events, size_bytes=source.n_bytes, origin_recorded_ns=origin_ns)
    held = {name: frame for name, frame in tables.items() if not frame.is_empty()}
    give_back()
    return Results(meta, held, results) if results else Trace(meta, held)


def _read(source: Source, issues: IssueLog) -> tuple[dict[str, Result], list[Events]]:
    """The summaries and the events of a file and of those that belong to it. Raises as `read` does."""
    printed = _printed(source, issues)
    sums: list[tuple[str, Printed]] = []
    events: list[Events] = []
    left_out: list[str] = []
    for table in printed.tables:
        if table.is_empty:
            issues.add("empty_reports", "info", 1, f"tables with a header and no rows, as {_called(table)}")
        elif (report := report_of(table)) is not None:
            sums.append((report, table))
        elif is_events(table):
            events += events_of(table, issues)
        else:
            left_out.append(_called(table))
            issues.add("reports_left_out", "warning", 1, f"reports that are not read, as {_called(table)}")
    if not sums and not events:
        raise _nothing(source, printed, left_out)
    skips = printed.reasons
    issues.add("reports_skipped", "info", len(skips), f"nsys left out reports: {next(iter(skips), '')}")
    return summaries(sums, issues), events


@dataclass(slots=True)
class _Printed:
    """What a file and its companions hold; `reasons` are why nsys left out reports."""

    tables: list[Printed] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_for_people: bool = False


def _printed(source: Source, issues: IssueLog) -> _Printed:
    printed = _Printed()
    paths = family(source.path) if source.member is None else [source.path]
    for path in paths:
        part = source if path == source.path else Source(path, None, source.max_bytes)
        try:
            text = b"".join(as_utf8(part.chunks()))
        except StepscopeError as error:
            if part is source:
                raise
            issues.add("file_unreadable", "warning", 1, error.message)
            continue
        if part.damage:
            issues.add("damaged_packing", "error", 1, f"{part.damage} ({part.n_bytes:,} bytes read)")
        if NUMBERED_KERNELS.match(text):
            what = "is a query of nsys' database in which kernels are numbers: their names are in the table StringIds"
            raise UnknownFormat(f"{part.label} {what}", _EXPORT)
        name = named_by_file(Path(path).name)
        printed.tables += printed_tables(text, name[1] if name else "", issues)
        printed.reasons += skipped(text)
        printed.is_for_people |= FOR_PEOPLE.search(text) is not None
    return printed


def _called(table: Printed) -> str:
    return table.report or f"the one of {table.columns[0].label}, {table.columns[1].label} …"


def _nothing(source: Source, printed: _Printed, left_out: Sequence[str]) -> StepscopeError:
    """Why a file without rows that can be read holds none."""
    path = source.label
    if left_out:
        what = f"{path} holds reports of nsys stats that are not read: {', '.join(dict.fromkeys(left_out))}"
        return UnknownFormat(what, f"see `stepscope formats`; {_EXPORT}")
    if source.damage:
        return CorruptInput(source.damage, "copy the file again", path=path, offset=source.n_bytes)
    if printed.tables:
        return CorruptInput("a header and no rows", "run nsys stats again", path=path)
    if printed.reasons:
        what = f"{path} holds no table; nsys stats reported: {printed.reasons[0]}"
        return StepscopeError(what, "profile the process that uses the device, with --trace=cuda,nvtx,osrt")
    if printed.is_for_people:
        hint = "print them again: nsys stats --format csv --output report report.nsys-rep"
        return UnknownFormat(f"{path} holds tables of nsys stats in its text form", hint)
    return UnknownFormat(f"{path} holds messages of nsys stats and no table", _EXPORT)
