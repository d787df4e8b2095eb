"""A rank's folder of Ascend's profilers as one trace: its timeline or its database, joined with the tables next to it.

Format: Ascend's documentation of the files of `ASCEND_PROFILER_OUTPUT`. Times are µs since 1970 with three decimals,
sizes KB and MB of 1024, but for what collectives moved: MB of 1000. Numbers may end in a tab. Without a timeline
`kernel_details.csv` gives the spans of kernels; without that too, what the profiler computed is read as results.
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.patterns import regex
from stepscope.core.result_tables import ASCEND
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.readers import ascend
from stepscope.readers.ascend import database
from stepscope.readers.ascend.tables import (
    metric_rows,
    of_kernels,
    of_modules,
    text_of,
    with_collectives,
    with_kernels,
    with_memory,
)
from stepscope.readers.chrome import kineto
from stepscope.readers.common.columns import whole_number
from stepscope.readers.common.source import SQLITE_MAGIC, IssueLog, Source, give_back, head_of, with_issues
from stepscope.readers.common.sqlite import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Columns of kernel_details.csv that are no counters.
_FACTS = regex(
    r"Step Id|Device_id|Model ID|Task ID|Stream ID|Name|Type|OP State|Accelerator Core|(?:Start Time|Duration)\(us\)"
    r"|(?:Mix )?Block (?:Dim|Num)|HF32 Eligible|(?:In|Out)put .*|Context ID"
)
#: Cores that are no cores: these rows are collectives.
_COMMUNICATION = ("HCCL", "COMMUNICATION")
#: The timeline rounds some starts, to 0.25 µs in a double.
_SAME_START_NS = 1000
_KIB, _MIB, _MB = 1 << 10, 1 << 20, 10**6
_STEP_TIMES = {
    "computation": ("Computing", "computing"),
    "exposed_communication": ("Communication(Not Overlapped)", "communication_not_overlapped"),
    "overlapped": ("Overlapped", "overlapped"),
    "communication": ("Communication", "communication"),
    "idle": ("Free", "free"),
    "stage": ("Stage", "stage"),
    "bubble": ("Bubble", "bubble"),
    "exposed_without_receive": (
        "Communication(Not Overlapped and Exclude Receive)", "communication_not_overlapped_and_exclude_receive",
    ),
    "preparing": ("Preparing", "preparing"),
}  # fmt: skip
_PARTS_OF_TIME = {
    "elapse": "Elapse Time(ms)", "transit": "Transit Time(ms)", "wait": "Wait Time(ms)",
    "synchronization": "Synchronization Time(ms)", "idle": "Idle Time(ms)",
}  # fmt: skip
_TEXTS_OF_PAIRS = ("Transport Type", "Op Name")
_LEVELS = {"allocated": "Total Allocated(MB)", "reserved": "Total Reserved(MB)", "active": "Total Active(MB)"}


class _Sheet:
    """A table of texts. Cells that are not what their column should hold are null, and counted in `issues`."""

    def __init__(self, frame: pl.DataFrame, name: str, issues: IssueLog) -> None:
        self.frame, self._name, self._issues = frame, name, issues

    def text(self, *columns: str) -> pl.Series:
        """The first of these columns that exists, without blanks around; null if none does."""
        column = next((name for name in columns if name in self.frame.columns), None)
        if column is None:
            return pl.Series([None], dtype=pl.String).new_from_index(0, self.frame.height)
        return self.frame.select(text_of(column)).to_series()

    def _number(self, dtype: pl.DataType, columns: tuple[str, ...]) -> pl.Series:
        text = self.text(*columns)
        values = text.cast(dtype, strict=False)
        if dtype.is_float():
            values = values.set(~values.is_finite().fill_null(value=True), None)
        self._issues.add(
            "not_numbers", "warning", values.null_count() - text.null_count(),
            f"cells of {self._name} that are not numbers were left out, as in the column {columns[0]}",
        )  # fmt: skip
        return values

    def number(self, *columns: str) -> pl.Series:
        """Numbers with fractions."""
        return self._number(pl.Float64(), columns)

    def whole(self, *columns: str) -> pl.Series:
        """Whole numbers, also written with fractions."""
        return self._number(pl.Decimal(24, 0), columns).cast(pl.Int64, strict=False)

    def thousandths(self, *columns: str) -> pl.Series:
        """Exact numbers with three decimals, in thousandths: ns of µs."""
        return (self._number(pl.Decimal(24, 3), columns) * 1000).cast(pl.Int64, strict=False)

    def sized(self, unit: int, *columns: str) -> pl.Series:
        """Sizes in bytes."""
        return (self.number(*columns) * unit).round().cast(pl.Int64, strict=False)


def read(source: Source) -> Trace:
    """The folder's timeline with all that belongs to it, or results alone. Memory: the columns.

    Raises CorruptInput, UnknownFormat, StepscopeError. Damage in the files next to it is counted in `issues`.
    """
    issues = IssueLog()
    sheets: dict[str, _Sheet] = {}
    results: dict[str, pl.DataFrame] = {}
    facts: dict[str, Any] = {}
    for path in ascend.family(source.path) if source.member is None else [source.path]:
        part = source if path == source.path else Source(path, None, source.max_bytes)
        try:
            _add(part, sheets, results, facts, issues)
        except StepscopeError as error:
            if part is source:
                raise
            issues.add("file_unreadable", "warning", 1, error.message)
    for table, frame in _of_sheets(sheets).items():
        results.setdefault(table, frame)
    results = {table: ASCEND[table].conform(frame) for table, frame in results.items() if frame.height}
    trace = _timeline(source, sheets, issues)
    if trace.spans.is_empty() and not results and not trace.tables:
        if not sheets:  # JSON, as the cluster_communication.json that is made of all ranks
            hint = "name the folder of each rank, `*_ascend_pt`; summaries of a whole cluster are not read"
            raise UnknownFormat(f"{source.label} has no records of one rank's collectives", hint)
        raise CorruptInput("a header and no rows", "export the profile again", path=source.label)
    if {"communication_time", "communication_links"} <= results.keys():
        trace = with_collectives(trace, results["communication_time"], results["communication_links"])
    trace = with_issues(_with_facts(trace, facts), issues)
    give_back(source.n_bytes)
    if not results:
        return trace
    declared = {table: Result(ASCEND[table], frame) for table, frame in results.items()}
    return Results(replace(trace.meta, format="ascend"), trace.tables, declared)


def _timeline(source: Source, sheets: dict[str, _Sheet], issues: IssueLog) -> Trace:
    """What was recorded, with the tables of CSV files; a trace without tables where there are only results."""
    name = ascend.plain_name(source.path)
    if name != ascend.RESULTS_DB and head_of(source.path, source.member).startswith(SQLITE_MAGIC):
        return database.read(source)
    if name == ascend.TIMELINE:
        return _with_sheets(kineto.read(source), sheets, issues)
    if name == ascend.KERNELS:
        return _with_sheets(of_kernels(_details(sheets[name]), source, issues), sheets, issues)
    rank = files.rank_in(source.path)
    return Trace(Meta(source.label, "ascend", size_bytes=source.n_bytes, rank=rank, framework="Ascend"), {})


def _add(
    source: Source, sheets: dict[str, _Sheet], results: dict[str, pl.DataFrame], facts: dict[str, Any], issues: IssueLog
) -> None:
    """Adds what one file next to the timeline holds."""
    name = ascend.plain_name(source.path)
    if name == ascend.TIMELINE or ascend.DATABASE.search(source.path):
        return
    if name == ascend.RESULTS_DB:
        results |= {table: frame for table, frame in _of_database(source, issues) if table not in results}
    elif name.endswith(".csv"):
        text = b"".join(source.chunks())
        try:
            frame = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
        except pl.exceptions.PolarsError as error:
            what = source.damage or str(error).splitlines()[0]
            raise CorruptInput(what, "copy the file again", path=source.label) from None
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # a blank line at the end
        places = {column.strip(): at for at, column in reversed(list(enumerate(frame.columns)))}  # the first of a name
        columns = [frame.to_series(at).alias(column) for column, at in places.items()]
        sheets[name] = _Sheet(pl.DataFrame(columns), name, issues)
    else:
        try:
            document = json.loads(b"".join(source.chunks()))
        except (ValueError, RecursionError) as error:
            raise CorruptInput(f"not JSON: {error}", "copy the file again", path=source.label) from None
        if name == ascend.COMMUNICATION:
            results |= _of_collectives(document, issues)
        elif name == ascend.MATRIX:
            results |= _of_matrix(document, issues)
        elif isinstance(document, dict):
            facts |= document


def _with_facts(trace: Trace, facts: dict[str, Any]) -> Trace:
    """The trace with the rank and the settings that profiler_info and profiler_metadata say."""
    job, config = (facts.get(key) for key in ("distributed_args", "config"))
    job, config = (value if isinstance(value, dict) else {} for value in (job, config))
    settings = config.get("experimental_config")
    settings = settings if isinstance(settings, dict) else {}
    texts = {
        "profiler_level": settings.get("_profiler_level"), "aic_metrics": settings.get("_aic_metrics"),
        **{key: facts.get(key) for key in ("torch_npu_version", "cann_version", "mindspore_version")},
    }  # fmt: skip
    rank = whole_number(facts.get("rank_id"), 31)
    rank = trace.meta.rank if rank is None or rank < 0 else rank
    world = whole_number(job.get("world_size"), 31)
    meta = replace(
        trace.meta,
        rank=rank,
        world_size=trace.meta.world_size if world is None else world,
        facts={**trace.meta.facts, **{key: _sound(text) for key, text in texts.items() if isinstance(text, str)}},
    )
    ranked = {table: trace.table(table).with_columns(rank=pl.lit(rank, pl.Int32)) for table in ("tracks", "steps")}
    ranked = {table: frame for table, frame in ranked.items() if frame.height}
    return replace(trace.with_tables(**ranked), meta=meta)


# Kernels and memory -----------------------------------------------------------------------------------------------


def _with_sheets(trace: Trace, sheets: dict[str, _Sheet], issues: IssueLog) -> Trace:
    if ascend.KERNELS in sheets and trace.spans.height:
        trace = _joined(trace, sheets[ascend.KERNELS], sheets.get("l2_cache.csv"), issues)
    blocks, records, modules = (
        sheets.get(name) for name in ("operator_memory.csv", "memory_record.csv", "npu_module_mem.csv")
    )
    if trace.spans.is_empty() or not any((blocks, records, modules)):
        return trace
    levels = [pl.DataFrame(schema=_SAMPLES)]
    levels += [_samples(records)] if records is not None else []
    levels += [of_modules(_samples(modules))] if modules is not None else []
    none = _Sheet(pl.DataFrame(), "operator_memory.csv", issues)
    return with_memory(trace, _blocks(blocks or none), pl.concat(levels))


def _details(sheet: _Sheet) -> pl.DataFrame:
    """A row for each kernel of kernel_details.csv, with its number as `row`."""
    frame = pl.DataFrame({
        "start": sheet.thousandths("Start Time(us)"),
        "dur": sheet.thousandths("Duration(us)"),
        "step": sheet.whole("Step Id"),
        "number": sheet.whole("Device_id"),
        "stream": sheet.whole("Stream ID"),
        "task": sheet.whole("Task ID"),
        "name": sheet.text("Name"),
        "type": sheet.text("Type"),
        "core": sheet.text("Accelerator Core"),
        "blocks": sheet.whole("Block Dim", "Block Num"),
        "shapes": sheet.text("Input Shapes"),
        "dtypes": sheet.text("Input Data Types"),
    })  # fmt: skip
    of_cores = ~pl.col("core").is_in(_COMMUNICATION).fill_null(value=False)
    return frame.with_row_index("row").with_columns(
        is_collective=~of_cores, core=pl.when(of_cores).then("core"), type=pl.when(of_cores).then("type"),
        blocks=pl.when(of_cores).then("blocks"),
    )  # fmt: skip


def _joined(trace: Trace, sheet: _Sheet, cache: _Sheet | None, issues: IssueLog) -> Trace:
    """The trace with the rows of kernel_details.csv at its kernels, by their names and starts."""
    details = _details(sheet)
    kernels = trace.spans.filter(pl.col("category") == "kernel").select(
        "span_id", pl.col("name").cast(pl.String), start=pl.col("ts_ns") + trace.meta.origin_recorded_ns
    )
    details = details.sort("start").join_asof(
        kernels.sort("start"), on="start", by="name", strategy="nearest", tolerance=_SAME_START_NS,
        check_sortedness=False,
    )  # fmt: skip
    lost = details["span_id"].null_count()
    issues.add("kernels_untied", "warning", lost, "rows of kernel_details.csv that belong to no kernel of the timeline")
    details = details.drop_nulls("span_id").unique("span_id", keep="first", maintain_order=True)
    wide = pl.DataFrame({"wait_time(us)": sheet.number("Wait Time(us)")}, height=sheet.frame.height).with_columns(
        sheet.number(column).alias(column)
        for column in sheet.frame.columns
        if not _FACTS.fullmatch(column) and column != "Wait Time(us)"
    )
    wide = wide[details["row"].cast(pl.Int64)].with_columns(details["span_id"])
    if cache is not None:
        rates = pl.DataFrame({
            "task": cache.whole("Task Id"), "stream": cache.whole("Stream Id"),
            "l2_hit_rate": cache.number("Hit Rate"), "l2_victim_rate": cache.number("Victim Rate"),
        })  # fmt: skip
        rates = details.select("span_id", "task", "stream").drop_nulls().join(
            rates.drop_nulls(["task", "stream"]).unique(["task", "stream"]), on=["task", "stream"]
        )  # fmt: skip
        wide = wide.join(rates.drop("task", "stream"), on="span_id", how="left", maintain_order="left")
    return with_kernels(trace, details, metric_rows(wide))


_SAMPLES = {
    "component": pl.String(), "number": pl.Int64(), "ts_ns": pl.Int64(), "kind": pl.String(), "value": pl.Int64(),
}  # fmt: skip


def _number_of_device(sheet: _Sheet) -> pl.Series:
    """The 0 of `NPU:0`."""
    return sheet.text("Device Type", "Device").str.extract(r"(\d{1,9})$").cast(pl.Int64, strict=False)


def _blocks(sheet: _Sheet) -> pl.DataFrame:
    """Blocks of memory as `with_memory` takes them."""
    times = {"ts_ns": "Allocation Time(us)", "freed_ns": "Release Time(us)"}
    totals = {
        "held": "Allocation Total Allocated(MB)", "reserved": "Allocation Total Reserved(MB)",
        "freed_held": "Release Total Allocated(MB)", "freed_reserved": "Release Total Reserved(MB)",
    }  # fmt: skip
    return pl.DataFrame({
        "name": sheet.text("Name"),
        "number": _number_of_device(sheet),
        "bytes": sheet.sized(_KIB, "Size(KB)"),
        **{new: sheet.thousandths(old) for new, old in times.items()},
        **{new: sheet.sized(_MIB, old) for new, old in totals.items()},
    })  # fmt: skip


def _samples(sheet: _Sheet) -> pl.DataFrame:
    """Samples of memory as `with_memory` takes them."""
    shared = pl.DataFrame({
        "component": sheet.text("Component"),
        "number": _number_of_device(sheet),
        "ts_ns": sheet.thousandths("Timestamp(us)"),
    })  # fmt: skip
    kinds = [
        shared.with_columns(kind=pl.lit(kind), value=sheet.sized(_MIB, column)) for kind, column in _LEVELS.items()
    ]
    return pl.concat(kinds)


# What the profiler computed ---------------------------------------------------------------------------------------


def _of_sheets(sheets: dict[str, _Sheet]) -> dict[str, pl.DataFrame]:
    """The results of CSV files."""
    results = {}
    if (sheet := sheets.get("step_trace_time.csv")) is not None:
        results["step_trace_time"] = _step_times(sheet)
    if (sheet := sheets.get("op_statistic.csv")) is not None:
        share = sheet.number("Ratio(%)") / 100
        results["op_statistic"] = _statistic(sheet, name="OP Type", core="Core Type").with_columns(share_ratio=share)
    if (sheet := sheets.get("api_statistic.csv")) is not None:
        calls = _statistic(sheet, name="API Name", level="Level")
        results["api_statistic"] = calls.sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    return results


def _step_times(sheet: _Sheet) -> pl.DataFrame:
    return pl.DataFrame({
        "step": sheet.whole("Step", "step"),
        "device": sheet.whole("Device_id", "deviceId"),
        **{f"{name}_ns": sheet.thousandths(*columns) for name, columns in _STEP_TIMES.items()},
    })  # fmt: skip


def _statistic(sheet: _Sheet, **texts: str) -> pl.DataFrame:
    times = {"total_ns": "Time(us)", "min_ns": "Min Time(us)", "max_ns": "Max Time(us)"}
    short = {column: text.replace(" Time", "") for column, text in times.items()}
    return pl.DataFrame({
        **{new: sheet.text(old) for new, old in texts.items()},
        "device": sheet.text("Device_id").cast(pl.Int64, strict=False),  # or the word host
        "calls": sheet.whole("Count"),
        "total_ns": sheet.thousandths("Total Time(us)", "Time(us)"),
        **{new: sheet.thousandths(times[new], short[new]) for new in ("min_ns", "max_ns")},
        "mean_ns": sheet.number("Avg Time(us)", "Avg(us)") * 1000,
    })  # fmt: skip


def _records(document: object, issues: IssueLog) -> Iterator[tuple[int | None, str, str, str | None, dict[str, Any]]]:
    """Step, kind, name, group and record of each collective of a JSON document. What has no such form is counted."""
    lost = 0
    kinds = ("collective", "p2p")
    top = document if isinstance(document, dict) else {"": document}
    steps = {"": top} if any(kind in top for kind in kinds) else top
    for step, of_step in steps.items():
        number = re.search(r"\d{1,9}", step)
        for kind in kinds:
            records = of_step.get(kind, {}) if isinstance(of_step, dict) else None
            if not isinstance(records, dict):
                lost += 1
                continue
            for key, record in records.items():
                name, _, group = _sound(key).partition("@")
                if isinstance(record, dict):
                    yield (int(number[0]) if number else None), kind, name, group or None, record
                else:
                    lost += 1
    issues.add("records_dropped", "warning", lost, "records of collectives that are not as they should be")


def _amount(record: object, key: str, unit: int) -> int | None:
    """A number of a record in units; None if it is none."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 2**62 / unit:
        return None
    whole = int(value)  # apart: a start in ns has more digits than a double
    return whole * unit + round((value - whole) * unit)


def _sound(text: str) -> str:
    """The text without lone surrogates, which JSON may escape and no table can hold."""
    return text.encode("utf-8", "replace").decode()


def _of_collectives(document: object, issues: IssueLog) -> dict[str, pl.DataFrame]:
    """The results of communication.json."""
    times, links = [], []
    for *keys, record in _records(document, issues):
        if keys[2] == "Total Op Info":
            continue
        parts = record.get("Communication Time Info")
        start = _amount(parts, "Start Timestamp(us)", 1000)
        times.append((*keys, start, *(_amount(parts, text, 10**6) for text in _PARTS_OF_TIME.values())))
        moved = record.get("Communication Bandwidth Info")
        for link, amounts in moved.items() if isinstance(moved, dict) else ():
            if size := _amount(amounts, "Transit Size(MB)", _MB):
                large = _amount(amounts, "Large Packet Ratio", 10**6)
                links.append((
                    *keys, _sound(link), size, _amount(amounts, "Transit Time(ms)", 10**6),
                    _amount(amounts, "Bandwidth(GB/s)", 10**9), None if large is None else large / 10**6,
                ))  # fmt: skip
    return {
        "communication_time": ASCEND["communication_time"].of_rows(times),
        "communication_links": ASCEND["communication_links"].of_rows(links),
    }


def _of_matrix(document: object, issues: IssueLog) -> dict[str, pl.DataFrame]:
    """The results of communication_matrix.json."""
    rows = []
    for *keys, record in _records(document, issues):
        for pair, sent in record.items():
            ends = re.fullmatch(r"(\d{1,9})-(\d{1,9})", pair)
            if ends is None or not isinstance(sent, dict):
                issues.add("records_dropped", "warning", 1, "records of collectives that are not as they should be")
                continue
            texts = [
                _sound(text) if isinstance(text := sent.get(key), str) else None
                for key in ("Transport Type", "Op Name")
            ]
            amounts = (("Transit Size(MB)", _MB), ("Transit Time(ms)", 10**6), ("Bandwidth(GB/s)", 10**9))
            values = (_amount(sent, key, unit) for key, unit in amounts)
            rows.append((*keys, *map(int, ends.groups()), texts[0], *values, texts[1]))
    return {"communication_matrix": ASCEND["communication_matrix"].of_rows(rows)}


def _of_database(source: Source, issues: IssueLog) -> Iterator[tuple[str, pl.DataFrame]]:
    """The results of analysis.db. Raises CorruptInput, StepscopeError."""
    with opened(source, issues) as db:

        def sheet(table: str) -> _Sheet | None:
            columns = db.columns_of(table)
            cells = {name: [None if v is None else str(v) for v in db.column(table, f'"{name}"')] for name in columns}
            return (
                _Sheet(pl.DataFrame(cells, schema=dict.fromkeys(columns, pl.String)), table, issues) if cells else None
            )

        if (steps := sheet("StepTraceTime")) is not None:
            yield "step_trace_time", _step_times(steps)
        if (times := sheet("CommAnalyzerTime")) is not None:
            parts = {f"{part}_ns": times.sized(10**6, f"{part}_time") for part in _PARTS_OF_TIME}
            frame = pl.DataFrame(_keys_of(times) | {"start_ns": times.thousandths("start_timestamp")} | parts)
            yield "communication_time", frame
        for name, table in (("links", "CommAnalyzerBandwidth"), ("matrix", "CommAnalyzerMatrix")):
            if (moved := sheet(table)) is None:
                continue
            frame = pl.DataFrame({
                **_keys_of(moved),
                "src_rank": moved.whole("src_rank"),
                "dst_rank": moved.whole("dst_rank"),
                "operation": moved.text("op_name"),
                "link": moved.text("transport_type"),
                "bytes": moved.sized(_MB, "transit_size"),
                "transit_ns": moved.sized(10**6, "transit_time"),
                "bytes_per_s": moved.number("bandwidth") * 1e9,
                "large_ratio": moved.number("large_packet_ratio"),
            })  # fmt: skip
            # A row for each size of packets, each with the whole of its link.
            whole = frame.unique(maintain_order=True).filter((pl.col("bytes") > 0).fill_null(value=False))
            yield f"communication_{name}", whole


def _keys_of(sheet: _Sheet) -> dict[str, pl.Series]:
    return {
        "step": sheet.text("step").str.extract(r"(\d{1,9})").cast(pl.Int64),
        "kind": sheet.text("type"),
        "name": sheet.text("hccl_op_name"),
        "group": sheet.text("group_name"),
    }
