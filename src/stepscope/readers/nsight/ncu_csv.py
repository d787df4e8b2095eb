"""What Nsight Compute prints: CSV (`ncu --csv`) and text.

CSV has a row for each metric (details, chosen metrics) or a column for each (the raw page). Text has a title for each
launch and sections of metrics below it.
Format: NVIDIA's Nsight Compute CLI documentation, and files of its versions since 2020. The file gives the order of
kernels but no times, so the trace has no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.patterns import regex
from stepscope.core.table import Name
from stepscope.readers.common.source import IssueLog, Source, give_back
from stepscope.readers.nsight import ncu_trace
from stepscope.readers.nsight.ncu_lines import Lines, as_utf8
from stepscope.readers.nsight.ncu_trace import PRINTED, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace
    from stepscope.readers.nsight.ncu_lines import Header


_COLUMNS = {
    "Kernel Name": "name", "Process ID": "pid", "Process Name": "process", "Host Name": "host", "Context": "context",
    "Stream": "stream", "Device": "device", "CC": "cc", "Block Size": "block", "Grid Size": "grid",
}  # fmt: skip
_LONG = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
#: Columns of the raw page that are no metrics, besides those of NVTX ranges (`Id:Domain:…`).
_NOT_METRICS = {"ID", *_COLUMNS, "Kernel Time", "Device Name"}
_NVTX = regex(r"^(?:Id:Domain|Domain:|.*Push/Pop_Range|.*Start/Stop_Range)")
_NO_PERMISSION = (
    "run ncu as root, or let every user read the counters: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/, then reload the driver or reboot; in a container also --cap-add=SYS_ADMIN "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)
#: `name (grid)x(block), Context 1, Stream 7, Device 0, CC 8.0`; old versions say the date instead of grid and block.
_TITLE = regex(
    r"^ {1,4}(?P<name>\S.*?)(?: (?P<grid>\([\d., ]+\))x(?P<block>\([\d., ]+\)))?(?:, \d{4}-\w{3}-\d{2} [\d:]+)?"
    r", Context (?P<context>\d+), Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC (?P<cc>[\d.]+))?\s*$"
)
_PROCESS = regex(r"^\[(?P<pid>\d+)\] (?P<process>.*)@(?P<host>\S+)\s*$")
_SECTION = regex(r"^ {2,}Section: (?P<section>.*\S)")
_RULER = regex(r"^ *(-{3,}) (-{3,}) (-{3,})\s*$")


def read(source: Source) -> Trace:
    """Every launch of every report in the file, with all its metrics in base units.

    Raises CorruptInput, UnknownFormat; StepscopeError if ncu itself failed, with how to help it.
    """
    issues = IssueLog()
    lines = Lines(source)
    printed = _Launches()
    for header, frame in _frames(lines):
        (printed.add_long if header.is_long else printed.add_wide)(header, frame)
    if not printed.n:
        if lines.is_text:
            again = Source(source.path, source.member, source.max_bytes, source.progress)
            return read_text(again)
        raise _nothing(lines, source)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    issues.add("cut_row", "warning", lines.n_truncated, "the file ends within a row, which is left out")
    issues.add("ncu_errors", "warning", len(lines.errors), f"ncu reported: {next(iter(lines.errors), '')}")
    issues.add("ncu_warnings", "info", len(lines.warnings), f"ncu warned: {next(iter(lines.warnings), '')}")
    issues.add("reports_joined", "info", lines.n_reports * (lines.n_reports > 1), "reports in one file are read as one")
    issues.add("rules_left_out", "info", printed.n_rules, "rows of ncu's own advice are not kept")
    issues.add("bare_rows", "warning", printed.n_bare, "rows without the name of a metric are left out")
    launches, reports = printed.tables(issues)
    metrics, texts = measured(reports, source.label, issues)
    del reports  # as texts, before the tables are made
    trace = ncu_trace.build(source, "ncu-csv", launches, metrics, texts, issues)
    del metrics, launches
    give_back()
    return trace


def _nothing(lines: Lines, source: Source) -> StepscopeError:
    """Why a file without launches holds none."""
    path = source.label
    if any("ERR_NVGPUCTRPERM" in text for text in lines.errors):
        msg = (
            "ncu was not allowed to read the device's performance counters (ERR_NVGPUCTRPERM): the file has no kernels"
        )
        return StepscopeError(f"{path}: {msg}", _NO_PERMISSION)
    if lines.errors or lines.warnings:
        said = (lines.errors or lines.warnings)[0]
        return StepscopeError(
            f"{path} has no kernels; ncu reported: {said}", "read what ncu printed, and profile again"
        )
    if source.damage:
        return CorruptInput(source.damage, "copy the file again", path=path, offset=source.n_bytes)
    if lines.n_reports:
        hint = "ncu profiled no kernel: check its filters (--kernel-name, --launch-skip, --nvtx-include)"
        return CorruptInput("a header and no rows", hint, path=path)
    for is_so, what in (
        (lines.is_summary, "a summary over launches (--print-summary)"),
        (lines.is_instructions, "instructions of kernels (--page source)"),
    ):
        if is_so:
            return UnknownFormat(f"{path} holds {what}, not launches", "print it again: ncu -i REPORT --csv --page raw")
    what = "is a text without a table of a known format"
    return UnknownFormat(f"{path} {what}", "see `stepscope formats` for what can be read")


@dataclass(slots=True)
class _Launches:
    """Launches and their metrics so far, as printed; n is how many launches."""

    n: int = 0
    n_rules: int = 0
    n_bare: int = 0
    launches: list[pl.DataFrame] = field(default_factory=list)
    reports: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    last: tuple[int, str | None, str | None] | None = None

    def add_long(self, header: Header, frame: pl.DataFrame) -> None:
        """Rows of metrics; a launch is rows in succession with the same ID and process."""
        ids, pids = frame["ID"], frame["Process ID"]
        starts = ids.ne_missing(ids.shift(1)) | pids.ne_missing(pids.shift(1))
        starts[0] = self.last is None or self.last != (header.report, ids[0], pids[0])
        self.last = (header.report, ids[-1], pids[-1])
        rows = frame.select(
            launch=(starts.cast(pl.Int64).cum_sum() + (self.n - 1)).cast(pl.UInt32),
            section=pl.col("Section Name").cast(Name),
            metric=pl.col("Metric Name").cast(Name),
            unit=pl.col("Metric Unit").cast(Name),
            value="Metric Value",
        )
        is_metric = frame["Metric Name"].str.len_bytes().fill_null(0) > 0
        if not is_metric.all():
            n_not_metrics = frame.height - int(is_metric.sum())
            self.n_rules += n_not_metrics * ("Rule Name" in header.columns)
            self.n_bare += n_not_metrics * ("Rule Name" not in header.columns)
            rows = rows.filter(is_metric)
        self._add(header, frame.filter(starts), rows)

    def add_wide(self, header: Header, frame: pl.DataFrame) -> None:
        """A row for each launch, below one with the units."""
        names = [name for name in frame.columns if name not in _NOT_METRICS]
        if self.last is None or self.last[0] != header.report:
            self.units = dict.fromkeys(names, "")
        self.last = (header.report, None, None)
        is_launch = frame["ID"].str.len_bytes().fill_null(0) > 0
        for row in frame.filter(~is_launch).select(names).head(1).iter_rows(named=True):
            self.units = {name: unit or "" for name, unit in row.items()}
        frame = frame.filter(is_launch)
        rows = (
            frame.select(pl.int_range(self.n, self.n + frame.height, dtype=pl.UInt32).alias("launch"), *names)
            .unpivot(names, index="launch", variable_name="metric", value_name="value")
            .filter(pl.col("value").str.len_bytes() > 0)
        )
        units = list(self.units)
        unit = rows["metric"].replace_strict(units, list(self.units.values()), return_dtype=pl.String)
        section = pl.lit(None, dtype=Name).alias("section")
        rows = rows.with_columns(section, pl.col("metric").cast(Name), unit=unit.cast(Name))
        self._add(header, frame, rows.select(*PRINTED))

    def _add(self, header: Header, launches: pl.DataFrame, rows: pl.DataFrame) -> None:
        self.n += launches.height
        report = pl.lit(header.report, dtype=pl.UInt32).alias("report")
        texts = (pl.col(old).cast(Name).alias(new) for old, new in _COLUMNS.items())
        self.launches.append(launches.select(report, "ID", *texts))
        self.reports.setdefault(header.report, []).append(rows)

    def tables(self, issues: IssueLog) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """All launches, and for each report its metrics."""
        launches = pl.concat(self.launches)
        reports = [pl.concat(parts) for parts in self.reports.values()]
        self.launches, self.reports = [], {}
        number = launches["ID"].cast(pl.Int64, strict=False)
        rises = (number > number.shift(1)) | launches["report"].ne_missing(launches["report"].shift(1))
        if not rises.fill_null(value=False).all() and launches.select("report", "pid", "ID").is_duplicated().any():
            launches, reports = _regrouped(launches, reports, issues)
        return launches, reports


def _regrouped(
    launches: pl.DataFrame, reports: list[pl.DataFrame], issues: IssueLog
) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Groups launches whose rows are apart, as in a file that was sorted, or joined without its headers.

    Of rows with the same ID and process, those that repeat a metric belong to a further launch.
    """
    keys = ["report", "pid", "ID"]
    keyed = launches.with_row_index("launch").with_columns(first=pl.col("launch").first().over(keys))
    numbers = keyed.select("launch", "first")
    rows = pl.concat([report.with_columns(part=pl.lit(i)) for i, report in enumerate(reports)])
    rows = rows.join(numbers, on="launch", how="left", maintain_order="left")
    rows = rows.with_columns(again=pl.int_range(pl.len()).over("first", "section", "metric"))
    order = rows.group_by("first", "again").agg(pl.col("launch").min()).sort("launch").with_row_index("new")
    issues.add(
        "rows_apart", "info", launches.height - order.height, "launches whose rows were not adjacent were joined"
    )
    rows = rows.join(order.select("first", "again", "new"), on=["first", "again"], how="left", maintain_order="left")
    rows = rows.with_columns(launch="new")
    parts = [rows.filter(pl.col("part") == i).select(*PRINTED) for i in range(len(reports))]
    return launches[order["launch"]], parts


def _frames(lines: Lines) -> Iterator[tuple[Header, pl.DataFrame]]:
    """Rows of the CSV as texts, some MB at a time. Raises CorruptInput."""
    for header, block in lines.blocks():
        frame = _csv(header, block)
        if frame is not None and _all_rows(frame):
            yield header, frame
            continue
        for other, rows in lines.segments(block):
            frame = _csv(other, rows.decode("utf-8", "replace").encode())
            if frame is None:
                raise CorruptInput("rows that are not CSV", "print the report again", path=lines.source.label)
            yield other, frame


def _all_rows(frame: pl.DataFrame) -> bool:
    """Whether each row begins with a number, or, as the units of the raw page, with nothing."""
    ids = frame["ID"]
    heads = ids.filter(ids.ne_missing(ids.shift(1)))
    return bool(heads.str.contains(r"^[\d.,]*$").all()) and not heads.has_nulls()


def _csv(header: Header, text: bytes) -> pl.DataFrame | None:
    """The columns that we know, as text. Missing columns and fields are null; None if it is not CSV."""
    place: dict[str, int] = {}
    for i, name in enumerate(header.columns):
        place.setdefault(name, i)
    metrics = _LONG if header.is_long else [c for c in place if c not in _NOT_METRICS and not _NVTX.match(c)]
    wanted = ["ID", *_COLUMNS, *metrics]
    try:
        frame = pl.read_csv(
            text, has_header=False, schema={str(i): pl.String for i in range(len(header.columns))},
            columns=sorted(place[name] for name in wanted if name in place), truncate_ragged_lines=True,
            missing_columns="insert",
        )  # fmt: skip
    except pl.exceptions.PolarsError:
        return None
    return frame.select(
        pl.col(str(place[name])).alias(name) if name in place else pl.lit(None, dtype=pl.String).alias(name)
        for name in wanted
    )


def read_text(source: Source) -> Trace:
    """Every launch with its metrics in base units, as rounded by the text. Raises CorruptInput, StepscopeError."""
    issues, page = IssueLog(), _Page()
    for line in _text_lines(source):
        page.add(line)
    if not page.launches:
        raise CorruptInput("no kernel launches", "print the report again", path=source.label)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    what = "the text rounds to two decimals; `ncu --csv` does not scale units first"
    issues.add("rounded", "info", len(page.launches), what)
    launches = pl.DataFrame(page.launches, schema=dict.fromkeys(ncu_trace.LAUNCHES, pl.String()))
    printed = pl.DataFrame(page.metrics, schema=PRINTED, orient="row")
    metrics, texts = measured([printed], source.label, issues)
    return ncu_trace.build(source, "ncu-text", launches, metrics, texts, issues)


def _text_lines(source: Source) -> Iterator[str]:
    rest = b""
    for chunk in as_utf8(source.chunks()):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    yield rest.decode("utf-8", "replace")


@dataclass(slots=True)
class _Page:
    """The process, section and columns that hold for the next line, and all launches and metrics so far."""

    launches: list[dict[str, str | None]] = field(default_factory=list)
    metrics: list[tuple[int, str | None, str, str, str]] = field(default_factory=list)
    process: dict[str, str | None] = field(default_factory=dict)
    section: str | None = None
    columns: tuple[int, int] | None = None

    def add(self, line: str) -> None:
        """Takes the next line."""
        if not line.strip():
            self.columns = None
        elif ruler := _RULER.match(line):
            self.columns = ruler.end(1), ruler.end(2)
        elif self.columns is not None and self.launches and line.startswith("    "):
            self._metric(line, *self.columns)
        elif match := _SECTION.match(line):
            self.section, self.columns = match["section"], None
        elif match := _PROCESS.match(line):
            self.process = match.groupdict()
        elif ", Context " in line and (match := _TITLE.match(line)):
            self.launches.append(self.process | match.groupdict())
            self.section = self.columns = None

    def _metric(self, line: str, first: int, second: int) -> None:
        name, unit, value = line[:first].strip(), line[first:second].strip(), line[second:].strip()
        if name and name != "Metric Name":
            self.metrics.append((len(self.launches) - 1, self.section, name, unit, value))
